# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: CuPy, RMM and Numba get memory by their own hooks.
Method: stand-ins written from the hooks' documentation (CFunctionAllocator's two C functions,
CallbackMemoryResource's two callables, the EMM plug-in's base class), driven with random
allocations on the host's memory; the packages themselves are not needed."""
import ctypes
import importlib
import random
import sys
import types

import pytest

import libvmm
import libvmm.cupy
import libvmm.rmm


@pytest.fixture
def pool():
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as made:
        yield made


def churn(allocate, free, rounds=3000):
    """Random allocations whose last byte is checked when they are freed."""
    choose = random.Random(11)
    live = []
    for number in range(rounds):
        if len(live) < 60 or choose.random() < 0.5:
            size = choose.choice((1, 512, 5000, 300000))
            at = allocate(size)
            assert at and at % 256 == 0
            ctypes.memset(at, number % 256, size)
            live.append((at, size, number % 256))
        else:
            at, size, mark = live.pop(choose.randrange(len(live)))
            assert ctypes.string_at(at + size - 1, 1)[0] == mark
            free(at, size)
    for at, size, _ in live:
        free(at, size)


# ---- CuPy -----------------------------------------------------------------------------------


class CFunctionAllocator:
    """As cupy.cuda.CFunctionAllocator calls: by addresses, from C."""

    def __init__(self, param, malloc, free, owner):
        self.param, self.owner = param, owner
        self._malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                        ctypes.c_int)(malloc)
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free)

    def malloc(self, size):
        at = self._malloc(self.param, size, 0)
        if not at:
            raise MemoryError(size)
        return at

    def free(self, at, _size):
        self._free(self.param, at, 0)


@pytest.fixture
def cupy(monkeypatch):
    module = types.ModuleType("cupy")
    module.set_to = []
    module.cuda = types.SimpleNamespace(
        CFunctionAllocator=CFunctionAllocator, set_allocator=module.set_to.append,
        get_current_stream=lambda: types.SimpleNamespace(ptr=0))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_cupy(cupy, pool):
    made = libvmm.cupy.enable(pool)
    assert cupy.set_to == [made.malloc]
    churn(made.malloc, made.free)
    assert pool.statistics().live_count == 0
    with pytest.raises(MemoryError):
        made.malloc(1 << 62)
    assert made.malloc(0)
    made.free(None, 0)


def test_cupy_frees_on_the_stream_that_allocated():
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        stream = driver.create_stream()
        current = [stream]
        functions = libvmm.cupy.Functions(pool, lambda: current[0])
        at = functions._allocate(None, 4 << 20, 0)
        current[0] = 0
        functions._release(None, at, 0)
        free = [r for r in pool.regions() if r.kind is libvmm.RegionKind.FREE and r.size >= 4 << 20]
        assert [r.stream for r in free] == [stream]
        pool.forget_stream(stream)
        pool.synchronize()


# ---- RMM ------------------------------------------------------------------------------------


def test_rmm(monkeypatch, pool):
    module = types.ModuleType("rmm")
    module.mr = types.SimpleNamespace(
        CallbackMemoryResource=lambda allocate, deallocate: types.SimpleNamespace(
            allocate=allocate, deallocate=deallocate))
    monkeypatch.setitem(sys.modules, "rmm", module)
    made = libvmm.rmm.resource(pool)
    stream = types.SimpleNamespace(__cuda_stream__=lambda: (0, 0))
    churn(lambda size: made.allocate(size, stream), lambda at, size: made.deallocate(at, size,
                                                                                    stream))
    assert pool.statistics().live_count == 0
    with pytest.raises(MemoryError, match="out_of"):
        made.allocate(1 << 60, stream)
    assert made.allocate(0, stream) == 0
    made.deallocate(0, 0, stream)


@pytest.mark.parametrize("stream", [
    None, 0, types.SimpleNamespace(__cuda_stream__=(0, 0)), types.SimpleNamespace(value=lambda: 0),
    types.SimpleNamespace(ptr=0)])
