# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's interface over vmm: memory of PyTorch's tensors that is paused by tag and
resumed at the same addresses.

    from libvmm.torch_memory_saver import torch_memory_saver
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

No library is preloaded, and expandable segments may be on: a region is a torch.cuda.MemPool whose
segments come from a vmm pool of its own. docs/suspend.md lists the differences.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from . import _native, _objects, _values
from ._drivers import Driver
from .errors import Error, UnknownAddress, check
from .pools import Capture, Pool
from .suspend import Suspender

_TAG_DEFAULT = "default"
#: Where contents of regions with a CPU backup lie: pageable or pinned memory.
CpuBackupBackend = Literal["mmap", "pinned"]
#: Both do the same here.
HookMode = Literal["preload", "torch"]
# Kinds of backup; what has none goes last, since nothing brings it back.
_BACKUPS = ("pinned", "mmap", "disk", "")

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def _torch() -> Any:
    return _values.import_library("torch_memory_saver", "torch", "PyTorch")


class _Region:
    """A MemPool of PyTorch whose segments are blocks of a vmm pool."""

    def __init__(self, saver: _Impl, device: int) -> None:
        self._saver = saver
        self._driver = saver.driver(device)
        # A segment that a capture needs is the graph's own until PyTorch frees it.
        self.pool = Pool(
            self._driver, report_live=False, capture=Capture.PRIVATE, streams_forgotten=True
        )  # PyTorch's live as long as the process
        self._captures: dict[int, int] = {}
        # PyTorch keeps the addresses of both until the process ends, and calls them while Python
        # ends: a reference that is never released keeps them, and this region, until then.
        self._functions = (_MALLOC(self._allocate), _FREE(self._free))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._functions))
        torch = _torch()
        addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in self._functions]
        self._allocator = torch._C._cuda_customAllocator(*addresses)
        self.mem_pool = torch.cuda.MemPool(self._allocator)

    # Called by PyTorch for each segment; a null pointer is its OutOfMemoryError.
    def _allocate(self, size: int, _device: int, stream: int | None) -> int | None:
        into = ctypes.c_void_p()
        try:
            if (
                self._saver.margin_bytes
                and self._driver.memory()[0] < size + self._saver.margin_bytes
            ):
                return None
            self.pool._allocate(into, size, 512, stream or 0)
            at, capture = into.value or 0, ctypes.c_uint64()
            status = _native.LIBRARY.vmm_pool_capture_number(
                self.pool.handle, stream, ctypes.byref(capture)
            )
            if status == 0 and capture.value:
                self._captures[at] = capture.value
            return at
        except Error:
            return None
        except BaseException:  # of a signal's handler: ctypes prints it and returns null
            self._captures.pop(into.value or 0, None)
            if into.value:
                self.pool.free_raw(into.value, stream or 0)
            raise

    def _free(self, at: int | None, _size: int, _device: int, stream: int | None) -> None:
        pool = getattr(self, "pool", None)  # PyTorch frees the rest while Python itself ends
        if not at or pool is None or not pool.is_open:
            return
        pool.free_raw(at, stream or 0)
        capture = self._captures.pop(at, 0)
        if capture and capture not in self._captures.values():  # the graph has ended, too
            check(_native.LIBRARY.vmm_pool_capture_release(pool.handle, capture, stream))


_impls: weakref.WeakSet[_Impl] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _impls:  # a thread that the child lacks may hold the lock
        each._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def _named(tag: str | None) -> list[str]:
    if tag is not None:
        _values.text("tag", tag)
    return [] if tag is None else [tag]


