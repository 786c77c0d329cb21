# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""A sleep-mode backend for vLLM over vmm's regions.

    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend libvmm

An entry point of `vllm.general_plugins` calls register(). Memory that vLLM allocates under its tags
("weights", "kv_cache") comes from use_memory_pool(), and is suspended here: level 1 keeps the
weights in host memory, level 2 discards them; everything else is discarded at both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import _native, _objects
from .errors import Error, InvalidArgument
from .torch_memory_saver import _Impl

try:
    from vllm.device_allocator.sleep_mode_backend import (
        SleepModeBackend as _Base,
    )
except ImportError:

    class _Base:  # type: ignore[no-redef]
        """Replaces vLLM's base class if vLLM is not installed, or has no such backends."""

        def __init__(self) -> None:
            self._state = "RUNNING"

        def state(self) -> str:
            """RUNNING, SUSPENDED or RESUMING."""
            return self._state


#: The backend's name on vLLM's command line.
NAME = "libvmm"

_made: dict[str, _Impl] = _native.once("vLLM's regions", {})


def _memory() -> _Impl:
    """One set of regions for the process, as vLLM's own allocator is one."""
    return _made.get("regions") or _made.setdefault("regions", _Impl())


@contextmanager
def use_memory_pool(tag: str = "default") -> Iterator[None]:
    """Tensors of this thread created inside belong to the tag, as with CuMemAllocator's method."""
    import torch

    with torch.cuda.use_mem_pool(_memory().region(tag, "pinned").mem_pool):
        yield


class VmmBackend(_objects.Initialised, _Base):
    """RUNNING; after suspend() or discard() SUSPENDED; after resume() RESUMING while some tags are
    suspended, then RUNNING. A failed call leaves the state unchanged."""

    _state: str
    _mark = "_memory"

    @_objects.once("_memory")
    def __init__(self, memory: Any = None) -> None:
        super().__init__()
        self._memory = memory if memory is not None else _memory()
        self._away: set[str] = set()
        self._sleeps = False  # by suspend(), and not all is back

    def suspend(self, level: int = 1) -> None:
        """Level 0 suspends nothing; level 1 keeps the weights in host memory; level 2 discards
        them. Discarded tags stay suspended. Raises InvalidArgument for another level, RuntimeError
        after a suspend() that resume() has not undone in full."""
        if level not in (0, 1, 2):
            raise InvalidArgument(f"a level of sleep is 0, 1 or 2, not {level!r}")
        if self._sleeps:
            raise RuntimeError(f"suspend() of a backend that is {self._state}")
        if level:
            self._away.update(self._memory.sleep(["weights"] if level == 1 else []))
        self._state, self._sleeps = "SUSPENDED", True

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Releases the memory of the tags without their contents, while other tags stay in use;
        resume() maps it again. Suspended tags and tags without tensors are skipped."""
        self._away.update(self._memory.discard((tags,) if isinstance(tags, str) else tuple(tags)))
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Resumes the tags, or all. The state is RESUMING until the last one. Running tags and tags
        without tensors are skipped. Raises RuntimeError while RUNNING."""
        if self._state == "RUNNING":
            raise RuntimeError("resume() of a backend that is RUNNING")
        before, self._state = self._state, "RESUMING"
        named = [tags] if isinstance(tags, str) else tags
        try:
            for tag in sorted(self._away if named is None else self._away.intersection(named)):
                self._memory.resume(tag)
                self._away.discard(tag)
        except Error:
            self._state = before
            raise
        if not self._away:
            self._state, self._sleeps = "RUNNING", False

    @classmethod
    def is_supported(cls) -> bool:
        """Whether a CUDA driver can be opened."""
        from ._drivers import drivers

        return any(each.name == "cuda" and each.available for each in drivers())

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Has no effect: communicators' memory is not suspended."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Has no effect: code and graphs stay, and addresses do not change."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Buffers that a communicator registered are mapped anew: capture such graphs again."""
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        """Has no effect: backups end with the process."""
        return False


def register() -> None:
    """The entry point of `vllm.general_plugins`: registers the backend with vLLM's factory. vLLM
    may call it several times in a process."""
    try:
        from vllm.device_allocator.sleep_mode_backend import (
            SleepModeBackendFactory,
        )
    except ImportError as missing:
        raise ImportError(
            "libvmm.vllm needs a vLLM that has sleep-mode backends, which is not installed"
        ) from missing
    try:
        SleepModeBackendFactory.get_backend_class(NAME)
    except ValueError:
        SleepModeBackendFactory.register_backend(NAME, "libvmm.vllm", "VmmBackend")
