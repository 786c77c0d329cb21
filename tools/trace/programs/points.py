# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""points.py [STEPS]: learns what each point of a scanned room belongs to, by sparse convolutions.

Points fall into cells; only cells that have points are kept, on four levels. For each offset of
a convolution those cells are found that have a neighbour there: gathered, multiplied, scattered.
Every fifth step a large scene is labelled three times, turned, with votes for each point. Hard: of
the 27 parts of every convolution each has the size that the data gives it, and no scene is like
the one before.
"""

import itertools
import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTHS, CLASSES, REACH = (48, 96, 160, 256), 20, 1 << 12
NEAR = tuple(itertools.product((-1, 0, 1), repeat=3))
HALVES = tuple(itertools.product((0, 1), repeat=3))


def key_of(cells):
    """One number for a scene's number and three coordinates, each from 0 to REACH."""
    return ((cells[:, 0] * REACH + cells[:, 1]) * REACH + cells[:, 2]) * REACH + cells[:, 3]


def cells_of(keys):
    return torch.stack(
        (keys // REACH**3, keys // REACH**2 % REACH, keys // REACH % REACH, keys % REACH), 1
    )


def neighbour_pairs(keys):
    """For each offset: cells that have a neighbour there, and those neighbours; keys are sorted."""
    pairs = []
    for x, y, z in NEAR:
        wanted = keys + (x * REACH + y) * REACH + z
        place = torch.searchsorted(keys, wanted).clamp_max_(len(keys) - 1)
        here = torch.nonzero(keys[place] == wanted)[:, 0]
        pairs.append((place[here], here))
    return pairs


def half_pairs(keys):
    """The cells of the next level, and for each half of them: the fine cells, the coarse ones."""
    cells = cells_of(keys)
    coarse = torch.cat((cells[:, :1], cells[:, 1:] // 2), dim=1)
    above, owner = key_of(coarse).unique(return_inverse=True)
    side = cells[:, 1] % 2 * 4 + cells[:, 2] % 2 * 2 + cells[:, 3] % 2
    pairs = []
    for half in range(len(HALVES)):
        fine = torch.nonzero(side == half)[:, 0]
        pairs.append((fine, owner[fine]))
    return above, pairs


class SparseConv(nn.Module):
    def __init__(self, before, after, parts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(parts, before, after) * (before * parts / 3) ** -0.5)

    def forward(self, x, pairs, count):
        out = x.new_zeros(count, self.weight.shape[2])
        for weight, (source, target) in zip(self.weight.unbind(0), pairs):
            out.index_add_(0, target, x.index_select(0, source) @ weight)
        return out


class Unit(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv1 = SparseConv(before, after, len(NEAR))
        self.conv2 = SparseConv(after, after, len(NEAR))
        self.norm1, self.norm2 = nn.BatchNorm1d(after), nn.BatchNorm1d(after)
        self.skip = nn.Linear(before, after, bias=False)

    def forward(self, x, pairs):
        y = F.relu(self.norm1(self.conv1(x, pairs, len(x))))
        return F.relu(self.skip(x) + self.norm2(self.conv2(y, pairs, len(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, WIDTHS[0])
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for before, after in zip(WIDTHS, WIDTHS[1:]):
            self.down.append(
                nn.ModuleList((Unit(before, before), SparseConv(before, after, len(HALVES))))
            )
            self.up.append(
                nn.ModuleList((SparseConv(after, before, len(HALVES)), Unit(2 * before, before)))
            )
        self.middle = Unit(WIDTHS[-1], WIDTHS[-1])
        self.leave = nn.Linear(WIDTHS[0], CLASSES)

    def forward(self, x, keys):
        x, kept = self.enter(x), []
        for unit, halve in self.down:
            near = neighbour_pairs(keys)
            x = unit(x, near)
            keys, halves = half_pairs(keys)
            kept.append((x, near, halves))
            x = halve(x, halves, len(keys))
        x = self.middle(x, neighbour_pairs(keys))
        for double, unit in reversed(self.up):
            side, near, halves = kept.pop()
            x = double(x, [(coarse, fine) for fine, coarse in halves], len(side))
            x = unit(torch.cat((x, side), dim=1), near)
        return self.leave(x)


def draw_scene(dice, number, points):
    """Walls, tables and boxes: points on patches of planes; their kinds are known."""
    patches = dice.randint(20, 70)
    size = torch.tensor([dice.uniform(4, 12), dice.uniform(4, 12), 3.0], device="cuda")
    corner = torch.rand(patches, 3, device="cuda") * size
    axes = torch.randn(patches, 2, 3, device="cuda") * dice.uniform(0.4, 1.5)
    patch = torch.randint(patches, (points,), device="cuda")
    along = torch.rand(points, 2, 1, device="cuda")
    places = corner[patch] + (along * axes[patch]).sum(1)
    places = places + 0.004 * torch.randn_like(places)
    colours = torch.rand(patches, 3, device="cuda")[patch] + 0.05 * torch.randn_like(places)
    return places, colours, patch % CLASSES, torch.full_like(patch, number)


def turn(places, dice):
    angle = torch.tensor(dice.uniform(0, 6.28), device="cuda")
    sine, cosine, zero, one = angle.sin(), angle.cos(), angle.new_zeros(()), angle.new_ones(())
    rows = torch.stack((cosine, -sine, zero, sine, cosine, zero, zero, zero, one))
    return (places @ rows.view(3, 3)) * dice.uniform(0.9, 1.1)


def into_cells(places, colours, scenes):
    """Sorted keys of the cells that have points, their features, and the cell of each point."""
    cells = ((places - places.amin(0)) * 50).long().clamp_(1, REACH - 2)  # of 2 cm
    keys, owner = key_of(torch.cat((scenes[:, None], cells), dim=1)).unique(return_inverse=True)
    share = 1 / torch.bincount(owner, minlength=len(keys)).float()
    features = torch.cat((places, colours), dim=1) * share[owner][:, None]
    return keys, features.new_zeros(len(keys), 6).index_add_(0, owner, features), owner


@torch.no_grad()
def label(model, dice):
    places, colours, kinds, scenes = draw_scene(dice, 0, dice.randint(600_000, 1_500_000))
    votes = torch.zeros(len(places), CLASSES, device="cuda")
    for _ in range(3):
        keys, features, owner = into_cells(turn(places, dice), colours, scenes)
        votes += model(features.bfloat16(), keys).float().softmax(-1)[owner]
    return (votes.argmax(-1) == kinds).float().mean().item()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    torch.manual_seed(11)
    dice = random.Random(11)
    model = Model().to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for step in range(steps):
        record.iteration()
        drawn = [
            draw_scene(dice, number, dice.randint(60_000, 400_000))
            for number in range(dice.randint(2, 4))
        ]
        places, colours, kinds, scenes = (torch.cat(part) for part in zip(*drawn))
        keys, features, owner = into_cells(turn(places, dice), colours, scenes)
        logits = model(features.bfloat16(), keys)
        loss = F.cross_entropy(logits.float()[owner], kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del logits, loss
        if step % 5 == 4:
            model.eval()
            label(model, dice)
            model.train()


main()
