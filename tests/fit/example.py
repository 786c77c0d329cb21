# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the snapshot that docs/fit.md works with: a training program whose sequences have other
lengths in each step, as PyTorch's native allocator writes it down.

    example.py OUT.pickle.gz
"""

import gzip
import pickle
import random
import sys

import shapes
from shapes import MIB

LAYERS, STEPS = 24, 10


class Native:
    """Blocks of 10 MiB and more of PyTorch's native allocator, by the published rules: best fit,
    a rest above 1 MiB is split off, free neighbours of a segment are joined."""

    def __init__(self):
        self.made = shapes.Recording(12)
        self.next = shapes.BASE
        self.free_blocks = []  # size, address, segment
        self.live = {}

    def alloc(self, size, line, tag=None):
        size = -(-size // 512) * 512
        fitting = [each for each in self.free_blocks if each[0] >= size]
        if fitting:
            held, at, segment = min(fitting)
            self.free_blocks.remove((held, at, segment))
        else:
            held, at = -(-size // (2 * MIB)) * 2 * MIB, self.next
            segment = at
            self.next += held
            self.made.segment(at, held)
        if held - size > MIB:
            self.free_blocks.append((held - size, at + size, segment))
            held = size
        self.live[at] = (held, segment)
        self.made.alloc(at, size, rounded=held, line=line, tag=tag)
        return at

    def free(self, at):
        size, segment = self.live.pop(at)
        self.made.free(at)
        for each in list(self.free_blocks):
            if each[2] == segment and each[1] in (at + size, at - each[0]):
                self.free_blocks.remove(each)
                at, size = min(at, each[1]), size + each[0]
        self.free_blocks.append((size, at, segment))


def program():
    lengths = random.Random(5)
    allocator = Native()
    for _ in range(LAYERS):
        allocator.alloc(96 * MIB, 12, "weights")
    for step in range(STEPS):
        tokens = lengths.randrange(600, 2049)
        saved = []
        for _ in range(LAYERS):
            saved.append(allocator.alloc(tokens * 96 * 1024, 31, "activations"))
            scores = allocator.alloc(tokens * tokens * 64, 34, "attention scores")
            saved.append(allocator.alloc(tokens * 64 * 1024, 37, "activations"))
            allocator.free(scores)
        for at in reversed(saved):
            gradient = allocator.alloc(tokens * 64 * 1024, 52, "gradients")
            allocator.free(at)
            allocator.free(gradient)
        if step == 0:
            for _ in range(LAYERS):
                allocator.alloc(192 * MIB, 60, "optimizer state")
    return allocator.made


def snapshot():
    return shapes.snapshot([program()])


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        file.write(gzip.compress(pickle.dumps(snapshot(), 4), 9, mtime=0))
