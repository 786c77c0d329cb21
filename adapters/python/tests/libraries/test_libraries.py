# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: CuPy, cuda.core, Numba, RMM, torch_memory_saver and vLLM take what libvmm gives them.
Method: the libraries themselves, of the package index, without a GPU: their own classes call the
adapters' functions, over a pool on the host's memory. `./run check adapters` installs them and runs
this; each test skips where its library is missing. vLLM and torch_memory_saver, which need PyTorch,
are single files of their wheels in LIBVMM_CHECK_SOURCES: vLLM's base class runs beside empty
modules in PyTorch's place, torch_memory_saver's signatures are read. Kernels, captures and copies
are gpu_tests/gpu.sh suites's."""

import ast
import contextlib
import ctypes
import gc
import importlib
import inspect
import os
import random
import subprocess
import sys
import types

import libvmm
import libvmm.torch_memory_saver as saver_module
import pytest

MIB = 1 << 20
SOURCES = os.environ.get("LIBVMM_CHECK_SOURCES", "")


@pytest.fixture(autouse=True)
def host_memory(monkeypatch):
    """No array of these tests is used on a GPU."""
    monkeypatch.setattr(libvmm._values, "cuda_drivers", ("host",))


@pytest.fixture
def pool():
    with libvmm.Driver("host") as driver, libvmm.Pool(driver, budget=64 * MIB) as made:
        yield made


def live(of):
    gc.collect()
    return of.statistics().live_count


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


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def cupy_malloc(cupy, pool, size, device=0, stream=None):
    """As CuPy calls it, but for the current device and stream, which need a driver."""
    import libvmm.cupy

    made = libvmm.cupy.allocator(pool)
    made._functions._current_stream = lambda: stream or cupy.cuda.Stream.null
    made._cuda = types.SimpleNamespace(
        MemoryPointer=cupy.cuda.MemoryPointer,
        UnownedMemory=cupy.cuda.UnownedMemory,
        runtime=types.SimpleNamespace(getDevice=lambda: device),
    )
    return made.malloc(size)


def test_cupy_takes_the_allocator(cupy, pool):
    import libvmm.cupy

    chosen = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cupy.cuda, "set_allocator", chosen.append)
        made = libvmm.cupy.enable(pool)
    assert chosen == [made.malloc]


def test_cupy_arrays_hold_their_memory(cupy, pool):
    memory = cupy_malloc(cupy, pool, 4096)
    assert memory.ptr and memory.mem.size == 4096 and live(pool) == 1
    array = cupy.ndarray((10, 10), "float32", memptr=memory)
    part = array[2:5]
    assert part.data.ptr - array.data.ptr == 80
    del array, memory
    assert live(pool) == 1
    del part
    assert live(pool) == 0
    assert cupy_malloc(cupy, pool, 0).ptr == 0


def test_cupy_allocates_and_frees(cupy, pool):
    live_now = {}

    def allocate(size):
        memory = cupy_malloc(cupy, pool, size)
        live_now[memory.ptr] = memory
        return memory.ptr

    churn(allocate, lambda at, _size: live_now.pop(at), rounds=500)
    assert live(pool) == 0


def test_cupy_streams_that_it_does_not_own(cupy, capfd):
    """No free names one that may be destroyed, or is another stream in each thread."""
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        foreign = cupy.cuda.ExternalStream(driver.create_stream())
        kept = [cupy_malloc(cupy, pool, 4 * MIB, stream=foreign)]
        driver.destroy_stream(foreign.ptr)
        kept.append(cupy_malloc(cupy, pool, 4 * MIB, stream=cupy.cuda.Stream.ptds))
        kept.clear()
        assert live(pool) == 0 and capfd.readouterr().err == ""


def test_cupy_arrays_in_cycles_give_their_memory_back(cupy, pool):
    for _ in range(3):
        node = types.SimpleNamespace(
            array=cupy.ndarray((10, 10), "float32", memptr=cupy_malloc(cupy, pool, 4096))
        )
        node.itself = node
    del node
    assert live(pool) == 0


