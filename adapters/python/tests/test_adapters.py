# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the functions that libvmm gives CuPy and RMM, and what is said where a package is missing.
Method: random allocations on the host's memory through the functions alone. The packages
themselves, with Numba's, are `./run check adapters`'s (adapters/python/tests/libraries)."""

import ctypes
import gc
import importlib
import os
import random
import sys
import types

import libvmm
import libvmm.cupy
import libvmm.rmm
import pytest
from libvmm.growable import Growable
from libvmm.suspend import Suspender

MIB = 1 << 20


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


class CuPyOutOfMemory(MemoryError):
    """As cupy.cuda.memory.OutOfMemoryError is made."""

    def __init__(self, size, total, limit=0):
        super().__init__(size, total, limit)


class Stream:
    """As a stream of CuPy: its number, and an object that ends."""

    def __init__(self, ptr=0):
        self.ptr = ptr


class ExternalStream(Stream):
    """A stream whose handle is somebody else's."""


def cupy_functions(pool, stream=Stream):
    made = libvmm.cupy.Functions(pool, stream)
    made._foreign = ExternalStream
    made._out_of_memory = CuPyOutOfMemory
    return made


def test_cupy(pool):
    made = cupy_functions(pool)
    churn(lambda size: made._malloc(size, 0), lambda at, _size: made._free(at, 0))
    assert pool.statistics().live_count == 0
    made._free(0, 0)


def test_cupy_raises_what_the_pool_raises():
    """CuPy does not look at an address: a refusal that returned one would be an array there."""
    with libvmm.Driver("host") as driver, libvmm.Pool(driver, budget=64 << 20) as pool:
        made = cupy_functions(pool)
        with pytest.raises(CuPyOutOfMemory) as short:
            made._malloc(1 << 30, 0)
        assert short.value.args == (1 << 30, short.value.args[1], 64 << 20)
        for wrong in (-5, (1 << 64) + 5):
            with pytest.raises(libvmm.InvalidArgument, match=f"and {wrong} was given"):
                made._malloc(wrong, 0)
        pool.close()
        with pytest.raises(libvmm.Error):
            made._malloc(1, 0)


def test_cupy_frees_on_the_stream_that_allocated():
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        stream = driver.create_stream()
        current = [Stream(stream)]
        functions = cupy_functions(pool, lambda: current[0])
        at = functions._malloc(4 << 20, 0)
        kept, current[0] = current[0], Stream()
        functions._free(at, 0)
        free = [r for r in pool.regions() if r.kind is libvmm.RegionKind.FREE and r.size >= 4 << 20]
        assert [r.stream for r in free] == [kept.ptr]
        pool.forget_stream(stream)
        pool.synchronize()


@pytest.mark.parametrize("made", [Stream, ExternalStream])
def test_cupy_names_no_stream_that_may_be_destroyed(made, capfd):
    """A handle is used while a Stream that owns it exists, and by no free after that."""
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        current = [made(driver.create_stream())]
        functions = cupy_functions(pool, lambda: current[0])
        at = functions._malloc(4 << 20, 0)
        driver.destroy_stream(current[0].ptr)
        kept = current[0] if made is ExternalStream else None
        current[0] = Stream()
        functions._free(at, 0)
        assert functions._malloc(4 << 20, 0)
        assert pool.statistics().live_count == 1 and capfd.readouterr().err == ""
        del kept


class Unreferenced:
    """A stream whose class has no weak references."""

    __slots__ = ("ptr",)

    def __init__(self, ptr):
        self.ptr = ptr


@pytest.mark.parametrize("made", [Stream, Unreferenced, None])
def test_streams_end_before_their_arrays(monkeypatch, capfd, made):
    """CuPy's streams and, with None, those that callers of RMM name, over the stub of CUDA's
    driver, which refuses the handle of a stream that is gone."""
    path = os.environ.get("LIBVMM_STANDIN", "")
    if not os.path.exists(path):
        pytest.skip("LIBVMM_STANDIN names no stub of CUDA's driver")
    monkeypatch.setenv("VMM_CUDA_LIBRARY", path)
    with libvmm.Driver("cuda", 0) as driver, libvmm.Pool(driver) as pool:
        current, kept = [Stream()], []
        functions = cupy_functions(pool, lambda: current[0])
        of_rmm, to_rmm = libvmm.rmm.functions(pool)

        def allocate(size):
            stream = current[0].ptr
            return (functions._malloc(size, 0) if made else of_rmm(size, stream)), stream

        def free(at, stream):
            functions._free(at, 0) if made else to_rmm(at, 0, stream)

        for number in range(60):
            current[0] = (made or Stream)(driver.create_stream())
            gone = allocate(200_000 + 997 * (number % 17))
            kept.append(allocate(200_000))
            free(*gone)
            ended, current[0] = current[0].ptr, Stream()
            driver.destroy_stream(ended)
            if len(kept) > 10:
                free(*kept.pop(number % 10))
        free(*allocate(300 << 20))
        for each in kept:
            free(*each)
        pool.synchronize()
        pool.trim()
        pool.validate()
        now = pool.statistics()
        assert (now.live_count, now.mapped_bytes) == (0, 0) and capfd.readouterr().err == ""


