# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The allocator's classes that the wheel has, one for each minor version of PyTorch. Imports
nothing of the package.

lib/torch has 2.11.so and 2.11.headers, whose first line is the hash of the headers that the class
was compiled against, and whose others are their names."""

from __future__ import annotations

import hashlib
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib", "torch")
#: Made when PyTorch is built; it has one setting, which is compared by itself.
GENERATED = "c10/cuda/impl/cuda_cmake_macros.h"
_SHARED = re.compile(r"^\s*#\s*define\s+C10_CUDA_BUILD_SHARED_LIBS\b", re.MULTILINE)


def hash_of(include: str, names: list[str]) -> str:
    """Of the headers of these names and their contents. Raises OSError."""
    what = hashlib.sha256()
    for name in names:
        with open(os.path.join(include, name), "rb") as file:
            what.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return what.hexdigest()


def versions(folder: str = FOLDER) -> list[str]:
    """The minor versions that there are classes for."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [each[:-3] for each in names if re.fullmatch(r"2\.\d+\.so", each)]
    return sorted(found, key=lambda each: int(each.split(".")[1]))


def find(torch: str, version: str, is_new_abi: bool, folder: str = FOLDER) -> tuple[str, str]:
    """The path of the class for the PyTorch in the folder `torch`; else why there is none."""
    minor = ".".join(version.split(".")[:2])
    known = versions(folder)
    if minor not in known:
        listed = ", ".join(known) or "none"
        return "", f"no class was built ahead for PyTorch {minor} (there are: {listed})"
    if not is_new_abi:
        return "", f"PyTorch {version} has the older ABI of C++ strings"
    include = os.path.join(torch, "include")
    try:
        with open(os.path.join(folder, f"{minor}.headers"), encoding="utf-8") as file:
            expected, *names = file.read().split()
        found = hash_of(include, names)
        with open(os.path.join(include, GENERATED), encoding="utf-8", errors="replace") as file:
            is_shared = _SHARED.search(file.read()) is not None
    except (OSError, ValueError) as trouble:  # of a list that is empty or not a text, too
        return "", f"the headers of PyTorch {version} cannot be compared: {trouble}"
    if found != expected or not is_shared:
        return "", f"the headers of PyTorch {version} are not those of the class for {minor}"
    return os.path.join(folder, f"{minor}.so"), ""
