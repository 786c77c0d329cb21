# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: CUDA tensors pass through torch.multiprocessing queues with the same bytes, and neither
process keeps anything of them, however the other one ends.
Method: queues.py [--count 1000] [--way plain]. VMM=1 processes without CAP_SYS_PTRACE, by spawn and
by the fork server: COUNT tensors of 1 MiB to 1 GiB, each compared by two sums and written to by the
consumer; then consumers and producers that are killed while they hold tensors. Requires libvmm in
the environment, and PyTorch. One line a check; exit code 1 if one does not hold. --way plain: the
same with PyTorch's own memory."""

from __future__ import annotations

import argparse
import ctypes
import gc
import glob
import os
import random
import signal
import subprocess
import sys
import time

import common

MIB = 1 << 20
CAP_SYS_PTRACE, PR_CAPBSET_DROP = 19, 24


def digest(tensor):
    """Two sums of the words; the second depends on their places."""
    import torch

    total, weighted, step = tensor.sum(), torch.zeros((), dtype=torch.int64, device="cuda"), 1 << 24
    for first in range(0, tensor.numel(), step):
        part = tensor[first : first + step]
        weighted += (part * torch.arange(first, first + part.numel(), device="cuda")).sum()
    return int(total), int(weighted)


def kept():
    """What a process has open: descriptors, mappings, and its files for counters."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mappings = sum(1 for _ in maps)
    return len(os.listdir("/proc/self/fd")), mappings, torch.cuda.memory_allocated() // MIB


def consume(tensors, results, warm, count, pauses):
    """Compares `count` tensors; sends what is kept after the first `warm` and after the last."""
    import torch

    early = None
    for at in range(count):
        number, tensor, expected = tensors.get()
        same = digest(tensor) == expected
        tensor[-1] = number
        torch.cuda.synchronize()
        if pauses:
            results.put((number, same))
            time.sleep(600)
        del tensor
        if at + 1 == warm:
            early = kept()
        results.put((number, same))
    results.put((early, kept()))


def sizes(count):
    chosen = random.Random(7)
    return [int(MIB * 2 ** chosen.uniform(0, 10)) // 8 for _ in range(count)]


def produce(method, count):
    """One process with its consumer."""
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context(method)
    tensors, results = context.Queue(2), context.Queue()
    warm = count // 5
    consumer = context.Process(target=consume, args=(tensors, results, warm, count, False))
    consumer.start()
    wrong, early, generator = 0, None, torch.Generator("cuda").manual_seed(1)
    for number, words in enumerate(sizes(count)):
        made = torch.randint(1 << 62, (words,), device="cuda", generator=generator)
        tensors.put((number, made, digest(made)))
        came, same = results.get(timeout=120)
        wrong += not same or came != number or int(made[-1]) != number
        del made
        if number + 1 == warm:
            early = kept()
    late = kept()
    of_consumer = results.get(timeout=120)
    consumer.join(120)
    print("wrong", wrong, "exit", consumer.exitcode, "by vmm", is_served())
    print("descriptors, mappings, MiB:", early, late, "consumer:", *of_consumer)
    grown = [b[0] - a[0] for a, b in ((early, late), of_consumer)]
    as_wanted = is_served() == ("VMM" in os.environ)
    is_whole = wrong == 0 and consumer.exitcode == 0
    return as_wanted and is_whole and max(grown) <= 2 and late[2] <= early[2] + 1


def is_served():
    if "VMM" not in os.environ:
        return False
    import libvmm.torch

    return libvmm.torch.statistics(0).peak_live_bytes >= 64 * MIB


def dead_consumer(method):
    """Consumers are killed while they hold a tensor; the producer goes on, has its memory again,
    and ends well."""
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context(method)
    good = 0
    for number in range(5):
        tensors, results = context.Queue(), context.Queue()
        consumer = context.Process(target=consume, args=(tensors, results, 0, 2, number < 4))
        consumer.start()
        made = torch.full((64 * MIB // 8,), number, device="cuda")
        tensors.put((number, made, digest(made)))
        good += results.get(timeout=120) == (number, True) and int(made[-1]) == number
        if number == 4:
            tensors.put((9, made, digest(made)))
            good += results.get(timeout=120) == (9, True)
        else:
            os.kill(consumer.pid, signal.SIGKILL)
        consumer.join(120)
        del made
    end = time.monotonic() + 5
    while kept()[2] >= 64 and time.monotonic() < end:
        time.sleep(0.1)
    files, _, still = kept()
    print("good", good, "of 6, descriptors", files, "MiB kept", still)
    return good == 6 and (still < 64 or not is_served())


def hold(tensors, results):
    """A producer that is killed."""
    import torch

    made = torch.full((256 * MIB // 8,), 5, device="cuda")
    tensors.put((1, made, digest(made)))
    results.get()
    time.sleep(600)


def dead_producer(method):
    """The consumer keeps the bytes of a producer that was killed; a later import fails."""
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context(method)
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    tensors, results = context.Queue(), context.Queue()
    producer = context.Process(target=hold, args=(tensors, results))
    producer.start()
    number, tensor, expected = tensors.get(timeout=120)
    os.kill(producer.pid, signal.SIGKILL)
    producer.join(120)
    same = digest(tensor) == expected
    del tensor
    kept()
    torch.cuda.empty_cache()
    time.sleep(1)  # the driver takes a process's memory back after its end
    after = torch.cuda.mem_get_info()[0]
    print("number", number, "same", same, "MiB less free", (before - after) // MIB)
    return same and before - after < 128 * MIB


PARTS = {"queue": produce, "dead consumer": dead_consumer, "dead producer": dead_producer}


def drop_trace():
    """No process of the tree may trace another one."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)


def run(part, method, given):
    environment = {**os.environ, **common.NO_MULTICAST, "VMM": "1"}
    if given.way == "plain":
        environment.pop("VMM")
    words = [sys.executable, __file__, "--part", part, "--method", method]
    begun, files = time.perf_counter(), set(glob.glob("/dev/shm/torch_*"))
    done = subprocess.run(
        ["timeout", "600", *words, "--count", str(given.count)],
        env=environment,
        preexec_fn=drop_trace,
        capture_output=True,
        text=True,
    )
    left = set(glob.glob("/dev/shm/torch_*")) - files
    fine = done.returncode == 0 and not (left and part == "queue")
    seconds = time.perf_counter() - begun
    text = " ".join(done.stdout.split("\n"))
    print(f"{'ok' if fine else 'FAILED':7} {part}, {method}: {seconds:.0f} s, {text}", flush=True)
    if left:
        print("left:", *left, flush=True)
    if done.returncode != 0:
        print(done.stderr[-3000:], flush=True)
    return fine


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--count", type=int, default=1000)
    words.add_argument("--way", choices=("vmm", "plain"), default="vmm")
    words.add_argument("--part", choices=sorted(PARTS))
    words.add_argument("--method", default="spawn")
    given = words.parse_args()
    if given.part == "queue":
        return 0 if produce(given.method, given.count) else 1
    if given.part:
        return 0 if PARTS[given.part](given.method) else 1
    done = [run(part, method, given) for part in PARTS for method in ("spawn", "forkserver")]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
