# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""VMM=1: installs the adapter of a library when it has been imported, or reports why not.

Nothing here calls the driver or CUDA's runtime before the program's first allocation: a process
that imports PyTorch and forks may use CUDA in its children. docs/one_variable.md has the rules."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import _libvmm_start

import libvmm

from . import _hooks, _native, _settings


class StandsBack(Exception):
    """The library keeps its own memory; the text has the reason. All libraries do: `everywhere`."""

    def __init__(self, reason: str, everywhere: bool = False) -> None:
        super().__init__(reason)
        self.everywhere = everywhere


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reason: str | None = None
        """Of why_not(), before the first library was served."""
        self.pools: dict[int, libvmm.Pool] = {}


_state = _native.once("auto", _State())


def _after_fork() -> None:
    _state.lock = threading.RLock()  # a thread that the child lacks may hold it


os.register_at_fork(after_in_child=_after_fork)
driver_name = "cuda"


# ---- reasons ------------------------------------------------------------------------------------


def is_at_boundary() -> bool:
    """Whether VMM=1 has put the preload library before the driver."""
    return _libvmm_start.served.get(_libvmm_start.BOUNDARY, "").startswith("the preload library")


def why_not(environment: Any = os.environ) -> str:
    """Why no library of this process is served; "": nothing prevents it. Calls no driver."""
    wrong = _settings._judge("VMM", environment.get("VMM", ""))
    if wrong := wrong or _libvmm_start.why_off(environment):
        return wrong
    for name, file in _hooks.hooks().items():
        if name.startswith("cu") and not (is_at_boundary() and "libvmm_preload" in file):
            return f"{file} is loaded and defines {name}: CUDA's calls have another owner"
    return ""


# ---- one pool for each device -------------------------------------------------------------------


def shared_pool(device: int) -> libvmm.Pool:
    """The pool that all libraries but PyTorch have on a device. Raises StandsBack where the device
    or the driver cannot map memory."""
    with _state.lock:
        if device not in _state.pools:
            try:
                driver = libvmm.Driver(driver_name, device if driver_name == "cuda" else -1)
                _state.pools[device] = libvmm.Pool(
                    driver, capture=libvmm.Capture.PRIVATE, read_environment=True, report_live=False
                )
            except (libvmm.NotSupported, libvmm.Unavailable) as trouble:
                raise StandsBack(f"device {device} is not served: {trouble}") from trouble
        return _state.pools[device]


# ---- libraries ----------------------------------------------------------------------------------


def _serve_torch(torch: Any) -> str:
    from . import torch as adapter

    if torch.version.cuda is None:
        raise StandsBack(f"PyTorch {torch.__version__} is built without CUDA")
    try:
        return adapter._enable_at_import(torch)
    except (adapter.Refused, adapter._build.CannotBuild) as trouble:
        raise StandsBack(str(trouble)) from trouble


class _CupyAllocator:
    """cupy.cuda.set_allocator()'s function, over the current device's pool."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._made: dict[int, Any] = {}

    def malloc(self, size: int) -> Any:
        device = self._cupy.cuda.runtime.getDevice()
        made = self._made.get(device)
        if made is None:
            from . import cupy as adapter

            try:
                made = self._made[device] = adapter.allocator(shared_pool(device))
            except StandsBack as reason:
                _stand_back("cupy", reason)
                made = self._made[device] = self._cupy.get_default_memory_pool()
        return made.malloc(size)


def _serve_cupy(cupy: Any) -> str:
    cupy.cuda.set_allocator(_CupyAllocator(cupy).malloc)
    return "one pool for each device"


def _serve_jax(_jax: Any) -> str:
    """JAX's default allocator keeps memory that it creates by cuMemCreate, which nothing else can
    have; the boundary serves its other one. JAX reads the variable when it first uses a device."""
    name = _libvmm_start.JAX
    if not is_at_boundary():
        return "its own memory: the driver boundary, which would serve it, is not in place"
    if chosen := os.environ.get(name):
        return f"{name}={chosen}, as the program chose"
    os.environ[name] = os.environ[_libvmm_start.JAX_GIVEN] = "cuda_async"
    return f"the driver boundary, with {name}=cuda_async"


def _serve_numba(driver: Any) -> str:
    named = os.environ.get("NUMBA_CUDA_MEMORY_MANAGER", "")
    if named not in ("", "default"):
        raise StandsBack(f"NUMBA_CUDA_MEMORY_MANAGER={named} is set")
    from . import numba as adapter

    class MemoryManager(adapter.MemoryManager):
        """Over the device's shared pool; Numba's own memory where there is none."""

        def initialize(self) -> None:
            adapter._Base.initialize(self)
            number = getattr(getattr(self.context, "device", None), "id", 0)
            self._pool = shared_pool(int(number))

        def reset(self) -> None:
            adapter._Base.reset(self)  # arrays give their memory back by themselves
            self._pool = None

    def manager(context: Any) -> Any:
        """Numba's own where the device has no pool."""
        made = MemoryManager(context=context)
        if context is not None:
            try:
                made.initialize()
            except StandsBack as reason:
                _stand_back("numba", reason)
                return driver.NumbaCUDAMemoryManager(context=context)
        return made

    driver.set_memory_manager(manager)
    # Numba's own queries whether it has an external memory manager read the name.
    driver.config.CUDA_MEMORY_MANAGER = adapter.__name__
    return "one pool for each device"


