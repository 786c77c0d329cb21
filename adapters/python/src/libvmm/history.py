# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Events of a pool or manager, in a file that `./run view` and vmm-history show.

    with libvmm.history.record(pool, "run.history", frames=True):
        ...

An owner is a Pool, a Manager, or an object whose `handle` is the handle of one (or of a
vmm_allocator, with the number of its device).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import _native, _values
from ._owner import Owner
from .errors import InvalidArgument, check
from .managers import Manager
from .pools import Pool

_LIBRARY = _native.LIBRARY
_INSIDE = _native.FOLDER + os.sep
_U32_MAX = (1 << 32) - 1


class _Options(_native.Sized):
    _fields_ = [
        ("struct_size", _native.U64),
        ("event_count", _native.U64),
        ("clock_interval", _native.U32),
        ("shortage_count_max", _native.U32),
        ("shortage_path", _native.TEXT),
    ]


_NUMBER = ctypes.POINTER(_native.U32)
for _name, _arguments in {
    "vmm_history_options_init": [ctypes.POINTER(_Options), _native.U64],
    "vmm_history_start": [_native.HANDLE, _native.I32, ctypes.POINTER(_Options)],
    "vmm_history_dump": [_native.HANDLE, _native.I32, _native.TEXT],
    "vmm_history_stop": [_native.HANDLE, _native.I32, _native.TEXT],
    "vmm_history_tag": [_native.TEXT, _NUMBER],
    "vmm_history_line": [_native.TEXT, _native.U32, _native.TEXT, _NUMBER],
    "vmm_history_label": [_native.U32, _native.U32, _NUMBER, _NUMBER],
    "vmm_top_publish": [_native.U32],
}.items():
    getattr(_LIBRARY, _name).argtypes = _arguments
    getattr(_LIBRARY, _name).restype = _native.I32


def _handle_of(owner: Any) -> Any:
    if isinstance(owner, Owner):
        owner._check_initialised()
    handle = getattr(owner, "handle", None)
    is_other = isinstance(owner, Owner) and not isinstance(owner, (Pool, Manager))
    if handle is None or is_other:
        raise _values.refuse("owner", "a Pool or a Manager", owner)
    return handle


def start(
    owner: Any,
    *,
    device: int = 0,
    event_count: int | None = None,
    clock_interval: int | None = None,
    frames: bool = False,
    shortage: str | os.PathLike[str] | None = None,
    shortage_count_max: int | None = None,
) -> None:
    """Records the owner's events from now on. `event_count`: capacity in records. `frames`: each
    allocation and free by the owner has its caller's line, which costs some microseconds.
    `shortage`: the path of the history written when memory is short, with ".0" and so on appended.
    Raises InUse if the owner is being recorded."""
    has_frames = _values.flag("frames", frames)
    options = _Options()
    check(_LIBRARY.vmm_history_options_init(ctypes.byref(options), ctypes.sizeof(options)))
    if event_count is not None:
        options.event_count = _values.whole("event_count", event_count)
    if clock_interval is not None:
        options.clock_interval = _values.whole("clock_interval", clock_interval, 0, _U32_MAX)
    if shortage_count_max is not None:
        options.shortage_count_max = _values.whole(
            "shortage_count_max", shortage_count_max, 0, _U32_MAX
        )
    if shortage is not None:
        options.shortage_path = _values.path("shortage", shortage)
        folder = os.path.dirname(os.fsdecode(options.shortage_path)) or "."
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InvalidArgument(f"shortage: no file can be made in the folder {folder!r}")
    check(
        _LIBRARY.vmm_history_start(_handle_of(owner), _values.device(device), ctypes.byref(options))
    )
    if has_frames:
        _add_frames(owner)


def dump(owner: Any, path: str | os.PathLike[str], *, device: int = 0) -> None:
    """Writes the events recorded so far, and the memory layout now."""
    check(
        _LIBRARY.vmm_history_dump(
            _handle_of(owner), _values.device(device), _values.path("path", path)
        )
    )


def stop(owner: Any, path: str | os.PathLike[str] | None = None, *, device: int = 0) -> None:
    """Ends the recording; with a path, writes the history first."""
    handle = _handle_of(owner)
    into = None if path is None else _values.path("path", path)
    _remove_frames(owner)
    check(_LIBRARY.vmm_history_stop(handle, _values.device(device), into))


@contextlib.contextmanager
def record(
    owner: Any, path: str | os.PathLike[str], *, device: int = 0, **options: Any
) -> Iterator[None]:
    """start(), and at the end of the with, also after an exception, stop(). A path that cannot be
    written raises OSError before the recording starts; an existing file stays until the end."""
    name = os.fsdecode(_values.path("path", path))
    try:
        with open(name, "ab"):
            pass
    except OSError as trouble:
        said = f"no history can be written there: {trouble.strerror}: name a file in a folder that "
        raise OSError(trouble.errno, said + "exists and can be written to", name) from trouble
    start(owner, device=device, **options)
    try:
        yield
    finally:
        stop(owner, path, device=device)


# ---- labels --------------------------------------------------------------------------


def _swap(tag_number: int, line_number: int) -> tuple[int, int]:
    tag_before, line_before = _native.U32(), _native.U32()
    check(
        _LIBRARY.vmm_history_label(
            tag_number, line_number, ctypes.byref(tag_before), ctypes.byref(line_before)
        )
    )
    return tag_before.value, line_before.value


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """Tags this thread's allocations and frees within the with in each history."""
    number = _native.U32()
    check(_LIBRARY.vmm_history_tag(_values.text("name", name), ctypes.byref(number)))
    before = _swap(0, 0)
    _swap(number.value, before[1])
    try:
        yield
    finally:
        _swap(*before)


_lines: dict[tuple[Any, int], int] = {}


def _line_of_caller() -> int:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    key = (frame.f_code, frame.f_lineno)
    known = _lines.get(key)
    if known is None:
        number = _native.U32()
        check(
            _LIBRARY.vmm_history_line(
                frame.f_code.co_filename.encode("utf-8", "replace"),
                frame.f_lineno,
                frame.f_code.co_name.encode("utf-8", "replace"),
                ctypes.byref(number),
            )
        )
        known = _lines[key] = number.value
    return known


def _with_line(call: Callable[..., Any]) -> Callable[..., Any]:
    def labelled(*arguments: Any, **named: Any) -> Any:
        line = _line_of_caller()
        before = _swap(0, 0)
        _swap(before[0], line)
        try:
            return call(*arguments, **named)
        finally:
            _swap(*before)

    return labelled


# Of a pool or manager, and of its life, which frees the blocks.
_LINED = (("allocate", "_allocate", "allocate_dedicated", "free_raw"), ("free", "free_unnamed"))


def _parts(owner: Any) -> Iterator[tuple[Any, str]]:
    for part, names in zip((owner, getattr(owner, "_life", None)), _LINED):
        yield from ((part, name) for name in names if hasattr(part, name))


def _add_frames(owner: Any) -> None:
    for part, name in _parts(owner):
        setattr(part, name, _with_line(getattr(part, name)))


def _remove_frames(owner: Any) -> None:
    for part, name in _parts(owner):
        vars(part).pop(name, None)


# ---- vmm-top -------------------------------------------------------------------------


def publish(on: bool = True) -> None:
    """Publishes later pools and managers to vmm-top in this user's other processes, as VMM_TOP=1
    does; False ends it."""
    check(_LIBRARY.vmm_top_publish(_values.flag("on", on)))


__all__ = ["dump", "publish", "record", "start", "stop", "tag"]
