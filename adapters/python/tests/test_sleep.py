# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: torch_memory_saver's interface and vLLM's sleep-mode backend over vmm's regions: the same
names and parameters, memory paused and resumed by tag, a state machine that fails without harm.
Method: a stub of PyTorch that has MemPool, use_mem_pool and graph, and allocates through the
functions passed to it. torch_memory_saver's own signatures and vLLM's own base
class and factory are `./run check adapters`'s."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import types

import libvmm
import libvmm.torch_memory_saver as compat
import pytest
from libvmm import vllm as backend_module

MIB = 1 << 20


class Memory:
    """A PyTorch of one device: what is allocated comes from the pool that is in use."""

    def __init__(self):
        self.used, self.synchronized = [], []
        memory = self

        class MemPool:
            def __init__(self, allocator=None):
                self.allocator, self.id = allocator, (0, id(self))

        class Allocator:
            def __init__(self, malloc, free):
                self.malloc = compat._MALLOC(malloc)
                self.free = compat._FREE(free)

        @contextlib.contextmanager
        def use_mem_pool(pool):
            memory.used.append(pool)
            yield
            memory.used.pop()

        @contextlib.contextmanager
        def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
            cuda_graph.append((pool, stream, capture_error_mode))
            yield

        self.torch = types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                MemPool=MemPool,
                use_mem_pool=use_mem_pool,
                graph=graph,
                current_device=lambda: 0,
                synchronize=self.synchronized.append,
            ),
            _C=types.SimpleNamespace(_cuda_customAllocator=Allocator),
        )

    def empty(self, size):
        """The address of what a tensor's segment would be; None is out of memory."""
        allocator = self.used[-1].allocator if self.used else None
        return allocator.malloc(size, 0, None) if allocator else 0


@pytest.fixture
def memory(monkeypatch):
    made = Memory()
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    monkeypatch.setattr(
        compat._Impl, "open_driver", staticmethod(lambda device: libvmm.Driver("host"))
    )
    return made


@pytest.fixture
def saver(memory):
    made = compat.TorchMemorySaver()
    yield made
    if made._impl is not None:
        made._impl.close()


def write(at, byte, size=64):
    ctypes.memset(at, byte, size)


def read(at, size=64):
    return ctypes.string_at(at, size)


def test_regions_pause_and_resume(saver, memory):
    with saver.region(tag="weights", enable_cpu_backup=True):
        weight = memory.empty(4 * MIB)
    with saver.region(tag="kv_cache"):
        cache = memory.empty(2 * MIB)
        with saver.disable():
            assert memory.empty(MIB) == 0, "PyTorch's own"
    assert memory.empty(MIB) == 0
    write(weight, 7)
    saver.pause("kv_cache")
    assert read(weight) == bytes([7]) * 64, "the other tag stays"
    saver.pause()
    assert memory.synchronized == [0, 0]
    saver.resume("weights")
    assert read(weight) == bytes([7]) * 64
    saver.resume()
    write(cache, 9)
    assert read(cache) == bytes([9]) * 64
    assert saver.enabled


def test_one_tag_with_two_kinds_of_backup(saver, memory, tmp_path):
    saver.set_disk_backup_dir(str(tmp_path / "backups"))
    kinds = (
        {"enable_cpu_backup": True},
        {"enable_disk_backup": True},
        {"enable_cpu_backup": True, "cpu_backup_backend": "mmap"},
    )
    blocks = []
    for number, kind in enumerate(kinds):
        with saver.region(tag="all", **kind):
            blocks.append(memory.empty(2 * MIB))
        write(blocks[-1], number + 1)
    for _ in range(3):
        saver.pause("all")
        saver.resume("all")
    for number, at in enumerate(blocks):
        assert read(at) == bytes([number + 1]) * 64
    with pytest.raises(RuntimeError, match="first region"):
        saver.set_disk_backup_dir(str(tmp_path))
    saver.retain_cpu_backup = False
    assert saver.retain_cpu_backup


def test_graphs_use_the_tags_pool(saver, memory):
    seen = []
    with saver.cuda_graph(seen, tag="graphs", stream=5, capture_error_mode="relaxed"):
        pass
    region = saver._impl.region("graphs", "")
    assert seen == [(region.mem_pool.id, 5, "relaxed")]
    with pytest.raises(ValueError, match="pool"), saver.cuda_graph(seen, pool=(1, 1)):
        pass


class Tensor:
    """What get_cpu_backup() reads of a tensor."""

    is_cuda = True
    dtype = "float32"

    def __init__(self, at, size, is_contiguous=True):
        self._at, self.nbytes, self.shape = at, size, (size,)
        self._is_contiguous = is_contiguous

    def data_ptr(self):
        return self._at

    def is_contiguous(self):
        return self._is_contiguous


