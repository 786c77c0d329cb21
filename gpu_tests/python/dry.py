# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""one_variable.py --dry: its programs run on a machine without a GPU, so that a mistake in their
text, their arguments or the reading of their output shows before a GPU is there.

Imported at the start of Python where VMM_DRY is set. PyTorch then takes "cuda" for the processor:
streams, graphs and counters do nothing, NCCL is gloo, and nothing is compiled. CuPy is NumPy. What
this cannot stand for fails, and the table says so. Nothing about vmm's memory is shown."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder

TOTAL_BYTES = 1 << 30


def is_cuda(device):
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return str(device).startswith("cuda") if device is not None else False


def make_mode(torch):
    from torch.overrides import TorchFunctionMode

    moves = {torch.Tensor.to, torch.Tensor.cuda}

    class OnProcessor(TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if function is torch.Tensor.record_stream:
                return None
            if is_cuda(kwargs.get("device")):
                kwargs["device"] = "cpu"
            if function is torch.Tensor.cuda:
                return args[0]
            if function in moves:
                args = tuple("cpu" if is_cuda(each) else each for each in args)
            try:
                return function(*args, **kwargs)
            except RuntimeError as trouble:
                if "can't allocate memory" in str(trouble):
                    raise torch.OutOfMemoryError(str(trouble)) from trouble
                raise

    return OnProcessor()


class Nothing:
    """An event or a graph."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: None


class Stream(Nothing):
    numbers = itertools.count(1)

    def __init__(self, *_, **__):
        self.cuda_stream = next(Stream.numbers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def patch_modules(torch):
    """Those that look at a device before a function of PyTorch sees it."""
    module_to = torch.nn.Module.to

    class Generator(torch.Generator):
        def __new__(cls, device=None):
            return super().__new__(cls, "cpu")

    def to(self, *args, **kwargs):
        args = tuple("cpu" if is_cuda(each) else each for each in args)
        return module_to(self, *args, **kwargs)

    torch.nn.Module.to = to
    torch.nn.Module.cuda = lambda self, *_: self
    torch.Generator = Generator
    torch.compile = lambda model=None, **_: model or (lambda each: each)


def patch_distributed(torch):
    import torch.distributed as dist
    import torch.nn.parallel as parallel

    begin, wrapped = dist.init_process_group, parallel.DistributedDataParallel

    class OnProcessor(wrapped):
        def __init__(self, module, device_ids=None, **named):
            super().__init__(module, **named)

    dist.init_process_group = lambda backend, **named: begin("gloo", **named)
    parallel.DistributedDataParallel = OnProcessor
    torch._C._get_accelerator = lambda *_: torch.device("cpu")


def patch_torch(torch):
    cuda, number = torch.cuda, itertools.count(1 << 40, 1 << 20)
    for name in "synchronize set_device empty_cache ipc_collect reset_peak_memory_stats".split():
        setattr(cuda, name, lambda *_, **__: None)
    cuda.device_count = lambda: 2
    cuda.current_device = lambda: 0
    cuda.can_device_access_peer = lambda *_: True
    cuda.get_device_name = lambda *_: "no device"
    cuda.memory_stats = lambda *_: {}
    cuda.mem_get_info = lambda *_: (TOTAL_BYTES, TOTAL_BYTES)
    cuda.memory_snapshot = lambda *_: [{}]
    cuda.memory_allocated = lambda *_: 0
    cuda.max_memory_allocated = cuda.max_memory_reserved = lambda *_: TOTAL_BYTES
    cuda.Event = cuda.CUDAGraph = Nothing
    cuda.Stream = Stream
    cuda.current_stream = lambda *_: Stream()
    cuda.stream = cuda.device = cuda.graph = lambda *_, **__: contextlib.nullcontext()
    torch._C._cuda_cudaCachingAllocator_raw_alloc = lambda *_: next(number)
    torch._C._cuda_cudaCachingAllocator_raw_delete = lambda *_: None
    patch_modules(torch)
    if torch.distributed.is_available():
        patch_distributed(torch)
    make_mode(torch).__enter__()


class Cupy:
    """A loader of NumPy by that name."""

    def create_module(self, spec):
        import numpy

        made = types.ModuleType(spec.name)
        made.__getattr__ = lambda name: getattr(numpy, name)
        made.cuda = types.SimpleNamespace(
            Stream=Stream,
            memory=types.SimpleNamespace(OutOfMemoryError=MemoryError),
            set_allocator=lambda _: None,
        )
        return made

    def exec_module(self, module):
        pass


def patch_adapter(adapter):
    """libvmm.torch, which serves nothing without a driver."""
    amounts = types.SimpleNamespace(peak_live_bytes=TOTAL_BYTES, peak_held_bytes=TOTAL_BYTES)
    adapter.enable = adapter.disable = lambda *_, **__: None
    adapter.statistics = lambda *_: amounts


PATCHES = {"torch": patch_torch, "libvmm.torch": patch_adapter}


class Finder:
    """Before Python's own, and behind libvmm's."""

    def find_spec(self, name, path=None, target=None):
        if name == "cupy":
            return ModuleSpec(name, Cupy())
        if name not in PATCHES:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                PATCHES[name](module)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder())
