# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Which allocator a process has, for the programs beside this file."""

import os

# No multicast objects: NCCL, symmetric memory and NVSHMEM read these before their first use.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
ALLOCATORS = ("native", "expandable", "vmm", "functions")


def environment(allocator):
    """Of a process that is to have that allocator."""
    made = {
        **os.environ,
        **NO_MULTICAST,
        "CHECK_ALLOCATOR": allocator,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONFAULTHANDLER": "1",
    }
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        made.pop(name, None)
    if allocator == "expandable":
        made["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return made


def enable(allocator):
    """In the process itself, before its first tensor."""
    if allocator == "vmm":
        import libvmm.torch

        libvmm.torch.enable("allocator")
    elif allocator == "functions":
        import libvmm.torch

        libvmm.torch.enable("functions")
