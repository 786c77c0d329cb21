# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""A pool as a memory resource of cuda.core.

To use it:

    import cuda.core, libvmm, libvmm.cuda_core
    pool = libvmm.Pool(libvmm.Driver("cuda"))
    cuda.core.Device().memory_resource = libvmm.cuda_core.MemoryResource(pool)
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import _lifetime, _objects, _values
from .errors import OutOfMemory
from .pools import Pool
from .rmm import functions, stream_number

if TYPE_CHECKING:
    _Base: Any = object
    _core: Any = None
else:
    try:
        import cuda.core as _core

        _Base = _core.MemoryResource
    except (ImportError, AttributeError):  # the module can be imported without cuda.core
        _core, _Base = None, object


class MemoryResource(_objects.Initialised, _Base):
    """Buffers of a pool, freed on the stream that cuda.core passes. cuda.core before 1.2 does not
    pass the stream of the allocation: freed memory serves new requests after all work submitted to
    the device so far."""

    _mark = "_pool"

    @_objects.once("_pool")
    def __init__(self, pool: Pool) -> None:
        """Raises ImportError without cuda.core, InvalidArgument for a pool of another driver than
        "cuda" on a machine with a GPU."""
        self._pool = _values.one_of("pool", pool, Pool)
        _values.import_library("cuda_core", "cuda.core", "cuda.core")
        _values.check_cuda(pool, "cuda.core")
        _, self._free = functions(pool)
        self._has_streams = tuple(map(int, _core.__version__.split(".")[:2])) >= (1, 2)

    def allocate(self, size: int, stream: Any = None) -> Any:
        """A cuda.core.Buffer. Raises MemoryError if the pool has no memory."""
        at, outcome, number = ctypes.c_void_p(), list[int](), stream_number(stream)

        def make() -> Any:
            if _values.size("size", size):
                is_per_thread = number == _values.PER_THREAD
                self._pool._allocate(at, size, 512, 0 if is_per_thread else number)
            named = {"stream": stream} if self._has_streams else {}
            return _core.Buffer.from_handle(at.value or 0, size, mr=self, **named)

        try:
            return _lifetime.or_undo(make, lambda: self._pool._give_up(at, outcome))
        except OutOfMemory as short:
            raise MemoryError(str(short)) from short

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Called by the buffer's close() and end."""
        if self._has_streams:
            self._free(int(ptr), size, stream)
        elif ptr and self._pool.is_open:
            self._pool._free_unordered(int(ptr))

    @property
    def is_device_accessible(self) -> bool:
        """Whether kernels can use the memory."""
        return self._pool.driver.name != "host"

    @property
    def is_host_accessible(self) -> bool:
        """Whether the host can."""
        return self._pool.driver.name == "host"

    @property
    def is_managed(self) -> bool:
        """False."""
        return False

    @property
    def device_id(self) -> int:
        """The device's number."""
        return int(self._pool.driver.info.device)
