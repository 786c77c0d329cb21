# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered pools, and their blocks."""

from __future__ import annotations

import ctypes
import enum
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _dlpack, _lifetime, _native, _values
from ._allocators import Allocator, AllocatorLife, BlockLife
from ._drivers import Driver, Feature, Place, Rights, grants_of
from ._subscriptions import REMAPPED, Subscribers, thunk_of
from .errors import InvalidHandle, Status, UnknownAddress, check
from .reports import (
    PoolStatistics,
    PreallocateReport,
    Region,
    RegionKind,
    RemapKind,
    RemapNotice,
    Shortage,
    TrimReport,
    values_of,
)

_LIBRARY = _native.LIBRARY
Made = TypeVar("Made", bound="Block")


class Capture(enum.IntEnum):
    """Effect of allocate and free on a stream that is being captured into a graph."""

    REFUSE = 0
    PRIVATE = 1
    UNCHECKED = 2


class Arenas(enum.IntEnum):
    """When streams get arenas, memory with a lock of their own: once threads have waited for each
    other, from the first growth on, or never."""

    WHEN_CONTENDED = 0
    ALWAYS = 1
    NEVER = 2


class Block(_lifetime.Held):
    """Memory of a pool or manager, freed by free(), at the end of a with, or with the object. A
    DLPack producer: `torch.from_dlpack(block)` and `numpy.from_dlpack(block)` show its bytes
    without a copy, view() as another type and shape. An array keeps its block alive: free() and the
    pool's close() raise InUse, and a dropped block is freed after its last array."""

    _life: BlockLife
    _owner: Any
    _size: int
    stream: int

    def __init__(self, owner: Any, address: int, size: int, stream: int) -> None:
        # Not isinstance(): a reloaded module has another class Allocator.
        if isinstance(owner, type) or not hasattr(owner, "_set_access"):
            raise _values.refuse("owner", "a libvmm.Pool or libvmm.Manager", owner)
        at, count = _values.address("address", address), _values.size("size", size)
        self._begin(owner, count, _values.stream(stream))
        if at:
            self._life.adopt(at)

    def _begin(self, owner: Any, size: int, stream: int) -> None:
        self._owner, self.stream, self._size = owner, stream, size
        _lifetime.hold(self, BlockLife(type(self).__name__, owner._life, 0, stream))

    @classmethod
    def _made(cls: type[Made], owner: Any, size: _values.Size, stream: int) -> Made:
        """A block without an address, for the owner's allocation. Users' calls of __init__() are
        checked."""
        block = cls.__new__(cls)
        block._begin(owner, _values.size("size", size), _values.stream(stream))
        return block

    @property
    def size(self) -> int:
        """The requested bytes."""
        return self._size

    @property
    def address(self) -> int:
        """The block's address; 0 after its free or the close of its pool or manager."""
        if self._life.has_ended or not self._owner.is_open:
            return 0
        return self._life.at.value or 0

    @property
    def _lives(self) -> tuple[_lifetime.Life, ...]:
        return self._life, self._owner._life

    @property
    def _streams(self) -> tuple[int, ...]:
        return (self.stream,)

    def free(self, stream: int | None = None) -> None:
        """Frees the block after the work submitted so far to `stream` (default: its own). Raises
        UnknownAddress if it was freed before, by any thread, and InUse while an array shows it."""
        number = self.stream if stream is None else _values.stream(stream)
        self._check_live()
        self._life.alone(self._life.free, number, ends=True, waits=True)

    def _check_live(self) -> None:
        if self._life.has_ended or not self._life.at.value:
            raise UnknownAddress("the block was freed before")
        if not self._owner.is_open:
            raise InvalidHandle(
                "the pool or manager that the block is of was closed, and with it "
                "went the block's memory"
            )

    def set_access(self, rights: Mapping[Any, Rights]) -> None:
        """Access of devices or (Place, number) to this block until it is freed. It overrules
        set_peers(). Requires: work of a device that loses access has finished. Raises NotSupported
        for a pool's block that is not of allocate_dedicated()."""
        grants = grants_of(rights)
        self._check_live()
        self._owner._set_access(self.address, grants)

    def view(self, dtype: str = "uint8", shape: Sequence[int] | None = None) -> _dlpack.View:
        """The block's bytes as a DLPack producer of that type and shape; all of them without a
        shape. Raises InvalidArgument if they do not fit, UnknownAddress after the block was freed.
        """
        self._check_live()
        return _dlpack.View(self, dtype, shape)

    def __dlpack__(self, *, stream: int | None = None, **others: Any) -> Any:
        return _dlpack.View(self, "uint8", None).__dlpack__(stream=stream, **others)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_of(self._owner.driver)

    def __enter__(self) -> Block:
        self._check_initialised()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.address:
            _lifetime.leave(self.free, kind)

    def __repr__(self) -> str:
        size = self.size if hasattr(self, "_life") else 0
        address = self.address if hasattr(self, "_life") else 0
        state = "" if address else ", freed"
        at = f" {address:#x}" if address else ""
        return f"<libvmm.{type(self).__name__}{at} {size} bytes{state}>"