def test_cupy_out_of_memory_is_its_own_error(cupy, pool):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="1,073,741,824 bytes.*67,108,864"):
        cupy_malloc(cupy, pool, 1 << 30)
    assert live(pool) == 0


def test_cupy_gets_every_refusal(cupy, pool):
    for wrong in (-5, (1 << 64) + 5):
        with pytest.raises(libvmm.InvalidArgument, match=f"and {wrong} was given"):
            cupy_malloc(cupy, pool, wrong)
    pool.close()
    with pytest.raises(libvmm.InvalidHandle):
        cupy_malloc(cupy, pool, 512)


def test_cupy_arrays_may_outlive_the_pool(cupy, pool):
    memory = cupy_malloc(cupy, pool, 512)
    pool.close()
    del memory
    gc.collect()


# ---- Numba ----------------------------------------------------------------------------------


@pytest.fixture
def numba(monkeypatch):
    """A context of Numba's whose memory manager is ours, on the host's memory."""
    driver = pytest.importorskip("numba.cuda.cudadrv.driver", reason="numba-cuda is not installed")
    from numba.cuda.cudadrv import devices

    sys.modules.pop("libvmm.numba", None)
    adapter = importlib.import_module("libvmm.numba")
    monkeypatch.setattr(adapter.MemoryManager, "driver_name", "host")
    monkeypatch.setattr(driver, "_memory_manager", None)
    monkeypatch.setattr(devices._runtime, "ensure_context", contextlib.nullcontext)
    adapter.enable()
    assert driver._memory_manager is adapter.MemoryManager is adapter._numba_memory_manager
    context = driver.Context(types.SimpleNamespace(id=0), None)
    assert isinstance(context.memory_manager, adapter.MemoryManager)
    yield context
    context.memory_manager.reset()


def numba_array(context, count):
    import numpy
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    return DeviceNDArray((count,), (8,), numpy.dtype("f8"), gpu_data=context.memalloc(count * 8))


def numba_live(context):
    return live(context.memory_manager._pool)


def test_numba_takes_the_address(numba):
    pointer = numba.memalloc(1000)
    assert pointer.device_pointer_value % 256 == 0
    assert int(pointer.device_pointer) == pointer.device_pointer_value
    assert pointer.device_ctypes_pointer.value == pointer.device_pointer_value
    ctypes.memset(pointer.device_pointer_value, 7, 1000)
    assert pointer.size == 1000


def test_numba_arrays_and_slices_hold_the_memory(numba):
    array = numba_array(numba, 100)
    at = array.device_ctypes_pointer.value
    part = array[10:20]
    assert part.device_ctypes_pointer.value == at + 80
    del part
    assert numba_live(numba) == 1, "the first slice's end frees nothing"
    part, other = array[50:], array[:5]
    del array
    assert numba_live(numba) == 1, "slices hold the memory of an array that is gone"
    del part
    assert numba_live(numba) == 1
    del other
    assert numba_live(numba) == 0


def test_numba_frees_once(numba):
    pointer = numba.memalloc(1000)
    pointer.free()
    with pytest.raises(RuntimeError, match="dead memory"):
        pointer.free()
    assert numba_live(numba) == 0


def test_numba_out_of_memory(numba):
    with pytest.raises(MemoryError, match="out_of"):
        numba.memalloc(1 << 60)


def test_numba_figures_and_handles(numba):
    array = numba_array(numba, 1 << 20)
    free, total = numba.get_memory_info()
    assert 0 < free <= total
    with pytest.raises(libvmm.NotSupported, match="libvmm.share"):
        numba.get_ipc_handle(array.gpu_data)
    with numba.defer_cleanup():
        del array
        assert numba_live(numba) == 0, "a free of the pool waits for nothing"


def test_numba_opens_another_pool_after_a_reset(numba):
    """As cuda.close() does: what lives then is gone with the context, and its end harms nothing."""
    array = numba_array(numba, 100)
    before = numba.memory_manager._pool
    numba.memory_manager.reset()
    assert not before.is_open and not before.driver.handle
    another = numba_array(numba, 100)
    assert numba_live(numba) == 1
    del array
    assert numba_live(numba) == 1
    del another
    numba.memory_manager.reset()
    numba.memory_manager.reset()


