# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Managers: ranges of whole granules that grow without copying and are copied by remapping."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _native, _values
from ._allocators import Allocator, AllocatorLife
from ._drivers import Driver, Rights, grants_of
from .errors import InvalidArgument, check
from .pools import Block
from .reports import TrimReport, values_of

_LIBRARY = _native.LIBRARY


class Kind(enum.IntFlag):
    """Kinds of shareable handles; a manager's `shareable` may have several."""

    __module__ = "libvmm.share"  # which imports this module, and where it is public
    NONE = 0
    POSIX_FD = 1
    WIN32 = 2
    FABRIC = 4


class Copy(enum.IntEnum):
    """Modes of Manager.copy()."""

    BYTES = 0
    ALIAS = 1
    MOVE = 2


@dataclass(frozen=True)
class ManagerStatistics:
    """Bytes and counts, with the meanings of vmm.h."""

    granularity_bytes: int
    live_count: int
    user_bytes: int
    mapped_bytes: int
    held_bytes: int
    peak_held_bytes: int
    retained_bytes: int
    retained_mapped_bytes: int
    retired_bytes: int
    reserved_bytes: int
    space_live_bytes: int
    space_high_water_bytes: int
    created_count: int
    reused_handle_count: int
    reused_range_count: int
    grown_reuse_count: int
    unbound_range_count: int
    remapped_copy_count: int
    real_copy_count: int
    recovery_count: int
    suspended_bytes: int
    refused_unmap_count: int


@dataclass(frozen=True)
class Part:
    """One mapping, with the driver's physical handle behind it. Do not release the handle."""

    handle: int
    size: int


def parts_of(call: Any, *arguments: Any) -> list[Part]:
    """The list that a call of the library returns."""
    count = ctypes.c_uint64()
    check(call(*arguments, None, 0, ctypes.byref(count)))
    there = (_native.Part * count.value)()
    check(call(*arguments, there, len(there), ctypes.byref(count)))
    return [Part(each.handle, each.size_bytes) for each in there[: count.value]]


class Range(Block):
    """A block of a manager."""

    def parts(self) -> list[Part]:
        """The block's mappings in address order; resize() and Manager.copy() change them."""
        self._check_live()
        return parts_of(_LIBRARY.vmm_manager_parts, self._owner.handle, self.address)

    def set_access(
        self,
        rights: Mapping[Any, Rights],
        offset: _values.Size = 0,
        size: _values.Size | None = None,
    ) -> None:
        """Access of devices or (Place, number) to this block, or to `size` bytes of it from
        `offset` on, until it is freed. Access of a part overrules the block's, which overrules
        set_peers(). A part begins and ends where parts() or the block do; a shrink ends the access
        of bytes that it removes. Requires: work of a device that loses access has finished. Raises
        NotSupported for other parts, InvalidArgument beyond the block."""
        first = _values.size("offset", offset)
        count = None if size is None else _values.size("size", size)
        if not first and count is None:
            super().set_access(rights)
            return
        grants = grants_of(rights)
        self._check_live()
        rest = max(self.size - first, 0) if count is None else count
        if not 0 < rest <= sum(each.size for each in self.parts()) - first:  # never a neighbour's
            raise InvalidArgument(f"{rest} bytes from {first} on are not a part of {self!r}")
        check(
            _LIBRARY.vmm_manager_set_part_access(
                self._owner.handle, self.address + first, rest, grants, len(grants)
            )
        )

    def resize(
        self,
        size: _values.Size,
        *,
        growth: _values.Size = 0,
        in_place: bool = False,
        names_stream: bool = False,
    ) -> None:
        """Changes the size and keeps the data; the address may change unless `in_place`. With
        `names_stream` the block's stream exists, and waits for earlier users of added memory
        instead of the caller. Raises InUse while an array shows the block."""
        self._check_live()
        request = _native.ResizeRequest(
            size_bytes=_values.size("size", size),
            growth_bytes=_values.size("growth", growth),
            in_place=_values.flag("in_place", in_place),
            names_stream=_values.flag("names_stream", names_stream),
        )
        self._life.alone(self._resize, request)

    def _resize(self, request: _native.ResizeRequest) -> None:
        outcome: list[int] = []
        self._size = self.size
        self._resized = (request.size_bytes, outcome)
        request.at = self._life.at
        _native.record(
            outcome,
            _LIBRARY.vmm_manager_resize,
            self._owner.handle,
            ctypes.byref(request),
            ctypes.byref(self._life.at),
        )
        check(outcome[-1])

    # The latest size that was requested, and what came of it.
    _resized: tuple[int, list[int]] = (0, [])

    @property
    def size(self) -> int:
        """The bytes of the last request."""
        resized, outcome = self._resized
        return resized if outcome == [0] else self._size

    def synchronize(self) -> None:
        """Blocks until the host may use the bytes."""
        check(_LIBRARY.vmm_manager_synchronize(self._owner.handle, self.address))


