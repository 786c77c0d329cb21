# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: no memory goes from under an array, nothing hangs, and what is dropped gives its memory
back.
Method: arrays of numpy over blocks, ranges, growable and borrowed memory, while each call that
takes memory away is made; drops in cycles, in handlers of signals, in callbacks, in forked children
and by two threads. What would end Python by a signal, or hang it, runs in a child with a limit of
time.
fuzz_lifetimes.py does the same in random order."""

import ctypes
import gc
import os
import socket
import subprocess
import sys
import threading
import warnings

import libvmm
import libvmm.cupy
import libvmm.torch_memory_saver
import libvmm.vllm
import pytest
from libvmm import share
from libvmm.growable import Growable
from libvmm.suspend import Suspender

numpy = pytest.importorskip("numpy")
KIB, MIB = 1 << 10, 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))


def child(code, seconds=60):
    """Runs code in a process of its own; it has ended by itself and said nothing on stderr."""
    made = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        text=True,
        capture_output=True,
        timeout=seconds,
    )
    assert made.returncode == 0, made.stderr
    return made


@pytest.fixture
def driver():
    with libvmm.Driver("host") as opened:
        yield opened


def shown_by(block, value=7):
    """By the driver: arrays of NumPy before 2.1 can only be read."""
    block._owner.driver.write(block.address, bytes([value]) * block.size)
    return numpy.from_dlpack(block)


# ---- what takes memory away ----


@pytest.mark.parametrize("made", [libvmm.Pool, libvmm.Manager])
def test_a_close_under_an_array_is_refused(driver, made):
    owner = made(driver, report_live=False)
    array = shown_by(owner.allocate(64 * KIB))
    with pytest.raises(libvmm.InUse, match="1 array shows memory of the") as refused:
        owner.close()
    assert refused.value.status == libvmm.Status.IN_USE
    with pytest.raises(libvmm.InUse, match=f"used by 1 libvmm.{made.__name__}"):
        driver.close()
    assert owner.is_open and (array == 7).all()
    owner.allocate(4 * KIB).free()
    del array
    owner.close()


def test_a_with_that_ends_under_an_array():
    with pytest.raises(libvmm.InUse, match="array shows"):
        with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
            array = shown_by(pool.allocate(4 * KIB))
    assert pool.is_open and (array == 7).all()
    with pytest.raises(ZeroDivisionError):  # and not InUse: the traceback still has the array
        with libvmm.Driver("host") as other, libvmm.Pool(other) as second:
            another = shown_by(second.allocate(4 * KIB))
            1 / 0
    assert (another == 7).all()
    lives = [pool._life, driver._life, second._life, other._life]
    del array, pool, driver, another, second, other
    gc.collect()
    assert [life.has_ended for life in lives] == [True] * 4


@pytest.mark.parametrize("mode", [libvmm.Copy.MOVE, libvmm.Copy.ALIAS])
def test_a_copy_that_remaps_under_an_array_is_refused(driver, mode):
    with libvmm.Manager(driver) as manager:
        target, source = manager.allocate(2 * MIB), manager.allocate(2 * MIB)
        array = shown_by(target)
        with pytest.raises(libvmm.InUse):
            manager.copy(target, source, mode=mode)
        assert (array == 7).all()
        manager.copy(target, source, mode=libvmm.Copy.BYTES)
        del array
        array = shown_by(source)
        if mode is libvmm.Copy.MOVE:
            with pytest.raises(libvmm.InUse):
                manager.copy(target, source, mode=mode)
        assert (array == 7).all()
        del array
        manager.copy(target, source, mode=mode)
        assert (numpy.from_dlpack(target) == 7).all()
        if mode is libvmm.Copy.MOVE:
            with pytest.raises(BufferError, match="moved"):
                numpy.from_dlpack(source)
        source.free()
        target.free()


@pytest.mark.parametrize("mode", [libvmm.Copy.MOVE, libvmm.Copy.ALIAS])
def test_another_allocator_s_block_is_not_remapped(driver, mode):
    with libvmm.Manager(driver) as manager, libvmm.Pool(driver) as pool:
        with libvmm.Manager(driver) as third:
            own = manager.allocate(2 * MIB)
            for other in (pool.allocate(2 * MIB), third.allocate(2 * MIB)):
                for target, source in ((own, other), (other, own), (other, other)):
                    with pytest.raises(libvmm.InvalidArgument, match=f"{mode.name} .*by BYTES"):
                        manager.copy(target, source, mode=mode)
                manager.copy(own, other, mode=libvmm.Copy.BYTES)
                assert (shown_by(other) == 7).all()


def test_a_resize_and_free_under_an_array_are_refused(driver):
    with libvmm.Manager(driver) as manager, libvmm.Pool(driver) as pool:
        block, other = manager.allocate(2 * MIB), pool.allocate(4 * KIB)
        array, second = shown_by(block), shown_by(other, 9)
        for call in (
            lambda: block.resize(4 * KIB),
            block.free,
            other.free,
            lambda: pool.free_raw(other.address),
        ):
            with pytest.raises(libvmm.InUse, match="array shows"):
                call()
        assert (array == 7).all() and (second == 9).all()
        del array, second
        block.resize(4 * KIB)
        block.free()
        other.free()


def test_the_address_of_a_block_is_freed_by_the_block_alone(driver):
    """A block that was freed by its address would free the next block there when it goes."""
    with libvmm.Pool(driver) as pool, libvmm.Pool(driver) as other:
        at = pool.allocate_raw(4 * KIB)
        block, whole = pool.allocate(4 * KIB), pool.allocate_dedicated(4 * KIB)
        for owned in (block, whole):
            for free in (pool.free_raw, pool._free_unordered):
                with pytest.raises(libvmm.InUse, match=f"Block has .*{owned.address:#x}.* free"):
                    free(owned.address)
            with pytest.raises(libvmm.InUse):
                libvmm.Block(pool, owned.address, 4 * KIB, 0)
            with pytest.raises(libvmm.UnknownAddress):
                other.free_raw(owned.address)
        pool.free_raw(at)
        with pytest.raises(libvmm.UnknownAddress):
            pool.free_raw(at)
        freed = block.address
        block.free()
        second = pool.allocate(4 * KIB)
        assert second.address in (freed, at)
        for stale in (block.free, lambda: pool.free_raw(freed), lambda: pool.free_raw(at)):
            with pytest.raises((libvmm.UnknownAddress, libvmm.InUse)):
                stale()
        del block
        gc.collect()
        assert pool.statistics().live_count == 2
        adopted = libvmm.Block(pool, pool.allocate_raw(8 * KIB), 8 * KIB, 0)
        with pytest.raises(libvmm.InUse, match="Block"):
            pool.free_raw(adopted.address)
        adopted.free()


def test_one_block_adopts_an_address(driver, monkeypatch):
    with libvmm.Pool(driver) as pool, libvmm.Manager(driver) as manager:
        freed = pool.allocate_raw(4 * KIB)
        pool.free_raw(freed)
        with pytest.raises(libvmm.UnknownAddress):
            libvmm.Block(pool, freed, 4 * KIB, 0)
        whole = manager.allocate(4 * KIB)
        gone = whole.address
        whole.free()
        with pytest.raises(libvmm.UnknownAddress):
            libvmm.Range(manager, gone, 4 * KIB, 0)
        at, take, refused = pool.allocate_raw(4 * KIB), pool._life.take_raw, []

        def beside(*arguments):
            """A second thread's call between the first one's last check and its return."""
            take(*arguments)
            monkeypatch.undo()
            with pytest.raises(libvmm.InUse, match="Block has"):
                libvmm.Block(pool, at, 4 * KIB, 0)
            refused.append(at)

        monkeypatch.setattr(pool._life, "take_raw", beside)
        first = libvmm.Block(pool, at, 4 * KIB, 0)
        assert refused == [at] and pool.statistics().live_count == 1
        first.free()
        assert pool.statistics().live_count == 0


def test_addresses_that_other_users_of_the_handle_have(driver):
    with libvmm.Pool(driver) as pool:
        library, at = libvmm._native.LIBRARY, ctypes.c_void_p()
        assert library.vmm_pool_allocate(pool.handle, 512, None, ctypes.byref(at)) == 0
        with Suspender() as sleeper:
            sleeper.add(pool, "pool", "discard")
            sleeper.suspend()
            with pytest.raises(libvmm.InUse, match="suspended"):
                libvmm.Block(pool, at.value, 512, 0)
            pool.free_raw(at.value)
            sleeper.resume()
        raw = pool.allocate_raw(512)
        assert library.vmm_pool_free(pool.handle, raw, None) == 0
        block = pool.allocate(512)
        assert block.address == raw
        with pytest.raises(libvmm.InUse):
            pool.free_raw(raw)


def test_an_object_is_initialised_once(driver, tmp_path):
    """A second __init__() would drop the first object's memory."""
    pool, manager = libvmm.Pool(driver), libvmm.Manager(driver)
    block, made = pool.allocate(512), manager.allocate(4 * KIB)
    cache = Growable(manager, 4 * MIB)
    cache.grow(MIB)
    os.chmod(tmp_path, 0o700)
    for thing, arguments in (
        (driver, ("host",)),
        (pool, (driver,)),
        (manager, (driver,)),
        (block, (pool, 0, 512, 0)),
        (made, (manager, 0, 4 * KIB, 0)),
        (cache, (manager, 4 * MIB)),
        (cache.view(), ()),
        (Suspender(), ()),
        (share.Listener(str(tmp_path / "path")), (str(tmp_path / "other"),)),
        (share.export(driver, 4 * KIB), ()),
    ):
        before, name = dict(vars(thing)), type(thing).__name__
        with pytest.raises(TypeError, match=f"{name} (has been initialised|is made by)"):
            thing.__init__(*arguments)
        assert vars(thing) == before
    assert pool.statistics().live_count == manager.statistics().live_count - 1 == 1
    with pytest.raises(libvmm.UnknownAddress):
        pool.free_raw(8)

    class Own(libvmm.Pool):
        def __init__(self):
            super().__init__(driver)

    for adapter, arguments in (
        (libvmm.cupy.Functions(pool, lambda: None), (pool, lambda: None)),
        (libvmm.torch_memory_saver.TorchMemorySaver(), ()),
        (libvmm.vllm.VmmBackend(object()), (object(),)),
    ):
        with pytest.raises(TypeError, match=f"{type(adapter).__name__} has been initialised"):
            adapter.__init__(*arguments)
    with Own() as own:
        own.allocate(512)
        for again in (own.__init__, lambda: libvmm.Pool.__init__(own, driver)):
            with pytest.raises(TypeError, match="initialised"):
                again()


