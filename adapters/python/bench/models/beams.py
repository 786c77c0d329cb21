# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""beams.py [STEPS]: many key-value buffers that grow and end at random, each made larger by a new
one and a copy: holes of every size, and no kernel to hide behind."""

import random
import sys

import record
import torch

BUFFERS, WIDTH, CHUNK, WORDS_MAX = 48, 4096, 64, 4096
MOVES = 200  # in an iteration


class Buffer:
    def __init__(self, dice):
        self.left = dice.randint(CHUNK, WORDS_MAX)
        self.rows = torch.ones(CHUNK, WIDTH, dtype=torch.float16, device="cuda")

    def grow(self, dice):
        more = min(self.left, dice.randint(1, 4 * CHUNK))
        longer = torch.empty(len(self.rows) + more, WIDTH, dtype=torch.float16, device="cuda")
        longer[: len(self.rows)] = self.rows
        longer[len(self.rows) :] = dice.randint(0, 9)
        self.rows = longer
        self.left -= more


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    dice = random.Random(14)
    buffers = []
    for _ in range(steps):
        record.iteration()
        for _ in range(MOVES):
            if len(buffers) < BUFFERS and dice.random() < 0.5:
                buffers.append(Buffer(dice))
                continue
            chosen = dice.randrange(len(buffers)) if buffers else 0
            if not buffers:
                buffers.append(Buffer(dice))
            elif buffers[chosen].left == 0:
                buffers.pop(chosen)
            else:
                buffers[chosen].grow(dice)
        torch.stack([each.rows[-1].float().sum() for each in buffers]).cpu()


main()
