# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Memory lent to other processes and borrowed from them, without a copy (docs/sharing.md).

    from libvmm import share
    secret = share.make_secret()                     # before a fork, or share.read_secret(path)
    with share.Listener("/run/user/1000/vmm/a") as place, place.accept(secret) as channel:
        lent = share.export(driver, 64 << 20)        # or share.export_block(range)
        channel.lend(lent)

    with share.connect("/run/user/1000/vmm/a", secret) as channel:     # the other process
        with channel.borrow(driver) as borrowed:
            torch.from_dlpack(borrowed.view("float32", (4096, 4096)))

The receiver of a block may read and write it. The connection is the lease: when it ends, all blocks
lent on it count as returned.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import enum
import functools
import itertools
import operator
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _dlpack, _lifetime, _native, _objects, _share, _values
from ._drivers import Driver
from ._owner import HandleLife, Owner
from .errors import InUse, InvalidArgument, UnknownAddress, check, error_of
from .managers import Kind as Kind
from .managers import Range

_LIBRARY = _native.LIBRARY

#: The size of a secret.
SECRET_BYTES = _share.SECRET_BYTES


class What(enum.IntEnum):
    """Kinds of events from a peer."""

    OFFERED = 0
    UPDATED = 1
    WITHDRAWN = 2
    ACCEPTED = 3
    REFUSED = 4
    RELEASED = 5


@dataclass(frozen=True)
class Event:
    """An event about one block."""

    kind: What
    id: int
    """The block's number on the channel."""
    epoch: int
    reason: Exception | None
    """The reason of a refusal; None for every other kind."""


@dataclass(frozen=True)
class SharedInfo:
    """Description of a lent or borrowed block."""

    address: int
    size: int
    id: int
    epoch: int
    parts: int
    """The number of physical handles."""
    lent: bool
    label: bytes


def make_secret() -> bytes:
    """The secret of both sides, 32 bytes: created before a fork, or passed by a file."""
    made = (ctypes.c_uint8 * SECRET_BYTES)()
    check(_LIBRARY.vmm_share_make_secret(made))
    return bytes(made)


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """Reads a secret from a file of 32 bytes, owned by this user, of mode 0600. Raises NotPermitted
    for any other."""
    made = (ctypes.c_uint8 * SECRET_BYTES)()
    check(_LIBRARY.vmm_share_read_secret(_values.path("path", path), made))
    return bytes(made)


@contextlib.contextmanager
def _options(secret: bytes | bytearray, timeout_ms: int) -> Iterator[Any]:
    """The options; the copy of the secret in them is wiped at the end of the with."""
    made = _share.Options()
    check(_LIBRARY.vmm_share_options_init(ctypes.byref(made), ctypes.sizeof(made)))
    given = secret if isinstance(secret, (bytes, bytearray)) else _values.data("secret", secret)
    if len(given) != SECRET_BYTES:
        raise InvalidArgument(
            f"secret: {SECRET_BYTES} bytes are wanted, and {len(given)} were given"
        )
    made.timeout_ms = _values.whole("timeout_ms", timeout_ms, 0, (1 << 32) - 1)
    made.secret[:] = given
    try:
        yield ctypes.byref(made)
    finally:
        ctypes.memset(ctypes.addressof(made), 0, ctypes.sizeof(made))


def _request(size: int, kind: Kind, label: bytes, **values: int) -> _share.Export:
    made = _share.Export(size_bytes=size, kind=_values.flags("kind", kind, Kind), **values)
    text = _values.data("label", label)
    if len(text) > _share.LABEL_BYTES:
        raise InvalidArgument(
            f"label: at most {_share.LABEL_BYTES} bytes are wanted, and {len(text)} were given"
        )
    made.label[: len(text)] = text
    return made


def _info(query: Any, handle: ctypes.c_void_p) -> SharedInfo:
    info = _share.Info()
    check(query(handle, ctypes.byref(info)))
    return SharedInfo(
        info.base or 0,
        info.size_bytes,
        info.id,
        info.epoch,
        info.part_count,
        bool(info.lent),
        bytes(info.label).rstrip(b"\0"),
    )


class _ShareLife(HandleLife):
    __slots__ = ()
    ends_at_exit = True  # paths of sockets, and what the peer waits for


