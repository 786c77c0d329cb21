# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""DLPack out, by ctypes: a capsule with a tensor whose owner keeps the block alive."""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _values
from .drivers import Driver, Feature
from .errors import InvalidArgument, NotSupported

CPU, CUDA = 1, 2
_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32),
                ("dtype", _DataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]

_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NAME = b"dltensor"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR]
# By address and not as an object: the destructor runs while the capsule has no references left.
_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))

# What is shown, by the address of its struct: all that a consumer needs until it calls the
# deleter, which may be from any thread.
_shown: dict[int, tuple[Any, ...]] = {}
_lock = threading.Lock()


def _let_go(address: int) -> None:
    with _lock:
        kept = _shown.pop(address, None)
    if kept is not None:
        kept[0]._views -= 1


@_DELETER
def _delete(managed: Any) -> None:
    _let_go(ctypes.addressof(managed.contents))


@_DESTRUCTOR
def _destroy(capsule: int) -> None:
    # A capsule that was consumed has another name, and the consumer calls the deleter.
    if _capsule_is(capsule, _NAME):
        _let_go(_capsule_get(capsule, _NAME))


@atexit.register
def _leave_at_exit() -> None:
    """A consumer that lives on when Python has ended finds no deleter to call, and the struct."""
    with _lock:
        for kept in _shown.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            ctypes.c_void_p.from_address(
                ctypes.addressof(kept[1]) + _Managed.deleter.offset).value = None


def device_of(driver: Driver) -> tuple[int, int]:
    """DLPack's type and number of the device that the driver's memory is on. Raises
    NotSupported where DLPack's consumers could not use it."""
    info = driver.info
    if info.name == "cuda":
        return CUDA, info.device
    if info.name == "host" and info.features & Feature.HOST_ACCESSIBLE:
        return CPU, 0
    raise NotSupported(f"memory of the driver '{info.name}' cannot be shown by DLPack: only that "
                       "of cuda and of host can")


def type_of(dtype: str) -> tuple[int, int]:
    _values.text("dtype", dtype)
    kind = dtype.rstrip("0123456789")
    bits = int(dtype[len(kind):] or (8 if kind == "bool" else 0))
    if kind not in _KINDS or bits not in (8, 16, 32, 64, 128):
        raise InvalidArgument(f"'{dtype}' is no type: one of uint8, int32, float16, bfloat16, "
                              "float32, complex64, bool and their like")
    return _KINDS[kind], bits


class TensorShape(NamedTuple):
    """What a consumer is told of a tensor. Strides are in elements; None: row by row."""

    address: int
    device: tuple[int, int]
    dtype: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def capsule_of(owner: Any, shown: TensorShape) -> Any:
    """A capsule that keeps `owner`, whose count `_views` says how many tensors show it."""
    shape = (ctypes.c_int64 * max(1, len(shown.shape)))(*shown.shape)
    strides = None
    managed = _Managed()
    tensor = managed.tensor
    tensor.data = shown.address
    tensor.device = _Device(*shown.device)
    tensor.ndim = len(shown.shape)
    tensor.dtype = _DataType(*shown.dtype, 1)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    if shown.strides is not None:
        strides = (ctypes.c_int64 * max(1, len(shown.strides)))(*shown.strides)
        tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    with _lock:
        _shown[address] = (owner, managed, shape, strides)
    owner._views += 1
    return _new_capsule(address, _NAME, _destroy)


class View:
    """A block's bytes as one type and shape. It holds the block, as does whoever consumed it."""

    def __init__(self, block: Any, dtype: str, shape: Sequence[int] | None) -> None:
        self._code, self._bits = type_of(dtype)
        item = self._bits // 8
        self.shape = (block.size // item,) if shape is None else _values.shape(shape)
        if any(n < 0 for n in self.shape) or math.prod(self.shape) * item > block.size:
            raise InvalidArgument(f"{self.shape} of {dtype} is no part of {block.size} bytes")
        device_of(block._owner.driver)
        self.block = block
        self.dtype = dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_of(self.block._owner.driver)

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None,
                   dl_device: Any = None, copy: bool | None = None) -> Any:
        """The consumer's `stream` must be ordered behind the block's own, as for any use of it."""
        if copy:
            raise BufferError("a block is shown as it is, and not copied")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the block is on {self.__dlpack_device__()}, not on {dl_device}")
        if self.block.address == 0 or not self.block._owner.is_open:
            raise BufferError("the block was freed")
        if math.prod(self.shape) * self._bits // 8 > self.block.size:
            raise BufferError("the block has become smaller than its view")
        return capsule_of(self.block, TensorShape(self.block.address, self.__dlpack_device__(),
                                                  (self._code, self._bits), self.shape))
