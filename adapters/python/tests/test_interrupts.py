# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: an operation that the exception of a signal's handler leaves is done, or has no effect, and
nothing leaks.
Method: an exception is raised before each instruction of the package in turn, as by a handler that
runs there; before each n-th where LIBVMM_TEST_STRIDE is n. After each, the Python objects agree
with the C library, the operation can be repeated, and all memory, pools and drivers are given
back."""

import concurrent.futures
import contextlib
import dis
import gc
import os
import socket
import sys
import types

import libvmm
import libvmm.cuda_core
import libvmm.cupy
import libvmm.numba
import pytest
from libvmm import share
from libvmm.growable import Growable
from libvmm.suspend import Suspender

numpy = pytest.importorskip("numpy")
KIB, MIB = 1 << 10, 1 << 20
PACKAGE = os.path.dirname(os.path.abspath(libvmm.__file__))
STRIDE = int(os.environ.get("LIBVMM_TEST_STRIDE", "1"))


# Before 3.11 the interpreter runs handlers before any other instruction, also the first one of an
# except or finally clause. From then on it runs none in an except clause before and behind its
# body: there what it names is looked up and compared, and the exception is stored.
_NEVER = ("COPY", "POP_EXCEPT", "RERAISE", "NOP")
_MATCHING = ("LOAD_GLOBAL", "LOAD_ATTR", "BUILD_TUPLE", "CHECK_EXC_MATCH", "EXTENDED_ARG")
_MATCHING += ("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_FALSE", "NOT_TAKEN", "CACHE")
if sys.version_info < (3, 11):
    _NEVER = ("SETUP_FINALLY", "SETUP_WITH")


class Interrupt(BaseException):
    """As KeyboardInterrupt."""


class Interrupter:
    """Raises before the instruction of this number. Those where the interpreter runs no handler are
    not counted."""

    def __init__(self, number, at_returns=True):
        self.left, self.has_raised, self.at_returns = number, False, at_returns
        self.catching = ()

    def trace(self, frame, event, _argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        at = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if event != "opcode":
            return self.trace
        if at == "PUSH_EXC_INFO":
            self.catching = _MATCHING
        elif at in ("POP_TOP", "STORE_FAST") and self.catching is _MATCHING:
            self.catching = ()
        elif at not in (*self.catching, *_NEVER) and (self.at_returns or at != "RETURN_VALUE"):
            self.catching = ()
            self.left -= 1
            if self.left == 0:
                self.has_raised = True
                raise Interrupt
        return self.trace

    def run(self, operation):
        """True where it was left by the exception."""
        before, hook = sys.gettrace(), sys.unraisablehook
        sys.unraisablehook = lambda what: None  # of a __del__; pytest's keeps the object
        sys.settrace(self.trace)
        try:
            operation()
        except Interrupt:
            return True
        finally:
            sys.settrace(before)
            sys.unraisablehook = hook
        return False


class World:
    """What an operation works on; fields that it sets are the objects that it has made."""

    def __init__(self, driver):
        self.driver = driver
        self.owners = {}
        self.made = self.extra = None
        self.writes = True

    def owner(self, kind):
        """One that is made when an operation is prepared, or in a call of none of its objects."""
        if kind not in self.owners:
            made = kind(self.driver, report_live=False, reservation_bytes=256 * MIB)
            self.owners[kind] = made
        return self.owners[kind]

    pool = property(lambda self: self.owner(libvmm.Pool))
    manager = property(lambda self: self.owner(libvmm.Manager))

    def agrees_with_the_library(self):
        """The books of the library and of Python are the same."""
        objects = [each for each in (self.made, self.extra) if isinstance(each, libvmm.Block)]
        ranges = int(isinstance(self.made, Growable) and self.made.is_open)
        for owner in self.owners.values():
            if not owner.is_open:
                continue
            owner.validate()
            of = [each for each in objects if each._owner is owner and each.address]
            count = len(of) + (ranges if isinstance(owner, libvmm.Manager) else 0)
            assert owner.statistics().live_count == count, (owner, of)
            for each in of if self.writes else ():
                self.driver.write(each.address + each.size - 1, b"x")

    def ends(self):
        """Everything can be given back."""
        self.made = self.extra = None
        gc.collect()
        for owner in self.owners.values():
            if owner.is_open:
                assert owner.statistics().live_count == 0
                owner.trim(0)
            owner.close()
            assert not owner.is_open


Interrupter(1 << 30).run(lambda: libvmm.Driver("host").close())  # 3.12 begins late to trace


@pytest.fixture(autouse=True)
def _frozen():
    gc.collect()
    gc.freeze()  # the collector looks at what a turn has made
    yield
    gc.unfreeze()


def sweep(prepare, operate, after=lambda world, interrupted: None, step=1):
    driver, number = libvmm.Driver("host"), 0
    while True:
        number += step * STRIDE
        world = World(driver)
        prepare(world)
        interrupter = Interrupter(number)
        interrupted = interrupter.run(lambda world=world: operate(world))
        gc.collect()
        driver.memory()  # a call of the library: what was left is settled
        world.agrees_with_the_library()
        after(world, interrupted)
        world.ends()
        if not interrupter.has_raised:
            break
    assert number > 5
    del world
    driver.close()  # has nothing any more
    assert not driver.is_open


def nothing(_world):
    pass


def owner_of(kind):
    """Prepares the owner of what is made in the operation."""
    return lambda world: world.manager if kind in ("manager", "growable") else world.pool


# ---- blocks ----


def set_made(make):
    def operate(world):
        world.made = make(world)

    return operate


def has_made(world, interrupted):
    assert (world.made is None) == interrupted


ALLOCATIONS = {
    "pool": lambda world: world.pool.allocate(4 * KIB),
    "whole": lambda world: world.pool.allocate_dedicated(4 * KIB),
    "manager": lambda world: world.manager.allocate(2 * MIB),
}


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_allocate(kind):
    sweep(owner_of(kind), set_made(ALLOCATIONS[kind]), has_made)


def test_allocate_raw():
    """The interpreter runs no handler between the last call of a function and its return."""
    number = 0
    while True:
        number += 1
        with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
            interrupter, seen = Interrupter(number, at_returns=False), []
            interrupted = interrupter.run(lambda: seen.append(pool.allocate_raw(4 * KIB)))
            assert pool.statistics().live_count == len(seen) == (not interrupted)
            for each in seen:
                pool.free_raw(each)
        if not interrupter.has_raised:
            return


def test_addresses_that_their_caller_lost():
    """An exception between a function's last call and its caller's next instruction."""
    number = lost_count = 0
    while True:
        number += 1
        with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
            block, kept = pool.allocate(4 * KIB), pool.allocate_raw(512)
            interrupter, seen = Interrupter(number), [kept]
            interrupter.run(lambda: seen.append(pool.allocate_raw(4 * KIB)))
            lost = pool.raw_blocks().keys() - set(seen)
            lost_count += len(lost)
            assert pool.statistics().live_count == 1 + len(seen) + len(lost)
            assert block.address not in lost and pool.raw_blocks()[kept] == 512
            for each in (*seen, *lost):
                pool.free_raw(each)
            assert pool.raw_blocks() == {} and pool.statistics().live_count == 1
        if not interrupter.has_raised:
            break
    assert lost_count > 0 or sys.version_info >= (3, 13)  # no instruction is between them


class Stream:
    """As a stream of CuPy."""

    ptr = 0


def test_an_adapters_allocation():
    """Of CuPy: what is allocated is freed where its array is never made."""
    number = 0
    while True:
        number += 1
        with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
            functions = libvmm.cupy.Functions(pool, Stream)
            cuda = types.SimpleNamespace(
                runtime=types.SimpleNamespace(getDevice=lambda: 0),
                UnownedMemory=lambda *of: of,
                MemoryPointer=lambda *of: of,
            )
            allocator, seen = libvmm.cupy._Allocator(functions, cuda), []
            interrupter = Interrupter(number, at_returns=False)
            interrupted = interrupter.run(lambda: seen.append(allocator.malloc(4 * KIB)))
            assert pool.statistics().live_count == len(seen) == (not interrupted)
            seen.clear()
            gc.collect()
            assert pool.statistics().live_count == 0
        if not interrupter.has_raised:
            return


def fail(*_of, **_named):
    raise ZeroDivisionError


def cupys(pool, stream=1, **fails):
    def passes(*of):
        return of

    cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
        **{"UnownedMemory": passes, "MemoryPointer": passes, **fails},
    )
    functions = libvmm.cupy.Functions(pool, lambda: types.SimpleNamespace(ptr=stream))
    return libvmm.cupy._Allocator(functions, cuda).malloc


def numbas(pool):
    libvmm.numba.MemoryPointer = fail
    made = libvmm.numba.MemoryManager.__new__(libvmm.numba.MemoryManager)
    made._pool, made.context = pool, None
    return made.memalloc


def cuda_cores(pool):
    libvmm.cuda_core._core = types.SimpleNamespace(Buffer=types.SimpleNamespace(from_handle=fail))
    made = libvmm.cuda_core.MemoryResource.__new__(libvmm.cuda_core.MemoryResource)
    made._pool, made._has_streams = pool, True
    return made.allocate


# Functions of other libraries that fail behind an allocation, in the adapter's own.
BEHIND = {
    "cupy's memory": lambda pool: cupys(pool, UnownedMemory=fail),
    "cupy's pointer": lambda pool: cupys(pool, MemoryPointer=fail),
    "numba": numbas,
    "cuda.core": cuda_cores,
}


@pytest.mark.parametrize("library", BEHIND)
def test_what_a_library_fails_behind(library, monkeypatch):
    """A handler comes while the memory is given back."""
    for module, name in (
        (libvmm.numba, "_driver"),
        (libvmm.numba, "MemoryPointer"),
        (libvmm.cuda_core, "_core"),
    ):
        monkeypatch.setattr(module, name, None, raising=False)  # is put back

    def operate(world):
        with contextlib.suppress(ZeroDivisionError):
            BEHIND[library](world.pool)(4 * KIB)

    sweep(owner_of("pool"), operate, lambda world, _: world.pool.raw_blocks() == {} or fail())


def test_a_subscription_that_is_refused():
    def prepare(world):
        world.pool.close()

    def operate(world):
        with contextlib.suppress(libvmm.InvalidHandle):
            world.pool.subscribe(print)

    def after(world, _interrupted):
        assert world.pool._subscribers == {} and world.pool._life.thunks == {}

    sweep(prepare, operate, after)


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_free(kind):
    def after(world, _interrupted):
        if world.made.address:
            world.made.free()
        with pytest.raises(libvmm.UnknownAddress):
            world.made.free()

    sweep(set_made(ALLOCATIONS[kind]), lambda world: world.made.free(), after)


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_drop(kind):
    def operate(world):
        world.made = None

    sweep(set_made(ALLOCATIONS[kind]), operate)


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_with(kind):
    def operate(world):
        with ALLOCATIONS[kind](world):
            pass

    sweep(owner_of(kind), operate)


def test_resize():
    def operate(world):
        world.made.resize(4 * MIB)

    def after(world, interrupted):
        assert world.made.size in ((2 * MIB, 4 * MIB) if interrupted else (4 * MIB,))
        info = libvmm._native.BlockInfo()
        library = libvmm._native.LIBRARY
        assert library.vmm_manager_find(world.manager.handle, world.made.address, info) == 0
        assert info.user_bytes == world.made.size
        world.made.resize(6 * MIB)
        assert world.made.size == 6 * MIB

    sweep(set_made(ALLOCATIONS["manager"]), operate, after)


def test_move():
    def prepare(world):
        world.made, world.extra = world.manager.allocate(MIB), world.manager.allocate(MIB)
        world.writes = False  # the source has no memory afterwards
        world.driver.write(world.made.address, b"\0" * MIB)
        world.driver.write(world.extra.address, b"\7" * MIB)

    def operate(world):
        world.manager.copy(world.made, world.extra, mode=libvmm.Copy.MOVE)

    def after(world, _interrupted):
        is_moved = world.driver.read(world.made.address, 1) == b"\7"
        assert (numpy.from_dlpack(world.made)[0] == 7) == is_moved
        if is_moved:
            with pytest.raises(BufferError, match="moved"):
                numpy.from_dlpack(world.extra)
        else:
            assert numpy.from_dlpack(world.extra)[0] == 7

    sweep(prepare, operate, after, step=3)


# ---- arrays ----


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_an_array(kind):
    """From its making to its end: no array is counted that has gone."""

    def operate(world):
        array = numpy.from_dlpack(world.made)
        del array

    def after(world, _interrupted):
        assert world.made._life.arrays() == world.made._owner._life.arrays() == 0
        world.made.free()

    sweep(set_made(ALLOCATIONS[kind]), operate, after, step=2)


def test_an_array_of_a_dropped_block():
    def operate(world):
        numpy.from_dlpack(world.pool.allocate(4 * KIB))

    sweep(owner_of("pool"), operate, step=3)


@pytest.mark.parametrize("way", [numpy.asarray, numpy.from_dlpack])
def test_arrays_of_a_growable_range(way):
    def prepare(world):
        world.made = Growable(world.manager, 8 * MIB)
        world.made.grow(MIB)

    def operate(world):
        with world.made.view("int32") as view:
            way(view)

    def after(world, _interrupted):
        assert world.made.statistics().pin_count == 0
        assert world.manager._life.arrays() == 0
        world.made.shrink(0)
        world.made.close()

    sweep(prepare, operate, after, step=3)


# ---- calls that are refused ----


def refused_under_an_array(call):
    """The refusal's own clean-up is interrupted: afterwards the call can be made."""

    def prepare(world):
        world.made, world.extra = world.pool.allocate(MIB), world.manager.allocate(2 * MIB)
        world.arrays = [numpy.from_dlpack(each) for each in (world.made, world.extra)]

    def operate(world):
        with contextlib.suppress(libvmm.InUse):
            call(world)

    def after(world, _interrupted):
        del world.arrays
        gc.collect()
        assert [each._life.arrays() for each in world.owners.values()] == [0, 0]
        call(world)

    sweep(prepare, operate, after, step=3)