# ---- RMM ------------------------------------------------------------------------------------


@pytest.fixture
def rmm():
    return pytest.importorskip("rmm", reason="RMM is not installed")


def test_rmm_calls_the_functions(rmm, pool):
    import libvmm.rmm

    made = libvmm.rmm.resource(pool)
    blocks = [made.allocate(size) for size in (1, 1000, 3 * MIB)]
    assert live(pool) == 3 and all(at % 256 == 0 for at in blocks)
    for at, size in zip(blocks, (1, 1000, 3 * MIB)):
        made.deallocate(at, size)
    assert live(pool) == 0
    with pytest.raises(MemoryError, match="over_budget"):
        made.allocate(1 << 30)
    churn(made.allocate, made.deallocate, rounds=500)
    streams = rmm.pylibrmm.stream
    for stream, number in ((streams.DEFAULT_STREAM, 0), (streams.PER_THREAD_DEFAULT_STREAM, 2)):
        assert libvmm.rmm.stream_number(stream) == number
        made.deallocate(made.allocate(512, stream), 512, stream)
    assert made.allocate(0) == 0
    made.deallocate(0, 0)
    last = made.allocate(512)
    assert live(pool) == 1
    pool.close()
    made.deallocate(last, 512)  # a C++ caller has no way to take an error


def test_rmm_adaptors_lie_over_it(rmm, pool):
    import libvmm.rmm

    counted = rmm.mr.StatisticsResourceAdaptor(libvmm.rmm.resource(pool))
    limited = rmm.mr.LimitingResourceAdaptor(counted, 1 * MIB)
    at = limited.allocate(5000)
    assert counted.allocation_counts.current_count == 1 and live(pool) == 1
    with pytest.raises(MemoryError):
        limited.allocate(2 * MIB)
    limited.deallocate(at, 5000)
    assert live(pool) == 0


REPLACED = """
import gc, rmm, libvmm, libvmm.rmm
libvmm._values.cuda_drivers = ("host",)
pool = libvmm.Pool(libvmm.Driver("host"))
for _ in range(3):
    over = rmm.mr.PoolMemoryResource(libvmm.rmm.resource(pool), 1 << 20)
    rmm.mr.set_per_device_resource(0, over)
    del over
    gc.collect()
rmm.mr.set_per_device_resource(0, libvmm.rmm.resource(pool))
gc.collect()
assert pool.statistics().live_count == 0
"""


def test_rmm_replaces_a_pool_over_it(rmm):
    """RMM calls the functions of a resource after its Python object is gone. In a process of its
    own: it crashed."""
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- cuda.core ------------------------------------------------------------------------------


def test_cuda_core_s_buffers(pool):
    """Over host memory, for which cuda.core needs no driver and passes no stream."""
    pytest.importorskip("cuda.core")
    import libvmm.cuda_core

    made = libvmm.cuda_core.MemoryResource(pool)
    assert made.is_host_accessible and not made.is_device_accessible and not made.is_managed
    with made.allocate(3 * MIB, stream=None) as buffer:
        assert buffer.memory_resource is made and buffer.size == 3 * MIB and live(pool) == 1
        ctypes.memset(int(buffer.handle), 7, buffer.size)
    assert buffer.is_closed and live(pool) == 0
    kept = made.allocate(0), made.allocate(5000)
    assert [int(each.handle) != 0 for each in kept] == [False, True]
    del kept
    assert live(pool) == 0
    with pytest.raises(MemoryError, match="over_budget"):
        made.allocate(1 << 30, stream=None)
    last = made.allocate(512)
    pool.close()
    last.close()


