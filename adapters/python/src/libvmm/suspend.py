# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Suspend and resume: the physical memory of pools and managers is released by tag, and new memory
is mapped at the same addresses.

    from libvmm.suspend import Suspender
    sleeper = Suspender()
    sleeper.add(weights, "weights")                     # a libvmm.Manager; contents are kept
    sleeper.add(cache, "kv", contents="discard")        # a libvmm.Pool
    sleeper.suspend()
    sleeper.resume("weights")
    sleeper.resume("kv")

Submit no work that uses the memory from the call of suspend() until resume() has returned.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import _dlpack, _lifetime, _native, _values
from ._owner import HandleLife, Owner
from .errors import InUse, NotSupported, Status, UnknownAddress, check
from .managers import Manager
from .pools import Pool

_LIBRARY = _native.LIBRARY
_U64, _U32, _HANDLE = _native.U64, _native.U32, _native.HANDLE

#: Contents of the blocks after a resume: the old ones, zeros, unspecified.
CONTENTS = ("keep", "zero", "discard")
#: Places of backups (docs/suspend.md).
TIERS = ("best", "pinned", "pageable", "file")


class _Options(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("directory", ctypes.c_char_p),
        ("tier", _U32),
        ("verify", _U32),
    ]


class _Request(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("tags", ctypes.POINTER(ctypes.c_char_p)),
        ("tag_count", _U64),
        ("streams", ctypes.POINTER(_HANDLE)),
        ("stream_count", _U64),
        ("use_contents", _U32),
        ("contents", _U32),
    ]


class _Report(_native.Sized):
    _fields_ = [
        (name, _U64)
        for name in (
            "struct_size",
            "suspended_bytes",
            "backup_bytes",
            "region_count",
            "refused_bytes",
            "cached_bytes",
            "unfinished_bytes",
            "reserved",
        )
    ]


class _Info(_native.Sized):
    _fields_ = [
        ("struct_size", _U64),
        ("backup_bytes", _U64),
        ("obstacle", ctypes.c_char_p),
        ("is_suspended", _U32),
        ("reserved", _U32),
    ]


_CALLS: dict[str, list[Any]] = {
    "vmm_suspender_options_init": [ctypes.POINTER(_Options), _U64],
    "vmm_suspender_create": [ctypes.POINTER(_Options), ctypes.POINTER(_HANDLE)],
    "vmm_suspender_close": [_HANDLE, _U32],
    "vmm_suspender_add_pool": [_HANDLE, _HANDLE, ctypes.c_char_p, _U32],
    "vmm_suspender_add_manager": [_HANDLE, _HANDLE, ctypes.c_char_p, _U32],
    "vmm_suspender_remove_pool": [_HANDLE, _HANDLE],
    "vmm_suspender_remove_manager": [_HANDLE, _HANDLE],
    "vmm_suspender_suspend": [_HANDLE, ctypes.POINTER(_Request), ctypes.POINTER(_Report)],
    "vmm_suspender_offer": [_HANDLE, ctypes.POINTER(ctypes.c_char_p), _U64],
    "vmm_suspender_resume": [_HANDLE, ctypes.POINTER(ctypes.c_char_p), _U64],
    "vmm_suspender_query": [_HANDLE, ctypes.c_char_p, ctypes.POINTER(_Info)],
    "vmm_suspender_read_backup": [_HANDLE, ctypes.c_void_p, _HANDLE, _U64],
    "vmm_suspender_return_backups": [_HANDLE],
}
for _name, _arguments in _CALLS.items():
    _function = getattr(_LIBRARY, _name)
    _function.argtypes, _function.restype = _arguments, _native.I32


def _texts(tags: tuple[str, ...]) -> Any:
    for tag in tags:
        if not isinstance(tag, str):
            raise _values.refuse("tags", "a str for each tag, as in resume('weights', 'kv'),", tag)
    return (ctypes.c_char_p * len(tags))(*(_values.text("tags", tag) for tag in tags))


def _is_read_by_host(allocator: Pool | Manager) -> bool:
    try:
        return _dlpack.device_of(allocator.driver)[0] == _dlpack.CPU
    except NotSupported:
        return False