@pytest.mark.parametrize(
    "call",
    [
        lambda world: world.made.free(),
        lambda world: world.extra.free(),
        lambda world: world.extra.resize(4 * MIB),
        lambda world: world.pool.close(),
    ],
)
def test_refused(call):
    refused_under_an_array(call)


def test_refused_by_the_library():
    """The library refuses an end that nothing of the package forbids."""

    def operate(world):
        with contextlib.suppress(libvmm.InUse):
            world.driver.close()

    sweep(owner_of("pool"), operate)


def test_an_array_that_is_refused():
    def prepare(world):
        world.made = world.pool.allocate(MIB)
        world.made._life.forbid("test", "a bar")

    def operate(world):
        with contextlib.suppress(BufferError):
            numpy.from_dlpack(world.made)

    def after(world, _interrupted):
        world.made._life.allow("test")
        assert world.made._life.arrays() == world.pool._life.arrays() == 0
        assert libvmm._dlpack._shown == {}
        world.made.free()

    sweep(prepare, operate, after)


def test_an_address_that_is_not_adopted():
    """It stays another Block's."""

    def operate(world):
        with contextlib.suppress(libvmm.InUse):
            libvmm.Block(world.pool, world.made.address, MIB, 0)

    sweep(set_made(lambda world: world.pool.allocate(MIB)), operate)


