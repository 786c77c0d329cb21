# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""CuPy with its pool, without one, and with the driver's asynchronous pool."""

import random
import sys

import common
import cupy

random.seed(2)
if "none" in sys.argv:
    cupy.cuda.set_allocator(None)
elif "async" in sys.argv:
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]


def step(i):
    with streams[i % 2]:
        one = cupy.arange(random.randrange(1000, 8_000_000), dtype=cupy.float32)
        two = one * 3 + i
        three = cupy.sort(two % 1000)
        common.add(three[:: max(1, len(three) // 64)].get())
    streams[i % 2].synchronize()


common.play(step, 60, per_round=20)
common.finish()