def test_cupy_serves_the_stream_of_each_thread(capfd):
    """cudaStreamPerThread is ordered behind the default stream; its frees are after all work."""
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        functions = cupy_functions(pool, lambda: Stream(2))
        functions._free(functions._malloc(4 << 20, 0), 0)
        assert pool.statistics().live_count == 0 and capfd.readouterr().err == ""


# ---- RMM ------------------------------------------------------------------------------------


def test_rmm(pool):
    allocate, deallocate = libvmm.rmm.functions(pool)
    stream = types.SimpleNamespace(__cuda_stream__=lambda: (0, 0))
    churn(lambda size: allocate(size, stream), lambda at, size: deallocate(at, size, stream))
    assert pool.statistics().live_count == 0
    with pytest.raises(MemoryError, match="out_of"):
        allocate(1 << 60, stream)
    assert allocate(0, stream) == 0
    deallocate(0, 0, stream)
    at = allocate(512, stream)
    pool.close()
    deallocate(at, 512, stream)  # a C++ caller has no way to take an error


def test_rmm_serves_the_stream_of_each_thread(pool):
    allocate, deallocate = libvmm.rmm.functions(pool)
    deallocate(allocate(512, 2), 512, 2)
    assert pool.statistics().live_count == 0


@pytest.mark.parametrize(
    "stream",
    [
        None,
        0,
        types.SimpleNamespace(__cuda_stream__=(0, 0)),
        types.SimpleNamespace(value=lambda: 0),
        types.SimpleNamespace(ptr=0),
    ],
)
def test_rmm_streams(stream):
    assert libvmm.rmm.stream_number(stream) == 0


def test_rmm_stream_numbers():
    assert libvmm.rmm.stream_number(types.SimpleNamespace(__cuda_stream__=lambda: (0, 77))) == 77
    assert libvmm.rmm.stream_number(77) == 77


# ---- calls of the driver that fail ----------------------------------------------------------


class Failing:
    """What a call works on: owners with memory in use, on the stub of CUDA's driver."""

    def __init__(self):
        self.driver = libvmm.Driver("cuda", 0)
        self.pool = libvmm.Pool(self.driver, report_live=False)
        self.manager = libvmm.Manager(self.driver, report_live=False)
        self.block, self.range = self.pool.allocate(3 * MIB), self.manager.allocate(4 * MIB)
        self.cache, self.sleeper = Growable(self.manager, 64 * MIB), Suspender()
        self.cache.grow(4 * MIB)
        self.sleeper.add(self.pool, "x")
        self.kept = []

    def cupy(self):
        cuda = types.SimpleNamespace(
            runtime=types.SimpleNamespace(getDevice=lambda: 0),
            UnownedMemory=lambda *of: of,
            MemoryPointer=lambda *of: of,
        )
        return libvmm.cupy._Allocator(cupy_functions(self.pool), cuda)

    def held(self):
        """The bytes of the device that are in use, and the counts of blocks."""
        free, total = self.driver.memory()
        live = [each.statistics().live_count for each in (self.pool, self.manager)]
        return total - free, live

    def close(self):
        self.kept.clear()
        self.sleeper.close(lose_contents=True)
        for each in (self.cache, self.pool, self.manager, self.driver):
            each.close()