def test_a_move_that_is_refused():
    def prepare(world):
        world.writes = False
        world.made, world.extra = world.manager.allocate(MIB), world.manager.allocate(MIB)

    def operate(world):
        with contextlib.suppress(libvmm.Error):
            world.manager.copy(world.made, world.extra, 1 << 62, mode=libvmm.Copy.MOVE)

    def after(world, _interrupted):
        for each in (world.made, world.extra):
            assert numpy.from_dlpack(each).size == MIB

    sweep(prepare, operate, after)


# ---- owners ----


def made_and_closed(make):
    def operate(world):
        world.made = make(world)
        world.made.close()

    return operate


OWNERS = {
    "driver": lambda world: libvmm.Driver("host"),
    "pool": lambda world: libvmm.Pool(world.driver),
    "manager": lambda world: libvmm.Manager(world.driver),
    "growable": lambda world: Growable(world.manager, 8 * MIB),
    "suspender": lambda world: Suspender(),
    "lent": lambda world: share.export(world.driver, MIB),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_made_and_closed(kind):
    def after(world, interrupted):
        if world.made is not None:
            world.made.close()
            assert not world.made.is_open and not world.made.handle
        else:
            assert interrupted

    sweep(owner_of(kind), made_and_closed(OWNERS[kind]), after)


@pytest.mark.parametrize("kind", OWNERS)
def test_made_and_dropped(kind):
    def operate(world):
        OWNERS[kind](world)

    sweep(owner_of(kind), operate)


def test_a_close_that_takes_blocks_along():
    def prepare(world):
        world.made, world.extra = world.pool.allocate(MIB), world.manager.allocate(MIB)

    def operate(world):
        world.pool.close()
        world.manager.close()

    sweep(prepare, operate)


def test_subscriptions():
    seen = []

    def operate(world):
        world.pool.unsubscribe(world.pool.subscribe(seen.append))

    def after(world, interrupted):
        world.made = None
        if not interrupted:
            seen.clear()
            world.pool.allocate(MIB).free()
            world.pool.trim(0)
            assert not seen

    sweep(owner_of("pool"), operate, after)


@pytest.mark.parametrize("stream", [0, 1])
def test_an_adapters_array_that_ends(stream):
    def prepare(world):
        world.array = cupys(world.pool, stream)(4 * KIB)

    def operate(world):
        world.array = None

    sweep(prepare, operate)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_that_fails():
    """The thread is not inside of it afterwards."""

    def prepare(world):
        world.pool.allocate(MIB).free()
        world.pool.subscribe(lambda notice: 1 // 0)

    def after(_world, _interrupted):
        assert libvmm._lifetime.thread.callbacks == 0

    sweep(prepare, lambda world: world.pool.trim(0), after)


# ---- suspension ----


def test_suspend_and_resume():
    def prepare(world):
        world.made = world.pool.allocate(64 * KIB)
        world.driver.write(world.made.address, b"\7" * 64 * KIB)
        world.sleeper, world.writes = Suspender(), False

    def operate(world):
        world.sleeper.add(world.pool, "x")
        world.sleeper.suspend()
        world.sleeper.resume()

    def after(world, _interrupted):
        tags = [each.tag for each in world.sleeper._allocators]
        if "x" in tags and world.sleeper.is_suspended("x"):
            with pytest.raises(BufferError, match="suspended"):
                numpy.from_dlpack(world.made)
            world.sleeper.resume("x")
        assert (numpy.from_dlpack(world.made) == 7).all()
        world.sleeper.close()

    sweep(prepare, operate, after, step=3)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_suspender_that_ends_before_its_pool(is_dropped):
    def prepare(world):
        world.sleeper = Suspender()
        world.sleeper.add(world.pool, "x")

    def operate(world):
        if is_dropped:
            world.sleeper = None
        else:
            world.sleeper.close()

    def after(world, _interrupted):
        if not is_dropped:
            world.sleeper.close()
        assert world.pool._life.users() == "" and not world.pool._life.regions

    sweep(prepare, operate, after)


@pytest.mark.parametrize(
    "call",
    [
        lambda world: world.sleeper.suspend(),  # a block is pinned
        lambda world: world.sleeper.suspend("z"),
        lambda world: world.sleeper.add(world.pool, "y"),
        lambda world: world.sleeper.remove(world.manager),
    ],
)
def test_suspensions_that_are_refused(call):
    def prepare(world):
        world.made = world.pool.allocate(64 * KIB)
        world.pool.pin(world.made)
        world.sleeper = Suspender()
        world.sleeper.add(world.pool, "x")

    def operate(world):
        with contextlib.suppress(libvmm.Error):
            call(world)

    def after(world, _interrupted):
        assert [each.tag for each in world.pool._life.regions] == ["x"]
        assert not world.sleeper._life.suspending and len(world.sleeper._allocators) == 1
        world.made.__dlpack__()
        world.pool.unpin(world.made)
        world.sleeper.close()

    sweep(prepare, operate, after, step=2)


# ---- shares ----


def test_a_socket_that_a_channel_adopts():
    """It is closed once: its number, which others may have by then, is not closed again."""
    secret = share.make_secret()

    def prepare(world):
        world.descriptors = len(os.listdir("/proc/self/fd"))

    def operate(world):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        world.sockets = (here, there)
        there.close()
        with contextlib.suppress(libvmm.Error):
            share.adopt(here, secret, accepts=True, timeout_ms=1)

    def after(world, _interrupted):
        for each in world.sockets:
            each.close()
        assert len(os.listdir("/proc/self/fd")) == world.descriptors

    sweep(prepare, operate, after)


@pytest.mark.parametrize("call", ["next", "accept", "fileno"])
def test_calls_that_wait_for_a_peer(call, tmp_path):
    os.chmod(tmp_path, 0o700)
    secret = share.make_secret()
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with concurrent.futures.ThreadPoolExecutor() as others:
        other = others.submit(share.adopt, ends[0], secret, accepts=True)
        channel, peer = share.adopt(ends[1], secret, accepts=False), other.result()
    with channel, peer, share.Listener(tmp_path / "door") as listener:
        waits = listener if call == "accept" else channel
        calls = {
            "next": lambda: channel.next(0),
            "accept": lambda: listener.accept(secret, timeout_ms=0),
            "fileno": channel.fileno,
        }

        def operate(_world):
            with contextlib.suppress(libvmm.Unavailable):
                calls[call]()

        def after(_world, _interrupted):
            assert waits._life.inside == {} and libvmm._lifetime.thread.callbacks == 0
            operate(None)

        sweep(nothing, operate, after)
