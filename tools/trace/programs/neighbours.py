# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""neighbours.py [STEPS]: trains attention over a graph on sampled neighbourhoods.

Features live on the host; what a batch misses is fetched in one piece, and pieces are kept on the
device, oldest dropped first, up to 3 GiB. Hard: pieces of any size stay for some dozen steps
between blocks of one step, whose sizes are the numbers of nodes and edges that were found.
"""

import random
import sys
from collections import OrderedDict

import record
import torch
import torch.nn.functional as F
from torch import nn

NODES, DEGREE, FEATURES, HEADS, CLASSES = 8_000_000, 12, 256, 4, 172
FANOUTS = (5, 10, 10)  # of the outermost hop first
CACHE_BYTES = 3 << 30
HOST_ROWS = 1 << 18  # the host's table is folded to this many rows


class Attention(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.project = nn.Linear(FEATURES, HEADS * after, bias=False)
        self.source = nn.Parameter(torch.randn(HEADS, after) * 0.1)
        self.target = nn.Parameter(torch.randn(HEADS, after) * 0.1)

    def forward(self, x, sources, targets, count):
        """Rows of x are nodes, the first `count` of them those that are asked for."""
        y = self.project(x).view(len(x), HEADS, -1)
        score = (y * self.source).sum(-1)[sources] + (y[:count] * self.target).sum(-1)[targets]
        score = F.leaky_relu(score, 0.2).exp()
        total = score.new_zeros(count, HEADS).index_add(0, targets, score)
        weight = score / total[targets].clamp_min(1e-9)
        message = y[sources] * weight[:, :, None]
        return y.new_zeros(count, *y.shape[1:]).index_add(0, targets, message).flatten(1)


class FeatureCache:
    def __init__(self):
        self.host = torch.randn(HOST_ROWS, FEATURES)
        self.piece_of = torch.full((NODES,), -1, dtype=torch.int32, device="cuda")
        self.row_of = torch.zeros(NODES, dtype=torch.int32, device="cuda")
        self.pieces = OrderedDict()  # number to (nodes, features)
        self.made = 0
        self.bytes = 0

    def fetch(self, nodes):
        missing = nodes[self.piece_of[nodes] < 0]
        if len(missing):
            rows = self.host[(missing % HOST_ROWS).cpu()].to("cuda")
            self.pieces[self.made] = missing, rows
            self.piece_of[missing] = self.made
            self.row_of[missing] = torch.arange(len(missing), dtype=torch.int32, device="cuda")
            self.made += 1
            self.bytes += rows.nbytes
        out = torch.empty(len(nodes), FEATURES, device="cuda")
        where, row = self.piece_of[nodes], self.row_of[nodes]
        for number, (_, rows) in self.pieces.items():
            here = torch.nonzero(where == number)[:, 0]
            out[here] = rows[row[here]]
        while self.bytes > CACHE_BYTES:
            _, (gone, rows) = self.pieces.popitem(last=False)
            self.piece_of[gone] = -1
            self.bytes -= rows.nbytes
        return out


def sample(seeds, fanout, starts, ends):
    """Nodes found, the seeds first, and edges between rows of them."""
    picks = torch.rand(len(seeds), fanout, device="cuda")
    degree = starts[seeds + 1] - starts[seeds]
    chosen = (starts[seeds][:, None] + (picks * degree[:, None]).long())[degree > 0]
    targets = torch.nonzero(degree > 0)[:, 0].repeat_interleave(fanout)
    found = ends[chosen.flatten()]
    fresh = torch.unique(found)
    fresh = fresh[~torch.isin(fresh, seeds)]
    nodes = torch.cat((seeds, fresh))
    order = torch.argsort(nodes)
    sources = order[torch.searchsorted(nodes[order], found)]
    return nodes, sources, targets


def make_graph():
    """Few nodes have many neighbours, and few nodes are neighbours of many."""
    degrees = torch.rand(NODES, device="cuda").pow(-0.6).mul(DEGREE / 2.5).long().clamp_(0, 4096)
    starts = F.pad(degrees.cumsum(0), (1, 0))
    ends = (torch.rand(int(starts[-1]), device="cuda").square() * NODES).long().clamp_(0, NODES - 1)
    return starts, ends


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    torch.manual_seed(5)
    dice = random.Random(5)
    starts, ends = make_graph()
    cache = FeatureCache()
    layers = nn.ModuleList((Attention(64), Attention(64), Attention(64))).cuda()
    leave = nn.Linear(FEATURES, CLASSES).cuda()
    optimizer = torch.optim.Adam([*layers.parameters(), *leave.parameters()], lr=1e-3)
    for _ in range(steps):
        record.iteration()
        seeds = torch.randint(NODES, (dice.randint(400, 4000),), device="cuda").unique()
        nodes, hops = seeds, []
        for fanout in reversed(FANOUTS):
            count = len(nodes)
            nodes, sources, targets = sample(nodes, fanout, starts, ends)
            hops.append((sources, targets, count))
        x = cache.fetch(nodes)
        for layer, (sources, targets, count) in zip(layers, reversed(hops)):
            x = F.dropout(F.elu(layer(x, sources, targets, count)), 0.3)
        labels = torch.randint(CLASSES, (len(seeds),), device="cuda")
        loss = F.cross_entropy(leave(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
