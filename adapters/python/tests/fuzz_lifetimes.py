# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: no order of drops, ends and collections ends Python by a signal, hangs it, takes memory
from under an array, or loses memory.
Method: threads do random operations on drivers, pools, managers, growable ranges and arrays of
numpy, which are freed, closed, put into cycles and dropped in any order. The collector runs at
nearly every allocation, a signal's handler drops arrays in the middle of any code and leaves the
operation by an exception, and forked children drop all that they inherited. Each array reads the
bytes of its own block until it is dropped; each block is freed once; at the end everything has
ended.

    python3 adapters/python/tests/fuzz_lifetimes.py [--seed 1] [--steps 4000] [--threads 3]
        [--only show,drop_array,collect]

A hang prints all stacks and ends with 1. `test_lifetimes.py` runs it in a child."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
import warnings

import libvmm
import numpy
from libvmm.growable import Growable
from libvmm.suspend import Suspender, recover

HANG_SECONDS = 60
ALLOWED = (libvmm.Error, BufferError)
KIB, MIB = 1 << 10, 1 << 20
failures: list[str] = []
done: dict[str, int] = {}
lives: list = []
frees: dict[int, int] = {}


def fail(what: str) -> None:
    failures.append(what)
    print(f"fuzz: {what}", file=sys.stderr, flush=True)


class Stop(BaseException):
    """Of the signal's handler, as KeyboardInterrupt."""

    may_come = False
    count = 0


class Cycle:
    """What only the collector ends."""

    def __init__(self, *things: object) -> None:
        self.things, self.itself = things, self


class Made:
    """A block and the byte that is in it; None where a copy may have changed it."""

    numbers = itertools.count(1)

    def __init__(self, block, owner) -> None:
        self.block, self.owner = block, owner
        self.number = next(self.numbers)
        self.value: int | None = self.number % 251 + 1
        self.size = block.size


class Shown:
    def __init__(self, array, made: Made) -> None:
        self.array, self.made = array, made

    def check(self) -> None:
        value = self.made.value
        first, last = int(self.array[0]), int(self.array[-1])
        if value is not None and (first, last) != (value, value):
            fail(
                f"array of block {self.made.number} of {self.made.size} bytes has {first} and "
                f"{last}, not {value}: {self.made.block!r} of {self.made.owner!r}"
            )


class World:
    """What threads share. Lists change by append and pop alone."""

    def __init__(self) -> None:
        self.pools: list = []
        self.sleepers: list = []
        self.managers: list = []
        self.blocks: list[Made] = []
        self.arrays: list[Shown] = []
        self.others: list = []


def remember(thing):
    """One that has to end; a block ends with its owner."""
    life = getattr(thing, "_life", None)
    if life is not None:
        lives.append(life)
    return thing


def filled(owner, size: int) -> Made:
    made = Made(owner.allocate(size), owner)
    owner.driver.write(made.block.address, bytes([made.value]) * made.size)
    return made