class _PoolLife(AllocatorLife):
    numbers = "PoolStatistics"

    def __init__(self, driver: Driver, subscribers: Subscribers) -> None:
        super().__init__("pool", driver)
        self.subscribers = weakref.ref(subscribers)
        self.thunks: dict[object, tuple[Any, object]] = {}
        """Callbacks by subscription. As long as the C library's pool."""
        self._left: Subscribers | None = None

    def free(self, address: int | None, stream: int, outcome: list[int]) -> None:
        _native.record(outcome, _LIBRARY.vmm_pool_free, self.handle, address, stream)

    def check_live(self, address: int) -> None:
        pinned: list[int] = []
        try:
            _native.record(pinned, _LIBRARY.vmm_pool_pin, self.handle, address)
            check(pinned[0])
            _native.record(pinned, _LIBRARY.vmm_pool_unpin, self.handle, address)
        except BaseException:
            if pinned == [0]:
                _native.record(pinned, _LIBRARY.vmm_pool_unpin, self.handle, address)
            raise

    def free_unnamed(self, address: int, stream: int, outcome: list[int]) -> None:
        # Behind all work of the device. A block with rights of its own is freed on a stream.
        _native.record(outcome, _LIBRARY.vmm_pool_free_unordered, self.handle, address)
        if outcome[-1] not in BlockLife.ended_by:
            self.free(address, stream, outcome)

    def _leave(self, why: str) -> None:
        self._left = self.subscribers()
        super()._leave(why)

    def _gone(self) -> None:
        self.thunks.clear()
        super()._gone()


