# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""DLPack out, by ctypes: a capsule with a tensor whose owner keeps the block alive."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _lifetime, _native, _values
from ._drivers import Driver, Feature
from .errors import Error, InvalidArgument, NotSupported, UnknownAddress, check

CPU, CUDA = 1, 2
_I64_MAX = (1 << 63) - 1
_PER_THREAD_STREAM = 2

# DLPack's code of a type, its bits, and its lanes.
_TYPES: dict[str, tuple[int, int, int]] = {
    **{f"int{bits}": (0, bits, 1) for bits in (8, 16, 32, 64, 128)},
    **{f"uint{bits}": (1, bits, 1) for bits in (8, 16, 32, 64, 128)},
    **{f"float{bits}": (2, bits, 1) for bits in (16, 32, 64, 128)},
    "bfloat16": (4, 16, 1),
    **{f"complex{bits}": (5, bits, 1) for bits in (32, 64, 128)},
    "bool": (6, 8, 1),
    "bool8": (6, 8, 1),
    **{
        f"float8_{name}": (code, 8, 1)
        for code, name in enumerate(
            ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"), 7
        )
    },
    "float6_e2m3fn": (15, 6, 1),
    "float6_e3m2fn": (16, 6, 1),
    "float4_e2m1fn": (17, 4, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
}


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("version", _Version),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class _Kept(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint64), ("managed", _Managed)]


class _KeptVersioned(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint64), ("managed", _ManagedVersioned)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# Of the C library: ctypes' own callbacks lose an exception that is pending when they are called.
_END_TENSOR = ctypes.cast(_native.LIBRARY.vmm_python_end_tensor, ctypes.c_void_p).value
_END_CAPSULE = ctypes.cast(_native.LIBRARY.vmm_python_end_capsule, ctypes.c_void_p).value

# Tensors by their number, which is not used again: the owner, the lives that count it, and the data
# that a consumer needs until it calls the deleter, on any thread, also after Python has ended: the
# dict is never freed.
_shown: dict[int, list[Any]] = _native.once("shown", {})
_numbers = _native.once("numbers", itertools.count(1))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shown))


@_native.TENSOR_ENDED
def _ended(number: int, is_done: Any) -> None:
    _end(number)
    is_done[0] = 1


def _end(number: int, made: list[Any] | None = None) -> None:
    """Ends the tensor of that number, if it is the one that was `made`."""
    kept = _shown.get(number)
    if kept is not None and (made is None or kept is made):
        for life in kept[1]:
            life.hide(number)
        _shown.pop(number, None)


def _end_without(capsule: Any, number: int, made: list[Any]) -> None:
    if capsule is None:
        _end(number, made)


# Of the first copy of the package in the process: the library has one, for the tensors of all.
_on_end = ctypes.cast(_native.once("on tensor end", _ended), ctypes.c_void_p)
check(_native.LIBRARY.vmm_python_on_tensor_end(_on_end))


@atexit.register
def _leave_at_exit() -> None:
    """After Python's end consumers find the struct, and a deleter without effect."""
    _native.LIBRARY.vmm_python_on_tensor_end(None)


def is_shown(address: int) -> bool:
    """Whether an array shows a block that begins here."""
    return any(
        kept[0].address == address for kept in _shown.copy().values() if hasattr(kept[0], "address")
    )


def device_of(driver: Driver) -> tuple[int, int]:
    """DLPack's type and number of the driver's device. Raises NotSupported if DLPack's consumers
    could not use its memory."""
    info = driver.info
    if info.name == "cuda":
        return CUDA, info.device
    if info.name == "host" and info.features & Feature.HOST_ACCESSIBLE:
        return CPU, 0
    raise NotSupported(
        f"memory of the driver '{info.name}' cannot be shown by DLPack: only that "
        "of cuda and of host can"
    )


def type_of(dtype: str) -> tuple[int, int, int]:
    """DLPack's code, bits and lanes."""
    _values.text("dtype", dtype)
    found = _TYPES.get(dtype)
    if found is None:
        raise InvalidArgument(f"'{dtype}' is no type: one of {', '.join(_TYPES)}")
    return found


