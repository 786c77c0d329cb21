# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of `python -m libvmm`."""

from __future__ import annotations

import difflib
import os
import sys

import libvmm

from . import _doctor, _fit, _programs, _run

_WORDS = ("doctor", "run", "fit", "record", "owner", "version", "help")
# Not the docstring, which -OO drops.
_USAGE = (
    "python -m libvmm doctor [--json] [--tree PID] | run [--mode MODE] SCRIPT [ARGUMENTS] | "
    "fit FILE... | record [-o FILE] SCRIPT [ARGUMENTS] | owner serve|ctl ... | version"
)


def _answer(word: str, arguments: list[str]) -> tuple[str, int]:
    """What goes to stdout, and the exit code."""
    if word == "doctor":
        return _doctor.main(arguments)
    if word in ("version", "--version") and arguments:
        print(f"libvmm: {word} takes no '{arguments[0]}'", file=sys.stderr)
        return "", 2
    if word in ("version", "--version"):
        return libvmm.__version__, 0
    if word in ("help", "-h", "--help"):
        return f"usage: {_USAGE}", 0
    near = difflib.get_close_matches(word, _WORDS, n=1)
    nearest = f"; the nearest is {near[0]}" if near else ""
    print(
        f"libvmm: unknown command '{word}'{nearest} (python -m libvmm --help lists them)",
        file=sys.stderr,
    )
    return "", 2


def _written(text: str, code: int) -> int:
    """The code, or 1 where stdout does not take the text."""
    if text and sys.stdout is None:
        print("libvmm: stdout cannot be written to: it is closed", file=sys.stderr)
        return 1
    try:
        print(text, end="\n" if text else "", flush=True)
    except OSError as trouble:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if not isinstance(trouble, BrokenPipeError):
            print(f"libvmm: stdout cannot be written to: {trouble.strerror}", file=sys.stderr)
        return 1
    return code


def main() -> int:
    if len(sys.argv) < 2:
        print("libvmm: which command? (python -m libvmm --help lists them)", file=sys.stderr)
        return 2
    word, arguments = sys.argv[1], sys.argv[2:]
    if word == "run":
        return _run.main(arguments)
    if word in ("fit", "owner"):
        return _programs.execute(word, arguments)
    if word == "record":
        return _fit.record(arguments)
    return _written(*_answer(word, arguments))


if __name__ == "__main__":
    sys.exit(main())
