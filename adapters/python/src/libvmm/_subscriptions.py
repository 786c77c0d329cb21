# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Callbacks of pools, which the C library calls."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from . import _lifetime, _native
from .reports import RemapKind, RemapNotice

#: The function that calls one of thunk_of(), its context.
REMAPPED = ctypes.cast(_native.LIBRARY.vmm_python_remapped, ctypes.c_void_p)


class Subscribers(dict[object, Callable[[RemapNotice], None]]):
    """The callbacks of a pool, owned by its Python object."""


def thunk_of(subscribers: weakref.ref[Subscribers], key: object) -> Any:
    """Returns the function that the C library calls for one of the callbacks."""

    reported = ""

    @_native.REMAP_CALLBACK
    def called(_context: int, notice: Any) -> None:
        nonlocal reported
        there = subscribers()
        callback = None if there is None else there.get(key)
        if callback is None:
            return
        seen = notice.contents
        try:
            change = RemapNotice(seen.epoch, seen.base or 0, seen.size_bytes, RemapKind(seen.kind))
            _lifetime.call_back(callback, change)
        except Exception as trouble:
            if reported != repr(trouble):
                reported = repr(trouble)
                raise

    return called
