# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: memory that was suspended comes back to the same addresses with the contents promised, by
tag, all or nothing, and every wrong use raises.
Method: on the host's memory and on the simulated device; bytes are written and read through the
driver, and through numpy where it is there."""

import contextlib
import functools
import gc
import os
import threading
import tracemalloc

import libvmm
import pytest
from libvmm import _lifetime, _native
from libvmm.growable import Growable
from libvmm.suspend import CONTENTS, TIERS, Suspender, recover

MIB = 1 << 20


@pytest.fixture
def weights(driver):
    with libvmm.Manager(driver) as made:
        yield made
        made.validate()


@pytest.fixture
def cache(driver, weights):
    with libvmm.Pool(driver) as made:
        yield made
        made.validate()


def test_contents_come_back(driver, weights, cache):
    with Suspender(verify=True) as sleeper:
        sleeper.add(weights, "weights")
        sleeper.add(cache, "kv", contents="zero")
        weight, block = weights.allocate(4 * MIB), cache.allocate(2 * MIB)
        at, other = weight.address, block.address
        driver.write(at, b"w" * 64)
        driver.write(other, b"k" * 64)
        report = sleeper.suspend()
        assert report.region_count == 2 and report.retained_bytes == 0
        assert report.suspended_bytes >= 6 * MIB and report.backup_bytes >= 4 * MIB
        assert sleeper.is_suspended("kv") and weights.statistics().held_bytes == 0
        away = weights.statistics().suspended_bytes + cache.statistics().suspended_bytes
        assert away == report.suspended_bytes
        with pytest.raises(libvmm.InUse, match="suspended"):
            cache.allocate(1)
        for call in (lambda: weight.resize(8 * MIB), weight.synchronize):
            with pytest.raises(libvmm.InUse, match="suspended"):
                call()
        cache.synchronize()  # of what was freed
        sleeper.resume("weights")
        assert driver.read(at, 64) == b"w" * 64 and weight.address == at
        sleeper.resume()
        assert weights.statistics().suspended_bytes == cache.statistics().suspended_bytes == 0
        assert driver.read(other, 64) == bytes(64)
        assert sleeper.backup_bytes >= 4 * MIB
        sleeper.return_backups()
        assert sleeper.backup_bytes == 0


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(driver, weights, tier, tmp_path):
    if tier == "pinned" and driver.name == "host":
        pytest.skip("the host driver has no streams, so nothing is pinned")
    with Suspender(tier=tier, directory=tmp_path) as sleeper:
        sleeper.add(weights, "weights")
        block = weights.allocate(2 * MIB)
        driver.write(block.address, b"abc")
        for _ in range(3):
            sleeper.suspend("weights")
            sleeper.resume("weights")
        assert driver.read(block.address, 3) == b"abc"


def test_one_call_may_have_other_contents(driver, weights):
    with Suspender() as sleeper:
        sleeper.add(weights, "weights")
        block = weights.allocate(2 * MIB)
        driver.write(block.address, b"abc")
        assert sleeper.suspend(contents="zero").backup_bytes == 0
        sleeper.resume()
        assert driver.read(block.address, 3) == bytes(3)


def test_freed_while_suspended(weights, cache):
    with Suspender() as sleeper:
        sleeper.add(weights, "all")
        sleeper.add(cache, "all")
        weight, block = weights.allocate(2 * MIB), cache.allocate(2 * MIB)
        sleeper.suspend("all")
        weight.free()
        block.free()
        sleeper.resume("all")
        assert weights.statistics().held_bytes == 0


def test_wrong_use(driver, weights, cache):
    with Suspender() as sleeper:
        sleeper.add(weights, "weights")
        with pytest.raises(libvmm.InUse):
            sleeper.add(weights, "again")
        with pytest.raises(libvmm.InUse, match="a suspender"):
            weights.close()
        with pytest.raises(libvmm.InUse, match="a suspender"):
            driver.close()
        with pytest.raises(libvmm.InvalidArgument):
            sleeper.add(cache, "")
        with pytest.raises(libvmm.InvalidArgument, match="keep, zero, discard"):
            sleeper.add(cache, "kv", contents="some")
        for call in (sleeper.suspend, sleeper.resume):
            for tags in (["weights"], 7):
                with pytest.raises(TypeError, match=r"tags: a str for each tag, .*was given"):
                    call(tags)
        with pytest.raises(libvmm.InvalidArgument, match="tag"):
            sleeper.suspend("nothing")
        with pytest.raises(libvmm.InvalidArgument, match="no region with this tag is suspended"):
            sleeper.resume("weights")
        sleeper.suspend("weights")
        with pytest.raises(libvmm.InUse, match="already"):
            sleeper.suspend("weights")
        assert sleeper.obstacle == "weights"
        with pytest.raises(libvmm.InUse, match="resume"):
            sleeper.remove(weights)
        with pytest.raises(libvmm.InUse):
            weights.close()
        sleeper.resume()
        sleeper.remove(weights)
        with pytest.raises(libvmm.InvalidArgument):
            sleeper.remove(weights)
    assert not sleeper.is_open
    with pytest.raises(libvmm.InvalidHandle):
        sleeper.suspend()
    with pytest.raises(libvmm.InvalidArgument, match="tier"):
        Suspender(tier="tape")
    assert CONTENTS[0] == "keep"


def test_a_close_loses_no_contents(driver, weights, cache):
    weight, block = weights.allocate(2 * MIB), cache.allocate(512)
    driver.write(weight.address, b"abc")
    with pytest.raises(libvmm.InUse, match=r"lose \d+ bytes .*'weights'.*resume\(\) first"):
        with Suspender() as sleeper:
            sleeper.add(weights, "weights")
            sleeper.add(cache, "kv", contents="discard")
            sleeper.suspend()
    assert sleeper.read_backup(weight.address, 3) == b"abc"
    sleeper.resume()
    assert driver.read(weight.address, 3) == b"abc"
    sleeper.suspend("kv")
    sleeper.close()
    with pytest.raises(libvmm.InUse, match="suspender was closed, add the allocator to another"):
        cache.allocate(512)
    block.free()


@pytest.mark.parametrize("contents", ["zero", "discard", "keep"])
def test_another_suspender_resumes_what_a_closed_one_left(driver, weights, contents):
    block = None if contents == "keep" else weights.allocate(2 * MIB)
    with Suspender() as sleeper:
        sleeper.add(weights, "weights", contents=contents)
        sleeper.suspend()
    with pytest.raises(libvmm.InUse, match="add the allocator to another suspender"):
        weights.allocate(512)
    if block is not None and driver.name == "host":
        with pytest.raises(BufferError, match="add the allocator to another suspender"):
            block.__dlpack__()
    with Suspender() as second:
        second.add(weights, "again")
        assert second.is_suspended("again")
        if block is not None and driver.name == "host":
            with pytest.raises(BufferError, match=r"Suspender\.resume\(\).*\(tags: 'again'\)$"):
                block.__dlpack__()
        second.resume()
    weights.allocate(512).free()
    if block is None:
        return
    if contents == "zero":
        assert driver.read(block.address, 8) == bytes(8)
    if driver.name == "host":
        assert block.__dlpack__() is not None
        gc.collect()
    block.free()


def test_lost_contents_are_freed_before_a_resume(weights):
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    sleeper.add(weights, "weights")
    sleeper.suspend()
    sleeper.close(lose_contents=True)
    with Suspender() as second:
        second.add(weights, "weights")
        with pytest.raises(libvmm.InUse, match="contents were lost.*free the blocks"):
            second.resume()
        block.free()
        second.resume()
    weights.allocate(512).free()


def test_frees_beside_suspensions(driver, weights):
    """A free waits for a suspension, and a dropped block goes."""
    sleeper, is_over, failures = Suspender(), threading.Event(), []
    sleeper.add(weights, "weights")

    def cycle():
        while not is_over.is_set():
            for call in (sleeper.suspend, sleeper.resume):
                with contextlib.suppress(libvmm.InUse):
                    call()

    def work():
        for turn in range(300):
            with contextlib.suppress(libvmm.InUse):
                block = weights.allocate(4096)
                try:
                    if turn % 2:
                        block.free()
                except libvmm.InUse as refused:
                    failures.append(refused)
                del block

    others, workers = ([threading.Thread(target=each) for _ in range(2)] for each in (cycle, work))
    for each in others + workers:
        each.start()
    for each in workers:
        each.join()
    is_over.set()
    for each in others:
        each.join()
    sleeper.close(lose_contents=True)
    assert not failures and weights.statistics().live_count == 0


def test_a_close_beside_a_suspend_loses_no_contents(driver, weights):
    """A suspend() of another thread comes between all that close() does and its last step."""
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    driver.write(block.address, b"abc")
    sleeper.add(weights, "weights")
    life = sleeper._life
    last = life.destroy

    def suspended_before(*arguments):
        other = threading.Thread(target=sleeper.suspend)
        other.start()
        other.join()
        return last(*arguments)

    life.destroy = suspended_before
    with pytest.raises(libvmm.InUse, match=r"lose \d+ bytes .*'weights'"):
        sleeper.close()
    life.destroy = last
    assert sleeper.is_open and sleeper.is_suspended("weights")
    sleeper.resume()
    assert driver.read(block.address, 3) == b"abc"
    sleeper.close()


def test_threads_that_close_and_suspend(driver, weights):
    """Whichever wins, the contents are there."""
    block, outcomes = weights.allocate(2 * MIB), []
    for turn in range(60):
        driver.write(block.address, bytes([turn]))
        sleeper = Suspender()
        sleeper.add(weights, "weights")

        def close(of):
            for _ in range(4):
                with contextlib.suppress(libvmm.InUse):
                    of.close()

        def suspend(of):
            with contextlib.suppress(libvmm.InvalidHandle):
                of.suspend()
                outcomes.append(turn)

        threads = [threading.Thread(target=call, args=(sleeper,)) for call in (suspend, close)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sleeper.is_open == (turn in outcomes)
        if sleeper.is_open:
            sleeper.resume()
            sleeper.close()
        assert driver.read(block.address, 1) == bytes([turn])


@pytest.mark.parametrize("driver", ["host"], indirect=True)
def test_a_close_beside_a_suspend_bars_no_arrays(weights, monkeypatch):
    """What was never suspended is shown again."""
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    sleeper.add(weights, "weights")
    monkeypatch.setattr(weights._life, "check_hidden", sleeper.close)  # the bars are there by now
    with pytest.raises(libvmm.InvalidHandle):
        sleeper.suspend()
    monkeypatch.undo()
    assert block.__dlpack__() is not None
    block.free()


@pytest.mark.parametrize("driver", ["host"], indirect=True)
def test_a_suspend_behind_an_interrupted_close_bars_no_arrays(weights, monkeypatch):
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    sleeper.add(weights, "weights")
    close = _lifetime.close

    def interrupted(*arguments):
        close(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(_lifetime, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sleeper.close()
    monkeypatch.undo()
    assert not sleeper.is_open and not sleeper._allocators
    with pytest.raises(libvmm.InvalidHandle):
        sleeper.suspend()
    assert block.__dlpack__() is not None
    block.free()


def test_a_close_that_fails_forgets_its_permission(weights):
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    sleeper.add(weights, "weights")
    sleeper.suspend()
    life = sleeper._life
    last, life.destroy = life.destroy, lambda *_: libvmm.Status.INTERNAL
    with pytest.raises(libvmm.Error):
        sleeper.close(lose_contents=True)
    life.destroy = last
    with pytest.warns(RuntimeWarning, match="2097152 bytes of kept contents"):
        del sleeper
        gc.collect()
    (sleeper,) = recover()
    sleeper.close(lose_contents=True)
    block.free()


def test_memory_that_another_suspender_has_suspended(weights, cache):
    block = weights.allocate(2 * MIB)
    first, second = Suspender(), Suspender()
    for each in (first, second):
        each.add(weights, "weights")
    second.add(cache, "kv")
    first.suspend()
    for tags in ((), ("weights",)):
        with pytest.raises(libvmm.InUse, match="another suspender .*resume it there"):
            second.resume(*tags)
    assert second.obstacle == "weights"
    second.suspend("kv")
    second.resume()
    first.close(lose_contents=True)
    with pytest.raises(libvmm.InUse, match="that one was closed, remove the allocator here"):
        second.resume()
    second.remove(weights)
    second.add(weights, "weights")
    block.free()
    second.resume()
    second.close()


def test_a_directory_is_judged_at_once(tmp_path):
    missing = tmp_path / "missing"
    for tier in TIERS:
        with pytest.raises(libvmm.InvalidArgument, match=f"{missing}': No such file.*name a dir"):
            Suspender(tier=tier, directory=missing)
    Suspender(tier="file", directory=tmp_path).close()


def test_contents_of_a_dropped_suspender_are_kept(driver, weights):
    """Also where it is dropped twice."""
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    driver.write(block.address, b"kept")
    sleeper.add(weights, "weights")
    sleeper.suspend()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="2097152 bytes.*'weights'.*recover.. returns it"):
            del sleeper
            gc.collect()
        (sleeper,) = recover()
        assert recover() == [] and sleeper.is_suspended("weights")
    sleeper.resume()
    assert driver.read(block.address, 4) == b"kept"
    sleeper.close()
    # Of a thread that had found it before another one recovered and closed it.
    assert not _lifetime.revive(Suspender.__new__(Suspender), sleeper._life)
    block.free()


@pytest.mark.parametrize("loses", [True, False])
def test_what_no_contents_are_kept_of_ends_silently(weights, recwarn, loses):
    block, sleeper = weights.allocate(2 * MIB), Suspender()
    sleeper.add(weights, "weights", "keep" if loses else "discard")
    sleeper.suspend()
    life = sleeper._life
    if loses:
        sleeper.close(lose_contents=True)
    del sleeper
    gc.collect()
    assert life.has_ended and not recwarn.list and recover() == []
    block.free()


def test_a_range_is_judged_before_its_copy_is_made(driver, weights):
    block = weights.allocate(2 * MIB)
    with Suspender() as sleeper:
        sleeper.add(weights, "weights")
        for read in (driver.read, sleeper.read_backup):
            for size in ("256MiB", 1 << 40, (1 << 64) - 1):
                tracemalloc.start()
                with pytest.raises((libvmm.UnknownAddress, libvmm.InvalidArgument), match=r"\w"):
                    read(block.address, size)
                assert tracemalloc.get_traced_memory()[1] < 16 * MIB
                tracemalloc.stop()
            sleeper.suspend()
        assert len(sleeper.read_backup(block.address, 2 * MIB)) == 2 * MIB
        sleeper.resume()


def test_a_pinned_block_stays(cache):
    with Suspender() as sleeper:
        sleeper.add(cache, "kv")
        block = cache.allocate(2 * MIB)
        cache.pin(block)
        with pytest.raises(libvmm.InUse, match="pinned"):
            sleeper.suspend()
        cache.unpin(block)
        sleeper.suspend()
        sleeper.resume()


def test_threads_take_turns(driver, weights, cache):
    """Of threads that suspend and resume one tag each, none sees the other's."""
    with Suspender() as sleeper:
        sleeper.add(weights, "weights")
        sleeper.add(cache, "kv")
        weight, block = weights.allocate(2 * MIB), cache.allocate(2 * MIB)
        driver.write(weight.address, b"w")
        driver.write(block.address, b"k")
        failures = []

        def cycle(tag):
            try:
                for _ in range(50):
                    sleeper.suspend(tag)
                    sleeper.resume(tag)
            except libvmm.Error as failure:
                failures.append(failure)

        threads = [threading.Thread(target=cycle, args=(tag,)) for tag in ("weights", "kv")]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not failures
        assert driver.read(weight.address, 1) + driver.read(block.address, 1) == b"wk"


