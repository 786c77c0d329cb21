# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Numba's device memory from a pool for each context.

    NUMBA_CUDA_MEMORY_MANAGER=libvmm.numba python script.py

or, before the first use of a device, `libvmm.numba.enable()`.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from .drivers import Driver
from .errors import NotSupported, OutOfMemory
from .pools import Pool

if TYPE_CHECKING:
    _Base: Any = object
else:
    try:
        from numba.cuda.cudadrv.driver import HostOnlyCUDAMemoryManager as _Base
        from numba.cuda.cudadrv.driver import AutoFreePointer, MemoryInfo
    except ImportError:  # the module is there to be looked at
        _Base = object


class MemoryManager(_Base):
    """An external memory manager: device memory is vmm's, host memory Numba's own."""

    driver_name = "cuda"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pool: Pool | None = None

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this class has."""
        return 1

    def initialize(self) -> None:
        """Opens a driver and a pool on the context's device."""
        super().initialize()
        if self._pool is None:
            number = getattr(getattr(self.context, "device", None), "id", 0)
            device = int(number) if self.driver_name == "cuda" else -1
            self._pool = Pool(Driver(self.driver_name, device), report_live=False)

    def memalloc(self, size: int) -> Any:
        """On the default stream, whose order all of Numba's allocations keep."""
        if self._pool is None:
            self.initialize()
        pool = self._pool
        assert pool is not None
        try:
            at = pool.allocate_raw(max(size, 1))
        except OutOfMemory as short:
            raise MemoryError(str(short)) from short

        def finalizer() -> None:
            if pool.is_open:
                pool.free_raw(at)

        return AutoFreePointer(self.context, ctypes.c_uint64(at), size, finalizer=finalizer)

    def get_memory_info(self) -> Any:
        """What the device has, with what the pool holds and could hand out again as free."""
        if self._pool is None:
            self.initialize()
        assert self._pool is not None
        free, total = self._pool.driver.memory()
        return MemoryInfo(free=free + self._pool.statistics().reusable_bytes, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Raises NotSupported."""
        raise NotSupported("memory of a pool has no legacy IPC handle: it lies in virtual memory, "
                           "which moves")

    def reset(self) -> None:
        """Gives back what is free, with Numba's own host memory."""
        super().reset()
        if self._pool is not None:
            self._pool.trim(0)

    def defer_cleanup(self) -> Any:
        """Numba's own: frees of the pool never wait for the device."""
        return super().defer_cleanup()


_numba_memory_manager = MemoryManager


def enable() -> None:
    """Makes it Numba's memory manager. Call it before the first use of a device. Raises ImportError
    without Numba."""
    try:
        from numba import cuda
    except ImportError as missing:
        raise ImportError("libvmm.numba needs Numba, which is not installed") from missing
    cuda.set_memory_manager(MemoryManager)
