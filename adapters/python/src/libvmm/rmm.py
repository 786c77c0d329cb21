# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""A pool as an RMM resource, for cuDF, CuPy, Numba and other users of RMM.

To use it:

    import libvmm, libvmm.rmm, rmm
    pool = libvmm.Pool(libvmm.Driver("cuda"))
    rmm.mr.set_current_device_resource(libvmm.rmm.resource(pool))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _native, _values
from .errors import OutOfMemory
from .pools import Pool

# RMM calls a resource's functions for memory that outlives the resource's Python object, when the
# resource of a device is replaced for instance.
_kept: list[tuple[Callable[..., int], Callable[..., None]]] = _native.once("rmm functions", [])


def stream_number(stream: Any) -> int:
    """The number of a stream: an RMM object, any object with __cuda_stream__, 0 or None."""
    if stream is None:
        return 0
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1] if callable(protocol) else protocol[1])
    for name in ("value", "ptr"):
        member = getattr(stream, name, None)
        if member is not None:
            return int(member() if callable(member) else member)
    return _values.whole("stream", stream, wanted="a stream, or its number as an int")


def functions(pool: Pool) -> tuple[Callable[..., int], Callable[..., None]]:
    """allocate(size, stream) -> address and deallocate(address, size, stream)."""
    _values.one_of("pool", pool, Pool)

    def allocate(size: int, stream: Any = 0) -> int:
        if _values.size("size", size) == 0:
            return 0
        number = stream_number(stream)
        try:
            return pool.allocate_raw(size, 0 if number == _values.PER_THREAD else number)
        except OutOfMemory as short:  # RMM makes its own error of a MemoryError
            raise MemoryError(str(short)) from short

    def deallocate(address: int, _size: int, stream: Any = 0) -> None:
        if not _values.address("address", address) or not pool.is_open:
            return  # RMM's memory may outlive the pool
        number = stream_number(stream)
        if number == _values.PER_THREAD:
            pool._free_unordered(address)
        else:
            pool.free_raw(address, number)

    return allocate, deallocate


def resource(pool: Pool) -> Any:
    """An rmm.mr.CallbackMemoryResource whose functions live until the process ends. Raises
    ImportError without RMM, InvalidArgument for a pool of another driver than "cuda" on a machine
    with a GPU."""
    _values.one_of("pool", pool, Pool)
    rmm = _values.import_library("rmm", "rmm", "RMM")
    _values.check_cuda(pool, "RMM")
    _kept.append(functions(pool))
    return rmm.mr.CallbackMemoryResource(*_kept[-1])