def test_threads_that_initialise_one_object(driver):
    """One succeeds. A failed call leaves the object to a later one."""

    class Slow(libvmm.Pool):
        def __init__(self, meet):
            meet()
            super().__init__(driver)

    pool, seen = Slow.__new__(Slow), []

    def other():
        with pytest.raises(TypeError, match="initialised") as refused:
            libvmm.Pool.__init__(pool, driver)
        seen.append(refused)

    def meet():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.__init__(fail)
    pool.__init__(meet)
    assert len(seen) == 1
    pool.close()
    assert "Pool" not in driver._life.users()


def test_host_memory_is_not_suspended_under_an_array(driver):
    with libvmm.Manager(driver) as manager, libvmm.Pool(driver) as pool, Suspender() as sleeper:
        sleeper.add(pool, "pool")
        sleeper.add(manager, "manager")
        block, other = pool.allocate(64 * KIB), manager.allocate(64 * KIB)
        for each in (block, other):
            array = shown_by(each)
            with pytest.raises(libvmm.InUse, match="array shows"):
                sleeper.suspend()
            assert not sleeper.is_suspended("pool") and not sleeper.is_suspended("manager")
            del array
        sleeper.suspend("pool")
        with pytest.raises(BufferError, match=r"resume.*'pool'"):
            numpy.from_dlpack(block)
        array = shown_by(other)
        with pytest.raises(libvmm.InUse, match="array shows"):
            sleeper.suspend("manager")
        del array
        sleeper.resume()
        assert (numpy.from_dlpack(block) == 7).all()
        block.free()
        other.free()
        sleeper.suspend("pool")
        kept = pool
    with pytest.raises(libvmm.InvalidHandle):
        kept.allocate(512)


