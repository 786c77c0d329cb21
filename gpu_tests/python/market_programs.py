# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The part `market` of one_variable.py: three unmodified programs (PyTorch, CuPy, JAX) whose peaks
sum to 1.6 of the device, one after the other, all at once, and all at once as tenants of an owner.
Before them, what NVML shows of the device to a tenant, by pynvml and nvidia-smi.

Each prints a line once it can begin, holds its peak for a second after the line "go", and prints
how many words of it are wrong. JAX takes its peak by its own preallocation."""

from __future__ import annotations

import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from one_variable import Found, Runner

SHARE = 1.6 / 3
HELD_S = 1.0  # the third waits for two others, less than 10 s
LONGER_MAX = 1.05  # than one after the other
LIMIT_S = 60

# `count` words of four bytes.
TORCH = """
import torch
torch.ones(1, device="cuda")
total = torch.cuda.get_device_properties(0).total_memory
def work(count):
    x = torch.empty(count, dtype=torch.int32, device="cuda")
    x.fill_(7)
    torch.cuda.synchronize()
    time.sleep(held)
    return sum(int((part != 7).sum()) for part in x.split(1 << 28))
"""
CUPY = """
import cupy
total = cupy.cuda.Device(0).mem_info[1]
def work(count):
    x = cupy.empty(count, dtype=cupy.int32)
    for at in range(0, count, 1 << 28):
        x[at : at + (1 << 28)] = 7
    cupy.cuda.Device(0).synchronize()
    time.sleep(held)
    return sum(int((x[at : at + (1 << 28)] != 7).sum()) for at in range(0, count, 1 << 28))
"""
JAX = """
import os
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(share)
import jax, jax.numpy as jnp
total = fallback
def work(count):
    sevens = jax.jit(lambda: jnp.full(1 << 26, 7, dtype=jnp.int32))
    x = [sevens() for _ in range(count * 8 // 10 >> 26)]  # of what it takes at once
    jax.block_until_ready(x)
    time.sleep(held)
    wrong = jax.jit(lambda x: (x != 7).sum())
    return sum(int(wrong(each)) for each in x)
"""
END = """
print("ready", flush=True)
input()
count = int(total * share) // 4
print("wrong words:", work(count), flush=True)
"""
# Prints MiB: total, free and used of the device before memory is allocated and after it, and what
# this process uses, where NVML lists it.
NVML = """
import ctypes, os, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
def show():
    for version in (None, pynvml.nvmlMemory_v2):
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version)
        print(*(each >> 20 for each in (memory.total, memory.free, memory.used)), end=", ")
show()
cuda, at, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_void_p()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
codes += [cuda.cuCtxSetCurrent(context)]
codes += [cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(limit << 17))]
show()
rows = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
print(codes, *(each.usedGpuMemory >> 20 for each in rows if each.pid == os.getpid()))
"""
PROGRAMS = {"torch": TORCH, "cupy": CUPY, "jax": JAX}


def total_bytes(run: Runner) -> int:
    asked = "import cupy; print(cupy.cuda.Device(0).mem_info[1])"
    return 1 << 30 if run.standin else int(run.run(asked).out)


class Started:
    """A program that waits for "go"."""

    def __init__(self, run: Runner, name: str, total: int, variables: dict[str, str]):
        self.name = name
        text = f"import time\nshare, held, fallback = {SHARE}, {HELD_S}, {total}\n"
        file = tempfile.NamedTemporaryFile("w", suffix=".py", dir=run.folder)  # noqa: SIM115
        self._script = file
        self._script.write(text + PROGRAMS[name] + END)
        self._script.flush()
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [run.python, self._script.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env=run.environment(**variables),
            cwd=run.folder,
        )
        assert self.process.stdout is not None
        self.is_ready = bool(select.select([self.process.stdout], [], [], LIMIT_S)[0]) and (
            self.process.stdout.readline() == "ready\n"
        )

    def go(self) -> None:
        if self.is_ready:
            assert self.process.stdin is not None
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def finish(self) -> tuple[bool, str]:
        """Whether all of its words are right, its last line, and an owner's reason before it."""
        try:
            out, _ = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
        self._err.seek(0)
        lines = (out.strip() or self._err.read().strip() or "no line").splitlines()
        reasons = [each for each in lines[:-1] if " MiB held, " in each]
        said = " / ".join(each[:400] for each in (*reasons[-1:], lines[-1]))
        return self.process.returncode == 0 and lines[-1] == "wrong words: 0", said