@dataclass(frozen=True)
class SuspendReport:
    """Bytes, with the meanings of vmm.h."""

    suspended_bytes: int
    backup_bytes: int
    region_count: int
    refused_bytes: int
    cached_bytes: int
    unfinished_bytes: int

    @property
    def retained_bytes(self) -> int:
        """Physical memory of the regions that was not released."""
        return self.refused_bytes + self.cached_bytes + self.unfinished_bytes


class _Region:
    """A pool or manager of a Suspender, from before the library has it as a region."""

    __slots__ = ("is_offered", "is_read_by_host", "life", "outcome", "suspender", "tag")

    def __init__(self, allocator: Pool | Manager, tag: str, suspender: _SuspenderLife) -> None:
        self.life, self.tag, self.suspender = allocator._life, tag, suspender
        self.is_read_by_host = _is_read_by_host(allocator)
        self.is_offered = False
        self.outcome: list[int] = []

    def is_named(self, tags: tuple[str, ...]) -> bool:
        return not tags or self.tag in tags

    def is_suspending(self) -> bool:
        """Whether it may be suspended at any time: by a call that has not returned, or offered."""
        return self.is_offered or any(map(self.is_named, self.suspender.suspending.copy().values()))

    def end(self) -> None:
        self.life.regions.pop(self, None)
        self.life.let_go(self)
        self.suspender.regions.pop(self, None)  # last: the suspender's end is repeated by this list


class _SuspenderLife(HandleLife):
    __slots__ = ("regions", "suspending")
    warning = RuntimeWarning  # which is shown

    def __init__(self) -> None:
        super().__init__("suspend.Suspender", _LIBRARY.vmm_suspender_close)
        self.regions: dict[_Region, None] = {}
        self.suspending: dict[object, tuple[str, ...]] = {}
        """The tags of each suspend() and offer() that has not returned."""

    def kept(self) -> str:
        """The contents that the end would lose, in words; "" without any."""
        if not self.handle.value or not self.is_here():
            return ""
        _LIBRARY.vmm_suspender_return_backups(self.handle)  # those of no suspended region
        size = _query(self.handle, None).backup_bytes
        tags = {each.tag for each in list(self.regions)}
        tags = {tag for tag in tags if _query(self.handle, tag).is_suspended}
        names = ", ".join(map(repr, sorted(tags)))
        return f"{size} bytes of kept contents of suspended memory ({names})" if size else ""

    def stays(self) -> str:
        kept = self.kept()
        return f"it has {kept}, and libvmm.suspend.recover() returns it" if kept else ""

    def end(self) -> None:
        self.close(False)

    def close(self, loses_contents: bool) -> None:
        """Ends the suspender, unless it keeps contents that must not be lost: one decision of the C
        library."""
        if not self.handle.value:
            self.outcome.append(0)
            return
        _native.record(self.outcome, self.destroy, self.handle, loses_contents)
        kept = self.kept() if self.outcome[-1] == Status.IN_USE and not loses_contents else ""
        if kept:
            raise InUse(
                f"closing the Suspender would lose {kept}: call resume() first, or "
                "close(lose_contents=True)"
            )
        check(self.outcome[-1])

    def _gone(self) -> None:
        for each in list(self.regions):
            each.end()
        super()._gone()


def _query(handle: ctypes.c_void_p, tag: str | None) -> _Info:
    info = _Info()
    name = None if tag is None else _values.text("tag", tag)
    check(_LIBRARY.vmm_suspender_query(handle, name, ctypes.byref(info)))
    return info