def test_cuda_core_passes_streams(pool, monkeypatch):
    """The stream of an allocation is the one of the free; without it, the free is behind all."""
    pytest.importorskip("cuda.core")
    import libvmm.cuda_core

    streams = types.SimpleNamespace(__cuda_stream__=lambda: (0, 0))
    made = libvmm.cuda_core.MemoryResource(pool)
    calls = []
    core = types.SimpleNamespace(
        Buffer=types.SimpleNamespace(
            from_handle=lambda at, size, **named: calls.append(named) or (at, size)
        )
    )
    monkeypatch.setattr(libvmm.cuda_core, "_core", core)
    made.deallocate(*made.allocate(1000, stream=streams), stream=streams)
    monkeypatch.setattr(made, "_has_streams", False)
    made.deallocate(*made.allocate(1000, streams))
    assert calls == [{"mr": made, "stream": streams}, {"mr": made}] and live(pool) == 0


# ---- VMM=1 ----------------------------------------------------------------------------------

ONE_VARIABLE = """
import site, sys
site.addsitedir(sys.argv[1])
import cupy, numba.cuda, rmm, warp
import contextlib, ctypes, gc, types, _libvmm_start
from libvmm import _auto, _values
from numba.cuda.cudadrv import devices, driver

served = {*_libvmm_start.served} - {_libvmm_start.BOUNDARY}
assert served == {"cupy", "numba", "rmm", "warp"}, _libvmm_start.served
_auto.driver_name = "host"
_values.cuda_drivers = ("host",)
pool = _auto.shared_pool(0)

def live():
    gc.collect()
    return pool.statistics().live_count

# Each library's own hook. The current device and stream, which need a driver, are replaced.
malloc = cupy.cuda.get_allocator()
at_home = types.SimpleNamespace(ptr=0)
of_cupy = malloc.__self__
of_cupy._cupy = types.SimpleNamespace(
    cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(getDevice=lambda: 0)))
from libvmm import cupy as adapter
of_cupy._made[0] = adapter.allocator(pool)
of_cupy._made[0]._functions._current_stream = lambda: at_home
of_cupy._made[0]._cuda = types.SimpleNamespace(
    MemoryPointer=cupy.cuda.MemoryPointer, UnownedMemory=cupy.cuda.UnownedMemory,
    runtime=types.SimpleNamespace(getDevice=lambda: 0))
array = cupy.ndarray((10, 10), "float32", memptr=malloc(4096))
assert live() == 1

at = rmm.mr.get_per_device_resource(0).allocate(5000)
assert live() == 2 and at % 256 == 0

devices._runtime.ensure_context = contextlib.nullcontext
context = driver.Context(types.SimpleNamespace(id=0), None)
context.prepare_for_use = lambda: None
pointer = context.memalloc(1000)
ctypes.memset(pointer.device_pointer_value, 7, 1000)
assert live() == 3
assert driver.config.CUDA_MEMORY_MANAGER == "libvmm.numba", "Numba's own tests look at the name"
context.memory_manager.reset()
assert pool.is_open, "the pool belongs to the other libraries, too"

warp.config.quiet = True
warp.init()
device = types.SimpleNamespace(ordinal=0, stream=types.SimpleNamespace(cuda_stream=None))
of_warp = _auto.WarpAllocator(device)
warp._src.context._validate_allocator(of_warp)
there = of_warp.allocate(1 << 20)
assert live() == 4
of_warp.deallocate(there, 1 << 20)
rmm.mr.get_per_device_resource(0).deallocate(at, 5000)
del array, pointer
assert live() == 0, live()
print("fine")
"""


def test_one_variable_gives_all_libraries_one_pool():
    for each in ("cupy", "numba.cuda", "rmm", "warp"):
        pytest.importorskip(each)
    source = os.path.dirname(os.path.dirname(libvmm.__file__))
    done = subprocess.run(
        [sys.executable, "-c", ONE_VARIABLE, source],
        capture_output=True,
        text=True,
        env={**os.environ, "VMM": "1", "CUDA_VISIBLE_DEVICES": "0"},
    )
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stderr


# ---- vLLM -----------------------------------------------------------------------------------


def source(*path):
    found = os.path.join(SOURCES, *path)
    if not SOURCES or not os.path.exists(found):
        pytest.skip(f"LIBVMM_CHECK_SOURCES has no {'/'.join(path)}")
    return found