class _Impl:
    """State that is created at the first use: pools by tag, kind of backup and device."""

    @staticmethod
    def open_driver(device: int) -> Driver:
        """CUDA's driver; tests replace it."""
        return Driver("cuda", device)

    def __init__(self) -> None:
        self.margin_bytes = 0
        self.disk_directory: str | None = os.environ.get("TMS_DISK_BACKUP_DIR") or None
        self._lock = threading.RLock()
        _impls.add(self)
        self._regions: dict[tuple[str, str, int], _Region] = {}
        self._suspenders: dict[str, Suspender] = {}
        self._drivers: dict[int, Driver] = {}
        self.depth = threading.local()

    def driver(self, device: int) -> Driver:
        """The driver of a device, opened once."""
        if device not in self._drivers:
            self._drivers[device] = self.open_driver(device)
        return self._drivers[device]

    def _suspender(self, backup: str) -> Suspender:
        if backup not in self._suspenders:
            tier = {"mmap": "pageable", "disk": "file"}.get(backup, "best")
            directory = self.disk_directory if tier == "file" else None
            self._suspenders[backup] = Suspender(tier=tier, directory=directory)
        return self._suspenders[backup]

    def region(self, tag: str, backup: str) -> _Region:
        """The region of a tag on the current device."""
        device = _torch().cuda.current_device()
        with self._lock:
            key = (tag, backup, device)
            if key not in self._regions:
                made = _Region(self, device)
                self._suspender(backup).add(made.pool, tag, "keep" if backup else "discard")
                self._regions[key] = made
            return self._regions[key]

    def tags(self) -> list[str]:
        """All tags, in the order of their first use."""
        with self._lock:
            return list(dict.fromkeys(name for (name, _, _) in self._regions))

    def _running(self, backup: str, tags: list[str], is_suspended: bool) -> list[str]:
        own = dict.fromkeys(name for (name, kind, _) in self._regions if kind == backup)
        return [
            name
            for name in own
            if name in tags and self._suspenders[backup].is_suspended(name) == is_suspended
        ]

    def _suspend(self, groups: list[tuple[str, list[str], str | None]]) -> None:
        # Regions with backups first: a later failure restores them.
        torch = _torch()
        named = {name for (_, tags, _) in groups for name in tags}
        for device in sorted({device for (name, _, device) in self._regions if name in named}):
            torch.cuda.synchronize(device)
        done: list[tuple[str, list[str]]] = []
        try:
            for backup, tags, contents in groups:
                if tags:
                    self._suspenders[backup].suspend(*tags, contents=contents)
                    done.append((backup, tags))
        except Error:
            for backup, tags in done:
                self._suspenders[backup].resume(*tags)
            raise

    def pause(self, tag: str | None) -> None:
        """All that the tag has, or nothing of it."""
        tags = _named(tag)
        with self._lock:
            tags = tags or self.tags()
            groups: list[tuple[str, list[str], str | None]] = []
            for backup in _BACKUPS:
                own = [name for (name, kind, _) in self._regions if kind == backup and name in tags]
                # A tag that is already suspended is passed too, and refused.
                named = (
                    self._running(backup, tags, False) if tag is None else list(dict.fromkeys(own))
                )
                groups.append((backup, named, None))
            self._suspend(groups)

    def sleep(self, kept: list[str]) -> list[str]:
        """Suspends every tag of regions with a backup in pinned memory; all but `kept` are
        discarded. Returns the tags."""
        with self._lock:
            tags = self._running("pinned", self.tags(), False)
            self._suspend(
                [
                    ("pinned", [name for name in tags if name in kept], "keep"),
                    ("pinned", [name for name in tags if name not in kept], "discard"),
                ]
            )
            return tags

    def discard(self, named: Iterable[str]) -> list[str]:
        """Suspends the tags of regions with a backup in pinned memory without keeping their
        contents. Returns those that were not suspended before."""
        with self._lock:
            tags = self._running("pinned", list(named), False)
            self._suspend([("pinned", tags, "discard")])
            return tags

    def backup(self, address: int, size: int) -> bytearray | None:
        """A copy of the kept contents of paused memory; None if they are not kept."""
        with self._lock:
            for suspender in self._suspenders.values():
                try:
                    return suspender.read_backup(address, size)
                except UnknownAddress:
                    continue
            return None

    def resume(self, tag: str | None) -> None:
        """All that the tag has, or nothing of it."""
        tags = _named(tag)
        with self._lock:
            tags = tags or self.tags()
            done: list[tuple[str, list[str]]] = []
            try:
                for backup in _BACKUPS:
                    named = self._running(backup, tags, True)
                    if named:
                        self._suspenders[backup].resume(*named)
                        done.append((backup, named))
            except Error:
                for backup, named in done:
                    self._suspenders[backup].suspend(*named)
                raise

    def close(self) -> None:
        """Releases the regions at the end of the process. Living tensors keep their memory."""
        for suspender in self._suspenders.values():
            suspender.close(lose_contents=True)
        self._suspenders.clear()


