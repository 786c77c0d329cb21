# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Drivers: one device each, opened by name."""

from __future__ import annotations

import ctypes
import enum
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _native, _values
from ._owner import HandleLife, Owner
from .errors import InvalidArgument, check

_LIBRARY = _native.LIBRARY


def _run_handlers() -> None:
    # In the main thread, where Python runs them, inside calls that wait for other processes.
    check(_LIBRARY.vmm_python_run_handlers(threading.main_thread().ident or 0))


_run_handlers()
os.register_at_fork(after_in_child=_run_handlers)


class Feature(enum.IntFlag):
    """Features of a driver."""

    HOST_ACCESSIBLE = 1 << 0
    STREAMS = 1 << 1
    CAPTURE = 1 << 2
    COPY = 1 << 3
    ALIAS = 1 << 4
    HOST_PLACE = 1 << 5
    HOST_NODE_PLACE = 1 << 6
    EXPORT_POSIX_FD = 1 << 7
    EXPORT_FABRIC = 1 << 8
    COMPRESSION = 1 << 9
    RDMA = 1 << 10
    MULTICAST_CAPABLE = 1 << 11


class Place(enum.IntEnum):
    """Kinds of memory location."""

    DEVICE = 0
    HOST = 1
    HOST_NODE = 2


class Rights(enum.IntEnum):
    """Access of a location's kernels to memory. Copies that the driver makes are not limited
    (docs/multi_device.md)."""

    NONE = 0
    READ = 1
    READ_WRITE = 2


class Link(enum.IntEnum):
    """The link between two devices."""

    NONE = 0
    ITSELF = 1
    PEER = 2


@dataclass(frozen=True)
class PeerLink:
    """Whether kernels of one device can get access to memory of the other."""

    link: Link
    atomics: bool
    """Whether atomic operations work across the link."""

    @property
    def is_reachable(self) -> bool:
        """Whether access can be given."""
        return self.link != Link.NONE


def _location(name: str, given: Any) -> tuple[int, int]:
    """A device's number, or a (Place, number)."""
    if isinstance(given, tuple):
        return _values.place(given, Place, name)
    return int(Place.DEVICE), _values.device(given, name, 0)


def grants_of(given: Any) -> Any:
    """The C library's list of rights: {device or (Place, number): Rights}."""
    if not isinstance(given, Mapping):
        raise _values.refuse(
            "rights", "a dict of libvmm.Rights by device, or by (Place, number)", given
        )
    made = (_native.Grant * len(given))()
    for grant, (grantee, rights) in zip(made, given.items()):
        grant.place, grant.device = _location("rights", grantee)
        grant.rights = int(_values.member("rights", rights, Rights))
    return made


@dataclass(frozen=True)
class DriverEntry:
    """A name for Driver()."""

    name: str
    available: bool
    reason: str
    """The reason if it is not available, else ""."""


@dataclass(frozen=True)
class DriverInfo:
    """Description of a driver; sizes are bytes."""

    name: str
    features: Feature
    granularity: int
    recommended: int
    place: Place
    device: int


def drivers() -> list[DriverEntry]:
    """All drivers, each with its availability."""
    count = ctypes.c_uint64()
    check(_LIBRARY.vmm_list_drivers(None, 0, ctypes.byref(count)))
    entries = (_native.DriverEntry * count.value)()
    check(_LIBRARY.vmm_list_drivers(entries, count.value, ctypes.byref(count)))
    return [
        DriverEntry(_native.text(each.name), bool(each.available), _native.text(each.reason))
        for each in entries
    ]


#: Bytes of a read whose ends are read first.
_LARGE = 1 << 24