def test_memory_that_its_suspender_has_lost(driver):
    with libvmm.Pool(driver, report_live=False) as pool:
        block = pool.allocate(64 * KIB)
        with Suspender() as sleeper:
            sleeper.add(pool, "x")
            sleeper.suspend()
            sleeper.close(lose_contents=True)
        with pytest.raises(BufferError, match="closed, add the"):
            numpy.from_dlpack(block)


def test_a_close_says_what_uses_the_object(driver):
    with libvmm.Pool(driver) as pool, libvmm.Manager(driver) as manager:
        with Suspender() as sleeper, Growable(manager, MIB):
            sleeper.add(pool, "x")
            with pytest.raises(libvmm.InUse, match="used by 1 libvmm.suspend.Suspender"):
                pool.close()
            with pytest.raises(libvmm.InUse, match="used by 1 libvmm.growable.Growable"):
                manager.close()
            with pytest.raises(libvmm.InUse, match="used by 1 libvmm.Manager, 1 libvmm.Pool"):
                driver.close()


def test_an_array_of_a_view_that_was_released(driver):
    with libvmm.Manager(driver) as manager, Growable(manager, 4 * MIB) as cache:
        cache.grow(MIB)
        with cache.view("int32", (4, 8)) as view:
            array = numpy.asarray(view)
            with pytest.raises(AttributeError):
                view.__cuda_array_interface__
        array[3, 7] = 5
        for call in (lambda: cache.shrink(0), cache.close, cache.release):
            with pytest.raises(libvmm.InUse):
                call()
        assert array[3, 7] == 5 and array.shape == (4, 8)
        del array
        cache.shrink(0)