def test_streams_and_options_of_wrong_types(weights):
    with Suspender() as sleeper:
        sleeper.add(weights, "weights")
        for wrong in ("x", 5, ["x"], [1.5], [True]):
            with pytest.raises(TypeError, match="streams"):
                sleeper.suspend(streams=wrong)
        for wrong in (-1, 1 << 64):  # nothing is cut to size
            with pytest.raises(libvmm.InvalidArgument, match="streams"):
                sleeper.suspend(streams=[wrong])
        assert not sleeper.is_suspended("weights")
    with pytest.raises(libvmm.InvalidArgument, match="directory"):
        Suspender(directory="")


def elsewhere(call, *arguments):
    """Calls on another thread, and returns what was raised."""
    raised = []

    def work():
        try:
            call(*arguments)
        except Exception as refused:
            raised.append(type(refused))

    other = threading.Thread(target=work)
    other.start()
    other.join()
    return raised


@pytest.fixture
def inside(monkeypatch):
    """Replaces a function of the library by work(function, *arguments)."""

    def replace(name, work):
        function = getattr(_native.LIBRARY, name)
        called = functools.partial(work, function)
        monkeypatch.setattr(_native.LIBRARY, name, called)

    return replace


@pytest.mark.parametrize("driver", ["host"], indirect=True)
def test_an_offer_bars_arrays_until_resume(weights, cache):
    """It may be taken at any time."""
    block, other = weights.allocate(2 * MIB), cache.allocate(2 * MIB)
    with Suspender() as sleeper:
        sleeper.add(weights, "weights")
        sleeper.add(cache, "kv")
        shown = block.__dlpack__()
        with pytest.raises(libvmm.InUse, match="array shows"):
            sleeper.offer()
        del shown
        for tags in (["weights"], 7):
            with pytest.raises(TypeError, match=r"tags: a str for each tag, .*was given"):
                sleeper.offer(tags)
        with pytest.raises(libvmm.InvalidArgument):
            sleeper.offer("weights", "none")
        assert block.__dlpack__() is not None
        gc.collect()
        sleeper.offer("weights")
        sleeper.offer("weights")
        assert other.__dlpack__() is not None and not sleeper.is_suspended("weights")
        gc.collect()
        with pytest.raises(BufferError, match="offered"):
            block.__dlpack__()
        sleeper.resume("weights")
        assert block.__dlpack__() is not None
        gc.collect()
        sleeper.offer("weights")
        sleeper.suspend("weights")
        sleeper.resume()
        assert block.__dlpack__() is not None
        gc.collect()
    block.free()
    other.free()