class Worker:
    def __init__(self, world: World, seed: int, operations: tuple[str, ...]) -> None:
        self.world, self.random, self.operations = world, random.Random(seed), operations

    def some(self, things: list):
        try:
            return things[self.random.randrange(len(things))]
        except (IndexError, ValueError):
            raise libvmm.InUse("there is none") from None

    def take(self, things: list):
        try:
            return things.pop(self.random.randrange(len(things)))
        except (IndexError, ValueError):
            raise libvmm.InUse("there is none") from None

    # ---- what is made ----

    def make_pool(self) -> None:
        if len(self.world.pools) < 6:
            pool = remember(libvmm.Pool(remember(libvmm.Driver("host")), report_live=False))
            pool.subscribe(lambda notice, world=self.world: world.arrays and world.arrays.pop())
            self.world.pools.append(pool)

    def make_manager(self) -> None:
        if len(self.world.managers) < 4:
            driver = remember(libvmm.Driver("host"))
            self.world.managers.append(remember(libvmm.Manager(driver, report_live=False)))

    def make_sleeper(self) -> None:
        """A pool that is suspended at any time: its blocks are written before threads see them."""
        if len(self.world.sleepers) < 2 and len(self.world.blocks) < 60:
            pool = remember(libvmm.Pool(remember(libvmm.Driver("host")), report_live=False))
            for _ in range(3):
                self.world.blocks.append(filled(pool, 40 * KIB))
            self.world.sleepers.append(pool)

    def allocate(self) -> None:
        if len(self.world.blocks) >= 60:
            return
        if self.random.random() < 0.7:
            made = filled(
                self.some(self.world.pools), self.random.choice((512, 4 * KIB, 100 * KIB, 3 * MIB))
            )
        else:
            made = filled(
                self.some(self.world.managers), self.random.choice((4 * KIB, 64 * KIB, 2 * MIB))
            )
        self.world.blocks.append(made)

    def show(self) -> None:
        if len(self.world.arrays) >= 60:
            return
        made = self.some(self.world.blocks)
        array = numpy.from_dlpack(made.block)
        self.world.arrays.append(Shown(array, made))

    def churn(self) -> None:
        """Arrays that only the collector drops: while others are made, as often as not."""
        made, kept = self.some(self.world.blocks), []
        for _ in range(self.random.randrange(40)):
            gc.set_threshold(self.random.randrange(1, 50))
            Cycle(numpy.from_dlpack(made.block))
            kept.append(numpy.from_dlpack(made.block))

    def capsule(self) -> None:
        made = self.some(self.world.blocks)
        version = self.random.choice((None, (1, 0), (1, 3)))
        capsule = made.block.view("float32").__dlpack__(max_version=version)
        self.world.others.append(capsule)

    def refuse(self) -> None:
        made = self.some(self.world.blocks)
        view = made.block.view(self.random.choice(("bfloat16", "float8_e4m3fn", "float4_e2m1fn")))
        try:
            numpy.from_dlpack(view)
        except (RuntimeError, BufferError) as refused:  # numpy's own words, not SystemError
            if "NULL" in str(refused):
                fail(f"numpy's refusal is lost: {refused}")
        else:
            fail("numpy took a type that it does not have")

    # ---- what is used ----

    def look(self) -> None:
        self.some(self.world.arrays).check()

    def write(self) -> None:
        shown = self.some(self.world.arrays)
        if shown.made.value is not None and shown.array.flags.writeable:
            shown.array[0] = shown.made.value

    def look_at_owner(self) -> None:
        pool = self.some(self.world.pools)
        repr(pool), pool.statistics(), pool.trim(0)

    # ---- what ends ----

    def drop_array(self) -> None:
        shown = self.take(self.world.arrays)
        shown.check()
        if self.random.random() < 0.5:
            Cycle(shown, self.some(self.world.pools))

    def drop_block(self) -> None:
        made = self.take(self.world.blocks)
        if self.random.random() < 0.5:
            Cycle(made, made.block)

    def drop_other(self) -> None:
        Cycle(self.take(self.world.others))

    def free(self) -> None:
        made = self.some(self.world.blocks)
        made.block.free()
        frees[made.number] = frees.get(made.number, 0) + 1
        if frees[made.number] > 1:
            fail(f"block {made.number} was freed twice")

    def free_raw(self) -> None:
        """A block is not freed by its address, whether an array of it lives or not."""
        made = self.some(self.world.arrays).made
        if isinstance(made.owner, libvmm.Pool):
            made.owner.free_raw(made.block.address)
            fail(f"block {made.number} was freed under an array")
        pool = self.some(self.world.pools)
        block = pool.allocate(8 * KIB)  # no other thread frees it
        try:
            pool.free_raw(block.address)
            fail("a block was freed by its address")
        except libvmm.InUse:
            pass

    def free_by_two(self) -> None:
        made = self.some(self.world.blocks)
        won: list[int] = []

        def once() -> None:
            try:
                made.block.free()
                won.append(1)
            except ALLOWED:
                pass

        Stop.may_come = False  # threads of Python's own library do not bear it
        other = threading.Thread(target=once)
        other.start()
        once()
        other.join()
        if len(won) > 1:
            fail(f"block {made.number} was freed by two threads")

    def close_pool(self) -> None:
        pool = self.some(self.world.pools)
        pool.close()
        self.forget(self.world.pools, pool)

    def close_manager(self) -> None:
        manager = self.some(self.world.managers)
        manager.close()
        self.forget(self.world.managers, manager)

    def leave(self) -> None:
        with (
            remember(libvmm.Driver("host")) as driver,
            remember(libvmm.Pool(driver, report_live=False)) as pool,
        ):
            made = filled(pool, 8 * KIB)
            self.world.blocks.append(made)
            if self.random.random() < 0.7:
                self.world.arrays.append(Shown(numpy.from_dlpack(made.block), made))
        pool.allocate(512)  # of one that is closed or not

    def drop_pool(self) -> None:
        Cycle(self.take(self.world.pools if self.random.random() < 0.8 else self.world.sleepers))

    def drop_manager(self) -> None:
        Cycle(self.take(self.world.managers), self.some(self.world.blocks))

    @staticmethod
    def forget(things: list, thing) -> None:
        try:
            things.remove(thing)
        except ValueError:
            pass

    # ---- what moves ----

    def ranges(self) -> list[Made]:
        return [each for each in list(self.world.blocks) if isinstance(each.block, libvmm.Range)]

    def resize(self) -> None:
        made = self.some(self.ranges())
        made.value = None
        made.block.resize(self.random.choice((4 * KIB, 64 * KIB, 2 * MIB)))

    def move(self) -> None:
        one, other = self.some(self.ranges()), self.some(self.ranges())
        one.value = other.value = None
        one.owner.copy(
            one.block,
            other.block,
            min(one.size, other.size),
            mode=self.random.choice(list(libvmm.Copy)),
        )

    def grow(self) -> None:
        manager = self.some(self.world.managers)
        with remember(Growable(manager, 4 * MIB)) as cache:
            cache.grow(MIB)
            with cache.view("int32") as view:
                array = (
                    numpy.asarray(view) if self.random.random() < 0.5 else numpy.from_dlpack(view)
                )
            manager.driver.write(cache.address, b"\5\0\0\0" * (MIB // 4))
            if self.random.random() < 0.5:
                self.world.others.append(array)
            try:
                cache.shrink(0)
                fail("a growable range shrank under an array")
            except libvmm.InUse:
                pass
            if int(array[-1]) != 5:
                fail("an array of a growable range has other bytes")
            del array

    def suspend(self) -> None:
        pool = self.some(self.world.sleepers)
        for dropped in recover():
            dropped.resume()
        with remember(Suspender()) as sleeper:
            sleeper.add(pool, "x")
            sleeper.suspend()
            sleeper.resume()

    # ---- what comes in between ----

    def collect(self) -> None:
        gc.set_threshold(self.random.choice((1, 1, 10, 700)))
        if self.random.random() < 0.1:
            gc.collect()

    def fork(self) -> None:
        if self.random.random() > 0.2:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HANG_SECONDS // 2)
            self.world.__init__()
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            fail(f"a child ended with {status}: a hang is {int(signal.SIGALRM)}")

    OPERATIONS = (
        "make_pool",
        "make_manager",
        "make_sleeper",
        *["allocate"] * 4,
        *["show"] * 6,
        "churn",
        "capsule",
        "refuse",
        *["look"] * 4,
        "write",
        "look_at_owner",
        *["drop_array"] * 4,
        *["drop_block"] * 2,
        *["drop_other"] * 2,
        *["free"] * 3,
        "free_by_two",
        "free_raw",
        "close_pool",
        "close_manager",
        "leave",
        "drop_pool",
        "drop_manager",
        "resize",
        "move",
        "grow",
        "suspend",
        "collect",
        "fork",
    )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            name = self.random.choice(self.operations)
            done[name] = done.get(name, 0) + 1
            is_main = threading.current_thread() is threading.main_thread()
            try:
                try:
                    Stop.may_come = Stop.may_come or is_main
                    getattr(self, name)()
                    Stop.may_come = Stop.may_come and not is_main
                except ALLOWED:  # addresses run short, too, where machines have few
                    Stop.may_come = Stop.may_come and not is_main
                except Exception as trouble:
                    fail(f"{name}: {type(trouble).__name__}: {trouble}")
            except Stop:  # also in the lines behind an error
                Stop.may_come = False


def on_signal(world: World):
    chooser = random.Random(99)

    def handler(_number, _frame) -> None:
        for things in (world.arrays, world.others, world.blocks):
            if things and chooser.random() < 0.5:
                try:
                    things.pop()
                except IndexError:
                    pass
        if world.blocks and chooser.random() < 0.3:
            try:
                world.blocks[-1].block.free()
            except (IndexError, *ALLOWED):
                pass
        signal.setitimer(signal.ITIMER_REAL, 0.003)  # the next one, not inside of this one
        if Stop.may_come and chooser.random() < 0.3:
            Stop.may_come = False
            Stop.count += 1
            raise Stop

    return handler


def check_ends(world: World) -> None:
    world.__init__()
    gc.set_threshold(700)
    for _ in range(3):
        gc.collect()
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
        pool.trim(0)  # what had to wait is tried again
    for dropped in recover():
        dropped.close(lose_contents=True)
    gc.collect()
    for life in lives:
        if not life.has_ended:
            fail(f"a {life.name} has not ended")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--only", default="", help="some operations, with commas between them")
    options = parser.parse_args()
    operations = tuple(
        each for each in Worker.OPERATIONS if not options.only or each in options.only.split(",")
    )
    faulthandler.enable()
    faulthandler.dump_traceback_later(HANG_SECONDS + options.steps // 100, exit=True)
    sys.unraisablehook = lambda what: (
        what.exc_type is Stop or fail(f"unraisable: {what.exc_type} {what.exc_value}")
    )
    threading.excepthook = lambda what: fail(f"thread: {what.exc_type} {what.exc_value}")
    sys.setswitchinterval(2e-5)
    world = World()
    signal.signal(signal.SIGALRM, on_signal(world))
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    workers = [
        Worker(world, options.seed * 1000 + number, operations) for number in range(options.threads)
    ]
    threads = [
        threading.Thread(target=each.run, args=(options.steps,), daemon=True)
        for each in workers[1:]
    ]
    begin = time.monotonic()
    for each in threads:
        each.start()
    workers[0].run(options.steps)
    for each in threads:
        each.join()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    check_ends(world)
    missing = set(operations) - set(done)
    if missing and options.steps >= 2000:
        fail(f"these were never done: {', '.join(sorted(missing))}")
    print(
        f"{sum(done.values())} operations, {len(lives)} objects, {Stop.count} interrupted, "
        f"{len(failures)} failures, "
        f"{time.monotonic() - begin:.1f} s",
        flush=True,
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
