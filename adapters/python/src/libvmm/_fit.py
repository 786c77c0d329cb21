# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m libvmm record [-o FILE] SCRIPT [ARGUMENTS]`: runs a script of PyTorch as python would,
and writes its memory snapshot at the end, also after an exception or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import stat
import sys
from typing import Any

from ._run import refused


def _path_of_rank(path: str) -> str:
    """Each process of torchrun has a file of its own."""
    rank = os.environ.get("RANK", "")
    if not rank or os.environ.get("WORLD_SIZE", "1") == "1":
        return path
    root, suffix = os.path.splitext(path)
    return f"{root}.rank{rank}{suffix}"


def _check_writable(path: str) -> str:
    """The reason why the file cannot be written, or "". Leaves the file unchanged."""
    is_new = not os.path.exists(path)
    try:
        if not is_new and stat.S_ISFIFO(os.stat(path).st_mode):
            return f"{path} cannot be written: it is a named pipe (FIFO)"
        with open(path, "ab"):
            pass
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    if is_new:
        os.unlink(path)
    return ""


def _unused(path: str) -> str:
    """The path, or the first of memory-2.pickle and so on without a file."""
    root, suffix = os.path.splitext(path)
    number = 2
    while os.path.exists(path):
        path, number = f"{root}-{number}{suffix}", number + 1
    return path


def _write(path: str) -> int:
    """1 if the snapshot cannot be written."""
    import torch

    try:
        torch.cuda.memory._dump_snapshot(path)
    except OSError as error:
        print(f"libvmm record: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"libvmm record: wrote {path}; python -m libvmm fit {path}", file=sys.stderr)
    return 0


def record(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m libvmm record",
        description="Runs a script and writes PyTorch's memory snapshot for python -m libvmm fit.",
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="default: memory.pickle, then memory-2.pickle and so on"
    )
    parser.add_argument(
        "--max-entries",
        type=int,
        default=4_000_000,
        metavar="N",
        help="events of each device that are kept, the newest (default: 4,000,000)",
    )
    parser.add_argument(
        "script", nargs="?", help="as python takes it: a file, or a folder with __main__.py"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)

    def fail(why: str) -> int:
        print(f"libvmm record: {why}", file=sys.stderr)
        return 2

    if options.script is None:
        return fail("which script? python -m libvmm record SCRIPT [ARGUMENTS]; --help has the rest")
    if options.max_entries < 1:
        return fail("--max-entries takes a number from 1 on")
    if why := refused(options.script):
        return fail(why)
    path = _path_of_rank(options.out) if options.out else _unused(_path_of_rank("memory.pickle"))
    if why := _check_writable(path):
        return fail(why)
    try:
        import torch
    except ImportError:
        return fail("PyTorch is not installed")
    if not torch.cuda.is_available():
        return fail("PyTorch has no GPU here")
    if torch.cuda.get_allocator_backend() != "native":
        return fail("cudaMallocAsync writes no snapshots: unset backend:cudaMallocAsync")
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(
        enabled="all", context="all", stacks="python", max_entries=options.max_entries
    )
    sys.argv = [options.script, *options.arguments]
    script = os.path.abspath(options.script)
    sys.path[0] = script if os.path.isdir(script) else os.path.dirname(script)

    def end(number: int, frame: Any) -> None:
        sys.exit(128 + number)  # so that the snapshot is written

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    code = 0
    try:
        runpy.run_path(options.script, run_name="__main__")
    finally:
        code = _write(path)
    return code
