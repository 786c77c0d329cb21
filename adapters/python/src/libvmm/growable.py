# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Growable ranges: segments that reserve their maximum and commit memory as they grow.

    from libvmm.growable import Growable
    cache = Growable(manager, 8 << 30, segments=32)     # one segment per layer; no memory yet
    cache.grow(64 << 20)                                # of each segment
    keys = torch.from_dlpack(cache.view("float16", (4096, 8, 128)))   # [layer][token][head][dim]

The address never changes. A view and its consumers pin its bytes: a shrink below it and close()
raise InUse.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _dlpack, _growable, _lifetime, _native, _objects, _values
from ._owner import HandleLife, Owner
from .errors import InUse, InvalidArgument, InvalidHandle, check
from .managers import Manager, Part, parts_of

_LIBRARY = _native.LIBRARY

#: As few physical handles as possible: a value of `handle_bytes`.
FEW_HANDLES = (1 << 64) - 1


_RESIZE, _GROW, _SHRINK = 0, 1, 2


@dataclass(frozen=True)
class GrowableStatistics:
    """Bytes and counts, with the meanings of vmm.h."""

    segment_count: int
    segment_bytes_max: int
    stride_bytes: int
    handle_bytes: int
    size_bytes: int
    physical_bytes: int
    handle_count: int
    pin_count: int


class _GrowableLife(HandleLife):
    __slots__ = ("last_use",)

    def __init__(self, manager: Manager) -> None:
        super().__init__("growable.Growable", _LIBRARY.vmm_growable_destroy, manager._life)
        self.last_use = 0

    def _destroy(self) -> None:
        _native.record(self.outcome, self.destroy, self.handle, self.last_use)


