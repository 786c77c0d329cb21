# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of the wheel: `python -m libvmm fit` is vmm-fit, and `owner` is vmm-owner."""

from __future__ import annotations

import os
import shutil
import sys

from . import _native

_FOLDERS = {"fit": "tools", "owner": os.path.join("tools", "owner")}  # of a build


def find_program(word: str) -> str | None:
    """The wheel's own, that of the build that the C library is from, or the system's."""
    name = f"vmm-{word}"
    places = [os.path.join(_native.FOLDER, "bin", name)]
    folder = os.path.abspath(_native.PATH) if os.path.dirname(_native.PATH) else ""
    for _ in range(3):  # build/PRESET/adapters/c/libvmm.so.1
        folder = os.path.dirname(folder)
        if folder:
            places.append(os.path.join(folder, _FOLDERS[word], name))
    for path in places:
        if os.access(path, os.X_OK):
            return path
    return shutil.which(name)


def execute(word: str, arguments: list[str]) -> int:
    """Runs the program; returns only if it is missing."""
    program = find_program(word)
    if program is None:
        print(
            f"libvmm {word}: vmm-{word} is neither in this package nor beside its C library; "
            "Debian has it in vmm-tools",
            file=sys.stderr,
        )
        return 3
    os.execv(program, [program, *arguments])
