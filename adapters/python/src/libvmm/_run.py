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
import hashlib
import os
import re
import runpy
import stat
import subprocess
import sys

from ._doctor import preload_library
from .errors import Error

_PRELOAD_MODES = ("monitor", "vmm", "cache", "off")


def _fail(text: str) -> int:
    print(f"libvmm run: {text}", file=sys.stderr)
    return 2


def refused(script: str) -> str:
    """The reason why `script` cannot run, or ""."""
    if not os.path.exists(script):
        return f"there is no {script}"
    code = os.path.join(script, "__main__.py") if os.path.isdir(script) else script
    if not os.path.exists(code):
        return f"{script} is a folder without __main__.py: name a script"
    # A pipe that a shell has opened, as /dev/fd/N, has its other end.
    if not os.path.isfile(code) and "pipe:[" not in os.path.realpath(code):
        return f"{code} is a named pipe (FIFO), a socket, a device or a folder: name a script"
    return "" if os.access(code, os.R_OK) else f"{code} cannot be read"


def _loadable(library: str) -> str:
    """A name of the library for LD_PRELOAD, which is cut at blanks and colons and has variables
    after a $: where its own path has one of them, a link in a folder of this user, as `./run
    preload` makes it. Raises OSError where there can be none."""
    if not re.search(r"[\s:$]", library):
        return library
    folder = f"/tmp/vmm-preload-{os.getuid()}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not is_own or stat.S_IMODE(found.st_mode) != 0o700:
            raise OSError(f"{folder} is not a folder of this user alone") from None
    name = hashlib.sha256(os.fsencode(library)).hexdigest()[:16]
    link = f"{folder}/libvmm_preload.{name}.so"
    os.symlink(library, f"{link}.{os.getpid()}")
    os.replace(f"{link}.{os.getpid()}", link)
    return link


def _interpreter_options() -> list[str]:
    """Those before `-m libvmm`."""
    words = getattr(sys, "orig_argv", [])  # since Python 3.10
    for at in range(1, len(words)):
        found = re.fullmatch(r"-([a-zA-Z]*)m(libvmm)?", words[at])
        if found and (found[2] or words[at + 1 : at + 2] == ["libvmm"]):
            return [*words[1:at], *([f"-{found[1]}"] if found[1] else [])]
    made: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return made


def _run_preloaded(mode: str, script: list[str]) -> int:
    library = preload_library()
    if library is None and mode != "off":
        return _fail(
            f"mode {mode} needs libvmm_preload.so, which is neither in this package nor "
            "beside its C library; Debian has it in vmm-tools"
        )
    before = os.environ.get("LD_PRELOAD", "")
    if library is not None:
        try:
            name = _loadable(library)
        except OSError as trouble:
            return _fail(
                f"LD_PRELOAD takes no path with blanks or colons ({library}), and no link to it "
                f"can be made: {trouble}"
            )
        os.environ["LD_PRELOAD"] = f"{name}:{before}" if before else name
    os.environ["VMM_MODE"] = mode
    end = ["--"] if script[0].startswith("-") else []
    os.execv(sys.executable, [sys.executable, *_interpreter_options(), *end, *script])


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
        prog="python -m libvmm run",
        usage="%(prog)s [--mode MODE] [--] SCRIPT [ARGUMENTS]",
        description="Runs a script as python would, with vmm under it (docs/preload.md).",
        allow_abbrev=False,
    )
    parser.add_argument("--mode", choices=("torch", *_PRELOAD_MODES), default="torch")
    at = 0  # of the script: what follows it is its own
    while at < len(arguments) and re.match("-(?!-?$)", arguments[at]):
        at += 2 if arguments[at] == "--mode" else 1
    options = parser.parse_args(arguments[:at])
    script = arguments[at + 1 :] if arguments[at : at + 1] == ["--"] else arguments[at:]
    if not script:
        return _fail("which script? python -m libvmm run SCRIPT [ARGUMENTS]; --help has the rest")
    if why := refused(script[0]):
        return _fail(why)
    return _run_torch(script) if options.mode == "torch" else _run_preloaded(options.mode, script)
