# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""rays.py [STEPS]: learns a scene from its pictures, ray by ray, and draws it now and then.

Features come from a grid of hashed cells on twelve levels. Samples are taken only where a coarse
grid says that there is something, and the number of rays follows from how many samples the last
step had. Drawing follows the rays piece by piece, and rays end when nothing shines through. Hard:
the data decides every size, and training's habits change while the scene becomes known.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

LEVELS, CELLS, FEATURES, WIDTH, DEPTH = 12, 1 << 19, 4, 256, 6
SIDE, MARKS = 128, 256  # of the coarse grid; places on a ray
SAMPLES = 1_000_000  # in a step, about


class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        self.sides = [int(16 * 1.45**level) for level in range(LEVELS)]
        self.tables = nn.ParameterList(
            torch.rand(CELLS, FEATURES) * 2e-2 - 1e-2 for _ in range(LEVELS)
        )
        corners = [[corner >> axis & 1 for axis in range(3)] for corner in range(8)]
        self.register_buffer("corners", torch.tensor(corners))
        self.register_buffer("primes", torch.tensor([1, 2_654_435_761, 805_459_861]))

    def forward(self, x):
        found = []
        for side, table in zip(self.sides, self.tables):
            low = (x * side).floor()
            part = (x * side - low)[:, None]
            near = torch.where(self.corners.bool(), part, 1 - part).prod(-1, keepdim=True)
            cell = (low.long()[:, None] + self.corners) * self.primes
            row = (cell[..., 0] ^ cell[..., 1] ^ cell[..., 2]) % CELLS
            found.append((F.embedding(row, table) * near).sum(1))
        return torch.cat(found, -1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = Grid()
        widths = [LEVELS * FEATURES] + [WIDTH] * DEPTH
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))
        self.density = nn.Linear(WIDTH, 1)
        self.colour = nn.Sequential(nn.Linear(WIDTH + 9, 128), nn.ReLU(), nn.Linear(128, 3))

    def thick(self, x):
        y = self.grid(x)
        for layer in self.layers:
            y = F.relu(layer(y))
        return F.softplus(self.density(y)[:, 0].float() - 1) * 20, y

    def forward(self, x, direction):
        thick, y = self.thick(x)
        turned = torch.cat((direction, (2 * direction).sin(), (2 * direction).cos()), -1)
        return thick, self.colour(torch.cat((y, turned.to(y.dtype)), -1)).float().sigmoid()


def scene(origins, directions):
    """The truth: balls on white; what colour each ray sees."""
    maker = torch.Generator("cuda").manual_seed(99)
    balls = torch.rand(24, 7, device="cuda", generator=maker)
    centres, radii = balls[:, :3] * 0.8 + 0.1, balls[:, 3] * 0.08 + 0.03
    towards = centres - origins[:, None]
    along = (towards * directions[:, None]).sum(-1)
    room = radii**2 - towards.square().sum(-1) + along**2
    depth = torch.where((room > 0) & (along > 0), along - room.clamp_min(0).sqrt(), 1e9)
    nearest, ball = depth.min(-1)
    return torch.where((nearest < 1e9)[:, None], balls[ball, 4:], torch.ones_like(origins))


def draw_rays(count):
    """From a sphere around the cube towards places in it."""
    origins = F.normalize(torch.randn(count, 3, device="cuda"), dim=-1) * 1.2 + 0.5
    return origins, F.normalize(torch.rand(count, 3, device="cuda") - origins, dim=-1)


def march(origins, directions, marks, filled):
    """Places on the rays where the coarse grid is filled: their ray and where they are."""
    along = 0.2 + (marks + torch.rand(len(origins), 1, device="cuda")) * (2.0 / MARKS)
    places = origins[:, None] + along[..., None] * directions[:, None]
    cells = (places * SIDE).long()
    inside = ((cells >= 0) & (cells < SIDE)).all(-1)
    cells = cells.clamp(0, SIDE - 1)
    inside &= filled[cells[..., 0], cells[..., 1], cells[..., 2]]
    ray, mark = torch.nonzero(inside, as_tuple=True)
    return ray, places[ray, mark]


def shine(model, rays, marks, filled):
    """What light the marks send along each ray, what passes them, and how many samples it took."""
    origins, directions = rays
    ray, places = march(origins, directions, marks, filled)
    with torch.autocast("cuda", torch.bfloat16):
        thick, colour = model(places, directions[ray])
    thick = thick * (2.0 / MARKS)
    counts = torch.bincount(ray, minlength=len(origins))
    before = thick.cumsum(0) - thick  # of all rays, so each one's first is taken off
    before = before - before[(counts.cumsum(0) - counts)[ray]]
    weight = torch.exp(-before) * (1 - torch.exp(-thick))
    light = torch.zeros_like(origins).index_add(0, ray, weight[:, None] * colour)
    passed = torch.exp(-torch.zeros_like(origins[:, 0]).index_add(0, ray, thick))
    return light, passed, len(ray)


def look_around(model, density, step):
    """How thick the scene is at a place in some cells; all others are forgotten a little."""
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        chosen = torch.nonzero(torch.rand_like(density) < (1 if step < 16 else 0.25))
        places = (chosen + torch.rand(len(chosen), 3, device="cuda")) / SIDE
        seen = torch.cat([model.thick(part)[0] for part in places.split(1 << 19)])
    density *= 0.9
    where = chosen.unbind(-1)
    density[where] = torch.maximum(density[where], seen)
    return density > density.mean().clamp_max(5.0)


@torch.no_grad()
def draw_picture(model, dice, filled):
    height, width = dice.randint(300, 700), dice.randint(300, 700)
    rows = []
    origins, directions = draw_rays(height * width)
    for rays in zip(origins.split(32_768), directions.split(32_768)):
        light, open_rays = torch.zeros_like(rays[0]), torch.arange(len(rays[0]), device="cuda")
        passed = torch.ones(len(rays[0]), device="cuda")
        for marks in torch.arange(MARKS, device="cuda").split(64):
            more, through, _ = shine(model, [part[open_rays] for part in rays], marks, filled)
            light[open_rays] += passed[open_rays, None] * more
            passed[open_rays] *= through
            open_rays = open_rays[passed[open_rays] > 1e-3]
        rows.append(light + passed[:, None])
    return torch.cat(rows).view(height, width, 3).clamp(0, 1).cpu()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    torch.manual_seed(8)
    dice = random.Random(8)
    model = Field().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, eps=1e-15, fused=True)
    density = torch.zeros(SIDE, SIDE, SIDE, device="cuda")
    marks = torch.arange(MARKS, device="cuda")
    count = 4_096
    for step in range(steps):
        record.iteration()
        if step % 4 == 0:
            filled = look_around(model, density, step)
        rays = draw_rays(count)
        light, passed, samples = shine(model, rays, marks, filled)
        loss = F.smooth_l1_loss(light + passed[:, None], scene(*rays), beta=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        count = max(1_024, min(32_768, int(count * SAMPLES / max(1, samples))))
        if step % 16 == 15:
            del rays, light, passed, loss
            draw_picture(model, dice, filled)


main()
