# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""routing.py [BATCH] [STEPS]: trains a transformer with eight experts of limited capacity a layer.

Each expert takes the tokens with the highest scores, and the layers are computed twice.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, LAYERS, EXPERTS, LENGTH, VOCABULARY = 768, 2048, 8, 8, 256, 16_000


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.MultiheadAttention(WIDTH, 12, batch_first=True)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.ModuleList(nn.Linear(WIDTH, HIDDEN) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(HIDDEN, WIDTH) for _ in range(EXPERTS))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.mix(y, y, y, need_weights=False)[0]
        tokens = self.norm2(x).flatten(0, 1)
        capacity = len(tokens) * 5 // (4 * EXPERTS)
        weights, chosen = self.router(tokens).softmax(-1).topk(capacity, dim=0)
        out = torch.zeros_like(tokens)
        for number in range(EXPERTS):
            at = chosen[:, number].clamp(0, len(tokens) - 1)
            made = self.down[number](F.gelu(self.up[number](tokens[at])))
            out = out.index_add(0, at, made * weights[:, number, None])
        return x + out.view_as(x)


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 48
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    torch.manual_seed(1)
    words, leave = nn.Embedding(VOCABULARY, WIDTH).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
    layers = nn.ModuleList(Routed() for _ in range(LAYERS)).cuda()
    weights = [*words.parameters(), *layers.parameters(), *leave.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    for _ in range(steps):
        text = torch.randint(VOCABULARY, (batch, LENGTH), device="cuda")
        x = words(text)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        F.cross_entropy(leave(x).flatten(0, 1), text.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
