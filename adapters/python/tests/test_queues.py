# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the counter of a tensor that a killed process took from a queue is 0, so that PyTorch frees
the tensor, by spawn and by the fork server, without the right to trace another process.
Method: two processes whose module torch has PyTorch's two functions for queues, over vmm's host
driver, and its file of counters. The receiving one is killed at each step."""

import ctypes
import mmap
import multiprocessing
import os
import signal
import struct
import types

import pytest
from libvmm import _native
from libvmm.torch import _queues
from test_allocator import Allocator

BASE, COUNTER, COUNT = 64, 8, 16
CAP_SYS_PTRACE, PR_CAPBSET_DROP = 19, 24
STEPS = ("told", "held", "imported", "ended")


class Storage:
    """What PyTorch's own UntypedStorage does for queues."""

    memory = None
    numbers = iter(())
    file = b""

    def __init__(self, at):
        self.at = at

    def _share_cuda_(self):
        sent = ctypes.create_string_buffer(64)
        self.memory.export(ctypes.c_void_p(self.at), sent)
        return 0, b"\xff" + sent.raw, 4096, 0, self.file, next(self.numbers), b"", False

    @staticmethod
    def _new_shared_cuda(device, handle, _size, _offset, _file, _number, _event, _waits):
        Storage.memory = Storage.memory or Allocator(b"host")
        at = ctypes.c_void_p()
        getattr(Storage.memory, "import")(handle[1:], device, ctypes.byref(at))
        return Storage(at.value)


def install():
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
    _queues.install(types.SimpleNamespace(UntypedStorage=Storage))


def receive(queue, ready, step):
    """A process that is killed at a step, or goes on to the end."""
    install()
    make = Storage._new_shared_cuda
    sent = queue.get()
    if step == "told":
        ready.send(step)
        signal.pause()
    if step == "held":  # before PyTorch's function
        _queues._call(_native.LIBRARY.vmm_block_hold, sent[1], sent[4], sent[5])
        ready.send(step)
        signal.pause()
    taken = make(*sent)
    assert ctypes.c_uint64.from_address(taken.at).value == 7
    if step == "imported":
        ready.send(step)
        signal.pause()
    with open("/dev/shm" + sent[4].decode(), "r+b") as file:  # as PyTorch's deleter
        file.seek(BASE + COUNTER * sent[5])
        file.write(struct.pack("q", 0))
    ready.send(step)


class Counters:
    def __init__(self):
        self.name = f"/vmm_queues_{os.getpid()}_{os.urandom(4).hex()}"
        with open("/dev/shm" + self.name, "x+b") as file:
            file.write(bytes(BASE) + struct.pack("q", 1) * COUNT)
            file.flush()
            self.page = mmap.mmap(file.fileno(), 0)

    def value(self, number):
        return struct.unpack_from("q", self.page, BASE + COUNTER * number)[0]

    def close(self):
        os.unlink("/dev/shm" + self.name)
        self.page.close()


def send_to_all(method, steps):
    """The counters of tensors whose receivers ended at these steps."""
    context = multiprocessing.get_context(method)
    Storage.memory = Storage.memory or Allocator(b"host")
    block = Storage.memory.allocate(1 << 20)
    ctypes.c_uint64.from_address(block).value = 7
    counters = Counters()
    Storage.file, Storage.numbers = counters.name.encode(), iter(range(COUNT))
    install()
    try:
        for step in steps:
            queue, (ours, theirs) = context.SimpleQueue(), context.Pipe()
            child = context.Process(target=receive, args=(queue, theirs, step))
            child.start()
            queue.put(Storage(block)._share_cuda_())
            assert ours.recv() == step
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        for number, step in enumerate(steps):
            while step != "told" and counters.value(number) != 0:
                os.sched_yield()
        return [counters.value(number) for number in range(len(steps) + 1)]
    finally:
        counters.close()
        Storage.memory.free(ctypes.c_void_p(block))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_counter_of_a_killed_receiver_is_zero(method):
    """ "told": it has the message, and is killed before it looks at it."""
    assert send_to_all(method, STEPS) == [1, 0, 0, 0, 1]


def test_it_is_installed_once():
    install()
    before = Storage._share_cuda_, Storage._new_shared_cuda
    install()
    assert (Storage._share_cuda_, Storage._new_shared_cuda) == before


def test_pytorchs_functions_are_of_c_code():
    made = staticmethod(lambda *received: received)
    native = type("Native", (list,), {"_share_cuda_": list.copy, "_new_shared_cuda": made})
    untyped = type("Untyped", (native,), {})
    for _ in range(2):
        _queues.install(types.SimpleNamespace(UntypedStorage=untyped))
    sent = (0, b"\x02", 8, 0, b"/torch_1", 3, b"", False)
    assert untyped(sent)._share_cuda_() == list(sent)
    assert untyped._new_shared_cuda(*sent) == sent


def test_pytorchs_own_handles_pass():
    calls = []
    _queues._call(lambda *given: calls.append(given), b"\x02c" + bytes(64), b"/torch_1", 3)
    assert calls == []
    _queues._call(lambda *given: calls.append(given), b"\xff" + bytes(64), b"/torch_1", 3)
    assert calls == [(bytes(64), b"/torch_1", BASE + COUNTER * 3)]