class Growable(Owner):
    """A range of `segments` segments of at most `most` bytes each, over a manager, without memory
    at first. Sizes are those of each segment. Any thread may make calls; calls on one range wait
    for each other."""

    _life: _GrowableLife

    def __init__(
        self,
        manager: Manager,
        most: _values.Size,
        *,
        segments: int = 1,
        handle_bytes: _values.Size = 0,
        zero_new: bool = True,
        gives_tail: bool = False,
    ) -> None:
        """With gives_tail, from a pin or view until the next growth, other tenants of an owner that
        need memory get what is behind all pins and views."""
        self.manager = manager
        _values.one_of("manager", manager, Manager)
        if not manager.is_open:
            raise InvalidHandle("the manager was closed")
        few = handle_bytes == FEW_HANDLES
        options = _growable.Options(
            segment_bytes_max=_values.size("most", most),
            segment_count=_values.whole("segments", segments),
            handle_bytes=(FEW_HANDLES if few else _values.size("handle_bytes", handle_bytes)),
            keep_dirty=not _values.flag("zero_new", zero_new),
            gives_tail=_values.flag("gives_tail", gives_tail),
        )
        self._create(
            _GrowableLife(manager),
            _LIBRARY.vmm_growable_create,
            manager.handle,
            ctypes.byref(options),
        )
        self._grown_on: tuple[int, ...] = ()
        info = self._query()
        self.address: int = info.base or 0
        self.segments: int = info.segment_count
        self.most: int = info.segment_bytes_max
        self.stride: int = info.stride_bytes
        self.handle_bytes: int = info.handle_bytes
        """The unit to which sizes are rounded up."""

    def _query(self) -> _growable.Info:
        info = _growable.Info()
        check(_LIBRARY.vmm_growable_query(self._handle, ctypes.byref(info)))
        return info

    def _resize(
        self,
        size: _values.Size,
        change: int,
        stream: int,
        first: int,
        count: int,
        one_handle: bool,
        wait: bool,
    ) -> None:
        number = _values.stream(stream)
        request = _growable.Request(
            size_bytes=_values.size("size", size),
            stream=number,
            change=change,
            first_segment=_values.whole("first", first),
            one_handle=_values.flag("one_handle", one_handle),
            segment_count=_values.whole("count", count),
            no_wait=not _values.flag("wait", wait),
        )
        if change != _SHRINK:
            self._grown_on = (*self._grown_on, number)  # also where this is left in the middle
        check(_LIBRARY.vmm_growable_resize(self._handle, ctypes.byref(request)))
        if change != _SHRINK:
            self._grown_on = (number,)

    def grow(
        self,
        size: _values.Size,
        *,
        stream: int = 0,
        first: int = 0,
        count: int = 0,
        one_handle: bool = False,
        wait: bool = True,
    ) -> None:
        """Grows segments (`count` 0: all from `first` on) to `size` bytes each; new bytes are zero.
        All of them grow, or none. Raises OutOfMemory; InvalidArgument beyond the maximum or for a
        smaller size; with `wait` False, InUse if unfinished work still uses released addresses."""
        self._resize(size, _GROW, stream, first, count, one_handle, wait)

    def shrink(
        self, size: _values.Size, *, stream: int = 0, first: int = 0, count: int = 0
    ) -> None:
        """Releases the memory behind `size` after the work submitted to the stream so far, without
        waiting. Raises InUse while a view shows more."""
        self._resize(size, _SHRINK, stream, first, count, False, True)

    def resize(
        self,
        size: _values.Size,
        *,
        stream: int = 0,
        first: int = 0,
        count: int = 0,
        one_handle: bool = False,
        wait: bool = True,
    ) -> None:
        """Grows or shrinks to `size`."""
        self._resize(size, _RESIZE, stream, first, count, one_handle, wait)

    def release(self, *, stream: int = 0) -> None:
        """Releases all memory and keeps the addresses."""
        self.shrink(0, stream=stream)

    def synchronize(self, stream: int = 0) -> None:
        """Blocks until the host may use the bytes."""
        check(_LIBRARY.vmm_growable_synchronize(self._handle, _values.stream(stream)))

    def segment(self, index: int = 0) -> tuple[int, int]:
        """Address and size of a segment."""
        base, size = ctypes.c_void_p(), ctypes.c_uint64()
        check(
            _LIBRARY.vmm_growable_segment(
                self._handle, _values.whole("index", index), ctypes.byref(base), ctypes.byref(size)
            )
        )
        return base.value or 0, size.value

    @property
    def size(self) -> int:
        """The size of the smallest segment, which every segment has."""
        info = self._query()
        if info.size_bytes == info.segment_count * self.segment(0)[1]:
            return self.segment(0)[1]
        return min(self.segment(index)[1] for index in range(self.segments))

    @property
    def physical_bytes(self) -> int:
        """Bytes of physical memory behind all segments."""
        return int(self._query().physical_bytes)

    def statistics(self) -> GrowableStatistics:
        """The sizes of the range."""
        info = self._query()
        names = GrowableStatistics.__dataclass_fields__
        return GrowableStatistics(**{name: getattr(info, name) for name in names})

    def parts(self, index: int = 0) -> list[Part]:
        """The physical handles behind a segment, in address order; the next resize changes them."""
        return parts_of(_LIBRARY.vmm_growable_parts, self._handle, _values.whole("index", index))

    def view(
        self,
        dtype: str = "uint8",
        shape: Sequence[int] | None = None,
        *,
        first: int = 0,
        count: int = 0,
    ) -> View:
        """Segments as one tensor [segment][shape...] with the range's stride, or [shape...] if the
        range has one segment. Without a shape: all bytes that every segment has. The view and its
        DLPack consumers pin these bytes."""
        return View._made(self, dtype, shape, first, count, False)

    def full_view(
        self,
        dtype: str = "uint8",
        shape: Sequence[int] | None = None,
        *,
        first: int = 0,
        count: int = 0,
    ) -> View:
        """view() over all reserved addresses, for graphs that are captured once while the range
        grows and shrinks. It pins the addresses only: do not use bytes behind a segment's size."""
        return View._made(self, dtype, shape, first, count, True)

    def validate(self) -> None:
        """Checks the records of the range against the driver. Raises Error if an invariant is
        broken."""
        check(_LIBRARY.vmm_growable_validate(self._handle))

    def close(self, *, stream: int = 0) -> None:
        """Releases memory and addresses after the work submitted to the stream so far. Raises InUse
        while a view lives."""
        self._life.last_use = _values.stream(stream)
        super().close()

    def __repr__(self) -> str:
        if not self.is_open or not hasattr(self, "most"):
            return "<libvmm.growable.Growable, closed>"
        return (
            f"<libvmm.growable.Growable {self.segments} segments of {self.size} of "
            f"{self.most} bytes at {self.address:#x}>"
        )


class _PinLife(_lifetime.Life):
    __slots__ = ("number", "range")
    hinders_parent = False  # the C library refuses

    def __init__(self, of: _GrowableLife) -> None:
        super().__init__("growable.View", of)
        self.number, self.range = ctypes.c_uint64(), of

    def end(self) -> None:
        if self.number.value:  # used once: a refused number has ended
            _LIBRARY.vmm_growable_unpin(self.range.handle, self.number)
        self.outcome.append(0)


