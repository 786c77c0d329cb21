# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The C library: its path, its structs, its calls (vmm.h).

The library is loaded with the package. It needs libc only, so that importing works on a machine
without CUDA. LIBVMM names another libvmm.so.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, TypeVar

Made = TypeVar("Made")

HANDLE = ctypes.c_void_p
U64 = ctypes.c_uint64
U32 = ctypes.c_uint32
I32 = ctypes.c_int32
I64 = ctypes.c_int64
TEXT = ctypes.c_char_p

ANY_DEVICE = -1
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Sized(ctypes.Structure):
    """A struct that begins with its own size, which is set when it is made."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **values)


def _u64(*names: str) -> list[tuple[str, Any]]:
    return [(name, U64) for name in names]


class ErrorInfo(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("status", I32),
        ("reserved", U32),
        ("native_code", I64),
        ("name", TEXT),
        ("call", TEXT),
        ("native_name", TEXT),
        ("advice", TEXT),
        ("text", TEXT),
    ]


class DriverEntry(ctypes.Structure):
    _fields_ = [("name", TEXT), ("reason", TEXT), ("available", U32), ("reserved", U32)]


class DriverInfo(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("name", TEXT),
        ("features", U64),
        ("granularity", U64),
        ("recommended", U64),
        ("place", U32),
        ("device", I32),
    ]


class PoolOptions(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("policy", TEXT),
        ("reservation_bytes", U64),
        ("page_bytes", U64),
        ("page_count", U64),
        ("first_stream", HANDLE),
        ("budget_bytes", U64),
        ("wait_when_short", U32),
        ("capture", U32),
        ("use_place", U32),
        ("place", U32),
        ("place_ordinal", I32),
        ("read_environment", U32),
        ("report_live", U32),
        ("reserved", U32),
        ("stream_arenas", U32),
        ("captures_announced", U32),
        ("streams_forgotten", U32),
    ]


class PoolStatistics(Sized):
    _fields_ = _u64(
        "struct_size",
        "reserved_bytes",
        "mapped_bytes",
        "live_bytes",
        "peak_live_bytes",
        "peak_mapped_bytes",
        "reusable_bytes",
        "captured_bytes",
        "hole_bytes",
        "stale_bytes",
        "live_count",
        "stale_count",
        "pinned_count",
        "stream_count",
        "slow_count",
        "created_count",
        "moved_count",
        "moved_bytes",
        "other_stream_count",
        "device_wait_count",
        "event_count",
        "host_wait_count",
        "suspended_bytes",
        "arena_count",
        "arena_bytes",
        "held_bytes",
        "pending_bytes",
    )


class PoolRegion(ctypes.Structure):
    _fields_ = [
        ("base", HANDLE),
        ("size_bytes", U64),
        ("stream", HANDLE),
        ("kind", U32),
        ("reserved", U32 * 3),
    ]


class Shortage(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("request_bytes", U64),
        ("stream", HANDLE),
        ("failure", I32),
        ("trimmed", U32),
        ("waited", U32),
        ("reserved", U32),
        ("live_bytes", U64),
        ("reusable_bytes", U64),
        ("largest_free_bytes", U64),
        ("held_bytes", U64),
        ("budget_bytes", U64),
    ]


class TrimReport(Sized):
    _fields_ = _u64("struct_size", "released_count", "released_bytes", "still_mapped_bytes")


class PreallocateReport(Sized):
    _fields_ = _u64("struct_size", "created_bytes", "moved_bytes", "unmapped_count", "left_bytes")


class RemapNotice(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("epoch", U64),
        ("base", HANDLE),
        ("size_bytes", U64),
        ("kind", U32),
        ("reserved", U32),
    ]


REMAP_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(RemapNotice))


class ManagerOptions(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("policy", TEXT),
        ("fragment_ratio", ctypes.c_double),
        ("chunk_bytes", U64),
        ("reservation_bytes", U64),
        ("budget_bytes", U64),
        ("wait_when_short", U32),
        ("shareable", U32),
        ("compressible", U32),
        ("rdma_capable", U32),
        ("use_place", U32),
        ("place", U32),
        ("place_ordinal", I32),
        ("read_environment", U32),
        ("report_live", U32),
        ("reserved", U32),
        ("streams_forgotten", U32),
    ]


class Grant(ctypes.Structure):
    _fields_ = [("place", U32), ("device", I32), ("rights", U32), ("reserved", U32)]


class Part(ctypes.Structure):
    _fields_ = [("handle", U64), ("size_bytes", U64)]


class BlockRequest(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("size_bytes", U64),
        ("growth_bytes", U64),
        ("alignment_bytes", U64),
        ("stream", HANDLE),
    ]


class ResizeRequest(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("at", HANDLE),
        ("size_bytes", U64),
        ("growth_bytes", U64),
        ("in_place", U32),
        ("names_stream", U32),
    ]


class CopyRequest(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("target", HANDLE),
        ("source", HANDLE),
        ("size_bytes", U64),
        ("stream", HANDLE),
        ("mode", U32),
        ("reserved", U32),
    ]


class BlockInfo(Sized):
    _fields_ = [
        ("struct_size", U64),
        ("base", HANDLE),
        ("user_bytes", U64),
        ("mapped_bytes", U64),
        ("reserved_bytes", U64),
        ("stream", HANDLE),
        ("handle_count", U64),
    ]


class ManagerStatistics(Sized):
    _fields_ = _u64(
        "struct_size",
        "granularity_bytes",
        "live_count",
        "user_bytes",
        "mapped_bytes",
        "held_bytes",
        "peak_held_bytes",
        "retained_bytes",
        "retained_mapped_bytes",
        "retired_bytes",
        "reserved_bytes",
        "space_live_bytes",
        "space_high_water_bytes",
        "created_count",
        "reused_handle_count",
        "reused_range_count",
        "grown_reuse_count",
        "unbound_range_count",
        "remapped_copy_count",
        "real_copy_count",
        "recovery_count",
        "suspended_bytes",
        "refused_unmap_count",
    )


TENSOR_ENDED = ctypes.CFUNCTYPE(None, U64, ctypes.POINTER(U32))
_OUT = ctypes.POINTER(HANDLE)

# The arguments of each call; all of them return a status but those of _OTHERS.
_CALLS: dict[str, list[Any]] = {
    "vmm_last_error": [ctypes.POINTER(ErrorInfo)],
    "vmm_list_drivers": [ctypes.POINTER(DriverEntry), U64, ctypes.POINTER(U64)],
    "vmm_driver_open": [TEXT, I32, _OUT],
    "vmm_driver_close": [HANDLE],
    "vmm_driver_query": [HANDLE, ctypes.POINTER(DriverInfo)],
    "vmm_driver_memory": [HANDLE, ctypes.POINTER(U64), ctypes.POINTER(U64)],
    "vmm_driver_create_stream": [HANDLE, _OUT],
    "vmm_driver_destroy_stream": [HANDLE, HANDLE],
    "vmm_driver_synchronize_stream": [HANDLE, HANDLE],
    "vmm_driver_order_streams": [HANDLE, HANDLE, HANDLE],
    "vmm_driver_write": [HANDLE, HANDLE, ctypes.c_void_p, U64],
    "vmm_driver_read": [HANDLE, ctypes.c_void_p, HANDLE, U64],
    "vmm_driver_fill": [HANDLE, HANDLE, ctypes.c_uint8, U64, HANDLE],
    "vmm_driver_query_peer": [HANDLE, I32, I32, ctypes.POINTER(U32), ctypes.POINTER(U32)],
    "vmm_driver_get_access": [HANDLE, HANDLE, U32, I32, ctypes.POINTER(U32)],
    "vmm_manager_set_access": [HANDLE, HANDLE, ctypes.POINTER(Grant), U64],
    "vmm_manager_set_part_access": [HANDLE, HANDLE, U64, ctypes.POINTER(Grant), U64],
    "vmm_manager_parts": [HANDLE, HANDLE, ctypes.POINTER(Part), U64, ctypes.POINTER(U64)],
    "vmm_manager_set_peers": [HANDLE, ctypes.POINTER(Grant), U64],
    "vmm_pool_set_peers": [HANDLE, ctypes.POINTER(Grant), U64],
    "vmm_pool_allocate_dedicated": [HANDLE, U64, HANDLE, _OUT],
    "vmm_pool_set_access": [HANDLE, HANDLE, ctypes.POINTER(Grant), U64],
    "vmm_pool_options_init": [ctypes.POINTER(PoolOptions), U64],
    "vmm_pool_create": [HANDLE, ctypes.POINTER(PoolOptions), _OUT],
    "vmm_pool_destroy": [HANDLE],
    "vmm_pool_allocate": [HANDLE, U64, HANDLE, _OUT],
    "vmm_pool_allocate_aligned": [HANDLE, U64, U64, HANDLE, _OUT],
    "vmm_pool_free": [HANDLE, HANDLE, HANDLE],
    "vmm_pool_free_unordered": [HANDLE, HANDLE],
    "vmm_pool_free_sized": [HANDLE, HANDLE, U64, HANDLE],
    "vmm_pool_pin": [HANDLE, HANDLE],
    "vmm_pool_unpin": [HANDLE, HANDLE],
    "vmm_pool_forget_stream": [HANDLE, HANDLE],
    "vmm_pool_capture_begin": [HANDLE],
    "vmm_pool_capture_end": [HANDLE],
    "vmm_pool_capture_number": [HANDLE, HANDLE, ctypes.POINTER(U64)],
    "vmm_pool_capture_release": [HANDLE, U64, HANDLE],
    "vmm_pool_synchronize": [HANDLE],
    "vmm_pool_preallocate": [HANDLE, U64, HANDLE, ctypes.POINTER(PreallocateReport)],
    "vmm_pool_trim": [HANDLE, U64, ctypes.POINTER(TrimReport)],
    "vmm_pool_get_statistics": [HANDLE, ctypes.POINTER(PoolStatistics)],
    "vmm_pool_dump": [HANDLE, ctypes.c_char_p, U64, ctypes.POINTER(U64)],
    "vmm_pool_regions": [HANDLE, ctypes.POINTER(PoolRegion), U64, ctypes.POINTER(U64)],
    "vmm_pool_last_shortage": [HANDLE, ctypes.POINTER(Shortage)],
    "vmm_pool_subscribe": [HANDLE, ctypes.c_void_p, REMAP_CALLBACK, ctypes.POINTER(U64)],
    "vmm_pool_unsubscribe": [HANDLE, U64],
    "vmm_pool_remap_epoch": [HANDLE, ctypes.POINTER(U64)],
    "vmm_pool_validate": [HANDLE],
    "vmm_manager_options_init": [ctypes.POINTER(ManagerOptions), U64],
    "vmm_manager_create": [HANDLE, ctypes.POINTER(ManagerOptions), _OUT],
    "vmm_manager_destroy": [HANDLE],
    "vmm_manager_allocate": [HANDLE, ctypes.POINTER(BlockRequest), _OUT],
    "vmm_manager_free": [HANDLE, HANDLE],
    "vmm_manager_free_on": [HANDLE, HANDLE, HANDLE],
    "vmm_manager_free_idle": [HANDLE, HANDLE],
    "vmm_manager_resize": [HANDLE, ctypes.POINTER(ResizeRequest), _OUT],
    "vmm_manager_copy": [HANDLE, ctypes.POINTER(CopyRequest)],
    "vmm_manager_forget_stream": [HANDLE, HANDLE],
    "vmm_manager_synchronize": [HANDLE, HANDLE],
    "vmm_manager_find": [HANDLE, HANDLE, ctypes.POINTER(BlockInfo)],
    "vmm_manager_trim": [HANDLE, U64, ctypes.POINTER(TrimReport)],
    "vmm_manager_get_statistics": [HANDLE, ctypes.POINTER(ManagerStatistics)],
    "vmm_manager_validate": [HANDLE],
    "vmm_allocator_options_init": [ctypes.c_void_p, U64],
    "vmm_allocator_create": [ctypes.c_void_p, _OUT],
    "vmm_allocator_destroy": [HANDLE],
    "vmm_allocator_allocate": [HANDLE, U64, I32, HANDLE, _OUT],
    "vmm_allocator_free": [HANDLE, HANDLE],
    "vmm_allocator_keep": [HANDLE, ctypes.c_void_p],
    "vmm_allocator_record_stream": [HANDLE, HANDLE, HANDLE],
    "vmm_allocator_begin_capture": [HANDLE],
    "vmm_allocator_end_capture": [HANDLE],
    "vmm_allocator_forget_stream": [HANDLE, I32, HANDLE],
    "vmm_allocator_trim": [HANDLE, I32, U64, ctypes.POINTER(TrimReport)],
    "vmm_allocator_set_limit": [HANDLE, I32, U64],
    "vmm_allocator_add_peer": [HANDLE, I32, I32],
    "vmm_allocator_find": [HANDLE, HANDLE, ctypes.c_void_p],
    "vmm_allocator_list": [HANDLE, I32, ctypes.c_void_p, U64, ctypes.POINTER(U64)],
    "vmm_allocator_regions": [HANDLE, I32, ctypes.POINTER(PoolRegion), U64, ctypes.POINTER(U64)],
    "vmm_allocator_get_statistics": [HANDLE, I32, ctypes.c_void_p],
    "vmm_allocator_reset_peaks": [HANDLE, I32],
    "vmm_allocator_reset_counts": [HANDLE, I32],
    "vmm_block_lend": [TEXT, TEXT, U64],
    "vmm_block_hold": [TEXT, TEXT, U64],
    "vmm_plugin_use": [HANDLE],
    "vmm_plugin_set_failure": [ctypes.c_void_p],
    "vmm_parse_bytes": [TEXT, ctypes.POINTER(U64)],
    "vmm_python_on_tensor_end": [ctypes.c_void_p],
    "vmm_python_run_handlers": [U64],
}
_OTHERS: dict[str, tuple[Any, list[Any]]] = {
    "vmm_last_error_text": (TEXT, []),
    "vmm_status_name": (TEXT, [I32]),
    "vmm_version": (U32, []),
    "vmm_plugin_malloc": (HANDLE, [I64, I32, HANDLE]),
    "vmm_plugin_free": (None, [HANDLE, U64, I32, HANDLE]),
    "vmm_plugin_record_stream": (None, [HANDLE, HANDLE]),
    "vmm_plugin_init": (None, [I32]),
    "vmm_plugin_empty_cache": (None, []),
    "vmm_plugin_memory_fraction": (None, [ctypes.c_double, I32]),
    "vmm_plugin_base": (HANDLE, [HANDLE, ctypes.POINTER(U64)]),
    "vmm_python_end_tensor": (None, [ctypes.c_void_p]),
    "vmm_python_remapped": (None, [ctypes.c_void_p, ctypes.POINTER(RemapNotice)]),
    "vmm_python_end_capsule": (None, [ctypes.c_void_p]),
    "vmm_python_raise": (None, []),
}


def _check_interpreter() -> None:
    """Raises ImportError in a sub-interpreter: deleters of DLPack and callbacks of ctypes run in
    the main one, on every thread."""
    api = ctypes.pythonapi
    for function in (api.PyInterpreterState_Get, api.PyInterpreterState_Main):
        function.restype, function.argtypes = ctypes.c_void_p, []
    if api.PyInterpreterState_Get() != api.PyInterpreterState_Main():
        raise ImportError(
            "libvmm works in the main interpreter of a process alone, and this is a "
            "sub-interpreter: consumers of its memory call back into the main one"
        )


def _find() -> str:
    named = os.environ.get("LIBVMM")
    if named:
        return named
    inside = os.path.join(FOLDER, "lib", "libvmm.so.1")
    return inside if os.path.exists(inside) else "libvmm.so.1"


def _advice() -> str:
    if os.environ.get("LIBVMM"):
        return "LIBVMM names it: unset LIBVMM for the wheel's own, or name one that was built"
    return "It is part of the wheel; with a source tree LIBVMM names one that was built"


def _load(path: str) -> ctypes.CDLL:
    known: ctypes.CDLL | None = globals().get("LIBRARY")  # when the module is reloaded
    try:
        if "/" in path and os.path.exists(path) and not os.path.isfile(path):
            raise OSError(f"{path}: it is not a regular file")  # a named pipe would be waited for
        library = known or ctypes.CDLL(path)
    except OSError as trouble:
        raise ImportError(
            f"libvmm: the C library cannot be loaded: {trouble}. {_advice()}"
        ) from trouble
    calls = {name: (I32, arguments) for name, arguments in _CALLS.items()} | _OTHERS
    for name, (answer, arguments) in calls.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"libvmm: {path} is another library, or an older one: it has no {name}. {_advice()}"
            ) from None
        function.argtypes, function.restype = arguments, answer
    return library


_check_interpreter()
PATH: str = globals().get("PATH") or _find()
LIBRARY = _load(PATH)
#: Raises the exception of a signal's handler that ended this thread's last wait.
raise_of_handler = ctypes.PYFUNCTYPE(None)(("vmm_python_raise", LIBRARY))


def _state() -> dict[str, Any]:
    """What the package keeps for the library that is loaded, in the interpreter's own dict: a copy
    of the package that is imported or reloaded beside this one finds the same."""
    api = ctypes.pythonapi
    api.PyInterpreterState_GetDict.restype = ctypes.c_void_p
    api.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    borrowed = api.PyInterpreterState_GetDict(api.PyInterpreterState_Get())
    kept: dict[Any, Any] = ctypes.cast(borrowed, ctypes.py_object).value
    state: dict[str, Any] = kept.setdefault(("libvmm", LIBRARY._handle), {})
    return state


_STATE = _state()


def once(name: str, made: Made) -> Made:
    """`made`, or the object kept under the name before: one per process."""
    kept: Made = _STATE.setdefault(name, made)
    return kept


def record(outcome: list[int], function: Any, *arguments: Any) -> None:
    """Calls a function of the library. Its status stands at the end of `outcome` once it was
    called: list.extend() and map() run no Python code, so that no handler of a signal runs between
    the call and the record of it."""
    outcome.extend(map(function, *((each,) for each in arguments)))


def text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""