FAILING = {
    "a pool and its first block": lambda on: libvmm.Pool(on.driver).allocate(5 * MIB),
    "allocate": lambda on: on.pool.allocate(16 * MIB),
    "allocate_raw": lambda on: on.pool.allocate_raw(16 * MIB),
    "allocate_dedicated": lambda on: on.pool.allocate_dedicated(5 * MIB),
    "a manager and its first range": lambda on: libvmm.Manager(on.driver).allocate(5 * MIB),
    "Manager.allocate": lambda on: on.manager.allocate(5 * MIB),
    "resize": lambda on: on.range.resize(16 * MIB),
    "grow": lambda on: on.cache.grow(16 * MIB),
    "suspend": lambda on: on.sleeper.suspend(),
    "share.export": lambda on: libvmm.share.export(on.driver, 4 * MIB),
    "cupy": lambda on: on.cupy().malloc(16 * MIB),
    "cupy functions": lambda on: cupy_functions(on.pool)._malloc(16 * MIB, 0),
    "rmm": lambda on: libvmm.rmm.functions(on.pool)[0](16 * MIB),
}
# Without those that give memory back: what the driver keeps then stays.
DRIVER_CALLS = (
    "cuCtxPushCurrent cuCtxSynchronize cuDevicePrimaryCtxRetain cuEventCreate cuEventQuery "
    "cuEventRecord cuEventSynchronize cuMemAddressReserve cuMemCreate cuMemExportToShareableHandle "
    "cuMemGetAllocationGranularity cuMemGetInfo cuMemMap cuMemSetAccess cuMemcpyDtoHAsync "
    "cuMemcpyHtoDAsync cuMemsetD8Async cuStreamCreate cuStreamGetId cuStreamIsCapturing "
    "cuStreamSynchronize cuStreamWaitEvent cuThreadExchangeStreamCaptureMode"
).split()


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_call_holds_no_more_than_before(name, standin_library):
    """Each call of the driver inside of one fails once, with each of two codes."""
    driver = ctypes.CDLL(standin_library)
    driver.vmm_standin_calls.restype = ctypes.c_uint64

    def run(symbol="", code=0, nth=0):
        """The calls of the driver by name, and whether the call failed."""
        on = Failing()
        before, failed = on.held(), False
        calls = {each: driver.vmm_standin_calls(each.encode()) for each in DRIVER_CALLS}
        if symbol:
            driver.vmm_standin_fail(symbol.encode(), code, nth, False)
        try:
            on.kept.append(FAILING[name](on))
        except (libvmm.Error, MemoryError):
            failed = True
        driver.vmm_standin_clear_failures()
        counts = {each: driver.vmm_standin_calls(each.encode()) - calls[each] for each in calls}
        gc.collect()
        if failed:
            after = on.held()
            assert after[0] <= before[0] and after[1] == before[1], (symbol, code, nth)
        on.close()
        return counts, failed

    counts, failed = run()
    assert not failed
    failures = 0
    for symbol, count in counts.items():
        for nth in range(1, count + 1):
            failures += sum(run(symbol, code, nth)[1] for code in (1, 2))
    assert failures >= 2


def test_without_the_packages():
    for name in ("cupy", "rmm"):
        if importlib.util.find_spec(name) is None:
            adapter = importlib.import_module(f"libvmm.{name}")
            make = adapter.allocator if name == "cupy" else adapter.resource
            with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
                with pytest.raises(ImportError, match=name):
                    make(pool)


@pytest.mark.parametrize(
    ("module", "call", "reason"),
    [
        ("cupy", "enable", "needs CuPy"),
        ("rmm", "resource", "needs RMM"),
        ("cuda_core", "MemoryResource", "needs cuda.core"),
        ("numba", "enable", "needs Numba"),
        ("vllm", "register", "needs a vLLM"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, module, call, reason):
    """Each adapter is there to be imported without its library, and says what it lacks."""
    for name in ("cuda", "cuda.core", "cupy", "rmm", "numba", "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"libvmm.{module}", raising=False)
    adapter = importlib.import_module(f"libvmm.{module}")
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
        with pytest.raises(ImportError, match=reason):
            getattr(adapter, call)(*([pool] if module in ("cuda_core", "cupy", "rmm") else []))
    sys.modules.pop(f"libvmm.{module}", None)


@pytest.mark.parametrize("name", ["host", "fake"])
@pytest.mark.parametrize(
    ("library", "shown", "call"),
    [
        ("cupy", "CuPy", libvmm.cupy.allocator),
        ("cupy", "CuPy", libvmm.cupy.enable),
        ("rmm", "RMM", libvmm.rmm.resource),
    ],
)
def test_a_pool_whose_memory_no_gpu_can_use_is_refused(monkeypatch, name, library, shown, call):
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    monkeypatch.setattr(libvmm._values, "has_gpu", lambda: True)
    with libvmm.Driver(name) as driver, libvmm.Pool(driver) as pool:
        wanted = f'^pool: a pool on libvmm.Driver."cuda".*{shown} can use.*{name}.* was given$'
        with pytest.raises(libvmm.InvalidArgument, match=wanted):
            call(pool)
