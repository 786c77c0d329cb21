# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of callers' values: ctypes truncates numbers and ends texts at a 0. A value of another
type raises TypeError with the expected and the given type, one out of range InvalidArgument."""

from __future__ import annotations

import ctypes
import enum
import importlib
import numbers
import operator
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

Made = TypeVar("Made")
Members = TypeVar("Members", bound=enum.IntEnum)

_U64_MAX = (1 << 64) - 1
_I32_MAX = (1 << 31) - 1


def import_library(adapter: str, module: str, shown: str) -> Any:
    """The library that a module of this package needs. Raises ImportError, with the reason."""
    try:
        return importlib.import_module(module)
    except ImportError as why:
        needs = f"libvmm.{adapter} needs {shown}"
        if isinstance(why, ModuleNotFoundError) and module.startswith(str(why.name)):
            raise ImportError(f"{needs}, which is not installed") from why
        raise ImportError(f"{needs}, which cannot be imported: {why}") from why


def refuse(name: str, wanted: str, given: object) -> TypeError:
    """The error for a value of a wrong type."""
    shown = repr(given)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return TypeError(f"{name}: {wanted} is wanted, and {shown} ({type(given).__name__}) was given")


def _out_of_range(name: str, wanted: str, given: object) -> Exception:
    from .errors import InvalidArgument

    return InvalidArgument(f"{name}: {wanted} is wanted, and {given} was given")


def _index(name: str, given: Any, wanted: str) -> int:
    if isinstance(given, bool):
        raise refuse(name, wanted, given)
    try:
        return operator.index(given)
    except TypeError:
        raise refuse(name, wanted, given) from None


def whole(name: str, given: Any, low: int = 0, high: int = _U64_MAX, wanted: str = "an int") -> int:
    """An int, or an exact equivalent, such as numpy's integers; not a bool."""
    number = _index(name, given, wanted)
    if not low <= number <= high:
        raise _out_of_range(name, f"an int from {low} to {high}", number)
    return number


#: Bytes, or a number with a unit as the environment's variables take it: "512MiB", "1.5 gib".
Size = Union[int, str]


def size(name: str, given: Any, high: int = _U64_MAX) -> int:
    """Bytes, of a Size."""
    if isinstance(given, str):
        from . import _native

        found, said = _native.U64(), text(name, given)
        if _native.LIBRARY.vmm_parse_bytes(said, ctypes.byref(found)) != 0:
            shown = repr(given) if len(given) <= 60 else repr(given[:57]) + "..."
            raise _out_of_range(name, "a size such as 4096, '512MiB' or '1.5GiB'", shown)
        given = found.value
    return whole(name, given, 0, high, "an int of bytes, or a text such as '512MiB',")


#: The largest address.
ADDRESS_MAX = _U64_MAX


def address(name: str, given: Any) -> int:
    return whole(name, given, wanted="an address as an int")


#: cudaStreamPerThread, which pools refuse: one number for a stream of each thread. The default
#: stream orders its work, so memory of that one serves it, and is free again after all work.
PER_THREAD = 2


def stream(given: Any, name: str = "stream") -> int:
    return whole(name, given, wanted="a stream's number as an int, such as stream.cuda_stream,")


def device(given: Any, name: str = "device", low: int = -1) -> int:
    return whole(name, given, low, _I32_MAX, "a device's number as an int")


def number(name: str, given: Any, low: float, high: float) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise refuse(name, "a number", given)
    if not low <= given <= high:
        raise _out_of_range(name, f"a number from {low} to {high}", given)
    return float(given)


def flag(name: str, given: Any) -> bool:
    """A bool, also numpy's, or the ints 0 and 1."""
    if isinstance(given, bool):
        return given
    if type(given).__name__ in ("bool_", "bool"):
        return bool(given)
    if _index(name, given, "a bool") not in (0, 1):
        raise _out_of_range(name, "a bool", given)
    return bool(given)


def text(name: str, given: Any) -> bytes:
    if not isinstance(given, str):
        raise refuse(name, "a str", given)
    if "\0" in given:
        raise _out_of_range(name, "a text without a character 0", repr(given))
    try:
        return given.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _out_of_range(name, "a text without lone surrogates", repr(given)) from None


