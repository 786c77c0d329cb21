# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of the C library's objects: each ends once, not while an array shows its memory, and at
the latest after the last Python object that uses it.

This module takes no lock. The garbage collector, a signal handler and a consumer's deleter can run
inside any Python code, and would wait for a lock that their own thread holds; a forked child would
wait for a thread that it does not have. Each step is one operation on one dict or list, which is
atomic with and without the interpreter's lock, and keys are objects whose hash and comparison run
no Python code.

I1  Whether a call of the C library was made is read from the library's own output: an address, a
    handle, or the status in `outcome` (_native.record). An exception of a signal handler may
    therefore interrupt any step.
I2  The steps after a call can be repeated. After such an exception they are repeated in the same
    function, or by check() for dropped objects (_Guard).
I3  Steps that an error of a call must not omit are in a finally clause, whose first statement is a
    try: before 3.11 the interpreter may run a handler before the first instruction of an except or
    finally clause, but for that of a try."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from . import _native, _objects
from .errors import Error, InUse, UnknownAddress, late

Answer = TypeVar("Answer")
Kind = TypeVar("Kind", bound="Life")

_CALL = "call"
_OBJECT = "object"  # the Python object itself as a keeper
_TRIES = 16
WAIT_TRIES, WAIT_PAUSE_S = 10_000, 0.0001
"""Of a wait for another thread's call."""
_left: list[Life] = _native.once("left open", [])  # objects that stay open until the process ends


def waits_for(is_over: Callable[[], bool]) -> bool:
    """False where it takes too long."""
    for _ in range(WAIT_TRIES):
        if is_over():
            return True
        time.sleep(WAIT_PAUSE_S)
    return False


def or_undo(make: Callable[[], Answer], undo: Callable[[], None]) -> Answer:
    """Returns make(). Unless it returned, undo(), which can be repeated, has run. What is made owns
    what it is made of: an exception may still drop it here."""
    made: list[Answer] = []
    try:
        made.append(make())
        return made[0]
    finally:
        try:
            if not made:
                undo()
        except BaseException:  # of a handler
            if not made:
                undo()
            raise


class _Process:
    """Facts of this process that finalizers read."""

    forks = 0
    is_ending = False


class _Thread(threading.local):
    callbacks = 0
    """The number of callbacks of the C library that this thread is inside of."""


process: _Process = _native.once("process", _Process())
thread: _Thread = _native.once("thread", _Thread())


