# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of one_variable.py: the libraries that each requires, and its text."""

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
    assert driver.cuMemsetD8Async(at, 7, size, None) == 0 and driver.cuMemFree_v2(at) == 0
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

LLAMA = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=4, vocab_size=1000)
model = LlamaForCausalLM(config)
"""
TRAINER = """
import contextlib, io, tempfile
from transformers import Trainer, TrainingArguments
texts = [torch.arange(first, first + 128) % 1000 for first in range(64)]
# It prints how long it took.
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    chosen = TrainingArguments(folder, per_device_train_batch_size=8, max_steps=10, seed=0,
                               report_to=[], save_strategy="no", disable_tqdm=True)
    data = [{"input_ids": each, "labels": each} for each in texts]
    done = Trainer(model, chosen, train_dataset=data).train()
print("%.6f" % done.training_loss, next(model.parameters()).device.type)
"""
GENERATE = """
model = model.cuda().eval()
prompt = torch.arange(64, device="cuda").reshape(2, 32)
made = model.generate(prompt, max_new_tokens=48, min_new_tokens=48, do_sample=False, pad_token_id=0)
print(tuple(made.shape), made.sum().item())
"""
TORCHRUN = """
import os, subprocess, sys
if "RANK" not in os.environ:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    sys.exit(subprocess.run([sys.executable, *words]).returncode)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1 << 22,), dist.get_rank() + 1.0, device="cuda")
dist.all_reduce(x)
if dist.get_rank() == 0:
    print(x.sum().item(), flush=True)
dist.destroy_process_group()
"""
PICKLE = """
import pickle, subprocess, sys, torch
if len(sys.argv) > 1:
    x = torch.arange(1 << 20, dtype=torch.float64, device="cuda")
    pickle.dump({"x": x * 2}, sys.stdout.buffer)
    sys.exit()
words = [sys.executable, __file__, "child"]
came = pickle.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
print(came["x"].device.type, came["x"].sum().item())
"""
QUEUE = """
import torch, torch.multiprocessing as processes
def work(tensors, sums):
    for _ in range(3):
        x = tensors.get()
        sums.put(x.sum().item())
        del x
if __name__ == "__main__":
    context = processes.get_context("spawn")
    tensors, sums = context.Queue(), context.Queue()
    child = context.Process(target=work, args=(tensors, sums))
    child.start()
    for step in range(3):
        x = torch.full((1 << 22,), step + 1.0, device="cuda")
        tensors.put(x)
        print(sums.get())
    child.join()
    print(child.exitcode)
"""

PROGRAMS = {
    "torch: training": ("torch", TRAIN),
    "transformers: Trainer": ("torch transformers accelerate", LLAMA + TRAINER),
    "transformers: generate": ("torch transformers", LLAMA + GENERATE),
    "torchrun: two ranks": ("torch", TORCHRUN),
    "torch: a pickle of a subprocess": ("torch", PICKLE),
    "torch: tensors through a queue": ("torch", QUEUE),
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
    "torch, cupy and jax take 0.45 of the device each, in turn": (
        "torch cupy jax",
        """
import os
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "cuda_async"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".9"
import cupy as cp, jax, jax.numpy as jnp, torch
jnp.zeros(8).block_until_ready()  # its limit is a share of the free memory
size = int(torch.cuda.mem_get_info()[1] * 0.45)
served = []
for turn in range(3):
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        del x
        y = cp.empty(size, dtype=cp.uint8)
        del y
        z = jnp.zeros(size, dtype=jnp.uint8).block_until_ready()
        del z
        served.append(True)
    except (torch.OutOfMemoryError, cp.cuda.memory.OutOfMemoryError, jax.errors.JaxRuntimeError):
        served.append(False)
print("turns", served)
""",
    ),
}
EXPECTED_TO_DIFFER = ("torch and cupy take", "torch and jax take", "torch, cupy and jax take")
# They take a share of the device.
ALONE = (*EXPECTED_TO_DIFFER, "jax", "torch, cupy, numba, jax")
