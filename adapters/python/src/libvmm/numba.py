# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Numba's device memory from a pool for each context.

    NUMBA_CUDA_MEMORY_MANAGER=libvmm.numba python script.py

or, before the first use of a device, `libvmm.numba.enable()`.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import _lifetime, _objects, _values
from ._drivers import Driver
from .errors import NotSupported, OutOfMemory
from .pools import Pool

if TYPE_CHECKING:
    _Base: Any = object
    _driver: Any = None
    MemoryInfo: Any = None
    MemoryPointer: Any = None
else:
    try:
        from numba.cuda.cudadrv import driver as _driver
        from numba.cuda.cudadrv.driver import HostOnlyCUDAMemoryManager as _Base
        from numba.cuda.cudadrv.driver import MemoryInfo, MemoryPointer
    except ImportError:  # the module can be imported without Numba
        _Base = object


def _pointer(at: int) -> Any:
    # Numba makes a CUdeviceptr of a c_void_p where it uses NVIDIA's bindings; its own bindings, of
    # older versions, have c_size_t for an address.
    return ctypes.c_void_p(at) if getattr(_driver, "USE_NV_BINDING", True) else ctypes.c_uint64(at)


class MemoryManager(_objects.Initialised, _Base):
    """An external memory manager: device memory is vmm's, host memory Numba's own."""

    driver_name = "cuda"
    _mark = "_pool"

    @_objects.once("_pool")
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pool: Pool | None = None

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this class implements."""
        return 1

    def initialize(self) -> None:
        """Opens a driver and a pool on the context's device."""
        super().initialize()
        if self._pool is None:
            number = getattr(getattr(self.context, "device", None), "id", 0)
            device = int(number) if self.driver_name == "cuda" else -1
            self._pool = Pool(Driver(self.driver_name, device), report_live=False)

    def _opened(self) -> Pool:
        if self._pool is None:
            self.initialize()
        assert self._pool is not None
        return self._pool

    def memalloc(self, size: int) -> Any:
        """A MemoryPointer that holds the memory until it and its views are gone. Numba's arrays
        have no stream: freed memory serves new requests after all work submitted to the device so
        far. Raises MemoryError."""
        pool, at, size = self._opened(), ctypes.c_void_p(), _values.size("size", size)
        outcome: list[int] = []

        def finalizer() -> None:
            address, at.value = at.value, None
            if address and pool.is_open:
                pool._free_unordered(address)

        def make() -> Any:
            pool._allocate(at, max(size, 1), 512, 0)
            return MemoryPointer(self.context, _pointer(at.value or 0), size, finalizer=finalizer)

        try:
            return _lifetime.or_undo(make, lambda: pool._give_up(at, outcome))
        except OutOfMemory as short:
            raise MemoryError(str(short)) from short

    def get_memory_info(self) -> Any:
        """Free and total memory of the device. The pool's free memory counts as free."""
        pool = self._opened()
        free, total = pool.driver.memory()
        return MemoryInfo(free=free + pool.statistics().reusable_bytes, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Raises NotSupported."""
        raise NotSupported(
            "memory of libvmm.numba has no legacy IPC handle. libvmm.share sends "
            "blocks of a pool to other processes; Numba's own memory manager has "
            "such handles"
        )

    def reset(self) -> None:
        """Releases all memory of the context, also under living arrays, as Numba's own manager
        does. The next allocation opens another pool."""
        super().reset()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
            pool.driver.close()

    def defer_cleanup(self) -> Any:
        """Numba's own deferral, for host memory. A free of the pool never waits, and is not
        deferred."""
        return super().defer_cleanup()


_numba_memory_manager = MemoryManager


def enable() -> None:
    """Makes vmm Numba's memory manager. Call it before the first use of a device. Raises
    ImportError without Numba."""
    cuda = _values.import_library("numba", "numba.cuda", "Numba")
    cuda.set_memory_manager(MemoryManager)