class _WaitingLife(_ShareLife):
    """Of a listener or channel, whose calls wait for the peer. In the main thread handlers of
    signals run meanwhile, inside the object's lock in the C library."""

    __slots__ = ("inside",)

    def __init__(self, name: str, destroy: Any, parent: _lifetime.Life | None) -> None:
        super().__init__(name, destroy, parent)
        self.inside: dict[object, int] = {}
        """The thread of each call that has not returned."""

    def call(self, function: Any, *arguments: Any, outcome: list[int] | None = None) -> int:
        """Calls the library. Objects that are dropped meanwhile are ended later."""
        recorded: list[int] = [] if outcome is None else outcome
        key = object()
        try:
            self._check_outside()
            self.inside[key] = threading.get_ident()
            _lifetime.call_back(_native.record, recorded, function, *arguments)
        finally:
            try:
                self.inside.pop(key, None)
            except BaseException:  # of a handler
                self.inside.pop(key, None)
                raise
        return recorded[-1]

    def end(self) -> None:
        self._check_outside()
        super().end()

    def _check_outside(self) -> None:
        if self.is_here() and threading.get_ident() in self.inside.copy().values():
            raise InUse(
                f"the {self.name} waits in a call that this signal handler interrupts: raise an "
                "exception, which ends the call"
            )


class _BorrowedLife(_ShareLife):
    __slots__ = ("channel", "recorded")

    def __init__(self, name: str, destroy: Any, driver: Driver, channel: _WaitingLife) -> None:
        super().__init__(name, destroy, driver._life)
        self.channel = channel
        self.recorded: list[int] = []
        """The status of the call that ended the object and notified the peer."""

    def end(self) -> None:
        self.give_back()

    def give_back(self) -> Exception | None:
        """Releases the object. Returns the reason if the peer was not notified; the memory is
        released all the same."""
        trouble = None
        if self.handle.value and not self.recorded:
            call = _LIBRARY.vmm_share_give_back
            self.channel.call(call, self.channel.handle, self.handle, outcome=self.recorded)
            trouble = error_of(self.recorded[0]) if self.recorded[0] else None
        super().end()
        return trouble


class _Shared(Owner):
    """An object of the C library that one call ends."""

    def _make(self, destroy: Any, parent: _lifetime.Life | None, create: Any, *given: Any) -> None:
        self._create(_ShareLife(f"share.{type(self).__name__}", destroy, parent), create, *given)


class _Waiting(Owner):
    """An object whose calls wait for the peer."""

    _life: _WaitingLife

    def _make(self, destroy: Any, create: Any, *given: Any) -> None:
        life = _WaitingLife(f"share.{type(self).__name__}", destroy, None)
        self._create(life, create, *given)

    def _call(self, function: Any, *arguments: Any) -> None:
        self._check_open()
        check(self._life.call(function, self._handle, *arguments))


class Lent(_objects.MadeByCalls, _Shared):
    """A block that can be lent, from export() and export_block(). close() ends the export, and
    raises InUse while it is lent."""

    _makers = "share.export() and share.export_block()"

    def _begin(self, owner: Any, create: Any, *given: Any) -> None:
        self._owner = owner  # lives as long as its memory
        self._make(_LIBRARY.vmm_share_end_export, owner._life, create, *given)

    def info(self) -> SharedInfo:
        """Address, size and state of the block."""
        self._check_open()
        return _info(_LIBRARY.vmm_share_query_export, self._handle)

    @property
    def address(self) -> int:
        """The block's address in this process."""
        return self.info().address

    @property
    def size(self) -> int:
        """The size in bytes, rounded up to granules, which the peer maps."""
        return self.info().size

    def moved(self, block: Range) -> None:
        """Records the new address of a followed block after resize(). Channel.update() sends it."""
        self._check_open()
        at = _values.one_of("block", block, Range).address
        check(_LIBRARY.vmm_share_moved(self._handle, at))


def export(
    driver: Driver,
    size: _values.Size,
    *,
    handle_bytes: _values.Size = 0,
    kind: Kind = Kind.POSIX_FD,
    label: bytes = b"",
) -> Lent:
    """Creates memory to be lent, of one handle or of handles of `handle_bytes`, whose last one is
    smaller where the size requires it."""
    request = _request(
        _values.size("size", size),
        kind,
        label,
        handle_bytes=_values.size("handle_bytes", handle_bytes),
    )
    handle = _values.one_of("driver", driver, Driver).handle
    return Lent._made(driver, _LIBRARY.vmm_share_export, handle, ctypes.byref(request))


