# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of pools."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import Status

_Values = TypeVar("_Values")


class RegionKind(enum.IntEnum):
    """Kinds of regions of a pool: vmm.h's VMM_REGION_*."""

    LIVE = 0
    FREE = 1
    HOLE = 2
    STALE = 3
    BUSY = 4


class RemapKind(enum.IntEnum):
    """Changes of the memory behind an address: vmm.h's VMM_REMAP_*."""

    MOVED = 0
    UNMAPPED = 1
    RELEASED = 2


@dataclass(frozen=True)
class PoolStatistics:
    """Bytes and counts, with the meanings of vmm.h."""

    reserved_bytes: int
    mapped_bytes: int
    live_bytes: int
    peak_live_bytes: int
    peak_mapped_bytes: int
    reusable_bytes: int
    captured_bytes: int
    hole_bytes: int
    stale_bytes: int
    live_count: int
    stale_count: int
    pinned_count: int
    stream_count: int
    slow_count: int
    created_count: int
    moved_count: int
    moved_bytes: int
    other_stream_count: int
    device_wait_count: int
    event_count: int
    host_wait_count: int
    suspended_bytes: int
    arena_count: int
    arena_bytes: int
    held_bytes: int
    pending_bytes: int


@dataclass(frozen=True)
class Region:
    """A range of a pool's addresses. Only free regions have a stream."""

    base: int
    size: int
    stream: int
    kind: RegionKind


@dataclass(frozen=True)
class Shortage:
    """The steps tried for the last request that failed for lack of memory."""

    request_bytes: int
    stream: int
    failure: Status
    trimmed: bool
    waited: bool
    live_bytes: int
    reusable_bytes: int
    largest_free_bytes: int
    held_bytes: int
    budget_bytes: int


@dataclass(frozen=True)
class TrimReport:
    """Bytes that trim() released, and bytes that stay mapped until work has finished."""

    released_count: int
    released_bytes: int
    still_mapped_bytes: int


@dataclass(frozen=True)
class PreallocateReport:
    """Bytes that preallocate() made available, and bytes of the request that are left."""

    created_bytes: int
    moved_bytes: int
    unmapped_count: int
    left_bytes: int


@dataclass(frozen=True)
class RemapNotice:
    """A change that is about to be made to an address range without live blocks."""

    epoch: int
    base: int
    size: int
    kind: RemapKind


def values_of(struct: Any, made: type[_Values]) -> _Values:
    """A ctypes struct as the dataclass with the same field names."""
    fields: Any = made
    return made(**{name: getattr(struct, name) for name in fields.__dataclass_fields__})
