# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in memory of vmm's pools.

    import libvmm.torch
    libvmm.torch.enable()

at any time in a process: existing tensors keep their memory. docs/pytorch.md lists the features of
each way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _native, _values
from ..errors import check
from . import _ahead, _build, _queues

if TYPE_CHECKING:
    from ._figures import Statistics

_HANDLE = ctypes.c_void_p


class _State:
    """PyTorch's allocator from libvmm: one per process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.way = ""
        self.class_of = ""
        """Where the class of the way "allocator" comes from."""
        self.allocator = ctypes.c_void_p()
        self.compiled: ctypes.CDLL | None = None
        self.pluggable: Any = None
        self.failure: Any = None


_state = _native.once("torch", _State())


def _after_fork() -> None:
    _state.lock = threading.Lock()  # a thread that the child lacks may compile


os.register_at_fork(after_in_child=_after_fork)


class Refused(RuntimeError):
    """enable() failed; the text has the reason."""


class _Options(_native.Sized):
    _fields_ = [
        ("struct_size", _native.U64),
        ("driver", _native.TEXT),
        ("reservation_bytes", _native.U64),
        ("capture", _native.U32),
        ("read_environment", _native.U32),
    ]


def way() -> str:
    """The way in use: "allocator" or "functions"; "" if not enabled."""
    return _state.way


def enable(way: str = "auto") -> str:
    """Gives PyTorch's later CUDA tensors memory from vmm's pools, and returns the way. way:
    "allocator" compiles a class against this PyTorch on its first use, requires a C++ compiler, and
    supports every feature. "functions" plugs in plain functions, before the first use of CUDA,
    without snapshots and other features that docs/pytorch.md lists. "auto" uses the first if it is
    available, and else warns with the reason. Raises Refused, with the reason; ImportError without
    PyTorch; a libvmm.Error if the library refuses, for example a malformed VMM_* variable."""
    _values.text("way", way)
    if way not in ("auto", "allocator", "functions"):
        raise Refused(f"way is one of auto, allocator, functions; not '{way}'")
    torch = _torch()
    with _state.lock:
        if _state.way:
            if way not in ("auto", _state.way):
                raise Refused(f"libvmm is enabled already, by way of '{_state.way}'")
            return _state.way
        if way != "functions":
            try:
                _install_allocator(torch)
                _state.way = "allocator"
                return _state.way
            except _build.CannotBuild as reason:
                if way == "allocator":
                    raise Refused(str(reason)) from reason
                warnings.warn(
                    f"libvmm plugs plain functions into PyTorch, since {reason}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        _install_functions(torch)
        _state.way = "functions"
        return _state.way


def _enable_at_import(torch: Any) -> str:
    """The way "allocator" without a call of CUDA, for a process that may fork before it uses a
    device. Raises Refused and CannotBuild."""
    with _state.lock:
        if not _state.way:
            _install_allocator(torch, stands_back=True)
            _state.way = "allocator"
    return f"way '{_state.way}', {_state.class_of}"


def disable() -> None:
    """Gives later tensors PyTorch's own memory again; existing ones keep theirs. Raises Refused for
    plain functions, which PyTorch cannot remove."""
    with _state.lock:
        if _state.way == "functions":
            raise Refused("PyTorch cannot take pluggable functions out again")
        if _state.way and _state.compiled is not None:
            _state.compiled.vmm_torch_remove()
        _state.way = ""


@contextlib.contextmanager
def native() -> Iterator[None]:
    """Tensors that this thread creates inside have PyTorch's own memory, for sharing by
    torch.multiprocessing or registration. Raises Refused with plain functions."""
    if _state.way == "functions":
        raise Refused("plain functions serve every tensor: native() needs the way 'allocator'")
    routed = _state.compiled  # enable() may come inside
    done: list[Any] = []
    try:
        if routed is not None:
            _native.record(done, routed.vmm_torch_route_native, 1)
        yield
    finally:
        if routed is not None and done:
            routed.vmm_torch_route_native(-1)


def mem_pool(**options: Any) -> Any:
    """A torch.cuda.MemPool with segments from vmm. `options` are MemPool's own."""
    torch = _torch()
    with _state.lock:
        if _state.pluggable is None:
            _state.pluggable = torch.cuda.memory.CUDAPluggableAllocator(
                _native.PATH, "vmm_plugin_malloc", "vmm_plugin_free"
            )
    return torch.cuda.MemPool(_state.pluggable.allocator(), **options)