def export_block(
    block: Range,
    *,
    followed: bool = False,
    one_handle: bool = False,
    kind: Kind = Kind.POSIX_FD,
    label: bytes = b"",
) -> Lent:
    """Exports a block of a manager made with `shareable`. Until the export ends, a block that is
    not `followed` is neither freed nor resized (InUse)."""
    owner = _values.one_of("block", block, Range)._owner
    request = _request(
        0,
        kind,
        label,
        followed=_values.flag("followed", followed),
        one_handle=_values.flag("one_handle", one_handle),
    )
    call = _LIBRARY.vmm_share_export_block
    return Lent._made(block, call, owner.handle, block.address, ctypes.byref(request))


class Borrowed(_objects.MadeByCalls, _Shared):
    """A block of another process, mapped in this one, from Channel.borrow(). A DLPack producer as
    libvmm.Block. Its bytes stay while it is borrowed, even if the peer ends."""

    _life: _BorrowedLife
    _makers = "share.Channel.borrow()"

    def _begin(self, channel: Channel, driver: Driver, request: Any) -> None:
        self._channel, self._owner = channel, _Owner(driver)
        name, destroy = "share.Borrowed", _LIBRARY.vmm_share_end_import
        life = _BorrowedLife(name, destroy, driver, channel._life)
        create = functools.partial(channel._life.call, _LIBRARY.vmm_share_borrow)
        self._create(life, create, channel.handle, driver.handle, request)

    @property
    def _lives(self) -> tuple[_lifetime.Life, ...]:
        return (self._life,)

    _streams: tuple[int, ...] = ()

    def info(self) -> SharedInfo:
        """Description of the block: address, number, epoch and label."""
        self._check_open()
        return _info(_LIBRARY.vmm_share_query_import, self._handle)

    @property
    def address(self) -> int:
        """The block's address in this process; 0 after its return. apply() may change it."""
        self._check_initialised()
        return self.info().address if self.is_open else 0

    @property
    def size(self) -> int:
        """The size in bytes."""
        self._check_initialised()
        return self.info().size if self.is_open else 0

    def view(self, dtype: str = "uint8", shape: Sequence[int] | None = None) -> _dlpack.View:
        """The bytes as a DLPack producer, as Block.view()."""
        if not self.address:
            raise UnknownAddress("the block was given back")
        return _dlpack.View(self, dtype, shape)

    def __dlpack__(self, *, stream: int | None = None, **others: Any) -> Any:
        return self.view().__dlpack__(stream=stream, **others)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_of(self._owner.driver)

    def apply(self) -> None:
        """Applies and accepts the change that Channel.next() returned (UPDATED). No unfinished work
        uses the block. Raises InUse while an array shows it."""
        self._check_open()
        self._life.alone(self._apply)

    def _apply(self) -> None:
        channel = self._channel
        check(channel._life.call(_LIBRARY.vmm_share_apply, channel.handle, self._handle))

    def give_back(self) -> None:
        """Releases the memory and notifies the peer. Raises InUse while an array shows it,
        Unavailable if the connection has ended; the memory is then released all the same."""
        self._check_open()
        trouble = self._life.alone(self._life.give_back, ends=True, waits=True)
        if trouble is not None:
            raise trouble

    def close(self) -> None:
        """Like give_back() while the channel is open; else releases the memory only."""
        self._check_initialised()
        if not self.is_open:
            return
        if self._channel.is_open:
            self.give_back()
        else:
            super().close()