def test_rmm_streams(stream):
    assert libvmm.rmm.stream_number(stream) == 0


def test_rmm_stream_numbers():
    assert libvmm.rmm.stream_number(types.SimpleNamespace(__cuda_stream__=lambda: (0, 77))) == 77
    assert libvmm.rmm.stream_number(77) == 77


# ---- Numba ----------------------------------------------------------------------------------


@pytest.fixture
def numba(monkeypatch):
    driver = types.ModuleType("numba.cuda.cudadrv.driver")

    class HostOnlyCUDAMemoryManager:
        def __init__(self, *, context):
            self.context = context

        def initialize(self):
            self.initialized = True

        def reset(self):
            pass

        def defer_cleanup(self):
            return "deferred"

    class AutoFreePointer:
        def __init__(self, context, pointer, size, owner=None, finalizer=None):
            self.device_pointer, self.size, self.finalizer = pointer, size, finalizer

    driver.HostOnlyCUDAMemoryManager = HostOnlyCUDAMemoryManager
    driver.AutoFreePointer = AutoFreePointer
    driver.MemoryInfo = lambda free, total: (free, total)
    package = types.ModuleType("numba")
    package.cuda = types.SimpleNamespace(set_memory_manager=lambda kind: setattr(
        package, "manager", kind))
    for name, module in (("numba", package), ("numba.cuda", types.ModuleType("numba.cuda")),
                         ("numba.cuda.cudadrv", types.ModuleType("numba.cuda.cudadrv")),
                         ("numba.cuda.cudadrv.driver", driver)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "libvmm.numba", raising=False)
    yield package
    sys.modules.pop("libvmm.numba", None)


def test_numba(numba, monkeypatch):
    adapter = importlib.import_module("libvmm.numba")
    adapter.enable()
    assert numba.manager is adapter.MemoryManager is adapter._numba_memory_manager
    monkeypatch.setattr(adapter.MemoryManager, "driver_name", "host")
    manager = adapter.MemoryManager(context=types.SimpleNamespace())
    assert manager.interface_version == 1
    live = {}

    def allocate(size):
        made = manager.memalloc(size)
        live[made.device_pointer.value] = made
        return made.device_pointer.value

    churn(allocate, lambda at, size: live.pop(at).finalizer())
    free, total = manager.get_memory_info()
    assert 0 < free and 0 < total
    with pytest.raises(MemoryError):
        manager.memalloc(1 << 60)
    with pytest.raises(libvmm.NotSupported):
        manager.get_ipc_handle(None)
    assert manager.defer_cleanup() == "deferred"
    assert manager._pool.statistics().live_count == 0
    manager.reset()
    assert manager._pool.statistics().mapped_bytes == 0


def test_without_the_packages():
    for name in ("cupy", "rmm"):
        if importlib.util.find_spec(name) is None:
            adapter = importlib.import_module(f"libvmm.{name}")
            make = adapter.allocator if name == "cupy" else adapter.resource
            with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
                with pytest.raises(ImportError, match=name):
                    make(pool)


@pytest.mark.parametrize("module, call, reason", [
    ("cupy", "enable", "needs CuPy"), ("rmm", "resource", "needs RMM"),
    ("numba", "enable", "needs Numba"), ("vllm", "register", "needs a vLLM")])
def test_what_is_missing_is_named(monkeypatch, module, call, reason):
    """Each adapter is there to be imported without its library, and says what it lacks."""
    for name in ("cupy", "rmm", "numba", "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"libvmm.{module}", raising=False)
    adapter = importlib.import_module(f"libvmm.{module}")
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
        with pytest.raises(ImportError, match=reason):
            getattr(adapter, call)(*([pool] if module in ("cupy", "rmm") else []))
    sys.modules.pop(f"libvmm.{module}", None)