def test_borrowed_memory(driver):
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    secret, ends = share.make_secret(), {}
    accepting = threading.Thread(
        target=lambda: ends.update(
            channel=share.adopt(here, secret, accepts=True, timeout_ms=10000)
        )
    )
    accepting.start()
    other = share.adopt(there, secret, accepts=False, timeout_ms=10000)
    accepting.join()
    lent = share.export(driver, MIB)
    lending = threading.Thread(target=lambda: ends["channel"].lend(lent))
    lending.start()
    borrowed = other.borrow(driver)
    lending.join()
    array = shown_by(borrowed)
    for call in (borrowed.give_back, borrowed.close, borrowed.apply):
        with pytest.raises(libvmm.InUse, match="array shows"):
            call()
    life = borrowed._life
    del borrowed, call
    gc.collect()
    assert (array == 7).all() and not life.has_ended
    del array
    gc.collect()
    assert life.has_ended
    assert ends["channel"].next(10000).kind is share.What.RELEASED
    lent.close()
    other.close()
    ends["channel"].close()


# ---- what is dropped ----


def test_what_is_dropped_gives_its_memory_back():
    for way in range(3):
        driver = libvmm.Driver("fake")
        pool, manager = libvmm.Pool(driver), libvmm.Manager(driver)
        blocks = [pool.allocate(MIB), manager.allocate(2 * MIB)]
        cache = Growable(manager, 8 * MIB)
        cache.grow(MIB)
        sleeper = Suspender()
        sleeper.add(pool, "x")
        lives = [each._life for each in (cache, sleeper, pool, manager, driver)]
        things = [driver, pool, manager, blocks, cache, sleeper]
        if way:  # only the collector ends these, in its own order
            things.append(things)
            driver.pool, blocks[0].cache, cache.cycle = pool, cache, things
        if way == 2:
            things.reverse()
        del driver, pool, manager, blocks, cache, sleeper
        things = None
        gc.collect()
        assert [life.has_ended for life in lives] == [True] * len(lives), way


