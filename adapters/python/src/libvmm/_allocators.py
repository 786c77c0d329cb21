# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The common part of pools and managers, and the lives of their blocks."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from . import _dlpack, _lifetime, _native
from ._drivers import Driver
from ._owner import HandleLife, Owner
from .errors import Error, InUse, UnknownAddress, check

_LIBRARY = _native.LIBRARY


def _shown(address: int) -> InUse:
    return InUse(f"an array shows the block at {address:#x}")


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
        """Takes an address."""
        is_taken = False
        try:
            self.at.value = address
            self.owner.take_raw(address, self)
            is_taken = True
        finally:
            try:
                self._let_go_unless(is_taken)
            except BaseException:  # of a handler
                self._let_go_unless(is_taken)
                raise

    def _let_go_unless(self, is_taken: bool) -> None:
        if not is_taken:
            self.at.value = None
            self.let_go()

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
        self._coming: dict[object, ctypes.c_void_p] = {}
        """Where the library writes the addresses of allocations that are being made."""
        self._freeing: dict[object, int] = {}
        """Addresses that were in `raw`, until the library has freed them."""
        self._claims: dict[int | None, list[int]] = {}
        """By an address that was not there the claim of the call that frees or adopts it: its
        thread, and a 0 for each allocation that got the address meanwhile."""
        self._query = getattr(_LIBRARY, f"vmm_{kind}_get_statistics")
        self.regions: dict[Any, None] = {}
        """What it is to Suspenders."""
        self.was_region = False
        """Whether memory that the host reads may be suspended, also by a closed Suspender."""

    def free(self, address: int | None, stream: int, outcome: list[int]) -> None:
        """Frees a block on a stream."""
        raise NotImplementedError

    def free_unnamed(self, address: int, stream: int, outcome: list[int]) -> None:
        """Frees a block whose stream may have been destroyed."""
        raise NotImplementedError

    def check_live(self, address: int) -> None:
        """Raises UnknownAddress if the library has no block there."""
        raise NotImplementedError

    def allocate(self, into: ctypes.c_void_p, is_raw: bool, call: Any, *arguments: Any) -> None:
        """Allocates by a function of the library, which writes the address to `into`."""
        key = object()
        try:
            self._coming[key] = into
            check(call(self.handle, *arguments, ctypes.byref(into)))
            claim = self._claims.get(into.value)
            if claim is not None:
                claim.append(0)
            if is_raw:
                self.raw[into.value or 0] = None
            else:
                self.raw.pop(into.value, None)  # a user of the handle has freed that one
        finally:
            try:
                self._coming.pop(key, None)
            except BaseException:  # of a handler
                self._coming.pop(key, None)
                raise

    def check_mapped(self, address: int) -> None:
        if not self.was_region:
            return
        regions = list(self.regions)
        if any(each.is_suspending() for each in regions):
            raise BufferError(
                f"memory of the {self.name} is being suspended, or offered: resume() ends an offer"
            )
        try:
            self.check_live(address)
        except Error as refused:
            tags = ", ".join(sorted({repr(each.tag) for each in regions}))
            raise BufferError(f"{refused}{tags and f' (tags: {tags})'}") from refused

    # ---- addresses without a Block ----
    # What was in `raw` is freed or adopted once. Any other address may be that of a user of the
    # handle, or one that was freed before and is another's by now. Before such a call frees or
    # adopts it, it waits for the frees that were begun, and looks at the Blocks; an allocation that
    # gets the address later lists itself in `_coming` or in the claim.

    def free_raw(self, address: int, free: Any, *arguments: Any) -> None:
        """Frees an address without a Block, by a function of the library. Raises InUse for that of
        a Block, and where an array shows it, UnknownAddress for one that is free. Cost: O(1), or
        O(Blocks) and the end of other threads' allocations for one that is not in `raw`."""
        if self._arrays and _dlpack.is_shown(address):
            raise _shown(address)
        key = object()
        try:
            self._freeing[key] = address
            is_listed = self.raw.pop(address, self) is not self
            if is_listed:
                check(free(self.handle, address, *arguments))
        finally:
            try:
                self._freeing.pop(key, None)
            except BaseException:  # of a handler
                self._freeing.pop(key, None)
                raise
        if not is_listed:
            self._alone_at(address, None, free, *arguments)

    def take_raw(self, address: int, taker: BlockLife) -> None:
        """Makes an address a Block's, which has it already. Raises as free_raw()."""
        if self._arrays and _dlpack.is_shown(address):
            raise _shown(address)
        if self.raw.pop(address, self) is self:
            self._alone_at(address, taker)

    def _alone_at(
        self, address: int, taker: BlockLife | None, free: Any = None, *arguments: Any
    ) -> None:
        """One thread after the other for one address. A signal's handler inside of one goes on
        under the claim of its thread."""
        mine = [threading.get_ident()]
        try:
            self._look(address, self._claim(address, mine), taker)
            if free is not None:
                check(free(self.handle, address, *arguments))
        finally:
            try:
                self._end_claim(address, mine)
            except BaseException:  # of a handler
                self._end_claim(address, mine)
                raise

    def _claim(self, address: int, mine: list[int]) -> list[int]:
        def has_claim() -> bool:
            return self._claims.setdefault(address, mine)[0] == mine[0] or not self.is_here()

        if not _lifetime.waits_for(has_claim):
            raise InUse(
                f"another thread's call has been freeing or adopting the block at {address:#x} for "
                f"{_lifetime.WAIT_TRIES * _lifetime.WAIT_PAUSE_S:g} s: call again after it"
            )
        return self._claims.get(address, mine)

    def _end_claim(self, address: int, mine: list[int]) -> None:
        if self._claims.get(address) is mine:
            del self._claims[address]

    def _look(self, address: int, claim: list[int], taker: BlockLife | None) -> None:
        is_anothers = address in self.raw
        freeing = [key for key, each in self._freeing.copy().items() if each == address]
        _lifetime.waits_for(lambda: not any(key in self._freeing for key in freeing))
        for each in _lifetime.lives(BlockLife):
            if each.at.value == address and each.owner is self and each is not taker:
                raise InUse(f"a libvmm.Block has the address {address:#x}: call its free()")
        try:
            self.check_live(address)
        except InUse:  # suspended, where nothing is allocated and blocks are only freed
            if taker is not None:
                raise
        coming = self._coming.copy()
        _lifetime.waits_for(
            lambda: all(at.value or key not in self._coming for key, at in coming.items())
        )
        if is_anothers or len(claim) > 1 or address in [at.value for at in coming.values()]:
            raise UnknownAddress(f"the block at {address:#x} was freed before")

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