def test_a_backup_is_shown_while_its_tensor_is_paused(saver, memory):
    class Bytes:
        def __init__(self, kept):
            self.kept, self.viewed = bytes(kept), []

        def view(self, how):
            self.viewed.append(how)
            return self

    memory.torch.uint8 = "uint8"
    memory.torch.frombuffer = lambda kept, dtype: Bytes(kept)
    for backend in ("pinned", "mmap"):
        with saver.region(tag=backend, enable_cpu_backup=True, cpu_backup_backend=backend):
            at = memory.empty(4 * MIB)
        with saver.region(tag=backend):
            lost = memory.empty(2 * MIB)
        write(at + 100, 7, 300)
        assert saver.get_cpu_backup(Tensor(at, 100)) is None, "it is not paused"
        saver.pause(backend)
        kept = saver.get_cpu_backup(Tensor(at + 50, 400))
        assert kept.kept == bytes(50) + bytes([7]) * 300 + bytes(50)
        assert kept.viewed == ["float32", (400,)]
        assert saver.get_cpu_backup(Tensor(lost, 100)) is None, "it has no backup"
        saver.resume(backend)
        assert saver.get_cpu_backup(Tensor(at, 100)) is None
    with pytest.raises(ValueError, match="contiguous"):
        saver.get_cpu_backup(Tensor(at, 100, False))


@pytest.fixture
def cuda(standin, monkeypatch):
    """The stub of CUDA's driver, which the saver opens."""
    monkeypatch.setattr(
        compat._Impl, "open_driver", staticmethod(lambda device: libvmm.Driver("cuda", device))
    )
    return standin


def test_a_capture_allocates_and_its_memory_comes_back(memory, cuda):
    """As cuda_graph() does: segments on the captured stream, freed behind the graph."""
    saver = compat.TorchMemorySaver()
    region = saver._ensure_initialized().region("graphs", "")
    stream = region._driver.create_stream()
    eager = region._allocate(2 * MIB, 0, stream)
    for _ in range(3):
        assert cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0
        first, second = (region._allocate(40 * MIB, 0, stream) for _ in range(2))
        assert first and second and eager
        graph = ctypes.c_void_p()
        assert cuda.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        saver.pause("graphs")
        saver.resume("graphs")
        assert cuda.cuGraphDestroy(graph) == 0
        for at in (first, second):
            region._free(at, 40 * MIB, 0, stream)
    region._free(eager, 2 * MIB, 0, stream)
    region.pool.synchronize()
    region.pool.trim()
    now = region.pool.statistics()
    assert now.live_count == 0 and now.mapped_bytes == 0, "graphs that are gone keep nothing"
    region.pool.forget_stream(stream)
    region._driver.destroy_stream(stream)
    saver._impl.close()


def test_allocations_that_fail_are_null(saver, memory):
    saver.memory_margin_bytes = 1 << 60
    with saver.region():
        assert memory.empty(MIB) is None
        saver.memory_margin_bytes = 0
        assert memory.empty(MIB)
    saver.pause()
    with saver.region():
        assert memory.empty(MIB) is None, "the tag is paused"
    saver.resume()


def test_frees_reach_the_pool(saver, memory):
    with saver.region(tag="kv", enable_cpu_backup=True):
        at = memory.empty(2 * MIB)
        pool = memory.used[-1]
    saver.pause("kv")
    pool.allocator.free(at, 2 * MIB, 0, None)
    saver.resume("kv")
    assert saver._impl.region("kv", "pinned").pool.statistics().live_count == 0


def test_wrong_use(saver, memory):
    margin = "memory_margin_bytes"
    for wrong in (
        {"cpu_backup_backend": "mmap"},
        {"enable_cpu_backup": True, "cpu_backup_backend": "tape"},
        {"enable_cpu_backup": True, "enable_disk_backup": True},
    ):
        with pytest.raises(ValueError), saver.region(**wrong):
            pass
    saver.hook_mode = "torch"
    with pytest.raises(ValueError):
        saver.hook_mode = "neither"
    saver.pause("nothing was made under it")
    for call in (saver.pause, saver.resume, lambda wrong: setattr(saver, margin, wrong)):
        with pytest.raises((TypeError, libvmm.InvalidArgument), match="was given"):
            call([-5])
    with pytest.raises(RuntimeError, match="first use"):
        saver.hook_mode = "torch"
    with pytest.raises(AttributeError):
        _ = saver.hook_mode
    with pytest.raises(NotImplementedError):
        _ = saver.memory_margin_bytes
    with pytest.raises(RuntimeError, match="inside"), saver.disable():
        pass
    with saver.region(tag="kv"):
        memory.empty(MIB)
    saver.pause("kv")
    with pytest.raises(libvmm.InUse):
        saver.pause("kv")
    saver.resume("kv")
    saver.resume("kv")
    with compat.configure_subprocess():
        pass


def test_an_exit_while_contents_are_kept(saver, memory):
    with saver.region(tag="weights", enable_cpu_backup=True):
        memory.empty(MIB)
    saver.pause()
    saver._impl.close()