class _RmmFunctions:
    """allocate and deallocate of one device; RMM's plain resource where it has no pool."""

    def __init__(self, rmm: Any, device: int) -> None:
        self._rmm, self._device = rmm, device
        self._functions: tuple[Callable[..., int], Callable[..., None]] | None = None

    def _made(self) -> tuple[Callable[..., int], Callable[..., None]]:
        if self._functions is None:
            from . import rmm as adapter

            try:
                self._functions = adapter.functions(shared_pool(self._device))
            except StandsBack as reason:
                _stand_back("rmm", reason)
                plain = self._rmm.mr.CudaMemoryResource()
                self._functions = plain.allocate, plain.deallocate
        return self._functions

    def allocate(self, size: int, stream: Any = 0) -> int:
        return self._made()[0](size, stream)

    def deallocate(self, address: int, size: int, stream: Any = 0) -> None:
        self._made()[1](address, size, stream)


def device_count() -> int:
    """At least the devices that a process can see, without a call of the driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len(visible.split(",")))
    try:
        return max(1, len(os.listdir("/proc/driver/nvidia/gpus")))
    except OSError:
        return 16


def _serve_rmm(rmm: Any) -> str:
    from . import rmm as adapter

    for device in range(device_count()):
        functions = _RmmFunctions(rmm, device)
        adapter._kept.append((functions.allocate, functions.deallocate))
        rmm.mr.set_per_device_resource(
            device, rmm.mr.CallbackMemoryResource(functions.allocate, functions.deallocate)
        )
    return "one pool for each device"


class WarpAllocator:
    """Warp's allocator of one device, whose calls name no stream: an allocation takes the device's
    current one, and freed memory serves new requests after all work of the device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def allocate(self, size: int) -> int:
        pool = shared_pool(int(self._device.ordinal))
        stream = getattr(self._device.stream, "cuda_stream", None) or 0
        return pool.allocate_raw(max(size, 1), int(stream))

    def deallocate(self, address: int, _size: int) -> None:
        pool = shared_pool(int(self._device.ordinal))
        if address and pool.is_open:
            pool._free_unordered(address)


def _serve_warp(warp: Any) -> str:
    """Warp's set_cuda_allocator() initialises CUDA, so each device gets its allocator when the
    program has initialised Warp."""
    runtime = warp._src.context.Runtime
    initialise = runtime.__init__

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        initialise(self, *arguments, **named)
        for device in self.cuda_devices:
            if device._custom_allocator is not None:
                continue
            try:
                shared_pool(int(device.ordinal))
            except StandsBack as reason:
                _stand_back("warp", reason)
                continue
            device._custom_allocator = WarpAllocator(device)

    runtime.__init__ = __init__
    return "one pool for each device, from its initialisation on"


_SERVE = {
    "cupy": _serve_cupy,
    "jax": _serve_jax,
    "numba": _serve_numba,
    "rmm": _serve_rmm,
    "torch": _serve_torch,
    "warp": _serve_warp,
}


def _stand_back(library: str, reason: Exception) -> None:
    text = str(reason) or type(reason).__name__
    _libvmm_start.note(library, f"its own memory: {text}")
    everywhere = getattr(reason, "everywhere", False)
    _libvmm_start.report("any library" if everywhere else library, text)


def serve(module: str, imported: Any) -> None:
    """Installs the adapter of a library that has just been imported, once."""
    library = _libvmm_start.LIBRARIES[module]
    with _state.lock:
        if library in _libvmm_start.served:
            return
        try:
            if _state.reason is None:
                _state.reason = why_not()
            if _state.reason:
                raise StandsBack(_state.reason, everywhere=True)
            if library in _settings.excluded(os.environ.get("VMM_EXCLUDE", "")):
                _libvmm_start.note(library, "its own memory: VMM_EXCLUDE names it")
            else:
                _libvmm_start.note(library, _SERVE[library](imported))
        except Exception as reason:  # the program's import goes on
            _stand_back(library, reason)