@pytest.mark.parametrize("driver", ["host"], indirect=True)
@pytest.mark.parametrize("tags", [(), ("kv",), ("weights",)])
@pytest.mark.parametrize("is_shown", [False, True])
def test_an_allocator_that_is_added_inside_a_suspend(cache, weights, inside, tags, is_shown):
    """Another thread's add() comes once suspend() has looked for arrays."""
    sleeper, block = Suspender(), cache.allocate(MIB)
    sleeper.add(weights, "weights")
    shown = [block.__dlpack__()] if is_shown else []
    is_meant = tags != ("weights",)

    def suspended(function, *arguments):
        refused = [libvmm.InUse] if is_shown and is_meant else []
        assert elsewhere(sleeper.add, cache, "kv") == refused
        assert elsewhere(block.__dlpack__) == ([BufferError] if is_meant and not refused else [])
        gc.collect()
        return function(*arguments)

    inside("vmm_suspender_suspend", suspended)
    with contextlib.suppress(libvmm.InvalidArgument):  # of the tag that came too late
        sleeper.suspend(*tags)
    is_away = cache.statistics().suspended_bytes != 0
    assert is_away == (is_meant and not is_shown)
    assert elsewhere(block.__dlpack__) == ([BufferError] if is_away else [])
    shown.clear()
    gc.collect()
    with contextlib.suppress(libvmm.InvalidArgument):
        sleeper.resume()
    assert elsewhere(block.__dlpack__) == []
    gc.collect()
    sleeper.close()
    block.free()