class _Owner:
    """The properties of a block's owner that a view reads."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver


class Channel(_objects.MadeByCalls, _Waiting):
    """A connection to one peer, from connect(), Listener.accept() or adopt(). Both sides may lend.
    The end of the connection ends every loan on it. close() ends other threads' calls, which raise
    Unavailable."""

    _makers = "share.connect(), share.adopt() and share.Listener.accept()"

    def _begin(self, create: Any, *given: Any) -> None:
        self._make(_LIBRARY.vmm_share_close, create, *given)

    def fileno(self) -> int:
        """A descriptor for select and poll, readable if next() would not wait; -1 after the
        connection has ended. Do not read from it."""
        number = ctypes.c_int32()
        self._call(_LIBRARY.vmm_share_descriptor, ctypes.byref(number))
        return number.value

    def lend(self, block: Lent) -> int:
        """Offers the block, waits for the reply, and returns the block's number on this channel.
        Raises the peer's reason for a refusal; Unavailable if no reply came in time, and the offer
        is then withdrawn."""
        number = ctypes.c_uint64()
        lent = _values.one_of("block", block, Lent).handle
        self._call(_LIBRARY.vmm_share_lend, lent, ctypes.byref(number))
        return number.value

    def update(self, number: int) -> int:
        """Notifies the peer that a followed block has changed; returns its new epoch."""
        epoch = ctypes.c_uint64()
        of = _values.whole("number", number)
        self._call(_LIBRARY.vmm_share_update, of, ctypes.byref(epoch))
        return epoch.value

    def take_back(self, number: int) -> None:
        """Withdraws a block and waits until the peer has released it."""
        self._call(_LIBRARY.vmm_share_take_back, _values.whole("number", number))

    def next(self, timeout_ms: int = 1000) -> Event:
        """Waits for the peer's next event. Raises Unavailable at the timeout, or if the connection
        has ended."""
        event = _share.Event()
        waits = _values.whole("timeout_ms", timeout_ms, 0, (1 << 32) - 1)
        self._call(_LIBRARY.vmm_share_next, waits, ctypes.byref(event))
        reason = error_of(event.reason) if event.kind == What.REFUSED else None
        return Event(What(event.kind), event.id, event.epoch, reason)

    def borrow(
        self, driver: Driver, *, read_only: bool = False, any_device: bool = False
    ) -> Borrowed:
        """Imports, maps and accepts the oldest offered block; waits for an offer if there is none.
        `any_device`: the peer may number devices differently."""
        self._check_open()
        request = _share.Import(
            read_only=_values.flag("read_only", read_only),
            any_device=_values.flag("any_device", any_device),
        )
        return Borrowed._made(self, _values.one_of("driver", driver, Driver), ctypes.byref(request))


def connect(path: str | os.PathLike[str], secret: bytes, *, timeout_ms: int = 1000) -> Channel:
    """Connects to a Listener's path."""
    at = _values.path("path", path)
    with _options(secret, timeout_ms) as options:
        return Channel._made(_LIBRARY.vmm_share_connect, at, options)


def adopt(end: socket.socket, secret: bytes, *, accepts: bool, timeout_ms: int = 1000) -> Channel:
    """Makes a channel of one end of a connected AF_UNIX socket of SOCK_SEQPACKET, and takes the
    descriptor; after a failure it is the caller's, connected if no greeting was sent. One side
    accepts, the other does not. Raises InUse beyond 512 listeners and channels of the process."""
    with _options(secret, timeout_ms) as options:
        given = _values.one_of("end", end, socket.socket, "a socket.socket")
        accepting = _values.flag("accepts", accepts)
        return Channel._made(_adopt, given, accepting, options)


def _adopt(end: socket.socket, accepts: bool, options: Any, into: Any) -> int:
    """The library takes the descriptor in the operation that takes it from the socket."""
    call = map(_LIBRARY.vmm_share_adopt, (end.fileno(),), (accepts,), (options,), (into,))
    outcome, judged = itertools.tee(call)
    taken = itertools.compress((end,), map(operator.not_, judged))
    collections.deque(map(socket.SocketType.detach, taken), 0)  # no Python code, also socket.detach
    status: int = next(outcome)
    return status


class Listener(_Waiting):
    """A listening socket at a path, in a directory of this user of mode 0700. close() ends other
    threads' accept(), which raises Unavailable."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        at = _values.path("path", path)
        self._make(_LIBRARY.vmm_share_stop, _LIBRARY.vmm_share_listen, at)

    def accept(self, secret: bytes, *, timeout_ms: int = 1000) -> Channel:
        """Waits for a connection and for the peer's proof. Raises Unavailable at the timeout,
        NotPermitted for another user or secret."""
        self._check_open()
        with _options(secret, timeout_ms) as options:
            accept = functools.partial(self._life.call, _LIBRARY.vmm_share_accept)
            return Channel._made(accept, self._handle, options)
