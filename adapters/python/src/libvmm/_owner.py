# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The base of objects with a handle of the C library: the handle, close(), the with statement, and
the end of dropped objects."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any, TypeVar

from . import _lifetime, _native
from .errors import InvalidHandle, check

Made = TypeVar("Made", bound="Owner")


class HandleLife(_lifetime.Life):
    """A life that ends by one call of the C library on the handle. An object whose creation failed
    has none."""

    __slots__ = ("destroy", "handle")

    def __init__(self, name: str, destroy: Any, parent: _lifetime.Life | None = None) -> None:
        super().__init__(name, parent)
        self.handle, self.destroy = ctypes.c_void_p(), destroy

    def end(self) -> None:
        if self.handle.value:
            self._destroy()
            check(self.outcome[-1])
        else:
            self.outcome.append(0)

    def _destroy(self) -> None:
        _native.record(self.outcome, self.destroy, self.handle)


class Owner(_lifetime.Held):
    """An object of the C library, with a call that creates its handle and one that ends it."""

    _life: HandleLife

    def _create(self, life: HandleLife, create: Any, *arguments: Any) -> None:
        _lifetime.hold(self, life)
        try:
            check(create(*arguments, ctypes.byref(life.handle)))
        except BaseException:
            life.let_go()
            raise

    @property
    def _handle(self) -> ctypes.c_void_p:
        # The library refuses one that was destroyed.
        return self._life.handle

    @property
    def handle(self) -> ctypes.c_void_p:
        """The C library's handle; null after close()."""
        self._check_initialised()
        return self._life.handle if self.is_open else ctypes.c_void_p()

    @property
    def is_open(self) -> bool:
        """Whether close() has not been called."""
        return hasattr(self, "_life") and not self._life.has_ended

    def _check_open(self) -> None:
        if self._life.has_ended:
            raise InvalidHandle(f"the {type(self).__name__} was closed")

    def close(self) -> None:
        """Closes the object; a second call has no effect. Raises InUse while it is used."""
        _lifetime.close(self._life)

    def __enter__(self: Made) -> Made:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _lifetime.leave(self.close, kind)
