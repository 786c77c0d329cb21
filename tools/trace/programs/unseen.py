# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""unseen.py NAME: one of six programs that were recorded after the last change of policy.

pictures: a vision transformer; pictures of a batch keep their resolution, some patches are dropped.
volumes: a 3D U-Net learns on volumes of random size and segments large ones window by window.
sentences: an LSTM language model with packed sequences and an adaptive softmax.
molecules: forces from energies, so a second backward pass; the data decides the count of edges.
agents: policies learn from episodes of random length; the best episodes are kept for some rounds.
drafts: speculative decoding; caches grow with what is accepted, requests end and others join.

A program ends after 27,000 allocations or 12 s.
"""

import random
import sys
import time

import record
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn


def iterations():
    ended = time.monotonic() + 12
    while time.monotonic() < ended:
        if torch.cuda.memory_stats().get("allocation.all.allocated", 0) > 27_000:
            return
        record.iteration()
        yield


def learn(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class Block(nn.Module):
    """A layer of a transformer; attend(queries, keys, values) is the caller's."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, attend):
        parts = self.enter(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        x = x + self.leave(attend(*(part.transpose(-2, -3) for part in parts)))
        return x + self.hidden(self.norms[1](x))


def joined(x):
    """Heads of attention beside each other again."""
    return x.transpose(-2, -3).flatten(-2)


def pictures(dice, width=768, depth=8, patches=9_000, classes=1_000):
    enter, leave = nn.Linear(768, width), nn.Linear(width, classes)
    places = nn.Parameter(torch.randn(1, width, 24, 24) * 0.02)
    blocks = nn.ModuleList(Block(width, 12) for _ in range(depth))
    parameters = [places, *nn.ModuleList((enter, leave, blocks)).parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for _ in iterations():
        rows, where, counts = [], [], []
        while sum(counts) < patches and len(counts) < 10:
            high, wide = dice.randint(6, 48), dice.randint(6, 48)
            kept = torch.randperm(high * wide)[: int(high * wide * dice.uniform(0.5, 1))]
            picture = torch.rand(3, 16 * high, 16 * wide)
            picture = F.unfold(picture[None], 16, stride=16)[0].t()
            place = F.interpolate(places, (high, wide), mode="bilinear").flatten(2)[0].t()
            rows.append(picture[kept])
            where.append(place[kept])
            counts.append(len(kept))

        def attend(*parts, counts=counts):
            split = zip(*(part.split(counts, dim=1) for part in parts))
            outs = [F.scaled_dot_product_attention(*(each[None] for each in one)) for one in split]
            return joined(torch.cat(outs, dim=2)[0])

        with torch.autocast("cuda", torch.bfloat16):
            x = enter(torch.cat(rows)) + torch.cat(where)
            for block in blocks:
                x = block(x, attend)
            x = torch.stack([part.mean(0) for part in x.split(counts)])
            loss = F.cross_entropy(leave(x), torch.randint(classes, (len(counts),)))
        learn(loss, optimizer)


class Volumes(nn.Module):
    def __init__(self, widths, classes=14):
        super().__init__()

        def convs(enters, leaves):
            sizes = ((enters, leaves), (leaves, leaves))
            parts = [
                (nn.Conv3d(*size, 3, padding=1), nn.GroupNorm(8, leaves), nn.LeakyReLU(0.01, True))
                for size in sizes
            ]
            return nn.Sequential(*(each for part in parts for each in part))

        self.down = nn.ModuleList(convs(*pair) for pair in zip((1, *widths), widths))
        pairs = list(zip(widths[1:], widths))[::-1]
        self.wider = nn.ModuleList(nn.ConvTranspose3d(*pair, 2, stride=2) for pair in pairs)
        self.up = nn.ModuleList(convs(2 * pair[1], pair[1]) for pair in pairs)
        self.leave = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for down in self.down:
            x = down(F.max_pool3d(x, 2) if kept else x)
            kept.append(x)
        kept.pop()
        for wider, up in zip(self.wider, self.up):
            x = up(torch.cat((wider(x), kept.pop()), 1))
        return self.leave(x)


def volumes(dice, widths=(32, 64, 128, 256), most=18):
    model = Volumes(widths)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
    for step, _ in enumerate(iterations()):
        sides = [8 * dice.randint(most // 3, most) for _ in range(3)]
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(torch.randn(1, 1, *sides))
        labels = torch.randint(14, (1, *sides))
        chances = scores.float().softmax(1)
        hot = F.one_hot(labels, 14).movedim(-1, 1).float()
        overlap = (chances * hot).sum((0, 2, 3, 4)) / (chances + hot).sum((0, 2, 3, 4))
        learn(F.cross_entropy(scores.float(), labels) - overlap.mean(), optimizer)
        del scores, labels, chances, hot, overlap
        if step % 6 != 5:
            continue
        sides = [8 * dice.randint(most, 2 * most) for _ in range(3)]
        volume, side = torch.randn(1, 1, *sides), 8 * (2 * most // 3)
        found = torch.zeros(1, 14, *sides, dtype=torch.float16)
        corners = [sorted({*range(0, each - side, side // 2), each - side}) for each in sides]
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for where in [(i, j, k) for i in corners[0] for j in corners[1] for k in corners[2]]:
                window = (..., *(slice(begin, begin + side) for begin in where))
                found[window] += model(volume[window])
        found.argmax(1).cpu()
        del volume, found


def sentences(dice, width=1_024, words=120_000, batch=24_000):
    enter = nn.Embedding(words, width)
    lstm = nn.LSTM(width, width, num_layers=3, dropout=0.2)
    leave = nn.AdaptiveLogSoftmaxWithLoss(width, words, [4_000, 20_000, 60_000])
    parameters = list(nn.ModuleList((enter, lstm, leave)).parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for step, _ in enumerate(iterations()):
        lengths = []
        longest = dice.randint(40, 320)
        while sum(lengths) < batch:
            lengths.append(dice.randint(longest // 4, longest))
        texts = (torch.rand(sum(lengths)) ** 3 * words).long().split(lengths)
        packed = rnn.pack_padded_sequence(rnn.pad_sequence(texts), lengths, enforce_sorted=False)
        with torch.set_grad_enabled(step % 5 != 4):
            x = F.dropout(enter(packed.data), 0.3)
            x, _ = lstm(packed._replace(data=x))
            loss = leave(F.dropout(x.data[:-1], 0.3), packed.data[1:]).loss
        if step % 5 == 4:
            padded, _ = rnn.pad_packed_sequence(x)
            with torch.no_grad():
                leave.log_prob(padded[-1])
            continue
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def molecules(dice, width=192, depth=4, count=192):
    enter, waves = nn.Embedding(20, width), torch.linspace(0.5, 5, 32)
    filters = nn.ModuleList(
        nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        for _ in range(depth)
    )
    mixes = nn.ModuleList(
        nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        for _ in range(depth)
    )
    leave = nn.Linear(width, 1)
    parameters = nn.ModuleList((enter, filters, mixes, leave)).parameters()
    optimizer = torch.optim.AdamW(parameters, lr=5e-4)
    for _ in iterations():
        sizes = torch.tensor([dice.randint(6, 64) for _ in range(dice.randint(count // 3, count))])
        inside = torch.arange(64)[None] < sizes[:, None]
        atoms = torch.rand(len(sizes), 64, 3) * sizes[:, None, None] ** (1 / 3) * 2
        near = (torch.cdist(atoms, atoms) < 5) & inside[:, None] & inside[:, :, None]
        near &= ~torch.eye(64, dtype=torch.bool)
        number = inside.flatten().cumsum(0).view(inside.shape) - 1
        molecule, one, other = near.nonzero(as_tuple=True)
        one, other = number[molecule, one], number[molecule, other]
        atoms = atoms[inside].requires_grad_()
        x = enter(torch.randint(20, (len(atoms),)))
        apart = (atoms[one] - atoms[other]).norm(dim=-1, keepdim=True)
        basis = torch.exp(-4 * (apart - waves) ** 2)
        for shape, mix in zip(filters, mixes):
            sent = x[other] * shape(basis)
            x = x + mix(torch.zeros_like(x).index_add(0, one, sent))
        energy = leave(x).sum()
        forces = -torch.autograd.grad(energy, atoms, create_graph=True)[0]
        learn(F.mse_loss(forces, torch.randn_like(forces)) + energy**2 * 1e-6, optimizer)


def agents(dice, count=256, width=512, batch=3_000):
    policy = nn.Sequential(
        nn.Conv2d(4, 64, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(64, 128, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 49, width),
        nn.ReLU(),
        nn.Linear(width, 19),
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=2.5e-4)
    best = []
    for _ in iterations():
        alive, seen, acted, worth = count, [], [], []
        with torch.no_grad():
            while alive > count // 16 and len(seen) < 80:
                pictures = (torch.rand(alive, 4, 84, 84) * 255).byte()
                scores = policy(pictures.float() / 255)
                seen.append(pictures)
                acted.append(torch.multinomial(scores[:, :18].softmax(-1), 1))
                worth.append(scores[:, 18:])
                alive -= dice.randint(0, alive // 10)
        best = [each for each in best if dice.random() < 0.7]
        kept = dice.sample(range(len(seen)), len(seen) // 8)
        best.append([seen[each].clone() for each in kept])
        seen, acted, worth = torch.cat(seen), torch.cat(acted), torch.cat(worth)
        gains = torch.randn_like(worth)
        for _ in range(2):
            for rows in torch.randperm(len(seen)).split(batch):
                scores = policy(seen[rows].float() / 255)
                chances = scores[:, :18].log_softmax(-1).gather(1, acted[rows])
                loss = F.mse_loss(scores[:, 18:], worth[rows] + gains[rows])
                learn(loss - (chances * gains[rows]).mean(), optimizer)
        again = torch.cat([dice.choice(each) for each in best if each])
        goal = torch.randn(len(again), 19)
        learn(F.mse_loss(policy(again.float() / 255), goal), optimizer)


class Writer:
    """A language model with a cache of all its texts, padded at their beginning."""

    def __init__(self, width, depth, words):
        self.enter = nn.Embedding(words, width).to(torch.bfloat16)
        self.blocks = [Block(width, 16).to(torch.bfloat16) for _ in range(depth)]
        self.leave = nn.Linear(width, words, bias=False).to(torch.bfloat16)
        self.caches = [None] * depth

    def read(self, words, cached=True):
        x = self.enter(words)
        caches = self.caches if cached else [None] * len(self.blocks)
        for number, block in enumerate(self.blocks):

            def attend(queries, keys, values, number=number):
                both = torch.stack((keys, values))
                if caches[number] is not None:
                    both = torch.cat((caches[number], both), dim=-2)
                caches[number] = both
                first = both.shape[-2] == queries.shape[-2]
                return joined(
                    F.scaled_dot_product_attention(queries, both[0], both[1], is_causal=first)
                )

            x = block(x, attend)
        return self.leave(x), caches

    def cut(self, length, rows=None):
        self.caches = [each[..., :length, :] for each in self.caches]
        if rows is not None:
            self.caches = [each.index_select(1, rows) for each in self.caches]

    def join(self, words):
        """Reads other texts and puts their caches beside those that are there."""
        _, others = self.read(words, cached=False)
        if self.caches[0] is None:
            self.caches = others
            return
        length = self.caches[0].shape[-2]
        for number, other in enumerate(others):
            other = F.pad(other, (0, 0, max(0, length - other.shape[-2]), 0))[..., -length:, :]
            self.caches[number] = torch.cat((self.caches[number], other), dim=1)


@torch.no_grad()
def drafts(dice, width=2_048, depth=12, words=32_000, texts=24):
    large, small = Writer(width, depth, words), Writer(width // 4, 2, words)

    def join(count):
        text = torch.randint(words, (count, dice.randint(200, 1_200)))
        for model in (large, small):
            model.join(text)

    join(texts // 2)
    for _ in iterations():
        length, rows = large.caches[0].shape[-2], large.caches[0].shape[1]
        guessed = [torch.randint(words, (rows, 1))]
        for _ in range(dice.randint(2, 7)):
            guessed.append(small.read(guessed[-1])[0].argmax(-1))
        large.read(torch.cat(guessed, 1))[0].float().softmax(-1).argmax(-1).cpu()
        length += dice.randint(1, len(guessed) - 1)
        for model in (large, small):
            model.cut(length)
        if dice.random() < 0.3:
            left = sorted(dice.sample(range(rows), dice.randint(rows // 2, rows)))
            for model in (large, small):
                model.cut(length, torch.tensor(left))
        if dice.random() < 0.4 and rows < texts:
            join(dice.randint(1, texts - rows))


PROGRAMS = (pictures, volumes, sentences, molecules, agents, drafts)
if __name__ == "__main__":
    torch.set_default_device("cuda")
    torch.manual_seed(32)
    {each.__name__: each for each in PROGRAMS}[sys.argv[1]](random.Random(32))
