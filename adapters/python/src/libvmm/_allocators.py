# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The common part of pools and managers, and the lives of their blocks."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _dlpack, _lifetime, _native
from ._drivers import Driver
from ._owner import HandleLife, Owner
from .errors import Error, InUse, check

_LIBRARY = _native.LIBRARY


class BlockLife(_lifetime.Life):
    __slots__ = ("at", "owner", "stream")
    hinders_parent = False
    # UNKNOWN_ADDRESS, NOT_ALLOCATED: a user of the C library's handle freed it. INVALID_HANDLE: its
    # owner was closed.
    ended_by = frozenset({0, 8, 9, 18})

    def __init__(self, name: str, owner: AllocatorLife, at: int, stream: int) -> None:
        super().__init__(name, owner)
        self.owner, self.at, self.stream = owner, ctypes.c_void_p(at), stream

    def adopt(self, address: int) -> None:
        """Takes an address. It is listed before the others are read: of two Blocks that take one
        address, one finds the other."""
        try:
            self.at.value = address
            self.owner.take_raw(address, self)
        except BaseException:
            self.at.value = None
            self.let_go()
            raise

    def end(self) -> None:
        if not self.at.value or self.owner.has_ended:
            self.outcome.append(0)  # nothing was allocated, or the owner took it along
            return
        self.owner.free_unnamed(self.at.value, self.stream, self.outcome)
        if not self.has_ended:
            check(self.outcome[-1])

    def free(self, stream: int) -> None:
        """Ends the block on a stream. Raises UnknownAddress if the library has no such block."""
        self.owner.free(self.at.value, stream, self.outcome)
        check(self.outcome[-1])


class AllocatorLife(HandleLife):
    """The life of a pool or manager. It refers to none of their Python objects, whose end the
    collector would prevent."""

    numbers = ""
    """The name of the struct of its statistics."""

    def __init__(self, kind: str, driver: Driver) -> None:
        super().__init__(kind.capitalize(), getattr(_LIBRARY, f"vmm_{kind}_destroy"), driver._life)
        self.raw: dict[int | None, None] = {}
        """Addresses that were allocated without a Block; others of that kind may be missing."""
        self._query = getattr(_LIBRARY, f"vmm_{kind}_get_statistics")

    def free(self, address: int | None, stream: int, outcome: list[int]) -> None:
        """Frees a block on a stream."""
        raise NotImplementedError

    def free_unnamed(self, address: int, stream: int, outcome: list[int]) -> None:
        """Frees a block whose stream may have been destroyed."""
        raise NotImplementedError

    def check_live(self, address: int) -> None:
        """Raises UnknownAddress if the library has no block there."""
        raise NotImplementedError

    def take_raw(self, address: int, taker: BlockLife | None = None) -> None:
        """Removes from `raw` an address that is to be freed, or to be the taker's. Raises InUse for
        that of another Block, and where an array shows it, UnknownAddress for one that is free.
        Cost: O(1), or O(Blocks) where it is not there."""
        if self.is_shown() and _dlpack.is_shown(address):
            raise InUse(f"an array shows the block at {address:#x}")
        if self.raw.pop(address, self) is not self:
            return
        try:
            self.check_live(address)
        except InUse:  # suspended, where nothing is allocated and blocks are only freed
            if taker is not None:
                raise
        for each in _lifetime.lives(BlockLife):
            if each.at.value == address and each.owner is self and each is not taker:
                raise InUse(f"a libvmm.Block has the address {address:#x}: call its free()")

    def statistics(self) -> Any:
        """The library's struct."""
        found = getattr(_native, self.numbers)()
        check(self._query(self.handle, ctypes.byref(found)))
        return found

    def stays(self) -> str:
        count = self.statistics().live_count if self.handle.value else 0
        return f"{count} blocks without a libvmm.Block are live; close() it" if count else ""


class Allocator(Owner):
    """The common part of pools and managers."""

    _life: AllocatorLife
    _held = ("", "")
    """Fields of the statistics that repr() shows: bytes of blocks, and of memory."""
    driver: Driver

    def __repr__(self) -> str:
        name = f"libvmm.{type(self).__name__}"
        if not self.is_open:
            return f"<{name}, closed>"
        try:
            numbers = self._life.statistics() if self._life.is_here() else None
        except Error:
            numbers = None
        if numbers is None:
            return f"<{name} of {self.driver!r}>"
        blocks, memory = (getattr(numbers, each) for each in self._held)
        return (
            f"<{name} of {self.driver!r}: {numbers.live_count} blocks of {blocks} bytes live, "
            f"{memory} bytes {self._held[1].split('_', 1)[0]}>"
        )
