# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The bases of the package's classes: an object is initialised, once, and not copied."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .errors import Unmade

Made = TypeVar("Made", bound="MadeByCalls")
_BEGUN = "_begun"  # the thread inside __init__


def once(mark: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For an __init__ that refuses an object which has the attribute `mark`: a second call would
    drop the memory of the first."""

    def refusing(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def first(self: Any, *arguments: Any, **named: Any) -> None:
            own, mine = vars(self), (threading.get_ident(),)
            try:
                # An __init__ calls its base's, on the same thread.
                if own.setdefault(_BEGUN, mine) != mine or mark in own:
                    raise TypeError(
                        f"this libvmm.{type(self).__name__} has been initialised and is as before: "
                        "make another object instead of a second call of __init__()"
                    )
                init(self, *arguments, **named)
            finally:
                if own.get(_BEGUN) is mine:
                    del own[_BEGUN]

        return first

    return refusing


class MadeByCalls:
    """A class whose objects other calls make."""

    _makers = ""
    _begin: Callable[..., None]

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        raise TypeError(f"a libvmm.{type(self).__name__} is made by {self._makers}")

    @classmethod
    def _made(cls: type[Made], *given: Any) -> Made:
        made = cls.__new__(cls)
        made._begin(*given)
        return made


class Initialised:
    """A class whose objects refuse their use without a call of __init__."""

    _mark = "_life"
    """The attribute that an initialised object has."""

    def _check_initialised(self) -> None:
        if self._mark not in vars(self):
            raise Unmade(
                f"the {type(self).__name__} was not initialised: call super().__init__() in its "
                "__init__()"
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            self._check_initialised()
            return object.__getattribute__(self, name)  # raises, with the text of a property


class OneOwner(Initialised):
    """A class that is neither copied nor pickled: the copy would end the same object, and another
    process does not have it. Nor is an object initialised twice."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "__init__" in vars(cls):
            cls.__init__ = once(cls._mark)(cls.__init__)  # type: ignore[method-assign]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"a libvmm.{name} is not copied or pickled: it owns what it names. Pass "
            f"the object itself; libvmm.share lends memory to other processes"
        )