def at_once(run: Runner, names: list[str], total: int, variables: dict[str, str]):
    """The seconds from "go" to the last end, and how each ended."""
    started = [Started(run, name, total, variables) for name in names]
    begun = time.monotonic()
    for each in started:
        each.go()
    ended = {each.name: each.finish() for each in started}
    return time.monotonic() - begun, ended


def measure(run: Runner, found: Found) -> None:
    names = [each for each in PROGRAMS if run.can_import(each)]
    for name in PROGRAMS.keys() - set(names):
        found.add(name, "skipped: it cannot be imported", "", "")
    show_nvml(run, found)
    if not names:
        return
    total = total_bytes(run)
    tenants = {"VMM": "1", "VMM_OWNER": "auto", "XDG_RUNTIME_DIR": run.folder}
    one_by_one = 0.0
    for kind, together, variables in (
        ("one after the other", False, {}),
        ("plain at once", True, {}),
        ("tenants at once", True, tenants),
    ):
        seconds, ended = 0.0, {}
        for group in [names] if together else [[name] for name in names]:
            spent, results = at_once(run, group, total, variables)
            seconds, ended = seconds + spent, ended | results
        all_right = all(is_right for is_right, _ in ended.values())
        if not together:
            one_by_one = seconds
        is_wrong = (not all_right) != (kind == "plain at once") and not run.standin
        if kind == "tenants at once":
            is_wrong = is_wrong or (seconds > LONGER_MAX * one_by_one and not run.standin)
        ends = "; ".join(f"{name}: {line}" for name, (_, line) in ended.items())
        ratio = f"{seconds / one_by_one:.2f} of one after the other"
        found.add(kind, "WRONG" if is_wrong else "fine", f"{seconds:.1f} s, {ratio}", ends)


def show_nvml(run: Runner, found: Found) -> None:
    limit = 64 if run.standin else 8192  # MiB
    used = limit // 8
    begun, later = f"{limit} {limit} 0, " * 2, f"{limit} {limit - used} {used}, " * 2
    expected = (f"{begun}{later}[0, 0, 0, 0]", f"{begun}{later}[0, 0, 0, 0] {used}")
    (preload,) = pathlib.Path(run.folder).glob("environment/lib/python3*/*/libvmm/lib/*preload.so")
    tenant = {
        "VMM_OWNER": "auto",
        "VMM_TENANT": f"limit={limit}MiB",
        "XDG_RUNTIME_DIR": run.folder,
        "LD_LIBRARY_PATH": run.standin or os.environ.get("LD_LIBRARY_PATH", ""),
    }
    preloaded = {**tenant, "LD_PRELOAD": str(preload), "VMM_MODE": "vmm"}
    if not run.can_import("pynvml"):
        found.add("pynvml", "skipped: it cannot be imported", "", "")
    else:
        for name, variables in (("VMM=1", {**tenant, "VMM": "1"}), ("preload", preloaded)):
            done = run.run(f"limit = {limit}\n{NVML}", **variables)
            is_right = done.out in expected
            found.add(f"pynvml, {name}", "fine" if is_right else "WRONG", "", done.out + done.err)
    if shutil.which("nvidia-smi"):
        asked = ("--id=0", "--query-gpu=memory.total,memory.free,memory.used")
        done = run.command("nvidia-smi", *asked, "--format=csv,noheader,nounits", **preloaded)
        is_right = done.out == f"{limit}, {limit}, 0"
        found.add("nvidia-smi, preload", "fine" if is_right else "WRONG", "", done.out + done.err)
