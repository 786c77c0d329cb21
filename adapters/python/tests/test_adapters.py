# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what libvmm gives CuPy and RMM survives streams that end and calls of the driver that fail,
and a missing package is named.
Method: objects in place of CuPy's streams, which cannot be made, or end, without a GPU, and the
stub of CUDA's driver. The packages themselves are `./run check adapters`'s
(adapters/python/tests/libraries)."""

import ctypes
import gc
import importlib
import os
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


# ---- CuPy -----------------------------------------------------------------------------------


class Stream:
    """As a stream of CuPy: its number, and an object that ends."""

    def __init__(self, ptr=0):
        self.ptr = ptr


def take(functions, size):
    """What _free() takes of an allocation."""
    into = ctypes.c_void_p()
    of = functions._take(into, size, 0)
    return into.value, of, []


def test_cupy_frees_on_the_stream_that_allocated():
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        stream = driver.create_stream()
        current = [Stream(stream)]
        functions = libvmm.cupy.Functions(pool, lambda: current[0])
        at = take(functions, 4 << 20)
        kept, current[0] = current[0], Stream()
        functions._free(*at)
        free = [r for r in pool.regions() if r.kind is libvmm.RegionKind.FREE and r.size >= 4 << 20]
        assert [r.stream for r in free] == [kept.ptr]
        pool.forget_stream(stream)
        pool.synchronize()


def test_cupy_names_no_stream_that_has_ended(capfd):
    """A handle is used while a Stream that owns it exists, and by no free after that."""
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        current = [Stream(driver.create_stream())]
        functions = libvmm.cupy.Functions(pool, lambda: current[0])
        at = take(functions, 4 << 20)
        driver.destroy_stream(current[0].ptr)
        current[0] = Stream()
        functions._free(*at)
        assert take(functions, 4 << 20)
        assert pool.statistics().live_count == 1 and capfd.readouterr().err == ""


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
        functions = libvmm.cupy.Functions(pool, lambda: current[0])
        of_rmm, to_rmm = libvmm.rmm.functions(pool)

        def allocate(size):
            stream = current[0].ptr
            return (take(functions, size) if made else of_rmm(size, stream)), stream

        def free(at, stream):
            functions._free(*at) if made else to_rmm(at, 0, stream)

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


# ---- RMM ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        (None, 0),
        (77, 77),
        (types.SimpleNamespace(__cuda_stream__=(0, 77)), 77),
        (types.SimpleNamespace(__cuda_stream__=lambda: (0, 77)), 77),
    ],
)
def test_rmm_stream_numbers(stream, number):
    """Of the protocol of CUDA's Python packages, which once was a property."""
    assert libvmm.rmm.stream_number(stream) == number


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
        return libvmm.cupy._Allocator(libvmm.cupy.Functions(self.pool, Stream), cuda)

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