def call_back(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a user's function inside of a callback of the C library."""
    inside = thread.callbacks
    try:
        thread.callbacks = inside + 1
        function(*arguments)
    finally:
        try:
            thread.callbacks = inside
        except BaseException:  # of a handler
            thread.callbacks = inside
            raise


def _after_fork() -> None:
    process.forks += 1
    late.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    process.is_ending = True


class Life:
    """The life of one object of the C library. Arrays prevent its end; keepers (the Python object,
    and objects made of it) prevent its automatic end."""

    __slots__ = (
        "_arrays",
        "_bars",
        "_calls",
        "_forks",
        "_is_left",
        "_keepers",
        "_parent",
        "_tries",
        "key",
        "name",
        "outcome",
    )
    ends_at_exit = False
    warning: type[Warning] = ResourceWarning
    """Of an object that is dropped and stays open."""
    hinders_parent = True
    """Whether close() of the parent refuses while this lives."""
    ended_by: frozenset[int] = frozenset({0, 18})
    """Statuses of the ending call after which the object has ended; VMM_ERROR_INVALID_HANDLE is
    that of a handle destroyed before."""

    def __init__(self, name: str, parent: Life | None = None) -> None:
        self.name = name
        self.outcome: list[int] = []
        """Statuses of the calls that end it, by _native.record()."""
        self._arrays: dict[Any, None] = {}
        self._bars: dict[Any, str] = {}
        self._calls: dict[str, list[int]] = {}
        """The call that is alone: a list of its thread."""
        self._keepers: dict[Any, str] = {_OBJECT: ""}
        self._parent, self._forks, self._tries = parent, process.forks, 0
        self._is_left = False
        self.key = object()
        """Represents it among an owner's keepers, which so keep no object of it alive."""

    def begin(self) -> None:
        """Keeps the parent."""
        if self._parent is not None:
            self._parent.keep(self.key, self.name if self.hinders_parent else "")

    @property
    def has_ended(self) -> bool:
        """Whether the C object has ended, or is left open until the process ends."""
        outcome = self.outcome
        return self._is_left or (len(outcome) > 0 and outcome[-1] in self.ended_by)

    def end(self) -> None:
        """Ends the C object, by a call that is recorded in `outcome`. Raises Error if the library
        refuses."""
        raise NotImplementedError

    def stays(self) -> str:
        """Why the object must not end automatically; "" if it may."""
        return ""

    def is_here(self) -> bool:
        """Whether this process, and not a parent of it, made the object."""
        return self._forks == process.forks

    # ---- arrays ----
    # An array is counted before it checks for calls that remove memory; such a call is listed
    # before it counts arrays. Both read copies made atomically: one of the two finds the other.

    def show(self, array: Any) -> None:
        """Counts an array. Raises BufferError if none can be made. Waits for another thread's call,
        which may be refused."""
        self._arrays[array] = None
        while calls := list(self._calls.values()):
            self.hide(array)
            if not self._waits_for(calls[0]):
                break
            self._arrays[array] = None
        else:
            if not (self.has_ended or self._bars.copy()):
                return
        self.hide(array)
        raise BufferError(
            " ".join(dict.fromkeys(self._bars.copy().values()))
            or f"the {self.name} was freed or closed, or another call frees or moves it"
        )

    def check_mapped(self, address: int) -> None:
        """Raises BufferError if no array can be made of memory of a counted one, which is not there
        at the moment."""

    def hide(self, array: Any) -> None:
        """Removes an array."""
        self._arrays.pop(array, None)

    def is_shown(self) -> bool:
        """Whether arrays may exist; False is certain."""
        return len(self._arrays) > 0

    def arrays(self) -> int:
        """The number of arrays that show the memory."""
        return len(self._arrays.copy())

    def check_hidden(self) -> None:
        """Raises InUse if arrays show the memory."""
        count = self.arrays()
        if count:
            raise InUse(
                f"{count} {'array shows' if count == 1 else 'arrays show'} memory of the "
                f"{self.name}: drop what numpy, torch and others made of it first"
            )

    def forbid(self, key: Any, why: str) -> None:
        """No array can be made from now on, until allow() with the same key."""
        self._bars[key] = why

    def allow(self, key: Any) -> bool:
        """Ends one forbid(). Returns whether there was one."""
        return self._bars.pop(key, None) is not None

    # ---- one call alone ----

    def alone(
        self,
        call: Callable[..., Answer],
        *arguments: Any,
        ends: bool = False,
        waits: bool = False,
    ) -> Answer:
        """Calls while no array shows the memory and none can be made. Of several concurrent calls
        one is made, and the others raise, or wait for it, which may be refused, before they try."""
        self.check_hidden()
        mine = [threading.get_ident()]
        try:
            while (first := self._calls.setdefault(_CALL, mine)) is not mine:
                if self.has_ended or not waits or not self._waits_for(first):
                    break
            is_first = first is mine
            if self.has_ended or (ends and not is_first):
                raise UnknownAddress(f"the {self.name} was freed before, or another call frees it")
            if not is_first:
                raise InUse(f"another call frees or moves the {self.name}")
            self.check_hidden()
            return call(*arguments)
        finally:
            try:
                self._after(mine)
            except BaseException:  # of a handler
                self._after(mine)
                raise

    def _waits_for(self, call: list[int]) -> bool:
        """Waits for the end of another thread's call."""
        is_elsewhere = call[0] != threading.get_ident() and self.is_here()
        return is_elsewhere and waits_for(lambda: self._calls.get(_CALL) is not call)

    def _after(self, mine: object) -> None:
        if self._calls.get(_CALL) is mine:
            self._calls.pop(_CALL, None)
        if self.has_ended:
            self._gone()

    # ---- keepers ----

    def keep(self, keeper: Any, name: str = "") -> None:
        """Prevents the automatic end until let_go()."""
        self._keepers[keeper] = name

    def let_go(self, keeper: Any = _OBJECT) -> None:
        """Ends the object after its last keeper. For finalizers: raises no Error."""
        self._keepers.pop(keeper, None)
        if not self._keepers and not self.settle():
            late.append(self)

    def users(self) -> str:
        """The keepers beside the object itself, in words."""
        names = Counter(name for name in self._keepers.copy().values() if name)
        return ", ".join(f"{count} libvmm.{name}" for name, count in sorted(names.items()))

    def settle(self) -> bool:
        """Ends an object without keepers, on any thread; False if it must be tried again. A child
        leaves its parent's objects alone, an ending process those that end with it."""
        if self.has_ended:
            if not self._is_left:
                self._gone()
            return True
        if self._keepers or not self.is_here() or (process.is_ending and not self.ends_at_exit):
            return True
        if thread.callbacks:  # inside a lock of the C library
            return False
        try:
            why = self.stays()
            if not why:
                self.alone(self.end, ends=True)
                return True
        except Error as refused:
            self._tries += 1
            if self._tries < _TRIES:
                return False
            why = str(refused)
        self._leave(why)
        return True

    def _leave(self, why: str) -> None:
        self._is_left = True
        _left.append(self)
        warnings.warn(
            f"a libvmm.{self.name} was dropped and stays open until the process ends: {why}",
            self.warning,
            stacklevel=2,
        )

    def _gone(self) -> None:
        """The steps after the end; can be repeated."""
        parent = self._parent
        if parent is not None:
            parent.let_go(self.key)
            self._parent = None


class _Guard(weakref.ref[Any]):
    """Guards an object with a life. If an exception leaves its __del__, the guard is appended to
    `late`, by a callback without Python code, and check() completes the end."""

    __slots__ = ("life",)
    life: Life

    def settle(self) -> bool:
        drop(self.life)
        return True


_guards: dict[object, _Guard] = _native.once("guards", {})


def hold(holder: Any, life: Life) -> None:
    """Begins a life that ends with its holder, whose __del__ calls drop()."""
    holder._life = life
    guard = _Guard(holder, late.append)
    guard.life = life
    _guards[life.key] = guard
    life.begin()


def left(kind: type[Kind]) -> list[Kind]:
    """Lives of dropped objects that stay open."""
    return [each for each in list(_left) if isinstance(each, kind) and each.is_here()]


def revive(holder: Any, life: Life) -> bool:
    """Gives a life of left() to another holder; False if it has one."""
    mine: Any = []
    is_left = is_done = False

    def undo() -> None:
        if not is_done and life._keepers.get(_OBJECT) is mine:
            if is_left:
                life._is_left = True
            if is_left and life not in _left:
                _left.append(life)
            life._keepers.pop(_OBJECT, None)

    try:
        if life._keepers.setdefault(_OBJECT, mine) is mine:
            is_left = life in _left  # another thread may have revived and ended it
        if is_left:
            life._is_left, life._tries = False, 0
            hold(holder, life)
            _left.remove(life)
            is_done = True
        return is_done
    finally:
        try:
            undo()
        except BaseException:  # of a handler
            undo()
            raise


def drop(life: Life, _guards: dict[object, _Guard] = _guards, _process: _Process = process) -> None:
    """Ends the life of a holder. An ending process sets the names of modules to None last."""
    if _process.is_ending and (not life.ends_at_exit or late is None):
        return
    life.let_go()
    _guards.pop(life.key, None)


def lives(kind: type[Kind]) -> list[Kind]:
    """The lives of a kind that have not ended, including those that wait for their end."""
    held = [each.life for each in list(_guards.values())]
    waiting = [getattr(each, "life", each) for each in late.copy()]
    return [each for each in held + waiting if isinstance(each, kind) and not each.has_ended]


class Held(_objects.OneOwner):
    """A Python object with a life that ends with it at the latest."""

    _life: Life

    def __del__(self, _drop: Callable[[Life], None] = drop) -> None:
        if hasattr(self, "_life"):
            _drop(self._life)


def close(life: Life, end: Callable[[], None] | None = None) -> None:
    """An explicit close(), by `end` instead of life.end(); no effect on a closed object. Raises
    InUse with the users, and changes nothing."""
    if life.has_ended:
        return
    try:
        life.alone(end or life.end, ends=True, waits=True)
    except UnknownAddress:  # another thread closes it
        return
    except InUse as refused:
        users = life.users()
        if users and not life.arrays():
            refused.args = (f"{refused}; used by {users}",)
        raise


def leave(end: Callable[[], None], failed: type[BaseException] | None) -> None:
    """The end of a with. If its body failed, the traceback may still hold an array: the exception
    propagates, and the object ends when it is dropped."""
    try:
        end()
    except InUse:
        if failed is None:
            raise