def statistics(device: int | None = None) -> Statistics:
    """Statistics of vmm's allocator for a device (default: the current one)."""
    if device is not None:
        _values.device(device, low=0)
    number = _torch().cuda.current_device() if device is None else device
    from ._figures import statistics_of

    return statistics_of(_state.allocator, number)


def _torch() -> Any:
    torch = _values.import_library("torch", "torch", "PyTorch")
    if torch.version.cuda is None:
        raise Refused(
            f"PyTorch {torch.__version__} is built without CUDA: install a build for CUDA"
        )
    if not torch.cuda.is_available():
        raise Refused("PyTorch finds no CUDA device: `python -m libvmm doctor` says what there is")
    return torch


def _make_allocator() -> ctypes.c_void_p:
    if not _state.allocator:
        library = _native.LIBRARY
        options = _Options()
        check(library.vmm_allocator_options_init(ctypes.byref(options), ctypes.sizeof(options)))
        options.read_environment = 1
        check(library.vmm_allocator_create(ctypes.byref(options), ctypes.byref(_state.allocator)))
        check(library.vmm_plugin_use(_state.allocator))
    return _state.allocator


def _load_class(torch: Any) -> ctypes.CDLL:
    """The class that was built ahead; where none fits, the one that is compiled here. Raises
    CannotBuild with both reasons."""
    folder, is_new_abi = os.path.dirname(torch.__file__), torch.compiled_with_cxx11_abi()
    path, why = _ahead.find(folder, torch.__version__, is_new_abi)
    if path:
        try:
            loaded = ctypes.CDLL(path, os.RTLD_NOW)
            _state.class_of = f"built ahead ({path})"
            return loaded
        except OSError as trouble:
            why = f"the class that was built ahead cannot be loaded: {trouble}"
    try:
        path = _build.build(folder, torch.__version__, is_new_abi)
        _state.class_of = f"compiled ({path}), since {why}"
        return ctypes.CDLL(path)
    except OSError as trouble:
        raise _build.CannotBuild(f"{why}; what was compiled cannot be loaded: {trouble}") from None
    except _build.CannotBuild as trouble:
        raise _build.CannotBuild(f"{why}; {trouble}") from None


def _install_allocator(torch: Any, stands_back: bool = False) -> None:
    if _state.compiled is None:
        loaded = _load_class(torch)
        loaded.vmm_torch_install.restype = ctypes.c_char_p
        loaded.vmm_torch_install.argtypes = [_HANDLE]
        loaded.vmm_torch_remove.restype = None
        loaded.vmm_torch_route_native.argtypes, loaded.vmm_torch_route_native.restype = (
            [ctypes.c_int],
            None,
        )
        _state.compiled = loaded
    refused = _native.text(_state.compiled.vmm_torch_install(_make_allocator(), stands_back))
    if refused:
        raise Refused(refused)
    _queues.install(torch)


def _install_functions(torch: Any) -> None:
    if torch.cuda.is_initialized():
        raise Refused(
            "CUDA is initialised already: plain functions are plugged in before the "
            "first use of a device"
        )
    _make_allocator()
    made = torch.cuda.memory.CUDAPluggableAllocator(
        _native.PATH, "vmm_plugin_malloc", "vmm_plugin_free"
    )
    inside = made.allocator()
    for name, function in (
        ("set_record_stream_fn", "vmm_plugin_record_stream"),
        ("set_init_fn", "vmm_plugin_init"),
        ("set_reset_fn", "vmm_plugin_empty_cache"),
        ("set_memory_fraction_fn", "vmm_plugin_memory_fraction"),
        ("set_base_alloc_fn", "vmm_plugin_base"),
    ):
        getattr(inside, name)(
            ctypes.cast(getattr(_native.LIBRARY, function), ctypes.c_void_p).value
        )
    # PyTorch's own function that throws: a failed request raises instead of returning a null
    # tensor.
    try:
        c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        _state.failure = c10._ZN3c106detail14torchCheckFailEPKcS2_jS2_
        check(_native.LIBRARY.vmm_plugin_set_failure(ctypes.cast(_state.failure, ctypes.c_void_p)))
    except (OSError, AttributeError) as trouble:
        raise Refused(f"PyTorch's function for errors is not there: {trouble}") from trouble
    torch.cuda.memory.change_current_allocator(made)
    _state.pluggable = made
    from ._figures import patch

    patch(torch, _state.allocator)