def path(name: str, given: Any) -> bytes:
    try:
        found = os.fsencode(given)
    except TypeError:
        raise refuse(name, "a path as a str, bytes or os.PathLike", given) from None
    except UnicodeEncodeError:
        wanted = f"a path in the file system's encoding, {sys.getfilesystemencoding()},"
        raise _out_of_range(name, wanted, repr(given)) from None
    if not found or b"\0" in found:
        raise _out_of_range(name, "a path, not empty and without a character 0,", repr(given))
    return found


def buffer(count: int) -> bytearray:
    """Bytes of this process, to read into."""
    try:
        return bytearray(count)
    except (OverflowError, MemoryError) as trouble:
        from .errors import OutOfMemory

        raise OutOfMemory(f"the host has no {count} bytes to read into") from trouble


def choice(name: str, given: Any, names: Sequence[str]) -> int:
    """The index of a str in the list of valid ones."""
    text(name, given)
    if given not in names:
        raise _out_of_range(name, f"one of {', '.join(names)}", repr(given))
    return names.index(given)


def data(name: str, given: Any) -> bytes:
    if isinstance(given, bytes):
        return given
    try:
        return memoryview(given).tobytes()
    except TypeError:
        raise refuse(name, "bytes, or what shows its bytes", given) from None


def member(name: str, given: Any, members: type[Members]) -> Members:
    """A member of the enum, or its number; members of other enums are refused."""
    wanted = f"one of libvmm.{members.__name__} ({', '.join(members.__members__)})"
    if isinstance(given, enum.Enum) and not isinstance(given, members):
        raise refuse(name, wanted, given)
    value = _index(name, given, wanted)
    try:
        return members(value)
    except ValueError:
        raise _out_of_range(name, wanted, value) from None


def flags(name: str, given: Any, members: type[enum.IntFlag]) -> int:
    """Flags of one class, or their number."""
    wanted = f"flags of libvmm.share.{members.__name__} ({', '.join(members.__members__)})"
    if isinstance(given, enum.Enum) and not isinstance(given, members):
        raise refuse(name, wanted, given)
    value, known = _index(name, given, wanted), 0
    for each in members.__members__.values():
        known |= int(each)
    if value & ~known:
        raise _out_of_range(name, wanted, value)
    return value


def one_of(
    name: str, given: Any, made: type[Made] | tuple[type[Made], ...], wanted: str = ""
) -> Made:
    """An object of a class."""
    if not isinstance(given, made):
        first = made if isinstance(made, type) else made[0]
        raise refuse(name, wanted or f"a libvmm.{first.__name__}", given)
    check = getattr(type(given), "_check_initialised", None)
    if check is not None:
        check(given)
    made_object: Made = given
    return made_object


#: Drivers whose memory a library for CUDA can use.
cuda_drivers: tuple[str, ...] = ("cuda",)


def has_gpu() -> bool:
    """Whether CUDA has a device here. Without one no library runs kernels."""
    from ._drivers import drivers

    return any(each.name == "cuda" and each.available for each in drivers())


def check_cuda(pool: Any, library: str) -> None:
    """Raises InvalidArgument for a pool whose memory the library's kernels cannot use."""
    if pool.driver.name not in cuda_drivers and has_gpu():
        wanted = f'a pool on libvmm.Driver("cuda"), whose memory {library} can use,'
        raise _out_of_range("pool", wanted, f"one on {pool.driver!r}")


def function(name: str, given: Any) -> Callable[..., Any]:
    if not callable(given):
        raise refuse(name, "a function", given)
    return given  # type: ignore[no-any-return]


def place(given: Any, members: type[Members], name: str = "place") -> tuple[int, int]:
    """A place and the number of the device or node there."""
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)) or len(given) != 2:
        raise refuse(name, f"a pair of libvmm.{members.__name__} and an int", given)
    return (
        int(member(f"{name}[0]", given[0], members)),
        whole(f"{name}[1]", given[1], 0, _I32_MAX, "a number of a device or node as an int"),
    )


def shape(given: Any) -> tuple[int, ...]:
    wanted = "a sequence of ints"
    if isinstance(given, (str, bytes)):
        raise refuse("shape", wanted, given)
    try:
        return tuple(whole(f"shape[{i}]", each, low=-_U64_MAX) for i, each in enumerate(given))
    except TypeError as trouble:
        if str(trouble).startswith("shape["):
            raise
        raise refuse("shape", wanted, given) from None
