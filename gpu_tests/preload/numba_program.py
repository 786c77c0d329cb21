# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Numba: arrays of random size, a kernel, and back."""

import random

import common
import numpy

if not hasattr(numpy, "row_stack"):  # a release of Numba may name what NumPy has dropped
    numpy.row_stack = numpy.vstack

from numba import cuda

random.seed(3)


@cuda.jit
def scale(array, factor):
    i = cuda.grid(1)
    if i < array.size:
        array[i] *= factor


def step(i):
    there = cuda.to_device(numpy.arange(random.randrange(1000, 2_000_000), dtype=numpy.float32))
    scale[(there.size + 255) // 256, 256](there, i)
    common.add(there.copy_to_host()[::997].copy())
    del there


common.play(step, 40)
common.finish()
