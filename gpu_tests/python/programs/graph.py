# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""graph.py [NODES] [STEPS]: message passing on graphs, each of other numbers of nodes and edges."""

import random
import sys

import torch
from torch import nn

WIDTH, LAYERS = 192, 5


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.node = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x, source, target):
        sent = self.edge(torch.cat((x[source], x[target]), dim=1))
        came = torch.zeros_like(x).index_add(0, target, sent)
        return x + self.node(torch.cat((x, came), dim=1))


def main():
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    torch.manual_seed(1)
    dice = random.Random(1)
    enter, leave = nn.Linear(32, WIDTH).cuda(), nn.Linear(WIDTH, 1).cuda()
    layers = nn.ModuleList(Messages() for _ in range(LAYERS)).cuda()
    weights = [*enter.parameters(), *layers.parameters(), *leave.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    for _ in range(steps):
        count = dice.randint(nodes // 3, nodes)
        edges = count * dice.randint(4, 12)
        source = torch.randint(count, (edges,)).cuda()
        target = torch.randint(count, (edges,)).cuda()
        x = enter(torch.randn(count, 32, device="cuda"))
        for layer in layers:
            x = layer(x, source, target)
        leave(x).square().mean().backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
