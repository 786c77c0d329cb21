# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What a worker of workers.py does for programs.py and fits.py: it runs a program of PyTorch's that
calls record.iteration() where an iteration begins."""

import ast
import ctypes
import gc
import hashlib
import os
import random
import subprocess
import sys
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
FOLDERS = (os.path.join(ROOT, "tools", "trace", "programs"), os.path.join(HERE, "models"))
FOREVER = 1 << 30
VALUES_MAX = 1 << 16


class Stop(BaseException):
    """Ends a program at the head of an iteration."""


def constants(name):
    """Those that a name sets, as experts@dice=8 does: where the device has less memory."""
    return {key: int(value) for key, value in (each.split("=") for each in name.split("@")[1:])}


def find(name):
    """The path of a program: a name, or a path itself."""
    name = name.partition("@")[0]
    for path in (name, *(os.path.join(folder, f"{name}.py") for folder in FOLDERS)):
        if path.endswith(".py") and os.path.exists(path):
            return path
    return None


def scaled_dice(most):
    """A random.Random whose dice from 4 to 16 go up to `most`: what experts.py draws the number of
    its texts with."""

    class Dice(random.Random):
        def randint(self, low, high):
            drawn = super().randint(low, high)
            return max(1, drawn * most // 16) if (low, high) == (4, 16) else drawn

    return types.SimpleNamespace(Random=Dice)


def load(name, iteration, **knobs):
    """The program as a module that has not begun: its last statement, main(), is left to the
    caller. `knobs`, and what its name sets, replace its constants."""
    knobs = {**constants(name), **knobs}
    record = types.ModuleType("record")
    record.iteration = iteration
    sys.modules["record"] = record
    path = find(name)
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    if ast.unparse(tree.body[-1]) != "main()":
        raise ValueError(f"{path} does not end with main()")
    tree.body.pop()
    module = types.ModuleType(os.path.basename(path)[:-3])
    sys.modules[module.__name__] = module
    exec(compile(tree, path, "exec"), module.__dict__)
    dice = knobs.pop("dice", None)
    if dice is not None:
        module.random = scaled_dice(dice)
    for constant, value in knobs.items():
        if not hasattr(module, constant):
            raise ValueError(f"{path} has no {constant}")
        setattr(module, constant, value)
    sys.argv = [path, str(FOREVER)]
    return module


class Witness:
    """Losses, and the data that the program fetches from the device, as a digest. Losses go into
    memory allocated at the beginning, so that watching a program makes no allocations."""

    def __init__(self, torch):
        self._torch = torch
        self._losses = torch.zeros(VALUES_MAX, dtype=torch.float64, device="cuda")
        self._count = 0
        self._fetched = hashlib.sha256()
        backward, cpu = torch.Tensor.backward, torch.Tensor.cpu

        def watched_backward(loss, *words, **named):
            if self._count < VALUES_MAX:
                self._losses[self._count : self._count + 1].copy_(loss.detach().reshape(1))
                self._count += 1
            return backward(loss, *words, **named)

        def watched_cpu(tensor, *words, **named):
            found = cpu(tensor, *words, **named)
            if found.numel() < 1 << 12 and not isinstance(tensor, torch.nn.Parameter):
                self._fetched.update(
                    found.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
                )
            return found

        self._cpu = cpu
        torch.Tensor.backward, torch.Tensor.cpu = watched_backward, watched_cpu

    def digest(self):
        """Of the losses and what was fetched so far, and of all parameters as they are."""
        found = self._fetched.copy()
        found.update(self._cpu(self._losses[: self._count]).numpy().tobytes())
        sums = sorted(
            self._sum(each)
            for each in gc.get_objects()
            if type(each) is self._torch.nn.Parameter and each.is_cuda
        )
        found.update(repr(sums).encode())
        return found.hexdigest()[:16]

    def _sum(self, parameter):
        """Integers of its bits: the same whatever the order of adding them."""
        torch = self._torch
        flat = parameter.detach().reshape(-1)
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        total = weighted = 0
        for part in flat.view(kind[flat.element_size()]).split(1 << 22):
            wide = part.to(torch.int64)
            total += int(wide.sum())
            weighted += int((wide * wide).sum())
        return tuple(parameter.shape), total % 2**64, weighted % 2**64


class Turns:
    """Lets a program do one iteration for each "go", and says how long it took."""

    def __init__(self, torch, connection):
        self._torch = torch
        self._connection = connection
        self._witness = Witness(torch)
        self._begun = None
        self._timed = None

    def iteration(self):
        self._torch.cuda.synchronize()
        done = time.perf_counter()
        said = {"ready": 1}
        if self._begun:
            made = self._torch.cuda.memory_stats().get("num_device_alloc", 0)
            said = {"seconds": done - self._begun, "made": made}
        self._connection.send(said)
        while True:
            word = self._connection.recv()
            if word in ("native", "vmm"):
                switch(word)
                continue
            if word == "go":
                self._torch.cuda.synchronize()
                self._begun = time.perf_counter()
                return
            if word == "calls":
                self._timed = install_timed_calls(self._torch)
                self._connection.send({"calls": 1})
                continue
            self._finish()
            raise Stop

    def _finish(self):
        torch = self._torch
        answer = {
            "held": torch.cuda.max_memory_reserved(),
            "live": torch.cuda.max_memory_allocated(),
            "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        }
        if self._timed is not None:
            numbers = (ctypes.c_double * 11)()
            self._timed.vmm_timed_take(numbers)
            answer["calls"] = list(numbers)
        answer["digest"] = self._witness.digest()
        self._connection.send(answer)


def switch(allocator):
    """What allocates from now on; what lives stays where it is."""
    import libvmm.torch

    if allocator == "vmm":
        libvmm.torch.enable("allocator")
    else:
        libvmm.torch.disable()


def timed(connection, name):
    """Runs the program in turns until the command to stop."""
    import torch

    try:
        load(name, Turns(torch, connection).iteration).main()
    except Stop:
        pass


def fits(connection, name, steps, limit_bytes, knobs):
    """Says whether `steps` iterations of the program fit into so much memory."""
    import torch

    done = [0]

    def iteration():
        if done[0] == steps:
            raise Stop
        done[0] += 1

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
    begun, is_whole = time.perf_counter(), True
    try:
        load(name, iteration, **knobs).main()
    except Stop:
        torch.cuda.synchronize()
    except RuntimeError as failure:  # libraries have texts of their own for it
        short = isinstance(failure, torch.OutOfMemoryError) or "ALLOC_FAILED" in str(failure)
        if not short and "out of memory" not in str(failure):
            raise
        is_whole = False
    connection.send(
        {
            "fits": is_whole,
            "iterations": done[0],
            "held": torch.cuda.max_memory_reserved(),
            "live": torch.cuda.max_memory_allocated(),
            "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
            "seconds": time.perf_counter() - begun,
        }
    )


def prepare(connection, with_calls):
    """Compiles what is compiled, once before many workers would, and touches the device."""
    import torch

    said = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}
    if with_calls:
        build_timed_calls(torch)
    float(torch.ones(1, device="cuda").sum())
    connection.send(said)


def build_timed_calls(torch):
    """The path of timed_calls.cpp compiled against this PyTorch."""
    from libvmm.torch import _build

    source = os.path.join(HERE, "timed_calls.cpp")
    with open(source, "rb") as file:
        name = hashlib.sha256(file.read() + torch.__version__.encode()).hexdigest()[:16]
    target = os.path.join(_build.cache_folder(), f"timed-{name}.so")
    if os.path.exists(target):
        return target
    words = _build.command(
        os.path.dirname(torch.__file__), torch.__version__, torch.compiled_with_cxx11_abi()
    )
    words[words.index(_build.SOURCE)] = source
    os.makedirs(os.path.dirname(target), exist_ok=True)
    made = f"{target}.{os.getpid()}"
    done = subprocess.run([*words, "-o", made], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} failed:\n{done.stderr[-3000:]}")
    os.replace(made, target)
    return target


def install_timed_calls(torch):
    loaded = ctypes.CDLL(build_timed_calls(torch))
    loaded.vmm_timed_install()
    return loaded
