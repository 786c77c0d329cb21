# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: unmodified programs have vmm's memory under VMM=1, and the same output as without it.
Method: one_variable.py WHEEL. An environment over this Python's packages gets the wheel; each
program runs plain and with VMM=1, with no compiler in its PATH, and prints what serves it. Then
queues.py runs, where there is PyTorch. A table ends the output; the exit code is 1 if a line of it
is wrong."""

from __future__ import annotations

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

# Prints the state of VMM=1 on stderr, the peaks of its pools, and the calls at the driver boundary.
STATE = """
import sys
def boundary():
    import ctypes, json, os
    file = os.memfd_create("report")
    try:
        shown = ctypes.CDLL("libvmm_preload.so").vmm_preload_report(file, 1)
    except OSError:
        return
    if shown != 1:
        return print("BOUNDARY unused", file=sys.stderr)
    found = json.loads(os.pread(file, 1 << 20, 0))
    peaks = [each["memory"]["peak_bytes"] >> 20 for each in found["devices"]]
    print("BOUNDARY", found["blocks_served"], "blocks, peak", max(peaks, default=0), "MiB, left to",
          "the driver:", found["unmanaged"], file=sys.stderr)
def state():
    if "_libvmm_start" not in sys.modules:
        return
    for each in sorted(sys.modules["_libvmm_start"].served.items()):
        print("STATE", *each, file=sys.stderr)
    boundary()
    if "libvmm" not in sys.modules:
        return
    from libvmm import _auto
    for device, pool in _auto._state.pools.items():
        print("POOL", device, pool.statistics().peak_live_bytes >> 20, "MiB", file=sys.stderr)
    import libvmm.torch
    if libvmm.torch._state.compiled is not None:
        peak = libvmm.torch.statistics(0).peak_live_bytes >> 20
        print("TENSORS", peak, "MiB", file=sys.stderr)
import atexit
atexit.register(state)
"""

JAX = """
import os
os.environ.update({})
import jax, jax.numpy as jnp
x = jnp.arange(1 << 22, dtype=jnp.float32).reshape(2048, 2048)
for step in range(20):
    y = (x[: 1024 + 8 * step] * 2 + step).block_until_ready()
print(float(y[-1, -1]), float(jnp.sort(-x[0])[0]))
"""
ALL = """
import ctypes, os
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "cuda_async"
import cupy as cp, jax.numpy as jnp, numpy as np, torch
from numba import cuda
@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2
total = 0.0
driver, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
for step in range(10):
    size = (1 + step % 4) << 20
    a = torch.ones(size, device="cuda")
    b = cp.ones(size, dtype=cp.float32)
    c = cuda.to_device(np.ones(size, dtype=np.float32))
    double[size // 256, 256](c)
    d = jnp.ones(size, dtype=jnp.float32)
    assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size * 4)) == 0
    total += a.sum().item() + float(b.sum()) + c.copy_to_host().sum() + float(d.sum())
    assert driver.cuMemFree_v2(at) == 0
