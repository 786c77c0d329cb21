# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Other owners of CUDA's calls in this process."""

from __future__ import annotations

import ctypes
import re

_HOOKS = ("dlsym", "cuMemAlloc_v2", "cuGetProcAddress_v2", "cudaMalloc", "cudaFree")


def hooks() -> dict[str, str]:
    """The libraries other than the system's that define names that interposers override."""

    class Found(ctypes.Structure):
        _fields_ = [
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        ]

    process = ctypes.CDLL(None)
    try:
        process.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Found)]
    except AttributeError:
        return {}
    taken = {}
    for name in _HOOKS:
        try:
            at = ctypes.cast(getattr(process, name), ctypes.c_void_p).value
        except AttributeError:
            continue
        found = Found()
        if process.dladdr(at, ctypes.byref(found)) and found.file:
            file = found.file.decode(errors="replace")
            if not re.search(
                r"/(libc|libdl|ld-linux[^/]*)\.so|/(libcuda|libcudart)(-[0-9a-f]+)?\.so", file
            ):
                taken[name] = file
    return taken
