# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: no public call of the package takes a value of a wrong type, or cuts a number off: it says
what is wanted and what was given, and everything is as before.
Method: every public name is walked, every method and parameter by its signature; each parameter in
turn gets values of wrong types beside right ones for the others. The tables must have every call
and every parameter that there is."""

import concurrent.futures
import contextlib
import copy
import ctypes
import dataclasses
import enum
import gc
import inspect
import os
import pickle
import re
import socket
import tempfile
import types

import libvmm
import libvmm.cuda_core
import libvmm.cupy
import libvmm.growable
import libvmm.history
import libvmm.numba
import libvmm.rmm
import libvmm.share
import libvmm.suspend
import libvmm.torch
import libvmm.torch_memory_saver
import libvmm.vllm
import pytest

MIB = 1 << 20


@pytest.fixture(scope="module", params=["host", "fake"])
def driver(request):
    with libvmm.Driver(request.param) as opened:
        yield opened


class Bench:
    """What calls are made on."""

    def __init__(self, driver):
        self.driver = driver
        self.pool = libvmm.Pool(driver)
        self.manager = libvmm.Manager(driver)
        self.block = self.pool.allocate(MIB)
        self.range = self.manager.allocate(2 * MIB)
        self.of_growable = libvmm.Manager(driver)
        self.growable = libvmm.growable.Growable(self.of_growable, 8 * MIB)
        self.suspender = libvmm.suspend.Suspender()
        self.lent = libvmm.share.export(driver, 2 * MIB)
        self.no_socket = socket.socket()
        self.no_socket.close()
        self.folder = tempfile.TemporaryDirectory()
        self.listener = libvmm.share.Listener(f"{self.folder.name}/socket")
        self.secret = libvmm.share.make_secret()
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with concurrent.futures.ThreadPoolExecutor() as others:
            other = others.submit(libvmm.share.adopt, ends[0], self.secret, accepts=True)
            self.channel = libvmm.share.adopt(ends[1], self.secret, accepts=False)
            self.peer = other.result()

    def figures(self):
        """What is live or held."""
        gc.collect()
        self.pool.trim()
        self.manager.trim()
        of_pool, of_manager = self.pool.statistics(), self.manager.statistics()
        figures = of_pool.live_bytes, of_pool.held_bytes, of_manager.user_bytes
        descriptors = len(os.listdir("/proc/self/fd"))
        return *figures, of_manager.held_bytes, of_manager.live_count, descriptors

    def close(self):
        for each in (self.channel, self.peer, self.listener, self.lent, self.suspender):
            each.close()
        self.folder.cleanup()
        self.growable.close()
        self.of_growable.close()
        self.block.free()
        self.range.free()
        self.pool.validate()
        self.manager.validate()
        assert self.pool.statistics().live_count == 0
        assert self.manager.statistics().live_count == 0
        self.pool.close()
        self.manager.close()


@pytest.fixture(scope="module")
def bench_of_driver(driver):
    made = Bench(driver)
    yield made
    made.close()


@pytest.fixture
def bench(bench_of_driver):
    made = bench_of_driver
    before = (made.block.address, made.range.address)
    yield made
    assert before == (made.block.address, made.range.address)
    assert made.pool.statistics().live_count == made.manager.statistics().live_count == 1


SIZE = "a size"
NUMBER = "a number"  # kinds of parameters: what is wrong for each
TEXT = "a text"
FLAG = "a flag"
REAL = "a real"
OBJECT = "an object"
FUNCTION = "a function"
BYTES = "bytes"
PAIR = "a pair"
PATH = "a path"
NUMBERS = "numbers"
RIGHTS = "rights"

WRONG = {
    SIZE: [b"5", 5.0, [5], object(), True, 1j],
    NUMBER: ["5", b"5", 5.0, [5], object(), True, 1j],
    TEXT: [5, b"host", 1.5, ["host"], object()],
    FLAG: ["yes", 1.0, [1], object()],
    REAL: ["0.5", [0.5], object(), 1j, True],
    OBJECT: [5, "x", 1.5, object(), ctypes.c_void_p(5)],
    FUNCTION: [5, "x", None, [1]],
    BYTES: [5, "text", None, 1.5, object()],
    PATH: [5, 1.5, object(), ["x"]],
    PAIR: [5, "ab", (1,), (1, 2, 3), object(), ("x", 0), (0, "x"), (0.0, 0)],
    NUMBERS: [5, "12", b"ab", object(), [1.5], ["1"]],
    RIGHTS: [5, "x", [1], object(), {1: "read"}, {"1": 1}, {1.5: 1}, {(0,): 1}, {True: 1}],
}
OUT_OF_RANGE = {
    SIZE: [
        -1,
        1 << 64,
        (1 << 64) + 5,
        "",
        "MiB",
        "-1",
        "1e6",
        "5 apples",
        "0.5",
        "1GiB\0",
        "1GiB\ud800",
        "16EiB",
    ],
    NUMBER: [-1, 1 << 64, (1 << 64) + 5],
    FLAG: [2, 5, -1],
    TEXT: ["ho\0st", "\ud800"],
    PAIR: [(7, 0), (0, -1), (0, 1 << 32)],
    PATH: ["x\0y", "\ud800"],
    REAL: [float("nan"), float("inf"), -0.5, 1.5],
    OBJECT: [],
    FUNCTION: [],
    BYTES: [],
    NUMBERS: [[-1], [1 << 70]],
    RIGHTS: [{-1: 1}, {1: 3}, {1 << 31: 1}, {(7, 0): 1}],
}

NONE_TOO = {TEXT, REAL, PAIR, NUMBERS, RIGHTS}  # None is wrong but where the default is None

POOL_OPTIONS = dict(
    policy=TEXT,
    budget=SIZE,
    capture=NUMBER,
    page_bytes=SIZE,
    page_count=NUMBER,
    reservation_bytes=SIZE,
    wait_when_short=FLAG,
    place=PAIR,
    read_environment=FLAG,
    report_live=FLAG,
    stream_arenas=NUMBER,
    captures_announced=FLAG,
    streams_forgotten=FLAG,
)
MANAGER_OPTIONS = dict(
    policy=TEXT,
    budget=SIZE,
    fragment_ratio=REAL,
    chunk_bytes=SIZE,
    reservation_bytes=SIZE,
    wait_when_short=FLAG,
    read_environment=FLAG,
    report_live=FLAG,
    shareable=NUMBER,
    streams_forgotten=FLAG,
)

RESIZE = dict(size=SIZE, stream=NUMBER, first=NUMBER, count=NUMBER, one_handle=FLAG, wait=FLAG)
VIEW = dict(dtype=TEXT, shape=NUMBERS, first=NUMBER, count=NUMBER)

# The parameters of each call: their kinds, and right values for those that have no default.
CALLS = {
    "drivers": ({}, {}),
    "loaded_library": ({}, {}),
    "version": ({}, {}),
    "Driver": (dict(name=TEXT, device=NUMBER), {}),
    "Driver.link": (dict(source=NUMBER, target=NUMBER), dict(source=0, target=0)),
    "Driver.rights": (
        dict(address=NUMBER, grantee=NUMBER),
        lambda b: dict(address=b.block.address, grantee=0),
    ),
    "Driver.destroy_stream": (dict(stream=NUMBER), {}),
    "Driver.synchronize": (dict(stream=NUMBER), {}),
    "Driver.order": (dict(first=NUMBER, then=NUMBER), dict(first=0, then=0)),
    "Driver.write": (
        dict(target=NUMBER, data=BYTES),
        lambda b: dict(target=b.block.address, data=b"x"),
    ),
    "Driver.read": (
        dict(source=NUMBER, size=SIZE),
        lambda b: dict(source=b.block.address, size=1),
    ),
    "Driver.fill": (
        dict(target=NUMBER, value=NUMBER, size=SIZE, stream=NUMBER),
        lambda b: dict(target=b.block.address, value=1, size=1),
    ),
    "Pool": (dict(driver=OBJECT, **POOL_OPTIONS), lambda b: dict(driver=b.driver)),
    "Pool.allocate": (dict(size=SIZE, stream=NUMBER, alignment=SIZE), lambda b: dict(size=512)),
    "Pool.allocate_dedicated": (dict(size=SIZE, stream=NUMBER), lambda b: dict(size=512)),
    "Pool.allocate_raw": (
        dict(size=SIZE, stream=NUMBER, alignment=SIZE),
        lambda b: dict(size=512),
    ),
    "Pool.free_raw": (dict(address=NUMBER, stream=NUMBER), lambda b: dict(address=b.block.address)),
    "Pool.pin": (dict(block=OBJECT), {}),
    "Pool.unpin": (dict(block=OBJECT), {}),
    "Pool.forget_stream": (dict(stream=NUMBER), {}),
    "Pool.set_peers": (dict(rights=RIGHTS), {}),
    "Pool.preallocate": (dict(size=SIZE, stream=NUMBER), lambda b: dict(size=512)),
    "Pool.trim": (dict(limit=SIZE), {}),
    "Pool.subscribe": (dict(callback=FUNCTION), {}),
    "Pool.unsubscribe": (dict(subscription=NUMBER), {}),
    "Manager": (dict(driver=OBJECT, **MANAGER_OPTIONS), lambda b: dict(driver=b.driver)),
    "Manager.allocate": (
        dict(size=SIZE, stream=NUMBER, growth=SIZE, alignment=SIZE),
        lambda b: dict(size=512),
    ),
    "Manager.copy": (
        dict(target=OBJECT, source=OBJECT, size=SIZE, stream=NUMBER, mode=NUMBER),
        lambda b: dict(target=b.range, source=b.range),
    ),
    "Manager.forget_stream": (dict(stream=NUMBER), {}),
    "Manager.set_peers": (dict(rights=RIGHTS), {}),
    "Manager.trim": (dict(limit=SIZE), {}),
    "Block": (
        dict(owner=OBJECT, address=NUMBER, size=SIZE, stream=NUMBER),
        lambda b: dict(owner=b.pool, address=0, size=0, stream=0),
    ),
    "Block.free": (dict(stream=NUMBER), {}),
    "Block.view": (dict(dtype=TEXT, shape=NUMBERS), {}),
    "Block.set_access": (dict(rights=RIGHTS), {}),
    "Range": (
        dict(owner=OBJECT, address=NUMBER, size=SIZE, stream=NUMBER),
        lambda b: dict(owner=b.manager, address=0, size=0, stream=0),
    ),
    "Range.free": (dict(stream=NUMBER), {}),
    "Range.view": (dict(dtype=TEXT, shape=NUMBERS), {}),
    "Range.set_access": (
        dict(rights=RIGHTS, offset=SIZE, size=SIZE),
        lambda b: dict(rights={1: libvmm.Rights.READ}),
    ),
    "Range.resize": (
        dict(size=SIZE, growth=SIZE, in_place=FLAG, names_stream=FLAG),
        lambda b: dict(size=MIB),
    ),
    "cupy.Functions": (
        dict(pool=OBJECT, current_stream=FUNCTION),
        lambda b: dict(pool=b.pool, current_stream=lambda: types.SimpleNamespace(ptr=0)),
    ),
    "cupy.allocator": (dict(pool=OBJECT), {}),
    "cupy.enable": (dict(pool=OBJECT), {}),
    "rmm.functions": (dict(pool=OBJECT), {}),
    "rmm.resource": (dict(pool=OBJECT), {}),
    "rmm.stream_number": (dict(stream=NUMBER), {}),
    "history.start": (
        dict(
            owner=OBJECT,
            device=NUMBER,
            event_count=NUMBER,
            clock_interval=NUMBER,
            frames=FLAG,
            shortage=PATH,
            shortage_count_max=NUMBER,
        ),
        lambda b: dict(owner=b.pool),
    ),
    "history.dump": (
        dict(owner=OBJECT, path=PATH, device=NUMBER),
        lambda b: dict(owner=b.pool, path="x"),
    ),
    "history.stop": (dict(owner=OBJECT, path=PATH, device=NUMBER), lambda b: dict(owner=b.pool)),
    "history.publish": (dict(on=FLAG), {}),
    "growable.Growable": (
        dict(
            manager=OBJECT,
            most=SIZE,
            segments=NUMBER,
            handle_bytes=SIZE,
            zero_new=FLAG,
            gives_tail=FLAG,
        ),
        lambda b: dict(manager=b.manager, most=4 * MIB),
    ),
    "growable.Growable.grow": (RESIZE, lambda b: dict(size=MIB)),
    "growable.Growable.resize": (RESIZE, lambda b: dict(size=MIB)),
    "growable.Growable.shrink": (
        {name: RESIZE[name] for name in ("size", "stream", "first", "count")},
        lambda b: dict(size=0),
    ),
    "growable.Growable.release": (dict(stream=NUMBER), {}),
    "growable.Growable.synchronize": (dict(stream=NUMBER), {}),
    "growable.Growable.close": (dict(stream=NUMBER), {}),
    "growable.Growable.segment": (dict(index=NUMBER), {}),
    "growable.Growable.parts": (dict(index=NUMBER), {}),
    "growable.Growable.view": (VIEW, {}),
    "growable.Growable.full_view": (VIEW, {}),
    "suspend.Suspender": (dict(tier=TEXT, directory=PATH, verify=FLAG), {}),
    "suspend.Suspender.add": (
        dict(allocator=OBJECT, tag=TEXT, contents=TEXT),
        lambda b: dict(allocator=b.pool, tag="kv"),
    ),
    "suspend.Suspender.remove": (dict(allocator=OBJECT), {}),
    "suspend.Suspender.is_suspended": (dict(tag=TEXT), {}),
    "suspend.Suspender.read_backup": (
        dict(address=NUMBER, size=SIZE),
        lambda b: dict(address=b.block.address, size=1),
    ),
    "suspend.Suspender.close": (dict(lose_contents=FLAG), {}),
    "share.read_secret": (dict(path=PATH), {}),
    "share.export": (
        dict(driver=OBJECT, size=SIZE, handle_bytes=SIZE, kind=NUMBER, label=BYTES),
        lambda b: dict(driver=b.driver, size=2 * MIB),
    ),
    "share.export_block": (
        dict(block=OBJECT, followed=FLAG, one_handle=FLAG, kind=NUMBER, label=BYTES),
        lambda b: dict(block=b.range),
    ),
    "share.connect": (
        dict(path=PATH, secret=BYTES, timeout_ms=NUMBER),
        lambda b: dict(path="/nowhere", secret=b.secret),
    ),
    "share.adopt": (
        dict(end=OBJECT, secret=BYTES, accepts=FLAG, timeout_ms=NUMBER),
        lambda b: dict(end=b.no_socket, secret=b.secret, accepts=True),
    ),
    "share.Listener": (dict(path=PATH), {}),
    "share.Listener.accept": (
        dict(secret=BYTES, timeout_ms=NUMBER),
        lambda b: dict(secret=b.secret),
    ),
    "share.Lent.moved": (dict(block=OBJECT), {}),
    "share.Channel.lend": (dict(block=OBJECT), {}),
    "share.Channel.update": (dict(number=NUMBER), {}),
    "share.Channel.take_back": (dict(number=NUMBER), {}),
    "share.Channel.next": (dict(timeout_ms=NUMBER), {}),
    "share.Channel.borrow": (
        dict(driver=OBJECT, read_only=FLAG, any_device=FLAG),
        lambda b: dict(driver=b.driver),
    ),
    "torch.enable": (dict(way=TEXT), {}),
    "torch.statistics": (dict(device=NUMBER), {}),
}
# Values that the types allow, and that mean something else than wrong.
ALLOWED = {
    ("Driver", "device", -1),
    ("rmm.stream_number", "stream", -1),
    ("Block.view", "shape", "b'ab'"),
    ("Manager.copy", "mode", True),
}
MODULES = {
    "cupy": libvmm.cupy,
    "growable": libvmm.growable,
    "history": libvmm.history,
    "rmm": libvmm.rmm,
    "share": libvmm.share,
    "suspend": libvmm.suspend,
    "torch": libvmm.torch,
}
OF_THE_PACKAGE = {
    "libvmm",
    "libvmm._drivers",
    "libvmm.errors",
    "libvmm.managers",
    "libvmm.pools",
    "libvmm.reports",
}


def walked(name, thing):
    """(label, function) of each call of a public name that takes anything."""
    if inspect.isfunction(thing):
        yield name, thing
        return
    is_record = dataclasses.is_dataclass(thing)
    if not inspect.isclass(thing) or is_record or issubclass(thing, (enum.Enum, BaseException)):
        return  # what calls answer, and what they raise
    yield name, thing.__init__
    for member, function in inspect.getmembers(thing, inspect.isfunction):
        takes = [each for each in inspect.signature(function).parameters if each != "self"]
        if not member.startswith("_") and takes:
            yield f"{name}.{member}", function


def public_calls():
    for name in libvmm.__all__:
        thing = getattr(libvmm, name)
        if getattr(thing, "__module__", "libvmm") in OF_THE_PACKAGE:
            yield from walked(name, thing)
    for short, module in MODULES.items():
        for name, thing in vars(module).items():
            if (
                not name.startswith("_")
                and getattr(thing, "__module__", "") == module.__name__
                and not isinstance(thing, type(pytest))
            ):
                yield from walked(f"{short}.{name}", thing)


MADE_BY_CALLS = ("growable.View", "share.Borrowed", "share.Channel", "share.Lent")
NOT_CHECKED = {
    "history.record": "options are start()'s",
    "history.tag": "its value is read at the with: test_history.py",
    "torch.mem_pool": "its options are PyTorch's",
    "torch.disable": "takes nothing",
    "torch.way": "takes nothing",
    "torch.native": "takes nothing",
    "cupy.Functions.__init__": "",
    "share.Borrowed.view": "as Block.view()",
    "suspend.Suspender.offer": "takes any number of tags: test_suspend.py",
    "suspend.Suspender.suspend": "takes any number of tags: test_suspend.py",
    "suspend.Suspender.resume": "takes any number of tags: test_suspend.py",
    **dict.fromkeys(MADE_BY_CALLS, "refuses any value"),
}


def test_the_table_has_every_call_and_parameter():
    for label, function in public_calls():
        parameters = [each for each in inspect.signature(function).parameters if each != "self"]
        if label in NOT_CHECKED or not parameters:
            continue
        assert label in CALLS, label
        assert set(CALLS[label][0]) == set(parameters), label
    assert len(list(public_calls())) > 25


@pytest.mark.parametrize("label", MADE_BY_CALLS)
def test_a_class_whose_objects_other_calls_make_names_them(label):
    module, _, name = label.partition(".")
    for given in ((), (None,), (None, None)):
        with pytest.raises(TypeError, match=f"^a libvmm.{name} is made by {module}\\.[A-Za-z]"):
            getattr(MODULES[module], name)(*given)


def function_of(label, bench):
    owner, _, method = label.rpartition(".")
    objects = {
        "Driver": bench.driver,
        "Pool": bench.pool,
        "Manager": bench.manager,
        "Block": bench.block,
        "Range": bench.range,
        "growable.Growable": bench.growable,
        "suspend.Suspender": bench.suspender,
        "share.Channel": bench.channel,
        "share.Lent": bench.lent,
        "share.Listener": bench.listener,
    }
    return getattr(objects.get(owner) or MODULES.get(owner, libvmm), method)


def defaults_to_none(function, parameter):
    return inspect.signature(function).parameters[parameter].default is None


@pytest.mark.parametrize("label", CALLS)
def test_values_of_wrong_types(label, bench):
    kinds, right = CALLS[label]
    function = function_of(label, bench)
    good = right(bench) if callable(right) else right
    for parameter, kind in kinds.items():
        wrong = list(WRONG[kind])
        if kind not in (NUMBER, SIZE) and not defaults_to_none(function, parameter):
            wrong.append(None)
        for value in wrong:
            if (label, parameter, repr(value)) in ALLOWED:
                continue
            with pytest.raises(TypeError) as raised:
                function(**{**good, parameter: value})
            said = str(raised.value)
            assert said.startswith(parameter), (label, parameter, value, said)
            assert " is wanted, and " in said and " was given" in said, (label, parameter, said)


@pytest.mark.parametrize("label", CALLS)
def test_values_out_of_range(label, bench):
    """Nothing is cut off: 2^64 + 5 is not 5."""
    kinds, right = CALLS[label]
    function = function_of(label, bench)
    good = right(bench) if callable(right) else right
    for parameter, kind in kinds.items():
        for value in OUT_OF_RANGE[kind]:
            if (label, parameter, value if isinstance(value, int) else None) in ALLOWED:
                continue
            with pytest.raises(libvmm.InvalidArgument):
                function(**{**good, parameter: value})


ONE_OF_ARENAS = "one of libvmm.Arenas (WHEN_CONTENDED, ALWAYS, NEVER)"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"captures_announced": -1}, "captures_announced: a bool is wanted, and -1 was given"),
        ({"captures_announced": 2}, "captures_announced: a bool is wanted, and 2 was given"),
        ({"stream_arenas": -1}, f"stream_arenas: {ONE_OF_ARENAS} is wanted, and -1 was given"),
        (
            {"stream_arenas": 1 << 70},
            f"stream_arenas: {ONE_OF_ARENAS} is wanted, and {1 << 70} was given",
        ),
    ],
)
def test_numbers_that_stand_for_none_of_what_is_wanted(bench, options, said):
    with pytest.raises(libvmm.InvalidArgument) as raised:
        libvmm.Pool(bench.driver, **options)
    assert str(raised.value) == said


@pytest.mark.parametrize("options", [{"fragment_ratio": -1}, {"chunk_bytes": (1 << 64) - 1}])
def test_the_library_s_numbers_for_defaults(bench, options):
    """In Python None is the default."""
    ((name, value),) = options.items()
    with pytest.raises(libvmm.InvalidArgument, match=f"^{name}: .* and {value} was given"):
        libvmm.Manager(bench.driver, **options)


def test_a_copy_stays_within_another_allocator_s_block(bench):
    for pair in ((bench.block, bench.range), (bench.range, bench.block)):
        with pytest.raises(libvmm.InvalidArgument, match="from 0 to 1048576 .* and 2097152 was"):
            bench.manager.copy(*pair, 2 * MIB)


def test_a_given_value_is_named(bench):
    wanted = "size: an int of bytes, or a text such as '512MiB', is wanted, and "
    with pytest.raises(TypeError) as raised:
        bench.pool.allocate(3.5)
    assert str(raised.value) == wanted + "3.5 (float) was given"
    wanted = "size: a size such as 4096, '512MiB' or '1.5GiB' is wanted, and "
    with pytest.raises(libvmm.InvalidArgument) as raised:
        bench.pool.allocate("3 apples")
    assert str(raised.value) == wanted + "'3 apples' was given"
    with pytest.raises(libvmm.InvalidArgument, match=r"x'\.\.\. was given"):
        bench.pool.allocate("x" * 10_000)


def test_sizes_are_texts_as_in_the_environment(bench, monkeypatch):
    monkeypatch.setenv("VMM_BUDGET", "4.5 mib")
    for options in ({"budget": "4.5 mib"}, {"read_environment": True}):
        for made in (libvmm.Pool, libvmm.Manager):
            with made(bench.driver, **options) as owner:
                with pytest.raises(libvmm.OutOfMemory, match=r"4 of 4\.50 MiB|4\.50 MiB"):
                    owner.allocate("6MiB")
                with owner.allocate("2MiB") as block:
                    assert block.size == 2 * MIB
                owner.trim("0")
    with libvmm.growable.Growable(bench.manager, "1.5GiB", handle_bytes="2M") as growable:
        assert growable.most == 3 << 29
        growable.grow("4 MB")
        assert growable.size >= 4_000_000


@pytest.mark.parametrize(
    ("made", "variable", "option", "said"),
    [
        (libvmm.Pool, "VMM_VA_SIZE=1", "reservation_bytes", "not '1': the bytes of a page are 2"),
        (libvmm.Pool, "VMM_POOL_PAGES=5000000", "page_count", "'5000000': its pages are 262143"),
        (libvmm.Pool, "VMM_POOL_PAGE_SIZE=256GiB", "page_bytes", "'274877906944': its bytes are "),
        (libvmm.Manager, "VMM_CHUNK_SIZE=256GiB", "chunk_bytes", "'274877906944': its bytes are "),
        (
            libvmm.Manager,
            "VMM_CHUNK_SIZE=3",
            "chunk_bytes",
            "granularity, 0 for no chunks, or None; not",
        ),
        (
            libvmm.Pool,
            "VMM_POOL_PAGES=250000",
            "page_count",
            "the pages that are mapped first, smaller",
        ),
    ],
)
def test_an_option_that_nothing_here_can_meet_is_named(
    driver, monkeypatch, made, variable, option, said
):
    """By its variable, too, and before anything is allocated."""
    name, value = variable.split("=")
    given = int(value) if value.isdigit() else value
    monkeypatch.setenv(name, value)
    for options in ({"read_environment": True}, {option: given}):
        with pytest.raises((libvmm.InvalidArgument, libvmm.OutOfMemory)) as raised:
            made(driver, **options)
        shown = str(raised.value)
        assert option in shown and f"({name}" in shown and said in shown, shown


def test_what_stands_for_an_int_is_taken(bench):
    class Index:
        def __index__(self):
            return 4096

    with bench.pool.allocate(Index(), Index().__index__() * 0) as block:
        assert block.size == 4096 and type(block.size) is int
    numpy = pytest.importorskip("numpy")
    with bench.pool.allocate(numpy.int64(8192)) as block:
        assert block.size == 8192 and type(block.size) is int
    libvmm.Pool(bench.driver, report_live=numpy.bool_(True)).close()


def test_contents_from_whatever_shows_bytes(bench):
    for content in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        bench.driver.write(bench.block.address, content)
        assert bench.driver.read(bench.block.address, 3) == b"abc"


def test_a_freed_block_says_so(bench):
    block = bench.pool.allocate(1000)
    assert "freed" not in repr(block) and "1000 bytes" in repr(block)
    block.free()
    assert repr(block) == "<libvmm.Block 1000 bytes, freed>"
    with pytest.raises(libvmm.UnknownAddress, match="freed before"):
        block.view()
    with pytest.raises(libvmm.UnknownAddress, match="freed before"):
        block.view("float32", (4,))
    with pytest.raises(libvmm.UnknownAddress, match="freed before"):
        block.free()
    if bench.driver.name == "host":
        with pytest.raises(BufferError, match="freed"):  # what DLPack's consumers look for
            block.__dlpack__()


def test_a_block_whose_pool_was_closed_says_so(driver):
    pool = libvmm.Pool(driver, report_live=False)
    block = pool.allocate(1000)
    pool.close()
    assert repr(block).endswith("freed>")
    with pytest.raises(libvmm.InvalidHandle, match="was closed"):
        block.view()
    with pytest.raises(libvmm.InvalidHandle, match="was closed"):
        block.free()


def test_what_is_closed_says_so():
    driver = libvmm.Driver("fake")
    pool = libvmm.Pool(driver)
    pool.close()
    for call in (
        lambda: pool.allocate(512),
        lambda: pool.allocate_dedicated(512),
        pool.statistics,
        pool.trim,
        pool.validate,
    ):
        with pytest.raises(libvmm.InvalidHandle) as raised:
            call()
        assert str(raised.value) == "invalid_handle: the object was closed: make another"
    driver.close()
    with pytest.raises(libvmm.InvalidHandle, match="was closed"):
        libvmm.Pool(driver)


def public_classes():
    for name in libvmm.__all__:
        if inspect.isclass(getattr(libvmm, name)):
            yield getattr(libvmm, name)
    for module in (*MODULES.values(), *OF_LIBRARIES):
        for name, thing in vars(module).items():
            is_public = not name.startswith("_") and inspect.isclass(thing)
            if is_public and thing.__module__ == module.__name__:
                yield thing


def is_made_by_calls(kind):
    """What calls answer, and what they raise."""
    of = (enum.Enum, BaseException, ctypes.Structure)
    return dataclasses.is_dataclass(kind) or issubclass(kind, of)


def made_without_init(kind):
    yield kind.__new__(kind)
    yield type("Mine", (kind,), {"__init__": lambda self: None})()


def uses_of(made):
    """(name, call) of each attribute and method, with the fewest arguments."""
    for name in sorted(set(dir(made)) - NO_USES):
        member = inspect.getattr_static(made, name)
        if isinstance(member, property):
            yield name, lambda name=name: getattr(made, name)
        elif inspect.isfunction(member) and (not name.startswith("_") or name in PROTOCOLS):
            takes = list(inspect.signature(member).parameters.values())[1:]
            kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            needed = [None for each in takes if each.kind in kinds and each.default is each.empty]
            named = {
                each.name: None
                for each in takes
                if each.kind is each.KEYWORD_ONLY and each.default is each.empty
            }
            yield (
                name,
                lambda member=member, needed=needed, named=named: member(made, *needed, **named),
            )


PROTOCOLS = ("__enter__", "__dlpack__", "__dlpack_device__")
OF_LIBRARIES = (libvmm.cuda_core, libvmm.numba, libvmm.torch_memory_saver, libvmm.vllm)
# Values of the class.
# What needs none of the object, or Numba's base first.
NO_USES = {"defer_cleanup", "initialize", "reset", "get_ipc_handle"}
NO_USES |= {"hook_mode", "memory_margin_bytes"}  # can only be set
WITHOUT_INIT = {"is_open": False, "interface_version": 1, "is_managed": False}
WITHOUT_INIT |= {"retain_cpu_backup": True, "enabled": True}


@pytest.mark.parametrize(
    "kind", [each for each in public_classes() if not is_made_by_calls(each)], ids=str
)
def test_an_object_that_was_not_initialised_says_so(kind):
    for made in made_without_init(kind):
        assert "libvmm" in repr(made) or "Mine" in repr(made)
        for name, use in uses_of(made):
            try:
                done = use()
                if isinstance(done, contextlib.AbstractContextManager):
                    done.__enter__()
                assert done == WITHOUT_INIT[name], name
            except libvmm.InvalidHandle as said:
                match = re.search(
                    r"\w+ was not initialised: call super\(\).__init__\(\)", str(said)
                )
                assert match, (name, said)
            except TypeError as said:
                assert " is wanted, and None (NoneType) was given" in str(said), (name, said)


@pytest.mark.parametrize("label", CALLS)
def test_a_given_object_that_was_not_initialised_is_named(label, bench):
    kinds, right = CALLS[label]
    good = right(bench) if callable(right) else right
    owns = (libvmm.Pool, libvmm.Manager, libvmm.Driver, libvmm.Block, libvmm.share.Lent)
    for parameter, kind in kinds.items():
        for class_ in owns if kind is OBJECT else ():
            for made in made_without_init(class_):
                with pytest.raises((TypeError, libvmm.InvalidHandle)) as raised:
                    function_of(label, bench)(**{**good, parameter: made})
                said = str(raised.value)
                assert " is wanted, and " in said or "call super().__init__()" in said, said


def test_a_with_of_a_closed_object_is_refused():
    driver = libvmm.Driver("fake")
    pool, suspender = libvmm.Pool(driver), libvmm.suspend.Suspender()
    for each in (pool, suspender, driver):
        each.close()
        with pytest.raises(libvmm.InvalidHandle, match="was closed"), each:
            pytest.fail("entered")


def test_nothing_that_owns_is_copied(bench):
    """A copy of a block would free it a second time when it goes."""
    growable = libvmm.growable.Growable(bench.manager, 4 << 20)
    suspender = libvmm.suspend.Suspender()
    for owner in (
        bench.driver,
        bench.pool,
        bench.manager,
        bench.block,
        bench.range,
        growable,
        suspender,
    ):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"a libvmm.{type(owner).__name__} is not copied"):
                way(owner)
    growable.close()
    suspender.close()
    gc.collect()
    assert bench.pool.statistics().live_count == bench.manager.statistics().live_count == 1


def test_a_view_that_outlives_its_bytes():
    with libvmm.Driver("host") as driver, libvmm.Manager(driver) as manager:
        block = manager.allocate(4 * MIB)
        whole = block.view()
        block.resize(MIB)
        with pytest.raises(BufferError, match="smaller"):
            whole.__dlpack__()
        part = block.view()
        block.free()
        with pytest.raises(BufferError, match="freed"):
            part.__dlpack__()


# Last: the library keeps some hundred texts with values, and then those without.
EXTREMES = [0, 1, -1, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
# Ends what others are called on, or waits.
ENDS = ("free", "close", "Channel.next", "accept", "torch.")


def test_extreme_numbers(driver):
    """Each call does what it is for, or raises an error with a text, and holds nothing then."""
    bench = Bench(driver)
    before, count = bench.figures(), 0
    for label, (kinds, right) in CALLS.items():
        if any(each in label for each in ENDS):
            continue
        function, good = function_of(label, bench), right(bench) if callable(right) else right
        for parameter, kind in kinds.items():
            for value in EXTREMES if kind in (SIZE, NUMBER) else ():
                count += 1
                try:
                    function(**{**good, parameter: value})
                except (libvmm.Error, BufferError) as refused:
                    assert re.search(r"\w{4}", str(refused)), (label, parameter, value)
        for at in bench.pool.raw_blocks():
            bench.pool.free_raw(at)
        with contextlib.suppress(libvmm.Error):
            libvmm.history.stop(bench.pool)
        bench.range.resize(2 * MIB)
        bench.growable.release()
        assert bench.figures() == before, label
    assert count > 800
    bench.close()