class _Shown(_lifetime.Held):
    """The pin of a view or of a consumer, for as long as it lives."""

    _life: _PinLife

    def __init__(self, growable: Growable, size: int, first: int, count: int) -> None:
        self.growable = growable
        _lifetime.hold(self, _PinLife(growable._life))
        try:
            number = ctypes.byref(self._life.number)
            check(_LIBRARY.vmm_growable_pin(growable._handle, size, first, count, number))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends the pin. Any thread may call it, any number of times."""
        self._life.let_go()


class _BaseLife(_lifetime.Life):
    __slots__ = ("manager", "pin")
    hinders_parent = False

    def __init__(self, growable: Growable) -> None:
        self.manager = growable.manager._life
        super().__init__("growable.View", self.manager)
        self.pin: _PinLife | None = None

    def end(self) -> None:
        self.outcome.append(0)

    def _gone(self) -> None:
        self.manager.hide(self.key)
        if self.pin is not None:
            self.pin.let_go()
        super()._gone()


class _Base(_lifetime.Held):
    """The pin of an array made by __array_interface__, counted among the arrays of the manager's
    memory."""

    _life: _BaseLife

    def __init__(self, growable: Growable, pinned: tuple[int, int, int]) -> None:
        _lifetime.hold(self, _BaseLife(growable))
        self._life.manager.show(self._life.key)
        self._shown = _Shown(growable, *pinned)
        self._life.pin = self._shown._life


class View(_objects.MadeByCalls, _objects.OneOwner):
    """Segments of a range as one tensor. The view pins them until release() or its end, and so does
    each consumer."""

    _mark = "address"
    _makers = "growable.Growable.view() and full_view()"

    def _begin(
        self,
        growable: Growable,
        dtype: str,
        shape: Sequence[int] | None,
        first: int,
        count: int,
        full: bool,
    ) -> None:
        self._own: _Shown | None = None
        self._is_lent = False
        self._type = _dlpack.type_of(dtype)
        _, bits, lanes = self._type
        first, count = _values.whole("first", first), _values.whole("count", count)
        sizes = None if shape is None else _values.shape(shape)
        count = count or growable.segments - first
        if first >= growable.segments or count < 1 or first + count > growable.segments:
            raise InvalidArgument(f"segments {first} to {first + count} of {growable.segments}")
        stride, rest = divmod(growable.stride * 8, bits * lanes)
        if rest:
            raise InvalidArgument(
                f"the stride of {growable.stride} bytes is no multiple of {dtype}"
            )
        if full:
            most = growable.most
        elif count == 1:
            most = growable.segment(first)[1]
        else:
            most = min(growable.segment(index)[1] for index in range(first, first + count))
        inner = (most * 8 // (bits * lanes),) if sizes is None else sizes
        _dlpack.check_shape(inner, dtype, most, " in a segment")
        _dlpack.device_of(growable.manager.driver)
        strides = [1] * len(inner)
        for axis in range(len(inner) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * inner[axis + 1]
        whole = growable.segments == 1
        self.shape: tuple[int, ...] = inner if whole else (count, *inner)
        self.strides: tuple[int, ...] = tuple(strides) if whole else (stride, *strides)
        """Strides in elements."""
        self.dtype = dtype
        self.growable = growable
        self._pinned = (0 if full else (math.prod(inner) * bits * lanes + 7) // 8, first, count)
        self._own = _Shown(growable, *self._pinned)
        self.address = growable.address + first * growable.stride

    def release(self) -> None:
        """Ends the view's own pin; consumers keep theirs. If __cuda_array_interface__ was read, the
        pin ends with the view instead, which such consumers hold."""
        own = self._own
        self._own = None
        if own is not None and not self._is_lent:
            own.end()

    def __enter__(self) -> View:
        self._check_initialised()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _interface(self, device: int) -> dict[str, Any]:
        if self.__dlpack_device__()[0] != device or self._own is None:
            raise AttributeError("the memory is not where this interface shows it")
        kind = {"int": "i", "uint": "u", "float": "f", "complex": "c", "bool": "b"}.get(
            self.dtype.rstrip("0123456789")
        )
        if kind is None:
            raise AttributeError(f"numpy has no type {self.dtype}")
        item = self._type[1] // 8
        return {
            "data": (self.address, False),
            "shape": self.shape,
            "version": 3,
            "strides": tuple(stride * item for stride in self.strides),
            "typestr": f"<{kind}{item}" if item > 1 else f"|{kind}{item}",
        }

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For numpy.asarray, on host memory: a writable array that pins its bytes, also after
        release()."""
        made = self._interface(_dlpack.CPU)
        last = sum(
            stride * (count - 1) for stride, count in zip(made["strides"], self.shape) if count
        )
        data = (ctypes.c_uint8 * (last + self._type[1] // 8)).from_address(self.address)
        data.held = _Base(self.growable, self._pinned)
        made["data"] = data
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy and Numba, on device memory. Their arrays hold this view."""
        made = self._interface(_dlpack.CUDA)
        self._is_lent = True
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_of(self.growable.manager.driver)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """Orders the consumer's `stream` behind the stream of the range's last growth."""
        _dlpack.check_request(self.__dlpack_device__(), dl_device, copy, stream)
        if self._own is None:
            raise BufferError("the view was released")
        version = _dlpack.is_versioned(max_version)
        shown = _Shown(self.growable, *self._pinned)
        tensor = _dlpack.TensorShape(
            self.address, self.__dlpack_device__(), self._type, self.shape, self.strides
        )
        manager = self.growable.manager
        capsule = _dlpack.capsule_of(shown, (manager._life,), lambda: tensor, version)
        _dlpack.order(manager.driver, self.growable._grown_on, stream)
        return capsule


__all__ = ["FEW_HANDLES", "Growable", "GrowableStatistics", "InUse", "Part", "View"]
