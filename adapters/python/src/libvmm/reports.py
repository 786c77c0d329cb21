# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What pools report of themselves."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import Status

_Values = TypeVar("_Values")


class RegionKind(enum.IntEnum):
    """What lies in a region of a pool: vmm.h's VMM_REGION_*."""

    LIVE = 0
    FREE = 1
    HOLE = 2
    ZOMBIE = 3
    BUSY = 4


class RemapKind(enum.IntEnum):
    """What happens to the memory behind an address: vmm.h's VMM_REMAP_*."""

    MOVED = 0
    UNMAPPED = 1
    RELEASED = 2


@dataclass(frozen=True)
class PoolStatistics:
    """Bytes and counts; vmm.h says what each is."""

    reserved_bytes: int
    mapped_bytes: int
    live_bytes: int
    peak_live_bytes: int
    peak_mapped_bytes: int
    reusable_bytes: int
    captured_bytes: int
    hole_bytes: int
    zombie_bytes: int
    live_count: int
    zombie_count: int
    pinned_count: int
    stream_count: int
    grown_count: int
    made_count: int
    moved_count: int
    moved_bytes: int
    foreign_count: int
    wait_count: int
    mark_count: int
    blocked_count: int
    suspended_bytes: int
    front_count: int
    front_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class Region:
    """A stretch of a pool's addresses. The stream is that of free regions."""

    base: int
    size: int
    stream: int
    kind: RegionKind


@dataclass(frozen=True)
class Shortage:
    """What was tried for the last request that memory was too short for."""

    request_bytes: int
    stream: int
    failure: Status
    trimmed: bool
    blocked: bool
    live_bytes: int
    reusable_bytes: int
    largest_free_bytes: int
    held_bytes: int
    budget_bytes: int


@dataclass(frozen=True)
class TrimReport:
    """What trim() gave back, and what has to stay mapped until work has finished."""

    released_count: int
    released_bytes: int
    still_mapped_bytes: int


@dataclass(frozen=True)
class PrepareReport:
    """What prepare() has made ready, and by how much the request is larger than what serves."""

    created_bytes: int
    moved_bytes: int
    unmapped_count: int
    left_bytes: int


@dataclass(frozen=True)
class RemapNotice:
    """What is about to happen to an address range where nothing is live."""

    epoch: int
    base: int
    size: int
    kind: RemapKind


def values_of(struct: Any, made: type[_Values]) -> _Values:
    """The fields of a ctypes struct as the dataclass that has their names."""
    fields: Any = made
    return made(**{name: getattr(struct, name) for name in fields.__dataclass_fields__})