@pytest.mark.parametrize("driver", ["host"], indirect=True)
def test_an_allocator_that_is_removed_and_added_at_once(cache, inside):
    sleeper, block = Suspender(), cache.allocate(MIB)
    sleeper.add(cache, "kv")

    def removed(function, *arguments):
        outcome = function(*arguments)
        assert elsewhere(sleeper.add, cache, "kv") == []
        return outcome

    inside("vmm_suspender_remove_pool", removed)
    sleeper.remove(cache)
    shown = block.__dlpack__()
    with pytest.raises(libvmm.InUse, match="array shows"):
        sleeper.suspend()
    del shown
    sleeper.suspend()
    with pytest.raises(BufferError, match="'kv'"):
        block.__dlpack__()
    sleeper.close(lose_contents=True)
    with pytest.raises(BufferError, match="if its suspender was closed"):
        block.__dlpack__()
    block.free()


def test_a_callback_uses_no_suspender(cache):
    """Its thread holds the suspender's lock."""
    refused, sleeper, block = [], Suspender(), cache.allocate(MIB)
    sleeper.add(cache, "kv")

    def released(_notice):
        for call in (sleeper.close, sleeper.return_backups, lambda: sleeper.is_suspended("kv")):
            with pytest.raises(libvmm.NotPermitted, match="none on a suspender"):
                call()
            refused.append(call)

    number = cache.subscribe(released)
    sleeper.suspend()
    assert len(refused) >= 3
    cache.unsubscribe(number)
    sleeper.resume()
    sleeper.close()
    block.free()


