# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch over blocks of a GPU, by DLPack: the consumer's stream comes behind the
block's, nothing takes memory from under a tensor, a tensor that ends while an exception is pending
leaves it as it is, and small types have their names.

    python3 arrays.py [--device 0] [--rounds 200]

Needs PyTorch with CUDA, and libvmm. Prints one line a check; exit code 1 where one does not hold.
"""

import argparse
import gc
import sys

import common  # noqa: F401  (the variables that keep multicast objects away)
import libvmm
import torch
from libvmm.growable import Growable
from libvmm.suspend import Suspender

MIB = 1 << 20
SPIN_CYCLES = 50_000_000  # some 30 ms
bad = []


def tell(name, holds, detail=""):
    print(f"{'ok' if holds else 'FAILED':7} {name:46} {detail}", flush=True)
    if not holds:
        bad.append(name)


def refused(call, error=libvmm.InUse):
    try:
        call()
    except error:
        return True
    return False


class Producer:
    """The block with a stream of the caller's choice in the place of the consumer's."""

    def __init__(self, block, stream):
        self.block, self.stream = block, stream

    def __dlpack_device__(self):
        return self.block.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **others):
        return self.block.__dlpack__(stream=self.stream, **others)


def seen_by(pool, source, consumer, producer):
    """The sum of a block that a spinning stream fills with ones, as another stream sees it."""
    block = pool.allocate(8 * MIB, source.cuda_stream)
    pool.driver.fill(block.address, 0, block.size, source.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.stream(source):
        torch.cuda._sleep(SPIN_CYCLES)
    pool.driver.fill(block.address, 1, block.size, source.cuda_stream)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(producer(block))
        total = tensor.sum(dtype=torch.int64)
    torch.cuda.synchronize()
    seen = int(total)
    del tensor
    block.free()
    return seen


def check_order(pool):
    source, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    whole = 8 * MIB
    ordered = [seen_by(pool, source, consumer, lambda block: block) for _ in range(20)]
    tell("a stream of the consumer's waits", ordered == [whole] * 20, f"{set(ordered)}")
    default = [
        seen_by(pool, source, torch.cuda.default_stream(), lambda block: block) for _ in range(20)
    ]
    tell("the default stream waits", default == [whole] * 20, f"{set(default)}")
    own = [seen_by(pool, source, source, lambda block: block) for _ in range(5)]
    tell("the block's own stream needs nothing", own == [whole] * 5, f"{set(own)}")
    thread = [seen_by(pool, source, consumer, lambda block: Producer(block, 2)) for _ in range(5)]
    tell("for the thread's own stream the host waits", thread == [whole] * 5, f"{set(thread)}")
    free = [seen_by(pool, source, consumer, lambda block: Producer(block, -1)) for _ in range(5)]
    tell("control: -1 orders nothing", min(free) < whole, f"{set(free)}")
    for stream in (source, consumer):
        pool.forget_stream(stream.cuda_stream)


def check_holds(driver, rounds):
    pool, manager = libvmm.Pool(driver, report_live=False), libvmm.Manager(driver)
    block, ranges = pool.allocate(MIB), [manager.allocate(4 * MIB) for _ in range(2)]
    tensor, other = torch.from_dlpack(block), torch.from_dlpack(ranges[0])
    tensor.fill_(7)
    other.fill_(9)
    calls = {
        "free": block.free,
        "free_raw": lambda: pool.free_raw(block.address),
        "pool.close": pool.close,
        "manager.close": manager.close,
        "resize": lambda: ranges[0].resize(2 * MIB),
        "MOVE into": lambda: manager.copy(*ranges, mode=libvmm.Copy.MOVE),
        "MOVE of": lambda: manager.copy(ranges[1], ranges[0], mode=libvmm.Copy.MOVE),
    }
    passed = [name for name, call in calls.items() if not refused(call)]
    whole = bool((tensor == 7).all()) and bool((other == 9).all())
    tell("nothing takes memory from under a tensor", not passed and whole, f"passed: {passed}")
    with Suspender() as sleeper:
        sleeper.add(manager, "x")
        sleeper.suspend()
        sleeper.resume()
    tell("a tensor stays over suspend and resume", bool((other == 9).all()))
    kept = 0
    for _ in range(rounds):
        try:
            print(torch.from_dlpack(block), torch.from_dlpack(block.view("float32")), 1 // 0)
        except ZeroDivisionError:
            kept += 1
    del tensor, other
    gc.collect()
    block.free()
    tell("a pending exception stays", kept == rounds, f"{kept} of {rounds}")
    cache = Growable(manager, 64 * MIB)
    cache.grow(8 * MIB)
    shown = torch.from_dlpack(cache.view())
    tell("a growable range holds", refused(lambda: cache.shrink(0)) and refused(cache.close))
    del shown
    cache.close()
    for each in ranges:
        each.free()
    pool.close()
    manager.close()


def check_types(pool):
    with pool.allocate(64) as block:
        for name in (
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        ):
            wanted = getattr(torch, name, None)
            try:
                found = torch.from_dlpack(block.view(name)).dtype
            except (RuntimeError, BufferError) as words:
                tell(name, True, f"PyTorch {torch.__version__} refuses it: {words}"[:120])
                continue
            tell(name, found == wanted, f"{found}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    wanted = parser.parse_args()
    torch.cuda.set_device(wanted.device)
    torch.zeros(1, device="cuda")
    with libvmm.Driver("cuda", wanted.device) as driver:
        with libvmm.Pool(driver) as pool:
            check_order(pool)
            check_types(pool)
        check_holds(driver, wanted.rounds)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