def check_shape(shape: tuple[int, ...], dtype: str, size: int, place: str = "") -> None:
    """Raises InvalidArgument if the shape does not fit into the `size` bytes of a place, or its
    sizes and strides into 64 bits."""
    _, bits, lanes = type_of(dtype)
    needed = (math.prod(shape) * bits * lanes + 7) // 8
    extent = math.prod(max(1, each) for each in shape) * max(1, bits * lanes // 8)
    if any(each < 0 for each in shape):
        raise InvalidArgument(f"shape: sizes from 0 on are wanted, and {shape} was given")
    if needed > size:
        raise InvalidArgument(f"{shape} of {dtype} takes {needed} bytes; there are {size}{place}")
    if extent > _I64_MAX:
        raise InvalidArgument(f"{shape} of {dtype} has strides of more than 2^63 bytes")


class TensorShape(NamedTuple):
    """The description of a tensor for a consumer. Strides are in elements; None: row by row."""

    address: int
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def _fill(tensor: _Tensor, shown: TensorShape) -> tuple[Any, Any]:
    shape = (ctypes.c_int64 * max(1, len(shown.shape)))(*shown.shape)
    strides = None
    tensor.data = shown.address
    tensor.device = _Device(*shown.device)
    tensor.ndim = len(shown.shape)
    tensor.dtype = _DataType(*shown.dtype)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    if shown.strides is not None:
        strides = (ctypes.c_int64 * max(1, len(shown.strides)))(*shown.strides)
        tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    return shape, strides


def _pair(name: str, given: Any) -> tuple[int, int]:
    try:
        first, second = (_values.whole(name, each) for each in given)
    except (TypeError, ValueError):
        raise _values.refuse(name, "a pair of ints", given) from None
    return first, second


def is_versioned(max_version: Any) -> tuple[int, int] | None:
    """The capsule version for a consumer that supports up to this one; None: the unversioned
    capsule."""
    if max_version is None:
        return None
    major, minor = _pair("max_version", max_version)
    return None if major < 1 else (1, min(1, minor) if major == 1 else 1)


def check_request(device: tuple[int, int], dl_device: Any, copy: Any, stream: Any) -> None:
    """Raises BufferError for a consumer that requests another device or a copy, TypeError and
    InvalidArgument for a value that DLPack does not have."""
    if copy is not None and _values.flag("copy", copy):
        raise BufferError("the memory is shown as it is, and not copied")
    if dl_device is not None and _pair("dl_device", dl_device) != device:
        raise BufferError(f"the memory is on {device}, not on {dl_device}")
    number = None if stream is None else _values.whole("stream", stream, -1)
    if device[0] == CPU and number not in (None, -1):
        raise InvalidArgument(f"stream: the host's memory has None, and {number} was given")
    if number == 0:
        raise InvalidArgument(
            "stream: DLPack has 1 for the legacy default stream and 2 for that "
            "of the thread; 0 names neither"
        )


def capsule_of(
    owner: Any, lives: tuple[_lifetime.Life, ...], tensor: Any, version: tuple[int, int] | None
) -> Any:
    """A capsule that keeps `owner` alive, of the tensor that tensor() returns, called once the
    memory is held. Raises BufferError if one of `lives` ends."""
    struct: Any = _Kept() if version is None else _KeptVersioned()
    managed, kept = struct.managed, [owner, lives, struct]
    if version is not None:
        managed.version = _Version(*version)
    managed.deleter = _END_TENSOR
    number, capsule = next(_numbers), None
    try:
        while _shown.setdefault(number, kept) is not kept:  # counted by two threads at once
            number = next(_numbers)
        struct.number = number
        for life in lives:
            life.show(number)
        kept.append(_fill(managed.tensor, tensor()))
        name = b"dltensor" if version is None else b"dltensor_versioned"
        capsule = _new_capsule(ctypes.addressof(managed), name, _END_CAPSULE)
        return capsule
    finally:
        try:
            _end_without(capsule, number, kept)
        except BaseException:  # of a signal's handler
            _end_without(capsule, number, kept)
            raise


def order(driver: Driver, streams: Sequence[int], consumer: Any) -> None:
    """Orders the consumer's stream behind `streams`, by DLPack's rules for CUDA: None and 1 name
    the legacy default stream, 2 the per-thread one, -1 no order."""
    if device_of(driver)[0] != CUDA or not streams:
        return
    number = 1 if consumer is None else int(consumer)
    if number == -1:
        return
    try:
        for stream in streams:
            if number == _PER_THREAD_STREAM:
                driver.synchronize(stream)
            else:
                driver.order(stream, number)
    except Error as refused:
        raise BufferError(
            f"the work of the memory's stream cannot be waited for: {refused}"
        ) from refused


class View:
    """A block's bytes as one type and shape. It keeps the block alive, as does each array of it."""

    def __init__(self, block: Any, dtype: str, shape: Sequence[int] | None) -> None:
        self._type = type_of(dtype)
        _, bits, lanes = self._type
        size = block.size
        self.shape = (size * 8 // (bits * lanes),) if shape is None else _values.shape(shape)
        check_shape(self.shape, dtype, size)
        device_of(block._owner.driver)
        self.block = block
        self.dtype = dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_of(self.block._owner.driver)

    def _tensor(self) -> TensorShape:
        address = self.block.address
        if not address:
            raise BufferError("the block was freed")
        for life in self.block._lives:
            life.check_mapped(address)
        try:
            check_shape(self.shape, self.dtype, self.block.size)
        except InvalidArgument:
            raise BufferError("the block has become smaller than its view") from None
        return TensorShape(address, self.__dlpack_device__(), self._type, self.shape)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """Orders the consumer's `stream` behind the block's own. An array may write to the block if
        the consumer supports DLPack 1."""
        check_request(self.__dlpack_device__(), dl_device, copy, stream)
        version = is_versioned(max_version)
        try:
            lives = self.block._lives
            capsule = capsule_of(self.block, lives, self._tensor, version)
        except UnknownAddress as gone:
            raise BufferError(str(gone)) from gone
        order(self.block._owner.driver, self.block._streams, stream)
        return capsule
