# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""folding.py [STEPS]: learns distances in chains from what is known of every pair of their places.

Each block passes between an alignment and the pairs: products and attention over triangles of
pairs. A step reads the chain up to twice without gradients, then once with activations computed
again block by block; every fourth step a whole chain is read with attention in pieces. Hard: sizes
grow with the square and the cube of a length that is never the same, so that pieces of one
step fit nowhere in the next.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PAIR, ROW, HEADS, BLOCKS, KINDS, BINS = 128, 256, 4, 8, 23, 64
PIECE = 32  # rows that attention takes at once where it goes in pieces


class Attention(nn.Module):
    """Within each row of x; the bias says how much each place minds each other one."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.bias = nn.Linear(PAIR, HEADS, bias=False)
        self.gate, self.leave = nn.Linear(width, width), nn.Linear(width, width)

    def attend(self, x, bias):
        parts = self.mix(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        weight = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5 + bias).softmax(-1)
        seen = (weight @ value).transpose(1, 2).flatten(2)
        return self.leave(seen * self.gate(x).sigmoid())

    def forward(self, x, pair, piece):
        x, bias = self.norm(x), self.bias(pair).permute(2, 0, 1)
        return torch.cat([self.attend(part, bias) for part in x.split(piece or len(x))])


class Product(nn.Module):
    """What places i and j have in common with every third one."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula
        self.norm, self.norm_out = nn.LayerNorm(PAIR), nn.LayerNorm(PAIR)
        self.enter = nn.Linear(PAIR, 4 * PAIR)
        self.gate, self.leave = nn.Linear(PAIR, PAIR), nn.Linear(PAIR, PAIR)

    def forward(self, pair):
        x = self.norm(pair)
        left, right, gate_left, gate_right = self.enter(x).chunk(4, -1)
        seen = torch.einsum(self.formula, left * gate_left.sigmoid(), right * gate_right.sigmoid())
        return self.leave(self.norm_out(seen)) * self.gate(x).sigmoid()


def transition(width):
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.row_change = Attention(ROW), transition(ROW)
        self.narrow, self.outer = nn.Linear(ROW, 32), nn.Linear(16 * 16, PAIR)
        self.out, self.into = Product("ikc,jkc->ijc"), Product("kic,kjc->ijc")
        self.start, self.end = Attention(PAIR), Attention(PAIR)
        self.pair_change = transition(PAIR)

    def drop(self, x):
        """A whole row of pairs loses the same channels."""
        return x * F.dropout(torch.ones_like(x[:1]), 0.25, self.training)

    def forward(self, rows, pair, piece):
        rows = rows + self.rows(rows, pair, piece)
        rows = rows + self.row_change(rows)
        left, right = self.narrow(rows).chunk(2, -1)
        outer = torch.einsum("sic,sjd->ijcd", left, right) / len(rows)
        pair = pair + self.outer(outer.flatten(2))
        pair = pair + self.drop(self.out(pair))
        pair = pair + self.drop(self.into(pair))
        pair = pair + self.drop(self.start(pair, pair, piece))
        turned = pair.transpose(0, 1)
        pair = pair + self.drop(self.end(turned, turned, piece)).transpose(0, 1)
        return rows, pair + self.pair_change(pair)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds, self.gaps = nn.Embedding(KINDS, ROW), nn.Embedding(65, PAIR)
        self.left, self.right = nn.Embedding(KINDS, PAIR), nn.Embedding(KINDS, PAIR)
        self.again_rows, self.again_pair = nn.LayerNorm(ROW), nn.LayerNorm(PAIR)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.leave = nn.Linear(PAIR, BINS)

    def forward(self, kinds, before, piece=0):
        """kinds: the alignment, the chain itself first; before: what an earlier reading gave."""
        place = torch.arange(kinds.shape[1], device="cuda")
        rows = self.kinds(kinds)
        pair = self.gaps((place[:, None] - place).clamp(-32, 32) + 32)
        pair = pair + self.left(kinds[0])[:, None] + self.right(kinds[0])
        if before is not None:
            first = rows[:1] + self.again_rows(before[0])
            rows, pair = torch.cat((first, rows[1:])), pair + self.again_pair(before[1])
        for block in self.blocks:
            if torch.is_grad_enabled():
                rows, pair = checkpoint(block, rows, pair, piece, use_reentrant=False)
            else:
                rows, pair = block(rows, pair, piece)
        return rows[:1], pair

    def distances(self, pair):
        return self.leave(pair + pair.transpose(0, 1)).float()


def draw(dice, shortest, longest):
    length = dice.randint(shortest, longest)
    kinds = torch.randint(KINDS, (dice.randint(16, 128), length), device="cuda")
    walk = torch.randn(length, 3, device="cuda").cumsum(0)
    return kinds, (torch.cdist(walk, walk) * 2).long().clamp_max(BINS - 1)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    torch.manual_seed(7)
    dice = random.Random(7)
    model = Model().to(device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(steps):
        record.iteration()
        kinds, bins = draw(dice, 96, 500)
        before = None
        with torch.no_grad():
            for _ in range(dice.randint(0, 2)):
                before = model(kinds, before)
        _, pair = model(kinds, before)
        loss = F.cross_entropy(model.distances(pair).flatten(0, 1), bins.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del pair, loss, before
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                kinds, _ = draw(dice, 450, 900)
                known = model.distances(model(kinds, None, PIECE)[1]).softmax(-1)
                known.cumsum(-1)[:, :, 16].cpu()
            del known
            model.train()


main()
