# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""recommend.py [STEPS]: learns what people choose from big jagged batches; two streams.

A second stream copies the next batch, folds its numbers to rows of the tables and finds which of
them are different. Ten tables are summed by bag with sparse gradients; rows of the item table are
taken once each, attended to by history, and changed in place. Now and then a larger batch is only
scored. Hard: the data decides how many values a bag has and how many rows a gradient, and
what the second stream makes is freed late, between blocks of the first.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, TABLES, DENSE, ITEMS = 64, 10, 13, 4_000_000
ROWS = tuple(int(20_000 * 1.5**table) for table in range(TABLES))
VALUES = 1 << 25  # in the host's pool that batches are cut from


class Tower(nn.Sequential):
    def __init__(self, *widths):
        parts = []
        for before, after in zip(widths, widths[1:]):
            parts += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*parts[:-1])


class History(nn.Module):
    """How much each item of a history says about the one that is asked for."""

    def __init__(self):
        super().__init__()
        self.score = Tower(4 * WIDTH, 128, 64, 1)

    def forward(self, items, lengths, asked):
        """items: of all histories, one after the other."""
        place = torch.arange(int(lengths.max()), device="cuda")
        there = place < lengths[:, None]
        row, column = torch.nonzero(there, as_tuple=True)
        x = items.new_zeros(*there.shape, WIDTH).index_put((row, column), items)
        target = asked[:, None].expand_as(x)
        score = self.score(torch.cat((x, target, x - target, x * target), dim=-1))[..., 0]
        weight = score.float().masked_fill(~there, -1e4).softmax(-1)
        return (weight[..., None] * x).sum(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for rows in ROWS
        )
        self.dense, self.history = Tower(DENSE, 512, 256, WIDTH), History()
        pairs = (TABLES + 3) * (TABLES + 2) // 2
        self.over = Tower(pairs + WIDTH, 1024, 1024, 512, 256, 1)

    def forward(self, batch, items):
        """items: the rows of the item table that batch.inverse counts in."""
        dense = self.dense(batch.dense)
        parts = [dense.float()]
        parts += [bag(*jagged) for bag, jagged in zip(self.bags, batch.jagged)]
        asked = items.index_select(0, batch.inverse[: len(dense)])
        seen = items.index_select(0, batch.inverse[len(dense) :])
        parts += [asked, self.history(seen, batch.lengths, asked)]
        x = torch.stack(parts, dim=1)
        like = torch.bmm(x, x.transpose(1, 2))
        first, second = torch.triu_indices(x.shape[1], x.shape[1], 1, device="cuda")
        return self.over(torch.cat((like[:, first, second], dense), dim=1))[:, 0].float()


class Batch:
    """On the stream that is current; only the numbers of values come from the host."""

    def __init__(self, loader, count):
        dice = loader.dice
        self.dense = loader.cut(count * DENSE).view(count, DENSE).mul(8).log1p()
        self.jagged = []
        for rows in ROWS:
            mean = dice.uniform(0.5, 30)
            lengths = loader.cut(count).pow(3).mul(4 * mean).long()
            ends = lengths.cumsum(0)
            values = (rows ** loader.cut(int(ends[-1]))).long().mul_(7_919).remainder_(rows)
            self.jagged.append((values, ends - lengths))
        self.lengths = loader.cut(count).square().mul(dice.randint(20, 80)).long() + 1
        items = (ITEMS ** loader.cut(count + int(self.lengths.sum()))).long()
        self.items, self.inverse = (items * 104_729 % ITEMS).unique(return_inverse=True)
        self.labels = (loader.cut(count) < 0.2).float()

    def tensors(self):
        yield from (self.dense, self.lengths, self.items, self.inverse, self.labels)
        for values, offsets in self.jagged:
            yield from (values, offsets)


class Loader:
    """Makes batches ahead, on a stream of its own."""

    def __init__(self, dice):
        self.dice = dice
        self.pool = torch.rand(VALUES)
        self.stream = torch.cuda.Stream()
        self.ready = None

    def cut(self, count):
        begin = self.dice.randrange(VALUES - count)
        return self.pool[begin : begin + count].pin_memory().to("cuda", non_blocking=True)

    def prepare(self, scale=1):
        with torch.cuda.stream(self.stream):
            self.ready = Batch(self, scale * 1_024 * self.dice.randint(8, 24))

    def take(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.ready
        for part in batch.tensors():
            part.record_stream(torch.cuda.current_stream())
        return batch


@torch.no_grad()
def change_items(table, state, rows, gradient):
    """Adagrad with one number a row, in place."""
    state.index_add_(0, rows, gradient.square().mean(1))
    table.index_add_(0, rows, gradient * (-0.05 / (state[rows].sqrt() + 1e-8))[:, None])


@torch.no_grad()
def rank_quality(scores, labels):
    """The area under the curve."""
    labels = labels[scores.argsort()]
    below = (1 - labels).cumsum(0)
    return (below * labels).sum() / (labels.sum() * (1 - labels).sum())


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 70
    torch.manual_seed(10)
    model = Model().cuda()
    table = torch.randn(ITEMS, WIDTH, device="cuda").mul_(0.05)
    state = torch.zeros(ITEMS, device="cuda")
    dense = [part for name, part in model.named_parameters() if not name.startswith("bags")]
    optimizers = [
        torch.optim.Adagrad(model.bags.parameters(), lr=0.02),
        torch.optim.AdamW(dense, lr=1e-3, fused=True),
    ]
    loader = Loader(random.Random(10))
    loader.prepare()
    for step in range(steps):
        record.iteration()
        batch, scored = loader.take(), step % 10 == 9
        loader.prepare(2 if step % 10 == 8 else 1)
        items = table[batch.items].requires_grad_(not scored)
        with torch.autocast("cuda", torch.bfloat16), torch.set_grad_enabled(not scored):
            logits = model(batch, items)
        if scored:
            rank_quality(logits, batch.labels).item()
            continue
        loss = F.binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        change_items(table, state, batch.items, items.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        del batch, items, logits, loss


main()
