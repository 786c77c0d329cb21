# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder say: a digest of their results, the time of each round, and the
device's memory that the process has at its end, as NVML tells it beside the driver.

With the word `turns` a program does its rounds when it is told to, a line `go` on its standard
input each, so that one process at a time uses the device."""

import ctypes
import hashlib
import os
import sys
import time

for name, value in (
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
):
    if os.environ.get(name) != value:
        raise SystemExit(f"{name} must be {value}: NVLink multicast stays off")

_digest = hashlib.sha256()


def add(array):
    """An array of the host becomes part of the digest."""
    _digest.update(memoryview(array).cast("B"))


def mark(name, value=""):
    """A line with the digest so far: where two runs part, the first line that differs says when."""
    if "turns" not in sys.argv:
        print(f"at {name} {_digest.hexdigest()[:16]} {value}")


def play(step, count, per_round=5):
    """Calls step(0), step(1), ...; the work of each call must be finished when it returns."""
    if "turns" not in sys.argv:
        for i in range(count):
            step(i)
        return
    done = 0
    for _ in range(3 * per_round):
        step(done)
        done += 1
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            break
        step(done)  # others had the device
        begin = time.perf_counter()
        for i in range(per_round):
            step(done + 1 + i)
        spent = time.perf_counter() - begin
        done += 1 + per_round
        print(f"round_ms {spent * 1e3 / per_round:.5f}", flush=True)


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def used_mib():
    """Of this process where NVML knows it, else of the device; and which of the two."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, memory = ctypes.c_void_p(), _Memory()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        count, seen = ctypes.c_uint(128), (_Process * 128)()
        code = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), seen)
        for each in seen[: count.value if code == 0 else 0]:
            if each.pid == os.getpid() and each.used < 1 << 50:
                return f"{each.used >> 20} process"
        nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        return f"{memory.used >> 20} device"
    except (OSError, AttributeError):
        return "0 unknown"


def finish():
    print("digest", _digest.hexdigest()[:16])
    print("used_mib", used_mib(), flush=True)