@pytest.fixture
def vllm(monkeypatch):
    """vLLM's own module, and libvmm.vllm over it."""
    name = "vllm.device_allocator.sleep_mode_backend"
    path = source("vllm", "device_allocator", "sleep_mode_backend.py")
    for each in ("vllm", "vllm.device_allocator", "vllm.utils"):
        package = types.ModuleType(each)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, each, package)
    empty = {
        "torch": {},
        "vllm.envs": {},
        "vllm.utils.mem_constants": {"GiB_bytes": 1 << 30},
        "vllm.logger": {"init_logger": lambda _: types.SimpleNamespace(info=print)},
    }
    for each, members in empty.items():
        module = types.ModuleType(each)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, each, module)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, made)
    spec.loader.exec_module(made)
    monkeypatch.delitem(sys.modules, "libvmm.vllm", raising=False)
    made.ours = importlib.import_module("libvmm.vllm")
    yield made
    sys.modules.pop("libvmm.vllm", None)


def test_vllm_makes_the_backend(vllm, monkeypatch):
    vllm.ours.register()
    vllm.ours.register()
    monkeypatch.setattr(vllm.ours.VmmBackend, "is_supported", classmethod(lambda cls: True))
    made = vllm.SleepModeBackendFactory.create_backend(
        types.SimpleNamespace(sleep_mode_backend="libvmm")
    )
    assert isinstance(made, vllm.SleepModeBackend) and made.state() == "RUNNING"
    assert made.preserves_communicators() and made.preserves_compiled_artifacts()
    assert not made.preserves_graphs_with_communicators() and not made.supports_durable_storage()


def test_vllm_s_methods_are_all_there(vllm):
    """Each method that vLLM's own backend has, by the same parameters."""
    base, theirs, ours = vllm.SleepModeBackend, vllm.CuMemBackend, vllm.ours.VmmBackend
    for name in {*vars(base), *vars(theirs)}:
        if name.startswith("_") or name == "state":
            continue
        assert name in vars(ours), name
        member = inspect.getattr_static(base, name)
        if inspect.isfunction(member):
            assert list(inspect.signature(member).parameters) == list(
                inspect.signature(vars(ours)[name]).parameters
            ), name


def test_vllm_discards_and_sleeps(vllm):
    calls = []

    class Memory:
        def discard(self, tags):
            calls.append(("discard", tags))
            return [tag for tag in tags if tag != "unknown"]

        def sleep(self, kept):
            calls.append(("sleep", kept))
            return ["weights"]

        def resume(self, tag):
            calls.append(("resume", tag))

    backend = vllm.ours.VmmBackend(Memory())
    backend.discard(("kv_cache", "unknown"))
    backend.suspend(level=1)
    backend.resume(["weights"])
    assert backend.state() == "RESUMING"
    backend.resume(None)
    assert backend.state() == "RUNNING"
    assert calls == [
        ("discard", ("kv_cache", "unknown")),
        ("sleep", ["weights"]),
        ("resume", "weights"),
        ("resume", "kv_cache"),
    ]


# ---- torch_memory_saver ---------------------------------------------------------------------


def test_torch_memory_saver_s_signatures():
    with open(source("torch_memory_saver", "entrypoint.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    theirs = next(
        each
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name == "TorchMemorySaver"
    )
    names = set()
    for function in theirs.body:
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        names.add(function.name)
        ours = inspect.getattr_static(saver_module.TorchMemorySaver, function.name)
        marks = {ast.unparse(each) for each in function.decorator_list}
        assert isinstance(ours, property) == any("property" in m or "setter" in m for m in marks)
        if isinstance(ours, property):
            continue
        wanted = [each.arg for each in function.args.args]
        found = inspect.signature(ours).parameters
        assert wanted == list(found), function.name
        defaults = [
            found[name].default
            for name in wanted[-len(function.args.defaults) :]
            if function.args.defaults
        ]
        known = {"_TAG_DEFAULT": saver_module._TAG_DEFAULT}
        assert defaults == [
            known[each.id] if isinstance(each, ast.Name) else ast.literal_eval(each)
            for each in function.args.defaults
        ], function.name
    assert {"region", "cuda_graph", "pause", "resume", "get_cpu_backup"} <= names
