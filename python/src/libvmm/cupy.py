# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory from a pool.

    import libvmm, libvmm.cupy
    pool = libvmm.Pool(libvmm.Driver("cuda"))
    libvmm.cupy.enable(pool)

CuPy's hook has no stream, so each call takes CuPy's current one. Memory is freed in the order of
the stream that it was allocated on, as with CuPy's own pools.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import _values
from .errors import Error, OutOfMemory
from .pools import Pool


class Functions:
    """The two functions of cupy.cuda.PythonFunctionAllocator. `_malloc` raises: CuPy does not check
    the address that an allocator's function returns."""

    #: CuPy's error, made of the size, the pool's memory and its budget. None: the pool's own.
    _out_of_memory: Callable[[int, int, int], Exception] | None = None

    def __init__(self, pool: Pool, current_stream: Callable[[], int]) -> None:
        _values.function("current_stream", current_stream)
        self.pool = _values.one_of("pool", pool, Pool)
        self._current_stream = current_stream
        # Without a lock: the garbage collector may run _free() inside of _malloc().
        self._streams: dict[int, int] = {}

    def _malloc(self, size: int, device: int) -> int:
        """The address of `size` bytes. Raises CuPy's OutOfMemoryError; ValueError for a device that
        is not the pool's; what else the pool raises."""
        self._check_device(device)
        stream = int(self._current_stream())
        try:
            at = self.pool.allocate_raw(max(size, 1), stream)
        except OutOfMemory as short:
            if self._out_of_memory is None:
                raise
            shortage = self.pool.last_shortage()
            held, limit = (shortage.held_bytes, shortage.budget_bytes) if shortage else (0, 0)
            raise self._out_of_memory(size, held, limit) from short
        self._streams[at] = stream
        return at

    def _free(self, at: int, _device: int) -> None:
        """Frees the memory on the stream of its allocation. CuPy calls it where nothing can be
        raised: a failure is a line on stderr."""
        if not at:
            return
        stream = self._streams.pop(at, 0)
        try:
            if self.pool.is_open:
                self.pool.free_raw(at, stream)
        except Error as trouble:
            print(f"libvmm.cupy: {at:#x} was not freed: {trouble}", file=sys.stderr)

    def _check_device(self, device: int) -> None:
        info = self.pool.driver.info
        if info.name == "cuda" and device != info.device:
            raise ValueError(f"the pool is on device {info.device}, and CuPy's current device is "
                             f"{device}: make a pool for each device")


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as missing:
        raise ImportError("libvmm.cupy needs CuPy, which is not installed") from missing
    return cupy


def allocator(pool: Pool) -> Any:
    """A cupy.cuda.PythonFunctionAllocator. Raises ImportError without CuPy."""
    _values.one_of("pool", pool, Pool)
    cupy = _cupy()
    functions = Functions(pool, lambda: cupy.cuda.get_current_stream().ptr)
    functions._out_of_memory = cupy.cuda.memory.OutOfMemoryError
    return cupy.cuda.PythonFunctionAllocator(functions._malloc, functions._free)


def enable(pool: Pool) -> Any:
    """Makes it CuPy's allocator, and returns it."""
    _values.one_of("pool", pool, Pool)
    cupy = _cupy()
    made = allocator(pool)
    cupy.cuda.set_allocator(made.malloc)
    return made
