# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory from a pool.

    import libvmm, libvmm.cupy
    pool = libvmm.Pool(libvmm.Driver("cuda"))
    libvmm.cupy.enable(pool)

CuPy's hook has no stream, so each allocation uses CuPy's current one. Memory is freed in the order
of that stream while its Stream object exists. Memory of a destroyed stream, of an ExternalStream
and of cudaStreamPerThread serves new requests after all work submitted to the device so far.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import _lifetime, _objects, _values
from .errors import Error, OutOfMemory
from .pools import Pool


class Functions(_objects.Initialised):
    """Memory for CuPy by address."""

    _mark = "pool"

    #: CuPy's error, made of the size, the pool's memory and its budget. None: the pool's own.
    _out_of_memory: Callable[[int, int, int], Exception] | None = None

    #: The class of streams whose handles the object does not own.
    _foreign: type | tuple[()] = ()

    @_objects.once("pool")
    def __init__(self, pool: Pool, current_stream: Callable[[], Any]) -> None:
        _values.function("current_stream", current_stream)
        self.pool = _values.one_of("pool", pool, Pool)
        self._current_stream = current_stream

    def _take(self, into: ctypes.c_void_p, size: int, device: int) -> Callable[[], Any] | None:
        """Writes the address of `size` bytes, and returns what _free() takes. Raises CuPy's
        OutOfMemoryError; ValueError for a device that is not the pool's; other errors of the pool.
        """
        size = _values.size("size", size)
        self._check_device(device)
        stream = self._current_stream()
        number = int(stream.ptr)
        is_per_thread = number == _values.PER_THREAD
        try:
            self.pool._allocate(into, max(size, 1), 512, 0 if is_per_thread else number)
        except OutOfMemory as short:
            if self._out_of_memory is None:
                raise
            shortage = self.pool.last_shortage()
            held, limit = (shortage.held_bytes, shortage.budget_bytes) if shortage else (0, 0)
            raise self._out_of_memory(size, held, limit) from short
        if is_per_thread or isinstance(stream, self._foreign):
            return lambda: None
        if not number:
            return None
        try:
            return weakref.ref(stream)
        except TypeError:  # of a class without weak references
            return lambda: None

    def _free(self, at: int, of: Callable[[], Any] | None, outcome: list[int]) -> None:
        """Frees the memory on the stream of its allocation, which `of` returns while it exists, or
        after all work; on the default stream where `of` is None. CuPy's arrays end where nothing
        can be raised: a failure is one line on stderr. Can be repeated with the same outcome."""
        stream = of() if of is not None else None
        number = 0 if of is None else None if stream is None else int(stream.ptr)
        try:
            if self.pool.is_open:
                self.pool._free_once(at, number, outcome)
        except Error as trouble:
            print(f"libvmm.cupy: {at:#x} was not freed: {trouble}", file=sys.stderr)

    def _check_device(self, device: int) -> None:
        info = self.pool.driver.info
        if info.name == "cuda" and device != info.device:
            raise ValueError(
                f"the pool is on device {info.device}, and CuPy's current device is "
                f"{device}: make a pool for each device"
            )


class _Owner:
    """Frees the memory of one array after its last view, also in a reference cycle."""

    __slots__ = ("_at", "_functions", "_of", "_outcome")

    def __init__(
        self, functions: Functions, at: ctypes.c_void_p, of: Callable[[], Any] | None
    ) -> None:
        self._functions, self._at, self._of = functions, at, of
        self._outcome: list[int] = []

    def __del__(self) -> None:
        try:
            self._end()
        finally:
            try:
                self._end()
            except BaseException:  # of a handler
                self._end()
                raise

    def _end(self) -> None:
        if self._at.value:
            self._functions._free(self._at.value, self._of, self._outcome)
            self._at.value = None


class _Allocator:
    """An allocator for CuPy: malloc(size) returns a cupy.cuda.MemoryPointer over a
    cupy.cuda.UnownedMemory. The class of cupy.cuda.PythonFunctionAllocator loses its function, and
    the memory with it, if the garbage collector ends an array in a cycle."""

    def __init__(self, functions: Functions, cuda: Any) -> None:
        self._functions, self._cuda = functions, cuda

    def malloc(self, size: int) -> Any:
        """Raises CuPy's OutOfMemoryError; ValueError if the current device is not the pool's; other
        errors of the pool."""
        device, at = self._cuda.runtime.getDevice(), ctypes.c_void_p()
        outcome: list[int] = []

        def make() -> Any:
            of = self._functions._take(at, size, device) if size else None
            owner = _Owner(self._functions, at, of) if size else None
            memory = self._cuda.UnownedMemory(at.value or 0, size, owner, device)
            return self._cuda.MemoryPointer(memory, 0)

        return _lifetime.or_undo(make, lambda: self._functions.pool._give_up(at, outcome))


def allocator(pool: Pool) -> Any:
    """An allocator whose `malloc` cupy.cuda.set_allocator() accepts. Raises ImportError without
    CuPy, InvalidArgument for a pool of another driver than "cuda" on a machine with a GPU."""
    _values.one_of("pool", pool, Pool)
    cupy = _values.import_library("cupy", "cupy", "CuPy")
    _values.check_cuda(pool, "CuPy")
    functions = Functions(pool, cupy.cuda.get_current_stream)
    functions._out_of_memory = cupy.cuda.memory.OutOfMemoryError
    functions._foreign = getattr(cupy.cuda, "ExternalStream", ())
    return _Allocator(functions, cupy.cuda)


def enable(pool: Pool) -> Any:
    """Makes the pool CuPy's allocator, and returns the allocator."""
    _values.one_of("pool", pool, Pool)
    cupy = _values.import_library("cupy", "cupy", "CuPy")
    made = allocator(pool)
    cupy.cuda.set_allocator(made.malloc)
    return made