class Suspender(Owner):
    """Suspends and resumes pools and managers by tag. Any thread may call it; calls wait for each
    other. Close it before its pools and managers. A Suspender that is dropped while it keeps
    contents stays open, with a RuntimeWarning: recover() returns it. Raises InvalidArgument for a
    directory in which no file can be made."""

    _life: _SuspenderLife

    def __init__(
        self,
        *,
        tier: str = "best",
        directory: str | os.PathLike[str] | None = None,
        verify: bool = False,
    ) -> None:
        folder = None if directory is None else _values.path("directory", directory)
        options = _Options(
            directory=folder,
            tier=_values.choice("tier", tier, TIERS),
            verify=_values.flag("verify", verify),
        )
        self._create(_SuspenderLife(), _LIBRARY.vmm_suspender_create, ctypes.byref(options))
        self._allocators: dict[_Region, Pool | Manager] = {}

    @staticmethod
    def _call(allocator: Pool | Manager, verb: str) -> Any:
        if not isinstance(allocator, (Pool, Manager)):
            raise _values.refuse("allocator", "a libvmm.Pool or libvmm.Manager", allocator)
        allocator._check_open()
        kind = "pool" if isinstance(allocator, Pool) else "manager"
        return getattr(_LIBRARY, f"vmm_suspender_{verb}_{kind}")

    def add(self, allocator: Pool | Manager, tag: str, contents: str = "keep") -> None:
        """Adds a pool or manager as a region; several may have one tag. One that a closed Suspender
        left suspended can be resumed here, with the contents that were promised then; lost ones
        raise InUse until their blocks are freed. On `host`, beside another thread's suspend(), it
        raises InUse while an array shows the memory."""
        call = self._call(allocator, "add")
        name, how = _values.text("tag", tag), _values.choice("contents", contents, CONTENTS)
        region = _Region(allocator, tag, self._life)
        try:
            self._allocators[region] = allocator
            region.life.keep(region, "suspend.Suspender")
            region.life.regions[region] = None
            region.life.was_region = region.life.was_region or region.is_read_by_host
            self._life.regions[region] = None
            if region.is_read_by_host and region.is_suspending():
                region.life.check_hidden()
            _native.record(region.outcome, call, self._handle, allocator.handle, name, how)
            check(region.outcome[-1])
        finally:
            try:
                self._end_unless_added(region)
            except BaseException:  # of a handler
                self._end_unless_added(region)
                raise

    def remove(self, allocator: Pool | Manager) -> None:
        """Removes a region. Raises InUse while it is suspended."""
        call = self._call(allocator, "remove")
        there = [
            region
            for region in list(self._life.regions)
            if region.life is allocator._life and region.outcome == [0]
        ]
        outcome: list[int] = []
        try:
            _native.record(outcome, call, self._handle, allocator.handle)
            check(outcome[-1])
            self._end(*there)
        except BaseException:
            if outcome == [0]:
                self._end(*there)
            raise

    def _end_unless_added(self, region: _Region) -> None:
        if region.outcome != [0]:
            self._end(region)

    def _end(self, *regions: _Region) -> None:
        for region in regions:
            region.end()
            self._allocators.pop(region, None)

    def suspend(
        self, *tags: str, streams: Iterable[int] = (), contents: str | None = None
    ) -> SuspendReport:
        """Releases the memory of the regions with these tags (default: all that are not suspended),
        after the work of their streams and of `streams`. All or none. On `host`, where reading
        suspended memory faults, it raises InUse while an array shows a region, and no array can be
        made before resume()."""
        if isinstance(streams, (str, bytes)) or not isinstance(streams, Iterable):
            raise _values.refuse("streams", "a sequence of streams' numbers", streams)
        named = [_values.stream(stream, "streams") for stream in streams]
        request = _Request(
            tags=_texts(tags),
            tag_count=len(tags),
            streams=(_HANDLE * len(named))(*named),
            stream_count=len(named),
            use_contents=contents is not None,
            contents=_values.choice("contents", "keep" if contents is None else contents, CONTENTS),
        )
        report, call = _Report(), _LIBRARY.vmm_suspender_suspend
        self._hidden(tags, call, ctypes.byref(request), ctypes.byref(report))
        return SuspendReport(
            report.suspended_bytes,
            report.backup_bytes,
            report.region_count,
            report.refused_bytes,
            report.cached_bytes,
            report.unfinished_bytes,
        )

    def _named(self, tags: tuple[str, ...]) -> list[_Region]:
        return [each for each in list(self._life.regions) if each.is_named(tags)]

    def _hidden(self, tags: tuple[str, ...], call: Any, *arguments: Any) -> None:
        """Calls the library while no array shows the memory of the regions and none can be made;
        from an offer on none can be."""
        key, outcome = object(), list[int]()

        def unbar() -> None:
            if outcome == [0] and call is _LIBRARY.vmm_suspender_offer:
                for region in self._named(tags):
                    region.is_offered = True
            self._life.suspending.pop(key, None)

        try:
            self._life.suspending[key] = tags
            for region in self._named(tags):
                if region.is_read_by_host:
                    region.life.check_hidden()
            _native.record(outcome, call, self._handle, *arguments)
            check(outcome[-1])
        finally:
            try:
                unbar()
            except BaseException:  # of a handler
                unbar()
                raise

    def offer(self, *tags: str) -> None:
        """Lets other tenants of an owner (docs/market.md) have the memory of the regions with these
        tags (default: all): they stay as they are until one needs it, and are then suspended on
        another thread. Use the memory again after resume(), which ends the offer. On `host` it
        raises InUse while an array shows a region, and no array can be made before resume()."""
        self._hidden(tags, _LIBRARY.vmm_suspender_offer, _texts(tags), len(tags))

    def resume(self, *tags: str) -> None:
        """Maps memory for the regions with these tags (default: all suspended ones) at the same
        addresses, with the contents of their policy, and ends their offers. All or none; can be
        called again. Raises InUse if another Suspender has suspended them: after its close() add()
        them again."""
        outcome: list[int] = []

        def end_offers() -> None:
            for region in self._named(tags) if outcome == [0] else ():
                region.is_offered = False

        try:
            call = _LIBRARY.vmm_suspender_resume
            _native.record(outcome, call, self._handle, _texts(tags), len(tags))
            check(outcome[-1])
        finally:
            try:
                end_offers()
            except BaseException:  # of a handler
                end_offers()
                raise

    def is_suspended(self, tag: str) -> bool:
        """Whether the region with this tag is suspended."""
        _values.text("tag", tag)
        return bool(_query(self._handle, tag).is_suspended)

    @property
    def backup_bytes(self) -> int:
        """Bytes of all backups, including unused ones that are kept."""
        return int(_query(self._handle, None).backup_bytes)

    @property
    def obstacle(self) -> str:
        """The tag of the region that made the last call fail, or ""."""
        return (_query(self._handle, None).obstacle or b"").decode("utf-8", "surrogateescape")

    def read_backup(self, address: int, size: _values.Size) -> bytearray:
        """A copy of the kept contents of suspended memory. Raises UnknownAddress if any of the
        bytes is not kept: not suspended, or discarded."""
        at, count = _values.address("address", address), _values.size("size", size)
        if count > self.backup_bytes:
            raise UnknownAddress(f"{count} bytes are more than all backups have")
        for end in {at, at + count - 1} if count else ():  # before the copy takes memory
            self._read_backup(end, bytearray(1))
        into = _values.buffer(count)
        self._read_backup(at, into)
        return into

    def _read_backup(self, at: int, into: bytearray) -> None:
        place = (ctypes.c_char * len(into)).from_buffer(into)
        check(_LIBRARY.vmm_suspender_read_backup(self._handle, place, at, len(into)))

    def return_backups(self) -> None:
        """Releases backups that no suspended region uses."""
        check(_LIBRARY.vmm_suspender_return_backups(self._handle))

    def close(self, *, lose_contents: bool = False) -> None:
        """Closes the suspender; a second call has no effect. Raises InUse while contents of
        suspended memory are kept, unless they may be lost, and beside another thread's call. Memory
        that stays suspended can be resumed after add() to another Suspender."""
        loses, life = bool(_values.flag("lose_contents", lose_contents)), self._life
        try:
            _lifetime.close(life, functools.partial(life.close, loses))
            self._allocators.clear()
        except BaseException:
            if not self.is_open:
                self._allocators.clear()
            raise


def recover() -> list[Suspender]:
    """The Suspenders that were dropped while they kept contents: resume() maps these again."""
    found = []
    for life in _lifetime.left(_SuspenderLife):
        made = Suspender.__new__(Suspender)
        made._allocators = {}
        if _lifetime.revive(made, life):
            found.append(made)
    return found
