# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The allocator's figures: as a value, and under plain functions as PyTorch's own."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from .. import _native
from ..errors import check


class _Level(ctypes.Structure):
    _fields_ = [(name, _native.I64) for name in ("current", "peak", "added", "removed")]


class _Figures(_native.Sized):
    _fields_ = [
        ("struct_size", _native.U64),
        ("allocations", _Level * 3),
        ("allocated_bytes", _Level * 3),
        ("active", _Level * 3),
        ("active_bytes", _Level * 3),
        ("requested_bytes", _Level * 3),
        ("held_bytes", _Level),
        ("handles", _Level),
        ("short_count", _native.U64),
        ("retry_count", _native.U64),
        ("limit_bytes", _native.U64),
        ("host_wait_count", _native.U64),
    ]


@dataclass(frozen=True)
class Statistics:
    """Bytes and counts of one device. Live: in tensors; held: physical memory."""

    live_bytes: int
    peak_live_bytes: int
    requested_bytes: int
    active_bytes: int
    held_bytes: int
    peak_held_bytes: int
    live_count: int
    handle_count: int
    created_count: int
    short_count: int
    retry_count: int
    limit_bytes: int


def _read(allocator: Any, device: int) -> _Figures:
    found = _Figures()
    check(_native.LIBRARY.vmm_allocator_get_statistics(allocator, device, ctypes.byref(found)))
    return found


def statistics_of(allocator: Any, device: int) -> Statistics:
    now = _read(allocator, device)
    return Statistics(
        live_bytes=now.allocated_bytes[0].current,
        peak_live_bytes=now.allocated_bytes[0].peak,
        requested_bytes=now.requested_bytes[0].current,
        active_bytes=now.active_bytes[0].current,
        held_bytes=now.held_bytes.current,
        peak_held_bytes=now.held_bytes.peak,
        live_count=now.allocations[0].current,
        handle_count=now.handles.current,
        created_count=now.handles.added,
        short_count=now.short_count,
        retry_count=now.retry_count,
        limit_bytes=now.limit_bytes,
    )


def _level(level: _Level) -> dict[str, int]:
    return {
        "current": level.current,
        "peak": level.peak,
        "allocated": level.added,
        "freed": level.removed,
    }


def _levels(levels: Any) -> dict[str, dict[str, int]]:
    return {name: _level(levels[i]) for i, name in enumerate(("all", "small_pool", "large_pool"))}


def nested_statistics(allocator: Any, device: int) -> dict[str, Any]:
    """As torch._C._cuda_memoryStats returns."""
    now = _read(allocator, device)
    zero = _Level()
    everything = [now.held_bytes, zero, now.held_bytes]
    handles = [now.handles, zero, now.handles]
    none = [zero, zero, zero]
    return {
        "num_alloc_retries": now.retry_count,
        "num_ooms": now.short_count,
        "max_split_size": -1,
        "num_sync_all_streams": now.host_wait_count,
        "num_device_alloc": now.handles.added,
        "num_device_free": now.handles.removed,
        "oversize_allocations": _level(zero),
        "oversize_segments": _level(zero),
        "allocation": _levels(now.allocations),
        "segment": _levels(handles),
        "active": _levels(now.active),
        "inactive_split": _levels(none),
        "allocated_bytes": _levels(now.allocated_bytes),
        "reserved_bytes": _levels(everything),
        "active_bytes": _levels(now.active_bytes),
        "inactive_split_bytes": _levels(none),
        "requested_bytes": _levels(now.requested_bytes),
    }


def patch(torch: Any, allocator: Any) -> None:
    """PyTorch's functions that a pluggable allocator has no hook for and raises in."""
    library = _native.LIBRARY

    def statistics(device: int) -> dict[str, Any]:
        return nested_statistics(allocator, device)

    def reset_peaks(device: int) -> None:
        check(library.vmm_allocator_reset_peaks(allocator, device))

    def reset_counts(device: int) -> None:
        check(library.vmm_allocator_reset_counts(allocator, device))

    for name, function in (
        ("_cuda_memoryStats", statistics),
        ("_cuda_resetPeakMemoryStats", reset_peaks),
        ("_cuda_resetAccumulatedMemoryStats", reset_counts),
        # Of torch.accelerator, since 2.9.
        ("_accelerator_isAllocatorInitialized", torch.cuda.is_initialized),
        ("_accelerator_getDeviceStats", statistics),
        ("_accelerator_resetPeakStats", reset_peaks),
        ("_accelerator_resetAccumulatedStats", reset_counts),
    ):
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