def test_a_child_pauses_beside_a_thread_that_does(saver, memory):
    with saver.region(tag="weights"):
        memory.empty(MIB)
    held, ends = threading.Event(), threading.Event()

    def hold():
        with saver._impl._lock:
            held.set()
            ends.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            saver.pause()
        except libvmm.NotPermitted:
            os._exit(7)
        finally:
            os._exit(1)
    ends.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.fixture
def engine(memory, monkeypatch):
    monkeypatch.setattr(backend_module, "_made", {})
    with backend_module.use_memory_pool("weights"):
        weight = memory.empty(2 * MIB)
    with backend_module.use_memory_pool("kv_cache"):
        cache = memory.empty(2 * MIB)
    write(weight, 3)
    yield backend_module.VmmBackend(), weight, cache
    backend_module._memory().close()


def test_level_1_keeps_the_weights(engine):
    backend, weight, cache = engine
    assert backend.state() == "RUNNING"
    backend.suspend(level=1)
    assert backend.state() == "SUSPENDED"
    with pytest.raises(RuntimeError, match="SUSPENDED"):
        backend.suspend()
    backend.resume(tags=["weights"])
    assert backend.state() == "RESUMING" and read(weight) == bytes([3]) * 64
    backend.resume(tags=["weights"])
    assert backend.state() == "RESUMING"
    backend.resume(tags="kv_cache")
    assert backend.state() == "RUNNING"
    write(cache, 1)
    with pytest.raises(RuntimeError, match="RUNNING"):
        backend.resume()


def test_levels_0_and_2(engine):
    backend, weight, _ = engine
    backend.suspend(level=0)
    assert read(weight) == bytes([3]) * 64 and backend.state() == "SUSPENDED"
    backend.resume()
    assert backend.state() == "RUNNING"
    backend.suspend(level=2)
    assert backend_module._memory()._suspenders["pinned"].backup_bytes == 0
    backend.resume()
    assert backend.state() == "RUNNING"
    with pytest.raises(libvmm.InvalidArgument):
        backend.suspend(level=3)


def test_one_tag_is_discarded_while_the_rest_runs(engine, memory):
    """As /release_kv_cache_memory does: vLLM calls suspend() and resume() as ever afterwards."""
    backend, weight, cache = engine
    backend.discard(("kv_cache", "nothing was made under it"))
    assert backend.state() == "SUSPENDED" and backend_module._memory().tags() == [
        "weights",
        "kv_cache",
    ]
    assert read(weight) == bytes([3]) * 64, "the weights are there"
    with backend_module.use_memory_pool("kv_cache"):
        assert memory.empty(MIB) is None, "the cache is away"
    with backend_module.use_memory_pool("weights"):
        assert memory.empty(MIB), "the rest runs"
    backend.discard("kv_cache")
    backend.resume(["kv_cache"])
    assert backend.state() == "RUNNING"
    write(cache, 1)
    assert read(cache) == bytes([1]) * 64
    backend.discard(("kv_cache",))
    backend.suspend(level=1)
    with pytest.raises(RuntimeError, match="SUSPENDED"):
        backend.suspend(level=1)
    backend.discard(("weights",))  # away, and kept
    backend.resume(["weights"])
    assert backend.state() == "RESUMING" and read(weight) == bytes([3]) * 64
    backend.resume()
    assert backend.state() == "RUNNING"
    backend.suspend()
    backend.resume()
    assert read(weight) == bytes([3]) * 64


def test_a_discard_that_fails_changes_no_state(engine):
    backend, _weight, _ = engine
    region = backend_module._memory().region("kv_cache", "pinned")
    pinned = region.pool.allocate(MIB)
    region.pool.pin(pinned)
    with pytest.raises(libvmm.InUse):
        backend.discard(("kv_cache",))
    assert backend.state() == "RUNNING"
    region.pool.unpin(pinned)
    backend.discard(("kv_cache",))
    backend.resume()


def test_a_call_that_fails_changes_no_state(engine, monkeypatch):
    backend, weight, _ = engine
    region = backend_module._memory().region("kv_cache", "pinned")
    pinned = region.pool.allocate(MIB)
    region.pool.pin(pinned)
    with pytest.raises(libvmm.InUse):
        backend.suspend()
    assert backend.state() == "RUNNING" and read(weight) == bytes([3]) * 64
    region.pool.unpin(pinned)
    backend.suspend()

    def refuse(tag):
        raise libvmm.OutOfMemory("none left")

    with monkeypatch.context() as patched:
        patched.setattr(backend._memory, "resume", refuse)
        with pytest.raises(libvmm.OutOfMemory):
            backend.resume()
    assert backend.state() == "SUSPENDED"
    backend.resume()
    assert backend.state() == "RUNNING" and read(weight) == bytes([3]) * 64
