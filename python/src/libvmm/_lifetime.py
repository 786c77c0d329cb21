# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""When objects of the C library end: not under an array that shows their memory, once, and by
themselves after the last Python object that uses them.

There is no lock in here. The garbage collector, a handler of a signal and a consumer's deleter run
in the middle of any Python code, and would wait for a lock that their own thread holds; a forked
child would wait for a thread that it does not have. Each step is one operation on one dict or
deque, which is atomic with and without the interpreter's lock, and keys are objects whose hash and
comparison run no Python code."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import Error, InUse, UnknownAddress, late

Answer = TypeVar("Answer")

_OPEN = "open"  # a key of a state; the others are arrays
_OBJECT = "object"  # the keeper that is the Python object itself
_TRIES = 16
_left: list[Life] = []  # what stays open until the process ends


class _Process:
    """Facts of this process that finalizers look at."""

    forks = 0
    is_ending = False


class _Thread(threading.local):
    callbacks = 0
    """How many callbacks of the C library this thread is inside of."""


process, thread = _Process(), _Thread()


def _after_fork() -> None:
    process.forks += 1
    late.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    process.is_ending = True


def is_of_this_process(forks: int) -> bool:
    """Whether what was made after so many forks is this process's own, not its parent's."""
    return forks == process.forks


class Life:
    """The life of one object of the C library. Arrays hold it against every end; keepers (the
    Python object, and objects made of it) against its end by itself."""

    __slots__ = (
        "_bars",
        "_forks",
        "_keepers",
        "_parent",
        "_state",
        "_tries",
        "has_ended",
        "key",
        "name",
    )
    ends_at_exit = False
    hinders_parent = True
    """Whether close() of the parent refuses while this lives."""

    def __init__(self, name: str, parent: Life | None = None) -> None:
        self.name = name
        self.has_ended = False
        self._state: dict[Any, str] = {_OPEN: ""}
        self._bars: dict[Any, str] = {}
        self._keepers: dict[Any, str] = {_OBJECT: ""}
        self._parent, self._forks, self._tries = parent, process.forks, 0
        self.key = object()
        """What stands for it among an owner's keepers, which so keep nothing of it alive."""
        if parent is not None:
            parent.keep(self.key, name if self.hinders_parent else "")

    def end(self) -> None:
        """Ends the C object. Raises Error where it refuses."""
        raise NotImplementedError

    def stays(self) -> str:
        """Why the object is not to end by itself; "" where it is."""
        return ""

    def is_here(self) -> bool:
        """Whether it is this process's own, and not of a parent, whose locks a child must not
        wait for."""
        return is_of_this_process(self._forks)

    # ---- arrays ----
    # An array is counted before it looks whether it may be; a call that takes memory away says so
    # before it counts. Each looks at a copy, which is made whole: one of the two sees the other.

    def show(self, array: Any) -> None:
        """Counts an array. Raises BufferError where none can be made."""
        self._state[array] = ""
        if _OPEN in self._state.copy() and not self._bars.copy():
            return
        self.hide(array)
        raise BufferError(
            " ".join(self._bars.copy().values())
            or f"the {self.name} was freed or closed, or another call frees or moves it"
        )

    def hide(self, array: Any) -> None:
        """The array has gone."""
        self._state.pop(array, None)

    def is_shown(self) -> bool:
        """Whether there may be arrays; False is certain."""
        return len(self._state) > 1

    def arrays(self) -> int:
        """How many arrays show the memory."""
        seen = self._state.copy()
        return len(seen) - (_OPEN in seen)

    def check_hidden(self) -> None:
        """Raises InUse where arrays show the memory."""
        count = self.arrays()
        if count:
            raise InUse(
                f"{count} {'array shows' if count == 1 else 'arrays show'} memory of the "
                f"{self.name}: drop what numpy, torch and others made of it first"
            )

    def forbid(self, key: Any, why: str) -> None:
        """No array can be made from now on, until allow() with the same key."""
        self._bars[key] = why

    def allow(self, key: Any) -> None:
        """Ends one forbid()."""
        self._bars.pop(key, None)

    # ---- one call alone ----

    def alone(self, call: Callable[..., Answer], *arguments: Any, ends: bool = False) -> Answer:
        """Calls while no array shows the memory and none can be made. Of several such calls at a
        time one is made, and the others raise."""
        self.check_hidden()
        state = self._state
        if state.pop(_OPEN, None) is None:
            if ends or self.has_ended:
                raise UnknownAddress(f"the {self.name} was freed before, or another call frees it")
            raise InUse(f"another call frees or moves the {self.name}")
        try:
            self.check_hidden()
            answer = call(*arguments)
        except Error:
            state[_OPEN] = ""  # everything is as it was
            raise
        except BaseException:
            # Of a signal's handler: whether the call was made is not known. Memory that may have
            # been given back, or moved, is not touched again.
            if not ends:
                self.forbid(_OPEN, f"a call that moves the {self.name} was interrupted")
                state[_OPEN] = ""
            raise
        if ends:
            self._gone()
        else:
            state[_OPEN] = ""
        return answer

    # ---- keepers ----

    def keep(self, keeper: Any, name: str = "") -> None:
        """The object does not end by itself before let_go()."""
        self._keepers[keeper] = name

    def let_go(self, keeper: Any = _OBJECT) -> None:
        """Ends the object behind its last keeper. For finalizers: it raises nothing."""
        self._keepers.pop(keeper, None)
        if not self._keepers:
            self.end_by_itself()

    def users(self) -> str:
        """The keepers beside the object itself, in words."""
        names = Counter(name for name in self._keepers.copy().values() if name)
        return ", ".join(f"{count} libvmm.{name}" for name, count in sorted(names.items()))

    def end_by_itself(self) -> None:
        """In whatever thread dropped the last keeper. A child leaves alone what its parent has, a
        process that ends what ends with it."""
        if not self.is_here() or self._state.pop(_OPEN, None) is None:
            return
        if process.is_ending and not self.ends_at_exit:
            return
        if thread.callbacks:  # inside a lock of the C library
            self._later()
            return
        try:
            why = self.stays()
            if not why:
                self.end()
        except Error as refused:
            self._tries += 1
            if self._tries < _TRIES:
                self._later()
                return
            why = str(refused)
        if why:
            self.has_ended = True
            _left.append(self)
            warnings.warn(
                f"a libvmm.{self.name} was dropped and stays open until the process ends: {why}",
                ResourceWarning,
                stacklevel=2,
            )
            return
        self._gone()

    def _later(self) -> None:
        self._state[_OPEN] = ""
        late.append(self)

    def _gone(self) -> None:
        self.has_ended = True
        parent, self._parent = self._parent, None
        if parent is not None:
            parent.let_go(self.key)


def close(life: Life) -> bool:
    """What an explicit close() does; False where the object is closed. Raises InUse with what uses
    it, and then it is as it was."""
    if life.has_ended:
        return False
    try:
        life.alone(life.end, ends=True)
    except UnknownAddress:  # another thread closes it
        return False
    except InUse as refused:
        users = life.users()
        if users and not life.arrays():
            refused.args = (f"{refused}; used by {users}",)
        raise
    return True


def leave(end: Callable[[], None], failed: type[BaseException] | None) -> None:
    """The end of a with. Where its body failed, an array may still be held by the traceback: the
    exception goes on, and the object ends when it is dropped."""
    try:
        end()
    except InUse:
        if failed is None:
            raise
