# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of failed calls. Each class stands for one or several codes of the library."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import threading
from typing import Any

from . import _native, _words

#: Objects that could not be ended where they were dropped (_lifetime): check() ends them.
late: list[Any] = _native.once("late", [])


class _Thread(threading.local):
    settles = False


_thread: _Thread = _native.once("settling", _Thread())


class Status(enum.IntEnum):
    """The codes of the library, vmm_status."""

    SUCCESS = 0
    INVALID_ARGUMENT = 1
    BAD_OPTION = 2
    OUT_OF_MEMORY = 3
    OUT_OF_HOST_MEMORY = 4
    OUT_OF_ADDRESSES = 5
    OUT_OF_MAPPINGS = 6
    OVER_BUDGET = 7
    UNKNOWN_ADDRESS = 8
    NOT_ALLOCATED = 9
    OVERLAP = 10
    IN_USE = 11
    NOT_SUPPORTED = 12
    NOT_PERMITTED = 13
    UNAVAILABLE = 14
    DEVICE_LOST = 15
    FOREIGN = 16
    INTERNAL = 17
    INVALID_HANDLE = 18


class Error(Exception):
    """A call failed and changed nothing. The text has the reason and the remedy."""

    status: int = 17  # VMM_ERROR_INTERNAL
    """The library's code, vmm_status."""
    status_name: str = "VMM_ERROR_INTERNAL"
    call: str = "none"
    """The driver call that failed; "none" without a driver call."""
    native_code: int = 0
    """The driver's own number: a CUresult, an errno, a ze_result_t; or 0."""
    native_name: str = ""
    advice: str = ""


class InvalidArgument(Error, ValueError):
    """A value that the call refuses, or an option out of its range."""


class OutOfMemory(Error, MemoryError):
    """Memory, addresses or mappings are short, or the budget would be exceeded."""


class UnknownAddress(Error, LookupError):
    """An address that is not of a live block."""


class InUse(Error):
    """The object is still in use, or the range overlaps another."""


class NotSupported(Error, NotImplementedError):
    """The driver or the device cannot do this."""


class NotPermitted(Error, PermissionError):
    """The call is not allowed here: in a forked child, in a capture, in a callback."""


class Unavailable(Error):
    """A missing driver, device or library."""


class DeviceLost(Error):
    """The device or its context no longer works."""


class InvalidHandle(Error, ValueError):
    """The object was closed."""


class Unmade(InvalidHandle, AttributeError):
    """An InvalidHandle that hasattr() takes for a missing attribute."""


_INVALID_HANDLE = 18
_CLASSES: dict[int, type[Error]] = {
    1: InvalidArgument,
    2: InvalidArgument,
    3: OutOfMemory,
    4: OutOfMemory,
    5: OutOfMemory,
    6: OutOfMemory,
    7: OutOfMemory,
    8: UnknownAddress,
    9: UnknownAddress,
    10: InUse,
    11: InUse,
    12: NotSupported,
    13: NotPermitted,
    14: Unavailable,
    15: DeviceLost,
    _INVALID_HANDLE: InvalidHandle,
}
# Of errors that the package raises itself.
for _class, _own in {
    InvalidArgument: 1,
    OutOfMemory: 3,
    UnknownAddress: 8,
    InUse: 11,
    NotSupported: 12,
    NotPermitted: 13,
    Unavailable: 14,
    DeviceLost: 15,
    InvalidHandle: _INVALID_HANDLE,
}.items():
    _class.status, _class.status_name = _own, f"VMM_ERROR_{Status(_own).name}"
_CLOSED = "the object was closed: make another"


def error_of(status: int) -> Error:
    """The exception for the calling thread's latest failed call. Raises that of a signal's handler
    instead, where it ended the call."""
    _native.raise_of_handler()
    info = _native.ErrorInfo()
    _native.LIBRARY.vmm_last_error(ctypes.byref(info))
    made = _CLASSES.get(status, Error)(_words.of_python(_native.text(info.text)))
    if status == _INVALID_HANDLE:  # vmm.h's words are about a C program's variables
        made = InvalidHandle(f"invalid_handle: {_CLOSED}")
    made.status = status
    made.status_name = _native.text(_native.LIBRARY.vmm_status_name(status))
    made.call = _native.text(info.call)
    made.native_code = int(info.native_code)
    made.native_name = _native.text(info.native_name)
    made.advice = (
        _CLOSED if status == _INVALID_HANDLE else _words.of_python(_native.text(info.advice))
    )
    return made


def check(status: int) -> None:
    """Raises the error of a failed call of the C library."""
    if status != 0:
        raise error_of(status)
    if late:
        _settle_late()


def _settle_late() -> None:
    if _thread.settles:
        return
    try:
        _thread.settles = True
        for each in late.copy():
            if each.settle():
                with contextlib.suppress(ValueError):  # another thread settled it, too
                    late.remove(each)
    finally:
        try:
            _thread.settles = False
        except BaseException:  # of a handler
            _thread.settles = False
            raise