class Pool(Allocator):
    """A stream-ordered pool: memory freed on a stream serves that stream again at once, others once
    the work before the free has finished. Blocks are multiples of 512 bytes; a stream is its
    number, 0 the default. A dropped pool is closed after its last block. close() waits for the
    blocks' work and releases everything, live blocks included. It raises InUse while an array shows
    a block, or a Suspender has the pool."""

    _life: _PoolLife
    _held = ("live_bytes", "mapped_bytes")

    def __init__(
        self,
        driver: Driver,
        *,
        policy: str | None = None,
        budget: _values.Size = 0,
        capture: Capture = Capture.REFUSE,
        page_bytes: _values.Size = 0,
        page_count: int = 0,
        reservation_bytes: _values.Size | None = None,
        wait_when_short: bool = True,
        place: tuple[Place, int] | None = None,
        read_environment: bool = False,
        report_live: bool = True,
        stream_arenas: Arenas = Arenas.WHEN_CONTENDED,
        captures_announced: bool = False,
        streams_forgotten: bool = False,
    ) -> None:
        _values.one_of("driver", driver, Driver)
        options = _native.PoolOptions()
        check(_LIBRARY.vmm_pool_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        if policy is not None:
            options.policy = _values.text("policy", policy)
        if reservation_bytes is not None:
            options.reservation_bytes = _values.size("reservation_bytes", reservation_bytes)
        options.budget_bytes = _values.size("budget", budget)
        options.capture = int(_values.member("capture", capture, Capture))
        options.page_bytes = _values.size("page_bytes", page_bytes)
        options.page_count = _values.whole("page_count", page_count)
        options.wait_when_short = _values.flag("wait_when_short", wait_when_short)
        if place is not None:
            options.use_place = 1
            options.place, options.place_ordinal = _values.place(place, Place)
        options.read_environment = _values.flag("read_environment", read_environment)
        options.report_live = _values.flag("report_live", report_live)
        options.stream_arenas = int(_values.member("stream_arenas", stream_arenas, Arenas))
        options.captures_announced = _values.flag("captures_announced", captures_announced)
        options.streams_forgotten = _values.flag("streams_forgotten", streams_forgotten)
        self.driver = driver
        self._subscribers = Subscribers()
        life = _PoolLife(driver, self._subscribers)
        self._create(life, _LIBRARY.vmm_pool_create, driver.handle, ctypes.byref(options))

    def allocate(
        self, size: _values.Size, stream: int = 0, *, alignment: _values.Size = 512
    ) -> Block:
        """A block at a multiple of `alignment`, a power of two up to 2 MiB. Raises OutOfMemory
        after all steps, InvalidArgument for 0 bytes or an alignment that is not a power of two,
        NotSupported for a larger one."""
        block = Block._made(self, size, stream)
        self._allocate(block._life.at, block.size, alignment, block.stream, is_raw=False)
        return block

    def allocate_raw(
        self, size: _values.Size, stream: int = 0, *, alignment: _values.Size = 512
    ) -> int:
        """Like allocate(), but returns an address, to be freed by free_raw()."""
        at, number = ctypes.c_void_p(), _values.stream(stream)
        try:
            self._allocate(at, _values.size("size", size), alignment, number)
            return at.value or 0
        except BaseException:
            if at.value:
                self._life.raw.pop(at.value, None)
                _LIBRARY.vmm_pool_free(self._handle, at, number)
            raise

    def _allocate(
        self,
        into: ctypes.c_void_p,
        size: int,
        alignment: _values.Size,
        stream: int,
        is_raw: bool = True,
    ) -> None:
        """Writes an address, without a Block if it is raw."""
        multiple = _values.size("alignment", alignment)
        call = _LIBRARY.vmm_pool_allocate_aligned
        self._life.allocate(into, is_raw, call, size, multiple, stream)

    def allocate_dedicated(self, size: _values.Size, stream: int = 0) -> Block:
        """A block of whole pages that can have access of its own: Block.set_access(). Free it on a
        stream that is not being captured, and seldom. Raises as allocate()."""
        block = Block._made(self, size, stream)
        call = _LIBRARY.vmm_pool_allocate_dedicated
        self._life.allocate(block._life.at, False, call, block.size, block.stream)
        return block

    def free_raw(self, address: int, stream: int = 0) -> None:
        """Frees an address of allocate_raw(), or of another user of `handle`. Raises InUse for that
        of a Block, whose free() frees it, and UnknownAddress for any other."""
        at, number = _values.address("address", address), _values.stream(stream)
        self._life.free_raw(at, _LIBRARY.vmm_pool_free, number)

    def raw_blocks(self) -> dict[int, int]:
        """Sizes, by address, of live blocks without a libvmm.Block: those of allocate_raw() and of
        other users of `handle`. Includes blocks whose address was lost to an exception of a signal
        handler: free them by free_raw(). Requires: no other thread allocates."""
        live = [each for each in self.regions() if each.kind is RegionKind.LIVE]
        owned = {each.at.value for each in _lifetime.lives(BlockLife) if each.owner is self._life}
        return {each.base: each.size for each in live if each.base not in owned}

    def _free_unordered(self, address: int) -> None:
        """As free_raw(), after all work of the device."""
        self._free_once(address, None, [])

    def _free_once(self, address: int, stream: int | None, outcome: list[int]) -> None:
        """As free_raw(), where `stream` is None after all work of the device. Can be repeated with
        the same outcome."""

        def free(*arguments: Any) -> int:
            name = "vmm_pool_free" if stream is not None else "vmm_pool_free_unordered"
            _native.record(outcome, getattr(_LIBRARY, name), *arguments)
            return outcome[-1]

        if not outcome:
            self._life.free_raw(address, free, *(() if stream is None else (stream,)))

    def _give_up(self, at: ctypes.c_void_p, outcome: list[int]) -> None:
        """Frees the address of _allocate(), which the caller lost, after all work of the device.
        Can be repeated with the same outcome."""
        if at.value and not outcome:
            self._life.raw.pop(at.value, None)
            _native.record(outcome, _LIBRARY.vmm_pool_free_unordered, self._handle, at)
        at.value = None

    def _set_access(self, address: int, grants: Any) -> None:
        check(_LIBRARY.vmm_pool_set_access(self._handle, address, grants, len(grants)))

    def pin(self, block: Block) -> None:
        """Pins the block: its memory stays in place until as many calls of unpin()."""
        check(_LIBRARY.vmm_pool_pin(self._handle, _values.one_of("block", block, Block).address))

    def unpin(self, block: Block) -> None:
        """Ends one pin. Raises InvalidArgument if the block is not pinned."""
        check(_LIBRARY.vmm_pool_unpin(self._handle, _values.one_of("block", block, Block).address))

    def forget_stream(self, stream: int) -> None:
        """Frees the pool's record of a stream. Required before a stream is destroyed only with
        streams_forgotten."""
        check(_LIBRARY.vmm_pool_forget_stream(self._handle, _values.stream(stream)))

    def capture_begin(self) -> None:
        """Announces a capture on a stream without a record in the pool; with captures_announced,
        every capture. Each call is paired with capture_end(), from any thread."""
        check(_LIBRARY.vmm_pool_capture_begin(self._handle))

    def capture_end(self) -> None:
        """Ends one capture_begin(), after the capture. Raises InvalidArgument without one."""
        check(_LIBRARY.vmm_pool_capture_end(self._handle))

    def synchronize(self) -> None:
        """Blocks until the work of every stream of the pool has finished."""
        check(_LIBRARY.vmm_pool_synchronize(self._handle))

    def set_peers(self, rights: Mapping[Any, Rights]) -> None:
        """Access of other devices to all of the pool's memory, now and later: {1: Rights.READ}. For
        one block: allocate_dedicated() and Block.set_access()."""
        grants = grants_of(rights)
        check(_LIBRARY.vmm_pool_set_peers(self._handle, grants, len(grants)))

    def preallocate(self, size: _values.Size, stream: int = 0) -> PreallocateReport:
        """Makes a free region of `size` bytes available on the stream, from new memory or by moving
        whole free handles, so that a later request does not wait for the driver. Raises
        OutOfMemory; memory created before that stays."""
        report = _native.PreallocateReport()
        check(
            _LIBRARY.vmm_pool_preallocate(
                self._handle,
                _values.size("size", size),
                _values.stream(stream),
                ctypes.byref(report),
            )
        )
        return values_of(report, PreallocateReport)

    def trim(self, limit: _values.Size = 0) -> TrimReport:
        """Releases free memory to the driver until at most `limit` bytes of it are retained."""
        report = _native.TrimReport()
        check(
            _LIBRARY.vmm_pool_trim(self._handle, _values.size("limit", limit), ctypes.byref(report))
        )
        return values_of(report, TrimReport)

    def statistics(self) -> PoolStatistics:
        """Statistics of the pool."""
        numbers = _native.PoolStatistics()
        check(_LIBRARY.vmm_pool_get_statistics(self._handle, ctypes.byref(numbers)))
        return values_of(numbers, PoolStatistics)

    def regions(self) -> list[Region]:
        """All regions in address order."""
        count = ctypes.c_uint64()
        check(_LIBRARY.vmm_pool_regions(self._handle, None, 0, ctypes.byref(count)))
        found = (_native.PoolRegion * (count.value + 16))()
        check(_LIBRARY.vmm_pool_regions(self._handle, found, len(found), ctypes.byref(count)))
        return [
            Region(each.base or 0, each.size_bytes, each.stream or 0, RegionKind(each.kind))
            for each in found[: min(count.value, len(found))]
        ]

    def dump(self) -> str:
        """A readable text: statistics, then a line for each region in address order."""
        size = ctypes.c_uint64()
        check(_LIBRARY.vmm_pool_dump(self._handle, None, 0, ctypes.byref(size)))
        while True:
            text = ctypes.create_string_buffer(size.value + 4096)
            check(_LIBRARY.vmm_pool_dump(self._handle, text, len(text), ctypes.byref(size)))
            if size.value <= len(text):
                return text.value.decode()

    def last_shortage(self) -> Shortage | None:
        """The report of the last request that failed for lack of memory; None without one."""
        found = _native.Shortage()
        check(_LIBRARY.vmm_pool_last_shortage(self._handle, ctypes.byref(found)))
        if found.request_bytes == 0:
            return None
        return Shortage(
            found.request_bytes,
            found.stream or 0,
            Status(found.failure),
            bool(found.trimmed),
            bool(found.waited),
            found.live_bytes,
            found.reusable_bytes,
            found.largest_free_bytes,
            found.held_bytes,
            found.budget_bytes,
        )

    def subscribe(self, callback: Callable[[RemapNotice], None]) -> int:
        """Calls `callback` before the memory behind an address changes, until unsubscribe(). Of the
        pool the callback may only pin, unpin, free and query. An exception of it is printed, once
        in a row, and changes nothing else."""
        _values.function("callback", callback)

        thunks, key, number = self._life.thunks, object(), ctypes.c_uint64()

        def subscribe() -> int:
            self._subscribers[key] = callback
            thunk = thunk_of(self._life.subscribers, key)
            thunks[key] = thunk, key  # before the C library has it
            check(_LIBRARY.vmm_pool_subscribe(self._handle, REMAPPED, thunk, ctypes.byref(number)))
            thunks[number.value] = thunk, key
            del thunks[key]
            return number.value

        def undo() -> None:
            self._subscribers.pop(key, None)
            if number.value:
                _LIBRARY.vmm_pool_unsubscribe(self._handle, number)
                thunks.pop(number.value, None)
            thunks.pop(key, None)

        return _lifetime.or_undo(subscribe, undo)

    def unsubscribe(self, subscription: int) -> None:
        """Ends a subscription. After it returns the callback is not running and is not called
        again."""
        _values.whole("subscription", subscription)
        check(_LIBRARY.vmm_pool_unsubscribe(self._handle, subscription))
        _, key = self._life.thunks.pop(subscription, (None, None))
        self._subscribers.pop(key, None)

    def validate(self) -> None:
        """Checks the pool's records. Raises Error if an invariant is broken."""
        check(_LIBRARY.vmm_pool_validate(self._handle))


__all__ = [
    "Arenas",
    "Block",
    "Capture",
    "Feature",
    "Pool",
    "PoolStatistics",
    "PreallocateReport",
    "Region",
    "RegionKind",
    "RemapKind",
    "RemapNotice",
    "Shortage",
    "TrimReport",
]
