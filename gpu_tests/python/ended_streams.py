# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Streams that are created and destroyed at random under a pool, a manager and a growable range,
without forget, and their contents: each block is filled on its stream and read back later.

    python3 ended_streams.py [--rounds 20000] [--driver cuda] [--seed 1]

Needs libvmm (a wheel, or LIBVMM and PYTHONPATH for a source tree) and libcuda. Prints one line a
part; exit code 1 where a byte is wrong, a call fails, or memory stays. A use of a destroyed stream
ends the process, as a rule.
"""

import argparse
import ctypes
import random
import sys

import common  # noqa: F401  (the variables that keep multicast objects away)
import libvmm
from libvmm._native import LIBRARY
from libvmm.errors import check
from libvmm.growable import Growable

MIB = 1 << 20
NON_BLOCKING = 1


class Streams:
    """Streams of libcuda, a few at a time."""

    def __init__(self, chance, count=6):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._chance, self._count, self.live = chance, count, []
        self._made = {}  # by handle, which a new stream gets again: how many have had it
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *words):
        code = getattr(self._cuda, name)(*words)
        if code != 0:
            raise RuntimeError(f"{name} answers {code}")

    def one(self):
        """Of those that live, which change."""
        while len(self.live) < self._count:
            made = ctypes.c_void_p()
            self.call("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
            self._made[made.value] = self._made.get(made.value, 0) + 1
            self.live.append(made.value)
        if self._chance.random() < 0.3:
            self.end(self._chance.randrange(len(self.live)))
            return self.one()
        return self._chance.choice(self.live)

    def end(self, which):
        gone = self.live.pop(which)
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(gone))  # with its work unfinished

    def mark(self, stream):
        return stream, self._made[stream]

    def if_alive(self, mark):
        """The stream, or None where it has been destroyed, also if another one has its handle."""
        return mark[0] if mark[0] in self.live and self._made[mark[0]] == mark[1] else None

    def fill(self, at, value, size, stream):
        self.call(
            "cuMemsetD8Async",
            ctypes.c_uint64(at),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )

    def has(self, at, value, size):
        self.call("cuCtxSynchronize")
        seen = (ctypes.c_ubyte * size)()
        self.call("cuMemcpyDtoH_v2", seen, ctypes.c_uint64(at), ctypes.c_size_t(size))
        return bytes(seen) == bytes([value]) * size

    def close(self):
        while self.live:
            self.end(0)


def play(streams, chance, rounds, take, give, trim):
    """Blocks that come, are filled, looked at and go; returns how many were wrong."""
    blocks, wrong = [], 0
    for step in range(rounds):
        if len(blocks) < 20 or chance.random() < 0.5:
            size = chance.choice((1, 2, 3, 8, 24)) * MIB
            stream = streams.one()
            at, block = take(size, stream)
            value = chance.randrange(1, 256)
            streams.fill(at, value, size, stream)
            blocks.append((at, block, size, value, streams.mark(stream)))
        if len(blocks) > 40 or (blocks and chance.random() < 0.5):
            at, block, size, value, mark = blocks.pop(chance.randrange(len(blocks)))
            if step % 50 == 0:
                wrong += not streams.has(at, value, min(size, MIB))
            give(block, streams.if_alive(mark))
        if step % 400 == 399:
            trim()
    for at, block, size, value, mark in blocks:
        wrong += not streams.has(at, value, min(size, MIB))
        give(block, streams.if_alive(mark))
    return wrong


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rounds", type=int, default=20000)
    words.add_argument("--driver", default="cuda")
    words.add_argument("--seed", type=int, default=1)
    wish = words.parse_args()
    chance = random.Random(wish.seed)
    streams = Streams(chance)
    bad = 0

    def tell(name, wrong, detail):
        nonlocal bad
        bad += wrong != 0
        print(f"{'ok' if wrong == 0 else 'FAILED':7} {name:10} {detail}", flush=True)

    with libvmm.Driver(wish.driver) as driver:
        with libvmm.Pool(driver) as pool:

            def take(size, stream):
                at = pool.allocate_raw(size, stream)
                return at, at

            def give(at, stream):
                if stream is not None:
                    pool.free_raw(at, stream)
                else:  # it has been destroyed: behind all work
                    check(LIBRARY.vmm_pool_free_unordered(pool.handle, at))

            wrong = play(streams, chance, wish.rounds, take, give, lambda: pool.trim(64 * MIB))
            pool.synchronize()
            wrong += pool.statistics().live_bytes != 0
            tell("pool", wrong, f"{wish.rounds} rounds, {wrong} wrong")
            left = pool.allocate(8 * MIB, streams.one())
            streams.fill(left.address, 1, 8 * MIB, streams.live[-1])
            streams.close()
        with libvmm.Manager(driver) as manager:

            def take_range(size, stream):
                block = manager.allocate(size, stream=stream)
                return block.address, block

            def give_range(block, stream):
                if stream is not None:
                    block.free(stream)  # else the block's end frees it, behind all work

            wrong = play(
                streams, chance, wish.rounds // 10, take_range, give_range, lambda: manager.trim(0)
            )
            tell("manager", wrong, f"{wish.rounds // 10} rounds, {wrong} wrong")
            wrong = 0
            for step in range(wish.rounds // 100):
                stream = streams.one()
                with Growable(manager, 256 * MIB) as cache:
                    size = chance.randrange(1, 100) * 2 * MIB
                    cache.grow(size, stream=stream)
                    streams.fill(cache.address, step % 255 + 1, size, stream)
                    wrong += not streams.has(cache.address, step % 255 + 1, MIB)
                    if step % 2:
                        streams.close()
            tell("growable", wrong, f"{wish.rounds // 100} ranges, {wrong} wrong")
            streams.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