class _ManagerLife(AllocatorLife):
    numbers = "ManagerStatistics"

    def free(self, address: int | None, stream: int, outcome: list[int]) -> None:
        _native.record(outcome, _LIBRARY.vmm_manager_free_on, self.handle, address, stream)

    def check_live(self, address: int) -> None:
        parts_of(_LIBRARY.vmm_manager_parts, self.handle, address)

    def free_unnamed(self, address: int, _stream: int, outcome: list[int]) -> None:
        _native.record(outcome, _LIBRARY.vmm_manager_free, self.handle, address)


class Manager(Allocator):
    """Ranges of whole granules that grow in place and are copied by remapping. Close it before its
    driver; live blocks are then freed. A dropped manager is closed after its last block. close()
    raises InUse while an array shows a block, or a Growable or Suspender uses the manager."""

    _held = ("user_bytes", "held_bytes")

    def __init__(
        self,
        driver: Driver,
        *,
        policy: str | None = None,
        budget: _values.Size = 0,
        fragment_ratio: float | None = None,
        chunk_bytes: _values.Size | None = None,
        reservation_bytes: _values.Size | None = None,
        wait_when_short: bool = True,
        read_environment: bool = False,
        report_live: bool = True,
        shareable: int = 0,
        streams_forgotten: bool = False,
    ) -> None:
        """`shareable`: kinds (libvmm.share.Kind) by which all memory can be shared, for
        libvmm.share.export_block()."""
        _values.one_of("driver", driver, Driver)
        options = _native.ManagerOptions()
        check(_LIBRARY.vmm_manager_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        if policy is not None:
            options.policy = _values.text("policy", policy)
        if fragment_ratio is not None:
            options.fragment_ratio = _values.number("fragment_ratio", fragment_ratio, 0, 1)
        if chunk_bytes is not None:
            # Its last number is the library's for None.
            options.chunk_bytes = _values.size("chunk_bytes", chunk_bytes, (1 << 64) - 2)
        if reservation_bytes is not None:
            options.reservation_bytes = _values.size("reservation_bytes", reservation_bytes)
        options.budget_bytes = _values.size("budget", budget)
        options.shareable = _values.flags("shareable", shareable, Kind)
        options.wait_when_short = _values.flag("wait_when_short", wait_when_short)
        options.read_environment = _values.flag("read_environment", read_environment)
        options.report_live = _values.flag("report_live", report_live)
        options.streams_forgotten = _values.flag("streams_forgotten", streams_forgotten)
        self.driver = driver
        life = _ManagerLife("manager", driver)
        self._create(life, _LIBRARY.vmm_manager_create, driver.handle, ctypes.byref(options))

    def allocate(
        self,
        size: _values.Size,
        *,
        stream: int = 0,
        growth: _values.Size = 0,
        alignment: _values.Size = 0,
    ) -> Range:
        """Allocates `size` bytes, and keeps `growth` bytes of addresses behind the block free."""
        block = Range._made(self, size, stream)
        request = _native.BlockRequest(
            size_bytes=block.size,
            growth_bytes=_values.size("growth", growth),
            alignment_bytes=_values.size("alignment", alignment),
            stream=block.stream,
        )
        call = _LIBRARY.vmm_manager_allocate
        self._life.allocate(block._life.at, False, call, ctypes.byref(request))
        return block

    def _set_access(self, address: int, grants: Any) -> None:
        check(_LIBRARY.vmm_manager_set_access(self._handle, address, grants, len(grants)))

    def copy(
        self,
        target: Block,
        source: Block,
        size: _values.Size | None = None,
        *,
        stream: int = 0,
        mode: Copy = Copy.BYTES,
    ) -> None:
        """Copies the first `size` bytes of one block to another; all of it without a size. Raises
        UnknownAddress and InvalidArgument for ranges outside of live blocks, and InvalidArgument
        for another allocator's block by ALIAS and MOVE. Raises InUse if an array shows memory that
        would change: the target by ALIAS and MOVE, the source by MOVE, after which no array of it
        can be made."""
        into, of = _values.one_of("target", target, Block), _values.one_of("source", source, Block)
        # The library does not know the sizes of others' blocks.
        most = min(
            [each.size for each in (into, of) if each._owner is not self], default=(1 << 64) - 1
        )
        request = _native.CopyRequest(
            target=into.address,
            source=of.address,
            size_bytes=_values.size("size", of.size if size is None else size, most),
            stream=_values.stream(stream),
            mode=int(_values.member("mode", mode, Copy)),
        )
        into._check_live()
        of._check_live()
        if request.mode != Copy.BYTES and not (into._owner is self and of._owner is self):
            raise InvalidArgument(
                f"mode: {Copy(request.mode).name} remaps two blocks of this manager, and one is "
                "another allocator's: copy it by BYTES"
            )
        if request.mode == Copy.BYTES:
            self._copy(request)
            return
        if request.mode == Copy.ALIAS or of is into:
            into._life.alone(self._copy, request)
            return
        into._life.alone(of._life.alone, self._move, request, of)

    def _copy(self, request: _native.CopyRequest) -> None:
        check(_LIBRARY.vmm_manager_copy(self._handle, ctypes.byref(request)))

    def _move(self, request: _native.CopyRequest, source: Block) -> None:
        outcome: list[int] = []
        key, call = object(), _LIBRARY.vmm_manager_copy
        try:
            source._life.forbid(key, "the memory was moved to another block")
            _native.record(outcome, call, self._handle, ctypes.byref(request))
            check(outcome[-1])
        finally:
            try:
                self._after_move(source, key, outcome)
            except BaseException:  # of a signal's handler
                self._after_move(source, key, outcome)
                raise

    @staticmethod
    def _after_move(source: Block, key: object, outcome: list[int]) -> None:
        if outcome != [0]:
            source._life.allow(key)

    def set_peers(self, rights: Mapping[Any, Rights]) -> None:
        """Access of other devices to all blocks, now and later: {1: Rights.READ_WRITE}."""
        grants = grants_of(rights)
        check(_LIBRARY.vmm_manager_set_peers(self._handle, grants, len(grants)))

    def forget_stream(self, stream: int) -> None:
        """Frees the record of a stream; a later stream of this number is a new one. Required before
        a stream is destroyed only with streams_forgotten."""
        check(_LIBRARY.vmm_manager_forget_stream(self._handle, _values.stream(stream)))

    def trim(self, limit: _values.Size = 0) -> TrimReport:
        """Releases retained memory to the driver until at most `limit` bytes of it are left."""
        report = _native.TrimReport()
        check(
            _LIBRARY.vmm_manager_trim(
                self._handle, _values.size("limit", limit), ctypes.byref(report)
            )
        )
        return values_of(report, TrimReport)

    def statistics(self) -> ManagerStatistics:
        """Statistics of the manager."""
        numbers = _native.ManagerStatistics()
        check(_LIBRARY.vmm_manager_get_statistics(self._handle, ctypes.byref(numbers)))
        return values_of(numbers, ManagerStatistics)

    def validate(self) -> None:
        """Checks the manager's records. Raises Error if an invariant is broken."""
        check(_LIBRARY.vmm_manager_validate(self._handle))