def test_a_callback_that_holds_its_pool():
    driver = libvmm.Driver("host")
    for _ in range(20):
        pool = libvmm.Pool(driver)
        pool.subscribe(lambda notice, pool=pool: None)
        pool.allocate(4 * KIB).free()
    del pool
    gc.collect()
    driver.close()  # has no pools any more


def test_a_dropped_pool_lives_for_its_arrays():
    pool = libvmm.Pool(libvmm.Driver("host"))
    life = pool._life
    array = shown_by(pool.allocate(4 * KIB))
    del pool
    gc.collect()
    assert not life.has_ended and (array == 7).all()
    del array
    gc.collect()
    assert life.has_ended


def test_a_dropped_pool_stays_for_addresses_without_a_block():
    pool = libvmm.Pool(libvmm.Driver("host"))
    at = pool.allocate_raw(4 * KIB)
    seen = []
    pool.subscribe(seen.append)
    handle, driver = ctypes.c_void_p(pool.handle.value), pool.driver
    with pytest.warns(ResourceWarning, match="1 blocks without a libvmm.Block"):
        del pool
        gc.collect()
    driver.write(at, b"still")
    library = libvmm._native.LIBRARY
    assert library.vmm_pool_free(handle, at, None) == 0
    assert library.vmm_pool_trim(handle, 0, None) == 0 and seen  # its callbacks are there, too
    with pytest.raises(libvmm.InUse):
        driver.close()
    assert library.vmm_pool_destroy(handle) == 0
    driver.close()


# ---- threads, signals, the collector, forks ----


