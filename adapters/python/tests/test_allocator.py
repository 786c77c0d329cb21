# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the allocator of vmm_allocator.h: blocks of several devices, streams that are recorded,
captures, limits, figures, and the plain functions.
Method: ctypes on the simulated device and the host's memory; random calls beside a list; every
wrong use that the header names. Streams are tests/c/device_memory_test.cpp's."""

import ctypes
import gzip
import json
import os
import random
import subprocess

import libvmm
import pytest
from libvmm import _native, _programs
from libvmm.errors import check
from libvmm.torch import _figures, _Options

LIBRARY = _native.LIBRARY
MIB = 1 << 20


class Allocation(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("requested_bytes", ctypes.c_uint64),
        ("size_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("is_pending", ctypes.c_uint32),
    ]


class Allocator:
    def __init__(self, driver=b"fake", read_environment=0):
        options = _Options()
        check(LIBRARY.vmm_allocator_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        options.driver = driver
        self.device_count = 2 if driver.startswith(b"fake") else 1
        options.read_environment = read_environment
        self.handle = ctypes.c_void_p()
        check(LIBRARY.vmm_allocator_create(ctypes.byref(options), ctypes.byref(self.handle)))

    def allocate(self, size, device=0, stream=0):
        at = ctypes.c_void_p()
        check(LIBRARY.vmm_allocator_allocate(self.handle, size, device, stream, ctypes.byref(at)))
        return at.value

    def __getattr__(self, name):
        def call(*words):
            check(getattr(LIBRARY, "vmm_allocator_" + name)(self.handle, *words))

        return call

    def find(self, at):
        found = Allocation()
        check(LIBRARY.vmm_allocator_find(self.handle, at, ctypes.byref(found)))
        return found

    def list(self, device=0):
        count = ctypes.c_uint64()
        check(LIBRARY.vmm_allocator_list(self.handle, device, None, 0, ctypes.byref(count)))
        found = (Allocation * (count.value + 1))()
        check(
            LIBRARY.vmm_allocator_list(self.handle, device, found, len(found), ctypes.byref(count))
        )
        return list(found[: count.value])

    def statistics(self, device=0):
        return _figures.statistics_of(self.handle, device)


@pytest.fixture(params=[b"fake", b"host"])
def allocator(request):
    made = Allocator(request.param)
    yield made
    check(LIBRARY.vmm_allocator_destroy(made.handle))


@pytest.fixture
def fake():
    made = Allocator()
    yield made
    check(LIBRARY.vmm_allocator_destroy(made.handle))


def test_a_forked_child_uses_an_allocator_that_has_no_device(fake):
    """Its parent may have installed it in PyTorch before it started workers."""

    def child(expected):
        process = os.fork()
        if process == 0:
            try:
                at = fake.allocate(MIB)
                fake.free(at)
                os._exit(0 if expected is None else 1)
            except libvmm.Error as refused:
                os._exit(0 if refused.status == expected else 2)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    assert child(None) == 0
    at = fake.allocate(MIB)
    assert child(libvmm.Status.NOT_PERMITTED) == 0
    fake.free(at)


def test_random_calls_beside_a_list(allocator):
    choose = random.Random(3)
    live = {}
    for _ in range(6000):
        if len(live) < 50 or choose.random() < 0.5:
            size = choose.choice((1, 511, 512, 70_000, 3 * MIB))
            device = choose.randrange(2) % allocator.device_count
            at = allocator.allocate(size, device)
            assert (at, device) not in live
            live[at, device] = size
        else:
            (at, device), _ = (
                live.popitem() if choose.random() < 0.3 else (choose.choice(list(live.items())))
            )
            live.pop((at, device), None)
            # Two simulated devices may return one address: the allocator searches them in order.
            allocator.free(at)
            if all(key[0] != at for key in live):
                with pytest.raises(libvmm.UnknownAddress):
                    allocator.find(at)
            else:
                other = next(key for key in live if key[0] == at)
                if allocator.find(at).device != other[1]:
                    live[at, device] = live.pop(other)
    for device in (0, 1):
        sizes = sum((size + 511) // 512 * 512 for (_, on), size in live.items() if on == device)
        now = allocator.statistics(device)
        assert now.live_count == len([key for key in live if key[1] == device])
        assert now.live_bytes == now.active_bytes == sizes
        assert [each.base for each in allocator.list(device)] == sorted(
            at for at, on in live if on == device
        )
    for at, _ in live:
        allocator.free(at)
    allocator.trim(-1, 0, None)
    assert all(allocator.statistics(device).held_bytes == 0 for device in (0, 1))


def test_many_blocks_stay_findable(allocator):
    """More blocks than the table begins with, and holes in it."""
    blocks = [allocator.allocate(512) for _ in range(5000)]
    for at in blocks[::3]:
        allocator.free(at)
    for number, at in enumerate(blocks):
        if number % 3:
            assert allocator.find(at).base == at
        else:
            with pytest.raises(libvmm.UnknownAddress):
                allocator.find(at)
    for number, at in enumerate(blocks):
        if number % 3:
            allocator.free(at)
    assert allocator.statistics().live_count == 0


def test_what_a_block_is(allocator):
    at = allocator.allocate(1000)
    found = allocator.find(at)
    assert (
        found.base,
        found.requested_bytes,
        found.size_bytes,
        found.device,
        found.is_pending,
    ) == (at, 1000, 1024, 0, 0)
    size = ctypes.c_uint64()
    check(LIBRARY.vmm_plugin_use(allocator.handle))
    assert LIBRARY.vmm_plugin_base(at, ctypes.byref(size)) == at and size.value == 1024
    assert LIBRARY.vmm_plugin_base(at + 512, ctypes.byref(size)) is None
    check(LIBRARY.vmm_plugin_use(None))
    allocator.free(at)


def test_peaks_and_counts(allocator):
    a, b = allocator.allocate(3 * MIB), allocator.allocate(MIB)
    allocator.free(a)
    now = allocator.statistics()
    assert now.live_bytes == MIB and now.peak_live_bytes == 4 * MIB
    assert now.peak_held_bytes >= now.held_bytes >= 4 * MIB
    nested = _figures.nested_statistics(allocator.handle, 0)
    assert nested["allocation"]["all"] == {"current": 1, "peak": 2, "allocated": 2, "freed": 1}
    assert nested["allocated_bytes"]["small_pool"]["current"] == MIB
    assert nested["allocated_bytes"]["large_pool"]["peak"] == 3 * MIB
    allocator.reset_peaks(0)
    assert allocator.statistics().peak_live_bytes == MIB
    allocator.reset_counts(0)
    assert _figures.nested_statistics(allocator.handle, 0)["allocation"]["all"]["allocated"] == 0
    allocator.free(b)


def test_a_limit_holds_and_goes(allocator):
    allocator.set_limit(0, 64 * MIB)
    kept = allocator.allocate(40 * MIB)
    with pytest.raises(MemoryError, match="limit"):
        allocator.allocate(40 * MIB)
    assert allocator.statistics().short_count == 1
    assert allocator.statistics().held_bytes <= 64 * MIB
    allocator.set_limit(0, 0)
    other = allocator.allocate(40 * MIB)
    allocator.free(kept)
    allocator.free(other)


def test_handles_have_their_own_size(fake, monkeypatch):
    """At most 40 MiB, of 12 GiB in large blocks. The pool's own default, selected by a variable,
    has at most 24."""
    monkeypatch.setenv("VMM_POOL_POLICY", "pool")
    other = Allocator(read_environment=1)
    for each, least_mib, most_mib in ((fake, 24, 40), (other, 16, 24)):
        blocks = [each.allocate(1 << 30) for _ in range(12)]
        now = each.statistics()
        assert now.held_bytes >= 12 << 30
        assert now.handle_count * least_mib * MIB < now.held_bytes
        assert now.held_bytes <= now.handle_count * most_mib * MIB
        for block in blocks:
            each.free(block)
    check(LIBRARY.vmm_allocator_destroy(other.handle))


def test_blocks_that_grow_one_by_one_leave_no_holes(fake):
    """40 blocks of 200 MiB become blocks of 210 MiB. Without any headroom each would move what is
    free at once, into places that do not join: 1.106 times what is live."""
    blocks = [fake.allocate(200 * MIB) for _ in range(40)]
    for number in range(40):
        fake.free(blocks[number])
        blocks[number] = fake.allocate(210 * MIB)
    assert fake.statistics().held_bytes < 1.03 * 40 * 210 * MIB
    for block in blocks:
        fake.free(block)


def test_captures_are_counted(fake):
    with pytest.raises(libvmm.NotPermitted):
        fake.end_capture()
    at = fake.allocate(MIB)
    fake.begin_capture()
    fake.begin_capture()
    fake.free(at)  # its stream is in no capture
    fake.end_capture()
    fake.end_capture()
    assert fake.statistics().active_bytes == 0


def test_wrong_uses(allocator):
    with pytest.raises(libvmm.InvalidArgument):
        allocator.allocate(1, device=-1)
    with pytest.raises(libvmm.InvalidArgument):
        allocator.allocate(1, device=64)
    with pytest.raises(libvmm.InvalidArgument):
        allocator.allocate(0)
    with pytest.raises(libvmm.UnknownAddress):
        allocator.free(0x1000)
    with pytest.raises(libvmm.UnknownAddress):
        allocator.record_stream(0x1000, 0)
    allocator.free(None)
    at = allocator.allocate(1)
    allocator.free(at)
    with pytest.raises(libvmm.UnknownAddress):
        allocator.free(at)
    with pytest.raises(libvmm.InvalidArgument, match="unknown backend 'no_such_driver'"):
        Allocator(b"no_such_driver")


class Calls(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint64),
        ("self", ctypes.c_void_p),
        (
            "allocate",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_uint64,
                ctypes.c_int32,
                ctypes.c_void_p,
                ctypes.c_void_p,
            ),
        ),
        ("free", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
    ]


def test_an_allocator_that_is_kept():
    """The functions do what the calls by its handle do; it is not destroyed."""
    made, calls = Allocator(), Calls(8)
    with pytest.raises(libvmm.InvalidArgument):
        made.keep(ctypes.byref(calls))
    with pytest.raises(libvmm.InvalidArgument):
        made.keep(None)
    calls.struct_size = ctypes.sizeof(calls)
    made.keep(ctypes.byref(calls))
    at = ctypes.c_void_p()
    assert calls.allocate(calls.self, 1000, 0, 0, ctypes.byref(at)) == 0
    assert made.find(at.value).requested_bytes == 1000
    assert calls.free(calls.self, at) == 0 and calls.free(calls.self, None) == 0
    unknown = LIBRARY.vmm_allocator_free(made.handle, at)
    assert unknown != 0 and calls.free(calls.self, at) == unknown
    assert calls.allocate(calls.self, 0, 0, 0, ctypes.byref(at)) != 0 and at.value is None
    with pytest.raises(libvmm.InUse):
        made.destroy()
    made.free(made.allocate(512))  # it goes on


def test_plain_functions(allocator):
    check(LIBRARY.vmm_plugin_use(allocator.handle))
    try:
        at = LIBRARY.vmm_plugin_malloc(1000, 0, None)
        assert allocator.find(at).requested_bytes == 1000
        LIBRARY.vmm_plugin_record_stream(at, None)
        LIBRARY.vmm_plugin_free(at, 1000, 0, None)
        assert allocator.statistics().live_count == 0
        LIBRARY.vmm_plugin_empty_cache()
        assert allocator.statistics().held_bytes == 0
        LIBRARY.vmm_plugin_memory_fraction(0.5, 0)
        assert allocator.statistics().limit_bytes > 0
        LIBRARY.vmm_plugin_memory_fraction(1.0, 0)
        assert allocator.statistics().limit_bytes == 0
        assert LIBRARY.vmm_plugin_malloc(0, 0, None) is None
    finally:
        check(LIBRARY.vmm_plugin_use(None))


def test_a_failure_is_told(allocator):
    told = []
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p
    )
    hook = kind(lambda function, file, line, text: told.append((function, text)))
    check(LIBRARY.vmm_plugin_use(allocator.handle))
    check(LIBRARY.vmm_plugin_set_failure(ctypes.cast(hook, ctypes.c_void_p)))
    try:
        assert LIBRARY.vmm_plugin_malloc(1 << 61, 0, None) is None
        assert LIBRARY.vmm_plugin_malloc(0, 0, None) is None
        assert LIBRARY.vmm_plugin_malloc(1000, -1, None) is None
        LIBRARY.vmm_plugin_memory_fraction(1e-6, 0)
        assert LIBRARY.vmm_plugin_malloc(1 << 30, 0, None) is None
        LIBRARY.vmm_plugin_memory_fraction(1.0, 0)
    finally:
        check(LIBRARY.vmm_plugin_set_failure(None))
        check(LIBRARY.vmm_plugin_use(None))
    assert all(function == b"vmm_plugin_malloc" for function, _ in told)
    too_large, no_device, above_limit = (text for _, text in told)
    # PyTorch's programs look for these words before they try with less.
    assert too_large.startswith(b"CUDA out of memory. ") and b"out_of" in too_large
    assert above_limit.startswith(b"CUDA out of memory. ") and b"over_budget" in above_limit
    assert b"out of memory" not in no_device


def test_fit_replays_this_allocator(fake):
    """vmm-fit's figure of a program under PyTorch is the most that this allocator holds."""
    program = _programs.find_program("fit")
    here = os.path.dirname(os.path.abspath(__file__))
    trace = os.path.join(here, "..", "..", "..", "traces", "beam_kv.trace.gz")
    if program is None or not os.path.exists(trace):
        pytest.skip("vmm-fit or the trace is not here")
    blocks = {}
    with gzip.open(trace, "rt") as file:
        for word, *rest in map(str.split, file):
            if word == "a":
                blocks[rest[0]] = fake.allocate(int(rest[1]))
            elif word == "f":
                fake.free(blocks.pop(rest[0]))
    done = subprocess.run([program, trace, "--json"], capture_output=True, text=True, check=True)
    held = json.loads(done.stdout)["allocators"]["vmm"]["held_bytes"]
    assert held == fake.statistics().peak_held_bytes
    for each in blocks.values():
        fake.free(each)
