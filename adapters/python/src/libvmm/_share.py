# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The structs and calls of vmm.h for sharing."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _native

_U64, _U32, _I32, _HANDLE = _native.U64, _native.U32, _native.I32, _native.HANDLE
_OUT = ctypes.POINTER(_HANDLE)

SECRET_BYTES = 32
LABEL_BYTES = 32


class Options(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("secret", ctypes.c_uint8 * SECRET_BYTES),
        ("timeout_ms", _U32),
        ("reserved", _U32),
    ]


class Export(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("size_bytes", _U64),
        ("handle_bytes", _U64),
        ("kind", _U32),
        ("followed", _U32),
        ("one_handle", _U32),
        ("reserved", _U32),
        ("label", ctypes.c_uint8 * LABEL_BYTES),
    ]


class Import(_native.Sized):
    _fields_ = [("struct_size", _U64), ("read_only", _U32), ("any_device", _U32)]


class Info(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("base", _HANDLE),
        ("size_bytes", _U64),
        ("id", _U64),
        ("epoch", _U64),
        ("part_count", _U64),
        ("lent", _U32),
        ("reserved", _U32),
        ("label", ctypes.c_uint8 * LABEL_BYTES),
    ]


class Event(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("id", _U64),
        ("epoch", _U64),
        ("kind", _U32),
        ("reason", _I32),
    ]


_SECRET = ctypes.POINTER(ctypes.c_uint8)
_CALLS: dict[str, list[Any]] = {
    "vmm_share_make_secret": [_SECRET],
    "vmm_share_read_secret": [_native.TEXT, _SECRET],
    "vmm_share_options_init": [ctypes.POINTER(Options), _U64],
    "vmm_share_listen": [_native.TEXT, _OUT],
    "vmm_share_accept": [_HANDLE, ctypes.POINTER(Options), _OUT],
    "vmm_share_stop": [_HANDLE],
    "vmm_share_connect": [_native.TEXT, ctypes.POINTER(Options), _OUT],
    "vmm_share_adopt": [_I32, _U32, ctypes.POINTER(Options), _OUT],
    "vmm_share_close": [_HANDLE],
    "vmm_share_descriptor": [_HANDLE, ctypes.POINTER(_I32)],
    "vmm_share_export": [_HANDLE, ctypes.POINTER(Export), _OUT],
    "vmm_share_export_block": [_HANDLE, _HANDLE, ctypes.POINTER(Export), _OUT],
    "vmm_share_moved": [_HANDLE, _HANDLE],
    "vmm_share_query_export": [_HANDLE, ctypes.POINTER(Info)],
    "vmm_share_end_export": [_HANDLE],
    "vmm_share_lend": [_HANDLE, _HANDLE, ctypes.POINTER(_U64)],
    "vmm_share_update": [_HANDLE, _U64, ctypes.POINTER(_U64)],
    "vmm_share_take_back": [_HANDLE, _U64],
    "vmm_share_next": [_HANDLE, _U32, ctypes.POINTER(Event)],
    "vmm_share_borrow": [_HANDLE, _HANDLE, ctypes.POINTER(Import), _OUT],
    "vmm_share_apply": [_HANDLE, _HANDLE],
    "vmm_share_query_import": [_HANDLE, ctypes.POINTER(Info)],
    "vmm_share_give_back": [_HANDLE, _HANDLE],
    "vmm_share_end_import": [_HANDLE],
}
for _name, _arguments in _CALLS.items():
    _function = getattr(_native.LIBRARY, _name)
    _function.argtypes, _function.restype = _arguments, _I32