class TorchMemorySaver(_objects.Initialised):
    """The methods of torch_memory_saver's class of the same name."""

    _mark = "_impl"

    @_objects.once("_impl")
    def __init__(self) -> None:
        self._impl: _Impl | None = None

    @contextmanager
    def region(
        self,
        tag: str = _TAG_DEFAULT,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: CpuBackupBackend | None = None,
    ) -> Iterator[None]:
        """Tensors that this thread creates inside belong to the tag. Without a backup their
        contents are lost by a pause."""
        backup = _backup_of(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        impl = self._ensure_initialized()
        with _torch().cuda.use_mem_pool(impl.region(tag, backup).mem_pool), _inside(impl):
            yield

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = _TAG_DEFAULT,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: CpuBackupBackend | None = None,
    ) -> Iterator[None]:
        """Like torch.cuda.graph; the capture's allocations belong to the tag, and a replay after a
        resume finds them at the same addresses. Raises ValueError for a `pool` of the caller's,
        whose memory is PyTorch's own."""
        if pool is not None:
            raise ValueError("cuda_graph() captures into the tag's own pool: leave `pool` out")
        backup = _backup_of(enable_cpu_backup, False, cpu_backup_backend)
        impl = self._ensure_initialized()
        mem_pool = impl.region(tag, backup).mem_pool
        with (
            _torch().cuda.graph(
                cuda_graph, pool=mem_pool.id, stream=stream, capture_error_mode=capture_error_mode
            ),
            _inside(impl),
        ):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        """Inside a region: tensors of this thread belong to no tag and are never paused."""
        impl = self._ensure_initialized()
        if not getattr(impl.depth, "count", 0):
            raise RuntimeError("disable() is for the inside of a region")
        torch = _torch()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            yield
        del pool

    def pause(self, tag: str | None = None) -> None:
        """Releases the memory of a tag, or of all, after all work of its devices. A tag without
        tensors is not an error; a paused one raises InUse."""
        self._ensure_initialized().pause(tag)

    def resume(self, tag: str | None = None) -> None:
        """Maps memory for a tag, or for all, at the same addresses."""
        self._ensure_initialized().resume(tag)

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> HookMode:
        """Can only be set."""
        raise AttributeError

    @hook_mode.setter
    def hook_mode(self, hook_mode: HookMode) -> None:
        if self._impl is not None:
            raise RuntimeError("hook_mode is set before the first use")
        if hook_mode not in ("preload", "torch"):
            raise ValueError(f"hook_mode is 'preload' or 'torch', not {hook_mode!r}")

    @property
    def memory_margin_bytes(self) -> int:
        """Can only be set: device memory that allocations in regions leave free for others."""
        raise NotImplementedError("Only setter is supported")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        margin = _values.size("memory_margin_bytes", value)
        self._ensure_initialized().margin_bytes = margin

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether backups are kept for the next pause: always."""
        return True

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        impl = self._ensure_initialized()
        if not value:
            for suspender in impl._suspenders.values():
                suspender.return_backups()

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """A tensor on the host with the kept contents of a paused tensor; None if it is not paused,
        or was created without a backup. It is a copy also with `zero_copy`."""
        if not hasattr(x, "is_contiguous"):
            raise _values.refuse("x", "a tensor of PyTorch", x)
        if not x.is_cuda or not x.is_contiguous():
            raise ValueError("get_cpu_backup() takes a contiguous CUDA tensor")
        torch = _torch()
        if x.nbytes == 0:
            return torch.empty(x.shape, dtype=x.dtype)
        kept = self._ensure_initialized().backup(x.data_ptr(), x.nbytes)
        return (
            None
            if kept is None
            else torch.frombuffer(kept, dtype=torch.uint8).view(x.dtype).view(x.shape)
        )

    def set_disk_backup_dir(self, path: str) -> None:
        """The directory for backups of regions with enable_disk_backup. Raises RuntimeError if such
        a region exists."""
        impl = self._ensure_initialized()
        if "disk" in impl._suspenders:
            raise RuntimeError(
                "set_disk_backup_dir() comes before the first region with a disk backup"
            )
        os.makedirs(path, exist_ok=True)
        impl.disk_directory = path

    def _ensure_initialized(self) -> _Impl:
        if self._impl is None:
            self._impl = _Impl()
            atexit.register(self._impl.close)
        return self._impl


def _backup_of(cpu: bool, disk: bool, backend: str | None) -> str:
    if backend is not None and not cpu:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")
    if backend not in (None, "mmap", "pinned"):
        raise ValueError(f"cpu_backup_backend is 'mmap' or 'pinned', not {backend!r}")
    if cpu and disk:
        raise ValueError("enable_cpu_backup and enable_disk_backup are mutually exclusive")
    return "disk" if disk else (backend or "pinned") if cpu else ""


@contextmanager
def _inside(impl: _Impl) -> Iterator[None]:
    impl.depth.count = getattr(impl.depth, "count", 0) + 1
    try:
        yield
    finally:
        impl.depth.count -= 1


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Exists for compatibility: children need no preloaded library."""
    yield


#: The one object that programs use.
torch_memory_saver: TorchMemorySaver = _native.once("torch_memory_saver", TorchMemorySaver())
