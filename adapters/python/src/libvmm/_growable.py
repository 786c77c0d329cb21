# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The structs and calls of vmm.h for growable ranges."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _native

_U64, _U32, _HANDLE = _native.U64, _native.U32, _native.HANDLE


class Options(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("segment_bytes_max", _U64),
        ("segment_count", _U64),
        ("handle_bytes", _U64),
        ("keep_dirty", _U32),
        ("gives_tail", _U32),
    ]


class Request(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("size_bytes", _U64),
        ("first_segment", _U64),
        ("segment_count", _U64),
        ("stream", _HANDLE),
        ("change", _U32),
        ("one_handle", _U32),
        ("no_wait", _U32),
        ("reserved", _U32),
    ]


class Info(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("base", _HANDLE),
        ("segment_count", _U64),
        ("segment_bytes_max", _U64),
        ("stride_bytes", _U64),
        ("handle_bytes", _U64),
        ("size_bytes", _U64),
        ("physical_bytes", _U64),
        ("handle_count", _U64),
        ("pin_count", _U64),
    ]


_CALLS: dict[str, list[Any]] = {
    "vmm_growable_options_init": [ctypes.POINTER(Options), _U64],
    "vmm_growable_create": [_HANDLE, ctypes.POINTER(Options), ctypes.POINTER(_HANDLE)],
    "vmm_growable_destroy": [_HANDLE, _HANDLE],
    "vmm_growable_resize": [_HANDLE, ctypes.POINTER(Request)],
    "vmm_growable_synchronize": [_HANDLE, _HANDLE],
    "vmm_growable_query": [_HANDLE, ctypes.POINTER(Info)],
    "vmm_growable_segment": [_HANDLE, _U64, ctypes.POINTER(_HANDLE), ctypes.POINTER(_U64)],
    "vmm_growable_parts": [_HANDLE, _U64, ctypes.POINTER(_native.Part), _U64, ctypes.POINTER(_U64)],
    "vmm_growable_pin": [_HANDLE, _U64, _U64, _U64, ctypes.POINTER(_U64)],
    "vmm_growable_unpin": [_HANDLE, _U64],
    "vmm_growable_validate": [_HANDLE],
}
for _name, _arguments in _CALLS.items():
    _function = getattr(_native.LIBRARY, _name)
    _function.argtypes, _function.restype = _arguments, _native.I32
