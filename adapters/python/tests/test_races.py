# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a second free of an address, or its adoption beside a free, never takes the memory of
another's Block.
Method: the careless call runs on a thread of its own inside a call of the C library, at each moment
in which its look at the address was once too old; then all of them at random."""

import ctypes
import threading
import time

import libvmm
import pytest

SIZE = 512


@pytest.fixture
def pool():
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as made:
        yield made


class Careless:
    """A call on its own thread. beside() begins it, and returns once it has ended or waits."""

    def __init__(self, monkeypatch, call):
        self.call, self.outcome = call, []
        self.stops, self.sleep = threading.Event(), time.sleep
        self.thread = threading.Thread(target=self.work)
        monkeypatch.setattr(time, "sleep", self.wait)

    def work(self):
        try:
            self.outcome.append(self.call())
        except (libvmm.Error, BufferError) as refused:
            self.outcome.append(type(refused))
        self.stops.set()

    def wait(self, seconds):
        self.stops.set()
        self.sleep(seconds)

    def beside(self):
        self.thread.start()
        assert self.stops.wait(60)

    def is_refused(self, *kinds):
        self.thread.join()
        return self.outcome[0] in kinds


def inside(monkeypatch, name, work):
    """Replaces a function of the library for one call by work(function, *arguments)."""
    library = libvmm._native.LIBRARY
    function = getattr(library, name)

    def once(*arguments):
        monkeypatch.setattr(library, name, function)
        return work(function, *arguments)

    monkeypatch.setattr(library, name, once)


@pytest.mark.parametrize("kind", ["free", "adoption"])
def test_a_call_between_the_look_and_the_free(pool, monkeypatch, kind):
    at = pool.allocate_raw(SIZE)
    calls = {
        "free": lambda: pool.free_raw(at),
        "adoption": lambda: libvmm.Block(pool, at, SIZE, 0),
    }
    careless = Careless(monkeypatch, calls[kind])

    def work(free, *arguments):
        careless.beside()
        return free(*arguments)

    inside(monkeypatch, "vmm_pool_free", work)
    pool.free_raw(at)
    victim = pool.allocate(SIZE)
    assert victim.address == at
    assert careless.is_refused(libvmm.InUse, libvmm.UnknownAddress)
    assert pool.statistics().live_count == 1
    victim.free()


def test_a_block_that_ends_between_the_looks(pool, monkeypatch):
    """What the library finds live, and the Block that is there later, are two Blocks."""
    at = pool.allocate_raw(SIZE)
    pool.free_raw(at)
    first, victims, check = pool.allocate(SIZE), [], pool._life.check_live
    assert first.address == at

    def live(address):
        check(address)
        first.free()

    def work(free, *arguments):
        victims.append(pool.allocate(SIZE))
        return free(*arguments)

    monkeypatch.setattr(pool._life, "check_live", live)
    inside(monkeypatch, "vmm_pool_free", work)
    with pytest.raises(libvmm.InUse, match="Block has"):
        pool.free_raw(at)
    assert pool.statistics().live_count == 1 and not victims
    monkeypatch.undo()
    first.free()


@pytest.mark.parametrize("raw", [False, True])
def test_an_allocation_that_has_not_returned(pool, monkeypatch, raw):
    """The library has allocated the block and not written its address."""
    at = pool.allocate_raw(SIZE)
    pool.free_raw(at)
    careless = Careless(monkeypatch, lambda: pool.free_raw(at))

    def work(allocate, *arguments):
        into, found = arguments[-1]._obj, ctypes.c_void_p()
        status = allocate(*arguments[:-1], ctypes.byref(found))
        careless.beside()
        into.value = found.value
        return status

    inside(monkeypatch, "vmm_pool_allocate_aligned", work)
    made = pool.allocate_raw(SIZE) if raw else pool.allocate(SIZE)
    assert careless.is_refused(libvmm.UnknownAddress)
    assert pool.statistics().live_count == 1
    if raw:
        assert made == at
        pool.free_raw(made)
    else:
        made.free()


def test_a_call_that_waits_too_long(pool, monkeypatch):
    at, claimed = pool.allocate_raw(SIZE), [0]
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    pool._life._claims[at] = claimed
    pool._life.raw.clear()  # as that of another user of the handle
    with pytest.raises(libvmm.InUse, match=rf"another thread's call .*{at:#x} for 1 s"):
        pool.free_raw(at)
    del pool._life._claims[at]
    pool.free_raw(at)


def test_a_handler_inside_a_free(pool, monkeypatch):
    """On the thread whose call it interrupts, with the address that the library gives again."""
    at = pool.allocate_raw(SIZE)

    def work(free, *arguments):
        status = free(*arguments)
        again = pool.allocate_raw(SIZE)
        assert again == at
        pool.free_raw(again)
        return status

    inside(monkeypatch, "vmm_pool_free", work)
    pool.free_raw(at)
    assert pool.statistics().live_count == 0 and not pool._life._claims


def test_careless_threads(pool):
    """Addresses are freed twice and adopted, while others allocate Blocks of their size."""
    shared, stolen, is_over = [0, 0], [], threading.Event()

    def frees(slot):
        while not is_over.is_set():
            shared[slot] = at = pool.allocate_raw(SIZE)
            try:
                if slot:
                    pool.free_raw(at)
                else:
                    libvmm.Block(pool, at, SIZE, 0).free()
            except (libvmm.UnknownAddress, libvmm.InUse):
                pass  # the careless thread was first

    def frees_again(slot):
        while not is_over.is_set():
            try:
                pool.free_raw(shared[slot] or 8)
            except (libvmm.UnknownAddress, libvmm.InUse):
                pass

    def allocates():
        for turn in range(20_000):
            block = pool.allocate(SIZE)
            try:
                if turn % 8:
                    block.free()
            except libvmm.UnknownAddress as gone:
                stolen.append(gone)

    kinds = [(work, slot) for work in (frees, frees_again) for slot in (0, 1)]
    others = [threading.Thread(target=work, args=(slot,)) for work, slot in kinds]
    victims = [threading.Thread(target=allocates) for _ in range(2)]
    for each in (*others, *victims):
        each.start()
    for each in victims:
        each.join()
    is_over.set()
    for each in others:
        each.join()
    assert stolen == []
    for at in pool.raw_blocks():
        pool.free_raw(at)
    assert not pool._life._claims and not pool._life._coming


@pytest.mark.parametrize("name", ["close", "free", "__dlpack__"])
def test_a_call_beside_one_that_is_refused(pool, monkeypatch, name):
    """Another thread's close or free, which the library refuses, is not seen."""
    block = pool.allocate(SIZE)
    of = pool if name == "close" else block
    called = pool.close if name == "__dlpack__" else getattr(of, name)
    careless = Careless(monkeypatch, getattr(of, name))

    def work(function, *arguments):
        careless.beside()
        return libvmm.Status.IN_USE

    if name == "free":
        inside(monkeypatch, "vmm_pool_free", work)
    else:
        destroy = pool._life.destroy

        def once(*arguments):
            pool._life.destroy = destroy
            return work(destroy, *arguments)

        pool._life.destroy = once
    with pytest.raises(libvmm.InUse):
        called()
    careless.thread.join()
    assert careless.outcome[0] not in (BufferError, libvmm.UnknownAddress)
    assert pool.is_open == (name != "close")
    assert bool(block.address) == (name == "__dlpack__")
    careless.outcome.clear()


def test_a_handler_inside_a_close(pool, monkeypatch):
    """A thread does not wait for itself."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    block, destroy = pool.allocate(SIZE), pool._life.destroy

    def handled(*arguments):
        pool.close()
        with pytest.raises(BufferError, match="another call"):
            block.__dlpack__()
        return destroy(*arguments)

    pool._life.destroy = handled
    pool.close()
    assert not pool.is_open
