# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that a killed process took from a queue of torch.multiprocessing: their memory is free
again, where PyTorch keeps it until the sending process ends.

PyTorch keeps a sent tensor while the counter that goes with it, a number in a file of /dev/shm, is
above 0; the receiving process counts it down. Here the sender lends each counter to libvmm, the
receiver reports that it has it, and libvmm sets those of a process that ended to 0."""

from __future__ import annotations

from typing import Any

from .. import _native

FIRST_BYTE = b"\xff"  # of exports.hpp
_BASE_BYTES, _COUNTER_BYTES = 64, 8  # of the counters in PyTorch's file


def _call(function: Any, handle: Any, file: Any, number: Any) -> None:
    """vmm_block_lend or vmm_block_hold, for one of vmm's blocks. Where that fails, the tensor is
    sent as PyTorch sends it."""
    if isinstance(handle, bytes) and handle[:1] == FIRST_BYTE:
        function(handle[1:], file, _BASE_BYTES + _COUNTER_BYTES * number)


def install(torch: Any) -> None:
    """Between torch.multiprocessing and PyTorch's two functions for it, once."""
    storage = torch.UntypedStorage
    share, make = storage._share_cuda_, storage._new_shared_cuda
    if getattr(share, "__module__", None) == __name__:  # a method of C code has none
        return

    def _share_cuda_(self: Any) -> Any:
        sent = share(self)
        _, handle, _, _, file, number, *_ = sent
        _call(_native.LIBRARY.vmm_block_lend, handle, file, number)
        return sent

    def _new_shared_cuda(*received: Any) -> Any:
        _, handle, _, _, file, number, *_ = received
        _call(_native.LIBRARY.vmm_block_hold, handle, file, number)
        return make(*received)

    storage._share_cuda_ = _share_cuda_
    storage._new_shared_cuda = staticmethod(_new_shared_cuda)