class Driver(Owner):
    """A driver on one device: "cuda", "level_zero", "host" (memory of this machine), "fake" (a
    simulated device), or "" for the first available one. Close it after its pools; a dropped driver
    closes with the last of them."""

    def __init__(self, name: str = "", device: int = _native.ANY_DEVICE) -> None:
        self._create(
            HandleLife("Driver", _LIBRARY.vmm_driver_close),
            _LIBRARY.vmm_driver_open,
            _values.text("name", name),
            _values.device(device),
        )
        self._info = self._query()

    @property
    def info(self) -> DriverInfo:
        """The driver's description, read when it was opened."""
        return self._info

    @property
    def name(self) -> str:
        """The driver's name, such as "host"."""
        return self._info.name

    def _query(self) -> DriverInfo:
        info = _native.DriverInfo()
        check(_LIBRARY.vmm_driver_query(self._handle, ctypes.byref(info)))
        return DriverInfo(
            _native.text(info.name),
            Feature(info.features),
            info.granularity,
            info.recommended,
            Place(info.place),
            info.device,
        )

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the driver's physical memory."""
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        check(_LIBRARY.vmm_driver_memory(self._handle, ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def link(self, source: int, target: int) -> PeerLink:
        """Whether kernels of device `source` can get access to memory of device `target`. Raises
        InvalidArgument for a device that does not exist, NotSupported if the driver has no access
        per device."""
        link, flags = ctypes.c_uint32(), ctypes.c_uint32()
        check(
            _LIBRARY.vmm_driver_query_peer(
                self._handle,
                _values.device(source, "source", 0),
                _values.device(target, "target", 0),
                ctypes.byref(link),
                ctypes.byref(flags),
            )
        )
        return PeerLink(Link(link.value), bool(flags.value & 1))

    def topology(self) -> list[list[PeerLink]]:
        """link() for each pair of devices, by the accessing device: topology()[0][1]."""
        count = 0
        while count < 64:
            try:
                self.link(count, count)
            except InvalidArgument:
                break
            count += 1
        return [[self.link(source, target) for target in range(count)] for source in range(count)]

    def rights(self, address: int, grantee: int | tuple[Place, int]) -> Rights:
        """Access of a device, or a (Place, number), to mapped memory."""
        place, number = _location("grantee", grantee)
        found = ctypes.c_uint32()
        check(
            _LIBRARY.vmm_driver_get_access(
                self._handle,
                _values.address("address", address),
                place,
                number,
                ctypes.byref(found),
            )
        )
        return Rights(found.value)

    def create_stream(self) -> int:
        """Creates a stream and returns its number. Raises NotSupported if the driver has no
        streams."""
        made = ctypes.c_void_p()
        check(_LIBRARY.vmm_driver_create_stream(self._handle, ctypes.byref(made)))
        return made.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Destroys a stream. Pools and managers with streams_forgotten must have forgotten it."""
        check(_LIBRARY.vmm_driver_destroy_stream(self._handle, _values.stream(stream)))

    def synchronize(self, stream: int = 0) -> None:
        """Blocks until the stream's work has finished."""
        check(_LIBRARY.vmm_driver_synchronize_stream(self._handle, _values.stream(stream)))

    def order(self, first: int, then: int) -> None:
        """Orders later work of stream `then` behind all work submitted to `first` so far. The host
        does not wait."""
        check(
            _LIBRARY.vmm_driver_order_streams(
                self._handle, _values.stream(first, "first"), _values.stream(then, "then")
            )
        )

    def write(self, target: int, data: bytes) -> None:
        """Copies bytes from the host to the device. Returns when the copy has finished."""
        content = _values.data("data", data)
        check(
            _LIBRARY.vmm_driver_write(
                self._handle, _values.address("target", target), content, len(content)
            )
        )

    def read(self, source: int, size: _values.Size) -> bytes:
        """Copies bytes from the device to the host. Does not wait for earlier work: call
        synchronize() first."""
        at, count = _values.address("source", source), _values.size("size", size)
        if count > _LARGE:  # judged before the copy takes memory
            self.read(at, 1)
            self.read(min(at + count - 1, _values.ADDRESS_MAX), 1)
        into = _values.buffer(count)
        place = (ctypes.c_char * count).from_buffer(into)
        check(_LIBRARY.vmm_driver_read(self._handle, place, at, count))
        return bytes(into)

    def fill(self, target: int, value: int, size: _values.Size, stream: int = 0) -> None:
        """Fills `size` bytes with `value`, in stream order."""
        check(
            _LIBRARY.vmm_driver_fill(
                self._handle,
                _values.address("target", target),
                _values.whole("value", value, 0, 255, "a byte as an int"),
                _values.size("size", size),
                _values.stream(stream),
            )
        )

    def __repr__(self) -> str:
        if not hasattr(self, "_info"):
            return "<libvmm.Driver, closed>"
        return (
            f"<libvmm.Driver {self.name} {self._info.device}{'' if self.is_open else ', closed'}>"
        )
