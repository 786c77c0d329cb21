# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""GPU virtual memory: stream-ordered pools and growing ranges.

    import libvmm
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
        with pool.allocate(3 << 20) as block:
            print(block, pool.statistics().live_bytes)

The package needs neither CUDA nor PyTorch. libvmm.torch.enable() gives PyTorch's tensors memory
from such pools; libvmm.cuda_core, libvmm.cupy, libvmm.numba and libvmm.rmm do so for those
libraries. These modules, and growable, history, share, suspend, are imported on first use.
`python -m libvmm doctor` reports drivers and settings, `python -m libvmm run` runs a script.
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    from . import _native
except ImportError as trouble:
    # `python -m libvmm` prints it in a line; importing the package raises the exception.
    _words = getattr(_sys, "orig_argv", [])
    if _sys.argv[:1] == ["-m"] and "libvmm" in _words[_words.index("-m") + 1 :][:1]:
        _sys.exit(str(trouble))
    raise

if _TYPE_CHECKING:
    from ._drivers import (
        Driver,
        DriverEntry,
        DriverInfo,
        Feature,
        Link,
        PeerLink,
        Place,
        Rights,
        drivers,
    )
    from .errors import (
        DeviceLost,
        Error,
        InUse,
        InvalidArgument,
        InvalidHandle,
        NotPermitted,
        NotSupported,
        OutOfMemory,
        Status,
        Unavailable,
        UnknownAddress,
    )
    from .managers import Copy, Manager, ManagerStatistics, Range
    from .pools import Arenas, Block, Capture, Pool
    from .reports import (
        PoolStatistics,
        PreallocateReport,
        Region,
        RegionKind,
        RemapKind,
        RemapNotice,
        Shortage,
        TrimReport,
    )

# Of the names below, in the order in which they import each other.
_OWN = ("errors", "_drivers", "reports", "pools", "managers")
_MODULES = (
    "cuda_core",
    "cupy",
    "growable",
    "history",
    "numba",
    "rmm",
    "share",
    "suspend",
    "torch",
    "torch_memory_saver",
    "vllm",
)


def __getattr__(name: str) -> _Any:
    """Imports the package's modules on first use, as in libvmm.cupy.enable(pool)."""
    if name in _MODULES or name in _OWN:
        return _import_module(f"{__name__}.{name}")
    # Not kept: a module may be reloaded. The import system's locks, which an exception of a signal
    # handler may leave taken before Python 3.11, are for the first use.
    for find in (_sys.modules.get, _import_module) if name in __all__ else ():
        for module in _OWN:
            found = getattr(find(f"{__name__}.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def version() -> tuple[int, int, int]:
    """The version of the loaded C library."""
    number = _native.LIBRARY.vmm_version()
    return number // 10000, number // 100 % 100, number % 100


def loaded_library() -> str:
    """The name or path of the loaded C library."""
    return _native.PATH


__version__ = ".".join(str(part) for part in version())

__all__ = [
    "Arenas",
    "Block",
    "Capture",
    "Copy",
    "DeviceLost",
    "Driver",
    "DriverEntry",
    "DriverInfo",
    "Error",
    "Feature",
    "InUse",
    "InvalidArgument",
    "InvalidHandle",
    "Link",
    "Manager",
    "ManagerStatistics",
    "NotPermitted",
    "NotSupported",
    "OutOfMemory",
    "PeerLink",
    "Place",
    "Pool",
    "PoolStatistics",
    "PreallocateReport",
    "Range",
    "Region",
    "RegionKind",
    "RemapKind",
    "RemapNotice",
    "Rights",
    "Shortage",
    "Status",
    "TrimReport",
    "Unavailable",
    "UnknownAddress",
    "drivers",
    "loaded_library",
    "version",
]
