# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What the allocator's source covers of PyTorch's headers. Imports nothing of the package."""

from __future__ import annotations

import os
import re

#: The minor versions of PyTorch 2 whose headers `./run check torch` compiles the source against.
MINORS = range(7, 16)
#: Those of them that the checks on a GPU have run with.
MINORS_ON_A_GPU = (11,)

# The classes of PyTorch whose virtual functions the source overrides, and the headers they are in.
_CLASSES = (
    ("c10/core/Allocator.h", "Allocator"),
    ("c10/core/CachingDeviceAllocator.h", "DeviceAllocator"),
    ("c10/cuda/CUDACachingAllocator.h", "CUDAAllocator"),
)
# What the base class does is right for every block.
_INHERITED = {"is_simple_data_ptr"}
# What PyTorch's own allocator has since a minor version, and this one with it.
_SINCE = (
    (8, "snapshots and empty_cache of one pool"),
    (9, "torch.accelerator's figures"),
    (10, "metadata in histories"),
    (13, "marks of captures"),
    (14, "annotations of blocks"),
)


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def virtual_functions(include: str) -> set[str]:
    """The names of all virtual functions that PyTorch's allocator has by its headers."""
    found: set[str] = set()
    for header, name in _CLASSES:
        try:
            with open(os.path.join(include, header), encoding="utf-8", errors="replace") as file:
                text = without_comments(file.read())
        except OSError:
            continue
        body = re.search(
            rf"\b(?:class|struct)\s+(?:C10_\w+\s+)?{name}\b[^;{{]*{{(.*?)^}};",
            text,
            re.DOTALL | re.MULTILINE,
        )
        if body:
            found.update(re.findall(r"\bvirtual\s[^;{}=~]*?\b(\w+)\s*\(", body[1]))
    return found


def overridden_functions(source: str) -> set[str]:
    """The names of those that the source overrides."""
    with open(source, encoding="utf-8") as file:
        text = without_comments(file.read())
    return set(re.findall(r"\b(\w+)\([^;{}]*?\)\s*(?:const\s*)?override\b", text))


def unknown_functions(include: str, source: str) -> list[str]:
    """Virtual functions of a PyTorch that the source does not override. Their defaults do nothing
    or raise, so that an allocator without them compiles and is wrong."""
    return sorted(virtual_functions(include) - overridden_functions(source) - _INHERITED)


def support(version: str) -> str:
    """The ways of libvmm.torch that a version of PyTorch has, and what it lacks."""
    number = re.match(r"2\.(\d+)", version)
    minor = int(number[1]) if number else 0
    if minor < MINORS[0]:
        return f"way 'functions' only: the class is for PyTorch 2.{MINORS[0]} and later"
    if minor > MINORS[-1]:
        return (
            f"newer than 2.{MINORS[-1]}: way 'allocator' if its headers have no function that "
            "libvmm does not forward, else 'functions'"
        )
    run = (
        "tested on a GPU"
        if minor in MINORS_ON_A_GPU
        else "compiled against this version's headers and not run on a GPU"
    )
    lacks = ", ".join(what for since, what in _SINCE if minor < since)
    return f"way 'allocator', {run}" + (f"; this PyTorch lacks {lacks}" if lacks else "")
