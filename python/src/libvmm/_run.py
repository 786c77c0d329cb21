# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m libvmm run [--mode MODE] SCRIPT [ARGUMENTS]`: runs a script as python would, with
vmm under it.

    torch    libvmm.torch.enable() before the script (the default)
    monitor, vmm, cache, off
             the script under the preload library, in that mode (docs/preload.md)
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys

from ._doctor import preload_library
from .errors import Error

_PRELOAD_MODES = ("monitor", "vmm", "cache", "off")


def _fail(text: str) -> int:
    print(f"libvmm run: {text}", file=sys.stderr)
    return 2


def _run_preloaded(mode: str, script: list[str]) -> int:  # noqa: RET503 (execv)
    library = preload_library()
    if library is None:
        return _fail(
            f"mode {mode} needs libvmm_preload.so, which is neither in this package nor "
            "beside its C library; Debian has it in vmm-tools"
        )
    if re.search(r"[\s:]", library):
        return _fail(
            f"the loader takes blanks and colons in LD_PRELOAD for the end of a name, and "
            f"the library is {library}: install libvmm in a folder without them"
        )
    before = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = f"{library}:{before}" if before else library
    os.environ["VMM_MODE"] = mode
    os.execv(sys.executable, [sys.executable, *script])


def _run_torch(script: list[str]) -> int:
    from . import torch

    try:
        torch.enable()
    except (ImportError, torch.Refused, Error) as trouble:
        return _fail(str(trouble))
    sys.argv = script
    sys.path[0] = os.path.dirname(os.path.abspath(script[0]))
    runpy.run_path(script[0], run_name="__main__")
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m libvmm run", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--mode", choices=("torch", *_PRELOAD_MODES), default="torch")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not os.path.exists(options.script):
        return _fail(f"there is no {options.script}")
    script = [options.script, *options.arguments]
    return _run_torch(script) if options.mode == "torch" else _run_preloaded(options.mode, script)