@pytest.mark.parametrize("driver", ["host"], indirect=True)
def test_arrays_of_a_growable_range_of_a_region(weights):
    """Its memory is not suspended."""
    with Suspender() as sleeper, Growable(weights, 8 * MIB) as growing:
        sleeper.add(weights, "weights")
        sleeper.suspend()
        sleeper.resume()
        growing.resize(4 * MIB)
        view = growing.view()
        assert view.__dlpack__() is not None
        gc.collect()
        view.release()
        with pytest.raises(libvmm.InUse, match="growable range"):
            sleeper.suspend()


@pytest.mark.parametrize("driver", ["host"], indirect=True)
def test_a_child_shows_no_suspended_memory(cache):
    sleeper, block = Suspender(), cache.allocate(MIB)
    sleeper.add(cache, "kv")
    sleeper.suspend()
    child = os.fork()
    if child == 0:
        calls = (sleeper.resume, block.__dlpack__, sleeper.suspend, block.__dlpack__)
        kinds = [elsewhere(call) for call in calls]
        is_right = kinds == [[libvmm.NotPermitted], [BufferError]] * 2
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    sleeper.resume()
    sleeper.close()
    block.free()


def test_access_to_suspended_memory_is_named():
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as cache:
        with libvmm.Manager(driver) as weights, Suspender() as sleeper:
            block, weight, other = cache.allocate(MIB), weights.allocate(MIB), bytes(16)
            with libvmm.Manager(driver) as running:
                copied = running.allocate(MIB)
                sleeper.add(cache, "cache", "discard")
                sleeper.add(weights, "weights", "discard")
                sleeper.suspend()
                for of in (block, weight):
                    for call in (
                        lambda of=of: driver.read(of.address, 16),
                        lambda of=of: driver.read(of.address, 32 * MIB),
                        lambda of=of: driver.write(of.address + 512, other),
                        lambda of=of: driver.fill(of.address, 1, 16),
                        lambda of=of: running.copy(copied, of, 16),
                        lambda of=of: running.copy(of, copied, 16),
                    ):
                        with pytest.raises(libvmm.InUse, match=r"by Suspender\.resume\(\)"):
                            call()
                with pytest.raises(libvmm.InvalidArgument, match="no memory"):
                    driver.read(8, 1)
                sleeper.resume()
                driver.write(block.address, b"b")
                copied.free()
            block.free()
            weight.free()