def test_one_free_of_a_block_wins(driver):
    with libvmm.Pool(driver) as pool:
        for _ in range(200):
            block, barrier, outcomes = pool.allocate(4 * KIB), threading.Barrier(2), []

            def free():
                barrier.wait()
                try:
                    block.free()
                    outcomes.append("freed")
                except libvmm.UnknownAddress:
                    outcomes.append("refused")

            threads = [threading.Thread(target=free) for _ in range(2)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert sorted(outcomes) == ["freed", "refused"]
        assert pool.statistics().live_count == 0


CYCLES = """
import gc, signal, sys, threading
import libvmm, numpy
pool = libvmm.Pool(libvmm.Driver("host"))
class Cycle:
    def __init__(self, array):
        self.array, self.itself = array, self
"""


def test_the_collector_drops_arrays_anywhere():
    """In the middle of making others, beside a thread that does the same."""
    child(
        CYCLES
        + """
sys.setswitchinterval(1e-6)
def work():
    kept = []
    for number in range(3000):
        gc.set_threshold(number % 47 + 1)  # at any place of what makes an array
        Cycle(numpy.from_dlpack(pool.allocate(512)))
        kept.append(numpy.from_dlpack(pool.allocate(512)))
threads = [threading.Thread(target=work) for _ in range(3)]
[each.start() for each in threads]
[each.join() for each in threads]
gc.collect()
assert pool.statistics().live_count == 0
"""
    )


def test_a_handler_of_a_signal_drops_arrays_anywhere():
    child(
        CYCLES
        + """
kept = []
def handler(number, frame):
    kept.clear()
    Cycle(numpy.from_dlpack(pool.allocate(512)))
    pool.allocate(512).free()
    signal.setitimer(signal.ITIMER_REAL, 1e-4)  # the next one, not inside of this one
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-4)
for _ in range(4000):
    kept.append(numpy.from_dlpack(pool.allocate(512)))
signal.signal(signal.SIGALRM, signal.SIG_IGN)
kept.clear(); gc.collect()
assert pool.statistics().live_count == 0
"""
    )


def test_a_handler_that_raises_leaves_no_block_behind_that_is_gone():
    """KeyboardInterrupt in the middle of any call: what was freed is not freed again."""
    child(
        CYCLES
        + """
import itertools
class Stop(Exception): pass
def handler(number, frame): raise Stop
signal.signal(signal.SIGALRM, handler)
manager = libvmm.Manager(pool.driver, report_live=False)
end = __import__("time").monotonic() + 3
for number in itertools.count():
    if __import__("time").monotonic() > end: break
    block = range_ = None
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 * (number % 40 + 1))
        block, range_ = pool.allocate(512), manager.allocate(4096)
        array = numpy.from_dlpack(range_)
        array.sum()
        del array
        range_.resize(1 << 20); range_.resize(4096)
        block.free(); range_.free()
    except (Stop, libvmm.InUse, BufferError):  # an array of the interrupted turn
        array = None
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        pass
    for each in (block, range_):
        try:
            if each and each.address: (numpy.from_dlpack(each) + 1).sum()
        except (Stop, BufferError): pass
pool.validate(); manager.validate()
"""
    )


def test_no_address_is_lost_where_a_handler_raises():
    """Those of allocate_raw() whose caller was left before it had them are found and freed."""
    child(
        CYCLES
        + """
class Stop(Exception): pass
def handler(number, frame): raise Stop
signal.signal(signal.SIGALRM, handler)
held, block = set(), pool.allocate(512)
for number in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-6 * (number % 50 + 1))
        while True:
            held.add(pool.allocate_raw(512 * (number % 9 + 1)))
            if len(held) > 20: pool.free_raw(held.pop())
    except Stop:
        pass
    there = pool.raw_blocks()
    assert pool.statistics().live_count == len(there) + 1 and block.address not in there
    for lost in there.keys() - held: pool.free_raw(lost)
    held &= there.keys()
for each in held: pool.free_raw(each)
assert pool.statistics().live_count == 1
"""
    )


def test_a_handler_that_raises_while_an_array_ends():
    """The deleter is left by the exception: the block is free all the same."""
    child(
        CYCLES
        + """
class Stop(Exception): pass
def handler(number, frame): raise Stop
signal.signal(signal.SIGALRM, handler)
sys.unraisablehook = lambda what: None
import time
end = time.monotonic() + 2
interrupted = 0
while time.monotonic() < end:
    block = pool.allocate(512)
    array = numpy.from_dlpack(block)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-6 * (interrupted % 20 + 1))
        del array
        time.sleep(1e-4)
        print(end="")
    except Stop:
        pass
    interrupted += 1
    array = None
    block.free()
pool.close()
"""
    )


def test_children_drop_what_they_inherit():
    made = child(
        CYCLES
        + """
import os, warnings
warnings.simplefilter("ignore")
sys.setswitchinterval(1e-6)
stop = []
def work():
    while not stop:
        Cycle(numpy.from_dlpack(pool.allocate(512)))
thread = threading.Thread(target=work); thread.start()
block = pool.allocate(4096)
pool.driver.write(block.address, b"\\7" * 4096)
array = numpy.from_dlpack(block)
for _ in range(60):
    number = os.fork()
    if number == 0:
        signal.alarm(20)
        del array
        gc.collect()
        try:
            block.free()
        except libvmm.NotPermitted:
            del block, pool
            gc.collect()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(number, 0)[1] == 0
    assert (array == 7).all()
stop.append(1); thread.join()
del array
block.free()
gc.collect()
assert pool.statistics().live_count == 0
""",
        120,
    )
    assert made.stderr == ""


def test_drops_in_a_callback_wait_for_its_end(driver):
    """The library holds a lock of the pool there, and a block of another pool may need one that a
    thread in its callback has."""
    other = libvmm.Pool(driver)
    kept = [other.allocate(4 * KIB)]
    counts = []

    def callback(notice):
        kept.clear()
        counts.append(other.statistics().live_count)

    with libvmm.Pool(driver) as pool:
        pool.subscribe(callback)
        pool.allocate(4 * MIB).free()
        pool.trim(0)
    assert counts and counts[0] == 1
    assert other.statistics().live_count == 0
    other.close()


def test_a_close_beside_calls():
    """Calls of other threads get an error, and never a handle that is gone."""
    with libvmm.Driver("host") as driver:
        for _ in range(100):
            pool, troubles = libvmm.Pool(driver, report_live=False), []

            def work():
                try:
                    for _ in range(100):
                        array = numpy.from_dlpack(pool.allocate(512))
                        array.sum()
                        del array
                except (libvmm.InvalidHandle, BufferError):
                    pass
                except Exception as trouble:
                    troubles.append(trouble)

            threads = [threading.Thread(target=work) for _ in range(2)]
            for each in threads:
                each.start()
            while pool.is_open:
                try:
                    pool.close()
                except libvmm.InUse:
                    pass
            for each in threads:
                each.join()
            assert troubles == []


def test_an_exit_while_threads_are_inside_callbacks():
    for _ in range(4):
        child(
            """
import libvmm, threading, time
from libvmm.suspend import Suspender
driver, notices = libvmm.Driver("host"), []
class Slow:
    def __del__(self, sleep=time.sleep): sleep(0.2)
slow = Slow()
def work():
    pool, sleeper = libvmm.Pool(driver, report_live=False), Suspender()
    block = pool.allocate(512)
    sleeper.add(pool, "kv", contents="discard")
    pool.subscribe(lambda notice: notices.append(len([each for each in range(300000)])))
    while True:
        sleeper.suspend()
        sleeper.resume()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
while len(notices) < 10:
    time.sleep(0.001)
"""
        )


def test_an_exit_at_any_point():
    for end in (
        "",
        "import os; os._exit",
        "pool.close()",
        "del pool; del array",
        "sys.exit(3)",
        "threading.Thread(target=lambda: array.sum()).start()",
    ):
        made = subprocess.run(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-c",
                CYCLES
                + f"""
block = pool.allocate(4096)
pool.driver.write(block.address, b"\\7" * 4096)
array = numpy.from_dlpack(block)
del block
cycle = Cycle(numpy.from_dlpack(pool.allocate(4096)))
capsule = pool.allocate(512).__dlpack__(max_version=(1, 0))
class AtEnd:
    def __del__(self, array=array): assert array.tolist() == [7] * 4096
end = AtEnd(); end.itself = end
import builtins; builtins.kept = numpy.from_dlpack(pool.allocate(4096))
{end}
""",
            ],
            text=True,
            capture_output=True,
            timeout=60,
        )
        assert made.returncode in (0, 1, 3) and "Fatal" not in made.stderr, made.stderr
        assert "Traceback" not in made.stderr or "InUse" in made.stderr, made.stderr


@pytest.mark.parametrize("seed", [1, 2])
def test_random_orders(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                f"{HERE}/fuzz_lifetimes.py",
                "--seed",
                str(seed),
                "--steps",
                "2000",
            ],
            text=True,
            capture_output=True,
            timeout=200,
        )
    assert made.returncode == 0, (made.returncode, made.stdout, made.stderr[-4000:])


def test_python_ends_while_threads_drop_capsules():
    """Python unwinds threads that wait for its lock at its end, through the capsule's destructor;
    three runs, of which seven in ten were aborted where the destructor let nothing pass."""
    for _ in range(3):
        child("""
import threading, time
import libvmm
def drop():
    pool = libvmm.Pool(libvmm.Driver("host"))
    while True:
        made = pool.allocate(4096).__dlpack__()
        del made
import sys
sys.setswitchinterval(1e-6)
for _ in range(4):
    threading.Thread(target=drop, daemon=True).start()
time.sleep(0.2)
""")