print(total)
"""
PLAIN = """
import ctypes
driver, context, at = ctypes.CDLL("libcuda.so"), ctypes.c_void_p(), ctypes.c_uint64()
print(driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
print(driver.cuCtxSetCurrent(context))
for step in range(100):
    size = ctypes.c_size_t((1 + step % 9) << 20)
    assert driver.cuMemAlloc_v2(ctypes.byref(at), size) == 0
    assert driver.cuMemsetD8_v2(at, 7, size) == 0 and driver.cuMemFree_v2(at) == 0
print(driver.cuCtxSynchronize())
"""

TRAIN = """
import torch
torch.manual_seed(0)
layers = torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
model = torch.nn.Sequential(*layers).cuda()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(30):
    x = torch.randn(64 * (1 + step % 5), 512, device="cuda")
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
print("%.9f" % loss.item())
print(torch.cuda.max_memory_allocated() > 0, len(torch.cuda.memory_snapshot()) > 0)
"""

PROGRAMS = {
    "torch: training": ("torch", TRAIN),
    "torch: out of memory, caught": (
        "torch",
        """
import torch
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("out of memory")
print(torch.ones(1000, device="cuda").sum().item())
""",
    ),
    "torch: fork before CUDA": (
        "torch",
        """
import os, sys, torch
child = os.fork()
if child == 0:
    print(torch.arange(1000, device="cuda").sum().item(), flush=True)
    state()
    os._exit(0)
print(os.waitpid(child, 0)[1])
print(torch.arange(100, device="cuda").sum().item())
""",
    ),
    "torch: DataLoader, spawn, pinned": (
        "torch",
        """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = TensorDataset(torch.arange(4096.0).reshape(256, 16))
    loader = DataLoader(data, 32, num_workers=2, pin_memory=True, multiprocessing_context="spawn")
    print(sum(x.cuda(non_blocking=True).sum().item() for (x,) in loader))
""",
    ),
    "torch: a spawned process": (
        "torch",
        """
import multiprocessing, torch
def work():
    print(torch.ones(1 << 22, device="cuda").sum().item(), flush=True)
    state()
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
""",
    ),
    "torch: CUDA graph, side stream": (
        "torch",
        """
import torch
x = torch.ones(1 << 20, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x * 2
    y.record_stream(torch.cuda.current_stream())
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = (x + y) * 3
graph.replay()
torch.cuda.synchronize()
print(z.sum().item())
""",
    ),
    "torch: compile, reduce-overhead": (
        "torch triton",
        """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(256, 256).cuda()
fast = torch.compile(model, mode="reduce-overhead")
for step in range(8):
    torch.compiler.cudagraph_mark_step_begin()
    y = fast(torch.ones(64 if step % 2 else 128, 256, device="cuda")).sum().item()
print("%.4f" % y)
""",
    ),
    "cupy: streams that end": (
        "cupy",
        """
import cupy as cp
bad = 0
for i in range(300):
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        a = cp.full(50_000 + 997 * (i % 17), i, dtype=cp.int32)
        b = a * 2 + 1
    stream.synchronize()
    bad += int((b != i * 2 + 1).any())
    del stream, a, b
try:
    cp.zeros(1 << 45, dtype=cp.uint8)
except cp.cuda.memory.OutOfMemoryError:
    print("out of memory")
print(bad)
""",
    ),
    "numba: kernels": (
        "numba",
        """
import numpy as np
from numba import cuda
@cuda.jit
def saxpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]
total = 0.0
for step in range(50):
    x, y = cuda.to_device(np.full(100_000, 1.0 + step)), cuda.to_device(np.zeros(100_000))
    saxpy[400, 256](2.0, x, y)
    total += y.copy_to_host().sum()
print(total)
""",
    ),
    "jax: its default": ("jax", JAX.format({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".2"})),
    "jax: cuda_async": ("jax", JAX.format({"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"})),
    "driver: calls by ctypes": ("ctypes", PLAIN),
    "torch, cupy, numba, jax, driver in one process": ("torch cupy numba jax", ALL),
    "rmm: buffers": (
        "rmm",
        """
import rmm
kept = [rmm.DeviceBuffer(size=1 << (20 + i % 4)) for i in range(20)]
print(sum(each.size for each in kept))
""",
    ),
    "warp: arrays": (
        "warp",
        """
import warp as wp
wp.config.quiet = True
wp.init()
a = wp.full(1 << 20, 3.0, dtype=wp.float32, device="cuda:0")
print(a.numpy().sum())
""",
    ),
    "torch and cupy take 0.65 of the device in turn": (
        "torch cupy",
        """
import cupy as cp, torch
size = int(torch.cuda.mem_get_info()[1] * 0.65)
served = []
for turn in range(3):
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        del x
        y = cp.empty(size, dtype=cp.uint8)
        del y
        served.append(True)
    except (torch.OutOfMemoryError, cp.cuda.memory.OutOfMemoryError):
        served.append(False)
print("turns", served)
""",
    ),
    "torch and jax take 0.65 of the device in turn": (
        "torch jax",
        """
import os
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "cuda_async"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".9"
import jax, jax.numpy as jnp, torch
jnp.zeros(8).block_until_ready()  # its limit is a share of the free memory
size = int(torch.cuda.mem_get_info()[1] * 0.65)
served = []
for turn in range(3):
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        del x
        y = jnp.zeros(size, dtype=jnp.uint8).block_until_ready()
        del y
        served.append(True)
    except (torch.OutOfMemoryError, jax.errors.JaxRuntimeError):
        served.append(False)
print("turns", served)
""",
    ),
}
EXPECTED_TO_DIFFER = ("torch and cupy take", "torch and jax take")


class Runner:
    def __init__(self, wheel: str, folder: str) -> None:
        self.folder = folder
        made = ["-m", "venv", "--without-pip", "--system-site-packages", f"{folder}/environment"]
        subprocess.run([sys.executable, *made], check=True)
        self.python = f"{folder}/environment/bin/python"
        (packages,) = pathlib.Path(folder).glob("environment/lib/python3*/site-packages")
        zipfile.ZipFile(wheel).extractall(packages)
        # A machine's Python may itself be an environment, whose packages that option leaves out.
        others = [each for each in sys.path if each.endswith(("site-packages", "dist-packages"))]
        (packages / "others.pth").write_text("\n".join(others) + "\n")

    def run(self, text: str, **variables: str) -> tuple[str, str, int]:
        """What a program wrote to stdout, to stderr, and its exit code."""
        script = os.path.join(self.folder, "program.py")
        pathlib.Path(script).write_text(text)
        done = subprocess.run(
            [self.python, script],
            capture_output=True,
            text=True,
            env=self.environment(**variables),
            timeout=180,
        )
        return done.stdout.strip(), done.stderr.strip(), done.returncode

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {
            name: each
            for name, each in os.environ.items()
            if not name.startswith(("VMM", "_LIBVMM"))
        }
        return kept | {
            "CXX": "/nowhere/compiler",
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1",
            "LIBVMM_CACHE": f"{self.folder}/cache",
            **variables,
        }

    def queues(self) -> bool:
        """Whether tensors pass between processes."""
        if self.run("import torch")[2] != 0:
            return True
        script = str(pathlib.Path(__file__).with_name("queues.py"))
        return subprocess.run([self.python, script], env=self.environment()).returncode == 0

    def milliseconds(self, text: str, rounds: int, **variables: str) -> float:
        """The median of a program's time."""
        found = []
        for _ in range(rounds):
            begun = time.perf_counter()
            self.run(text, **variables)
            found.append((time.perf_counter() - begun) * 1e3)
        return statistics.median(found)


def lines_with(text: str, word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in text.splitlines() if line.startswith(word)]


def compare(run: Runner, name: str, libraries: str, text: str) -> tuple[bool, list[str]]:
    """Whether the program is right under VMM=1, and the cells of its row."""
    for each in libraries.split():
        if run.run(f"import {each}")[2] != 0:
            return True, [name, "skipped", f"{each} cannot be imported", "", ""]
    plain = run.run(STATE + text)
    if plain[2] != 0:
        why = (plain[1].splitlines() or [f"exit code {plain[2]}"])[-1]
        return True, [name, "skipped", f"plain fails: {why[:90]}", "", ""]
    vmm = run.run(STATE + text, VMM="1")
    state = lines_with(vmm[1], "STATE")
    amounts = [
        each for word in ("TENSORS", "POOL", "BOUNDARY") for each in lines_with(vmm[1], word)
    ]
    own = [each for each in state if "its own memory" in each]
    if "jax" in name or "driver" in name:
        own += [] if re.search(r"BOUNDARY [1-9]\d* blocks", vmm[1]) else ["driver: no block"]
    is_same = plain[0] == vmm[0] and plain[2] == vmm[2]
    if name.startswith(EXPECTED_TO_DIFFER):
        is_same = vmm[0] == "turns [True, True, True]" and vmm[2] == 0
    is_right = is_same and bool(state) and not own
    if not is_right:
        print(f"--- {name}\nplain: {plain}\nVMM=1: {vmm}", file=sys.stderr, flush=True)
    cells = [name, "fine" if is_right else "WRONG", "; ".join(state), ", ".join(amounts)]
    return is_right, [*cells, plain[0].replace("\n", " ")]


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: one_variable.py WHEEL", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        run = Runner(os.path.abspath(sys.argv[1]), folder)
        rows, wrong = [], 0
        for name, (libraries, text) in PROGRAMS.items():
            fine, row = compare(run, name, libraries, text)
            rows.append(row)
            wrong += not fine
            print(" | ".join(row[:4]), flush=True)
        wrong += not run.queues()
        run.run("pass", VMM="1")
        unset, given = (run.milliseconds("pass", 21, VMM=each) for each in ("", "1"))
        native = [run.milliseconds("import ctypes", 21, VMM=each) for each in ("", "1")]

        added = [run.milliseconds("import torch", 5, VMM=each) for each in ("", "1")]
        print(
            "\n| program | VMM=1 | served by | peak | output without vmm |\n| - | - | - | - | - |"
        )
        for row in rows:
            print(f"| {' | '.join(row)} |")
        print(f"\nstart of Python, median ms: unset {unset:.1f}, VMM=1 {given:.1f}")
        print(f"with native code: unset {native[0]:.1f}, VMM=1 {native[1]:.1f}")
        print(f"with import torch: unset {added[0]:.0f}, VMM=1 {added[1]:.0f}")
        skipped = sum(row[1] == "skipped" for row in rows)
        print(f"one_variable: {len(rows) - skipped - wrong} fine, {skipped} skipped, {wrong} wrong")
    return 0 if wrong == 0 and skipped < len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
