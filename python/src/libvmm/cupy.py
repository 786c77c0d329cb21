# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory from a pool.

    import libvmm, libvmm.cupy
    pool = libvmm.Pool(libvmm.Driver("cuda"))
    libvmm.cupy.enable(pool)

CuPy's hook has no stream, so that each call takes CuPy's current one; memory goes back in the
order of the stream that it was allocated on, as with CuPy's own pools.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from . import _values
from .errors import Error
from .pools import Pool

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class Functions:
    """The two functions of cupy.cuda.CFunctionAllocator, `void* (void* param, size_t size, int
    device)` and `void (void* param, void* at, int device)`, by their addresses. Keep the object for
    as long as memory of it lives."""

    def __init__(self, pool: Pool, current_stream: Any) -> None:
        _values.function("current_stream", current_stream)
        self.pool = _values.one_of("pool", pool, Pool)
        self._current_stream = current_stream
        self._streams: dict[int, int] = {}
        self._lock = threading.Lock()
        self._malloc = _MALLOC(self._allocate)
        self._free = _FREE(self._release)
        self.malloc_address = ctypes.cast(self._malloc, ctypes.c_void_p).value
        self.free_address = ctypes.cast(self._free, ctypes.c_void_p).value

    def _allocate(self, _param: int | None, size: int, device: int) -> int | None:
        try:
            self._check_device(device)
            stream = int(self._current_stream())
            at = self.pool.allocate_raw(max(size, 1), stream)
        except Exception:  # CuPy raises its OutOfMemoryError for a null pointer
            return None
        with self._lock:
            self._streams[at] = stream
        return at

    def _release(self, _param: int | None, at: int | None, _device: int) -> None:
        if not at:
            return
        with self._lock:
            stream = self._streams.pop(at, 0)
        try:
            if self.pool.is_open:
                self.pool.free_raw(at, stream)
        except Error as trouble:
            import sys
            print(f"libvmm.cupy: {at:#x} was not freed: {trouble}", file=sys.stderr)

    def _check_device(self, device: int) -> None:
        info = self.pool.driver.info
        if info.name == "cuda" and device != info.device:
            raise ValueError(f"the pool is on device {info.device}, and CuPy asks for {device}")


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as missing:
        raise ImportError("libvmm.cupy needs CuPy, which is not installed") from missing
    return cupy


def allocator(pool: Pool) -> Any:
    """A cupy.cuda.CFunctionAllocator. Raises ImportError without CuPy."""
    _values.one_of("pool", pool, Pool)
    cupy = _cupy()
    functions = Functions(pool, lambda: cupy.cuda.get_current_stream().ptr)
    return cupy.cuda.CFunctionAllocator(0, functions.malloc_address, functions.free_address,
                                        functions)


def enable(pool: Pool) -> Any:
    """Makes it CuPy's allocator, and answers it."""
    _values.one_of("pool", pool, Pool)
    cupy = _cupy()
    made = allocator(pool)
    cupy.cuda.set_allocator(made.malloc)
    return made
