# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""video.py [STEPS]: learns how every pixel moves between the frames of clips, by small corrections.

Features of two frames are compared, all places with all places, and a recurrent net looks into
that table and corrects its guess several times. Its state goes on to the next frame; gradients go
back two frames. Now and then a large clip is only looked at, with more corrections. Hard: the size
of the frames, their number and the number of corrections differ in every clip, and so does what
lives on from one pair of frames to the next.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, STATE, LEVELS, REACH = 256, 128, 4, 4
PIXELS = 900_000  # in one frame of all clips of a batch at most
BACK = 2  # pairs of frames that gradients go back


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.norm1, self.norm2 = nn.InstanceNorm2d(after), nn.InstanceNorm2d(after)
        self.skip = nn.Conv2d(before, after, 1, stride)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.skip(x) + F.relu(self.norm2(self.conv2(y))))


def encoder(leave):
    """To an eighth of height and width."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3),
        nn.InstanceNorm2d(64),
        nn.ReLU(),
        Residual(64, 64, 1),
        Residual(64, 96, 2),
        Residual(96, 96, 1),
        Residual(96, 128, 2),
        Residual(128, 128, 1),
        nn.Conv2d(128, leave, 1),
    )


class Table:
    """How like each place of one frame is to each of the other, on four levels."""

    def __init__(self, first, second):
        _count, width, self.height, self.width = first.shape
        likeness = (first.flatten(2).transpose(1, 2) @ second.flatten(2)).float()
        likeness = likeness.view(-1, 1, self.height, self.width) * width**-0.5
        self.levels = [likeness]
        for _ in range(LEVELS - 1):
            self.levels.append(F.avg_pool2d(self.levels[-1], 2))
        steps = torch.arange(-REACH, REACH + 1, device=first.device, dtype=torch.float32)
        self.window = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1)

    def look(self, places):
        """places: count, height, width, 2; around each of them, on each level."""
        count, height, width, _ = places.shape
        found = []
        for level, likeness in enumerate(self.levels):
            around = places.reshape(-1, 1, 1, 2) / 2**level + self.window
            size = around.new_tensor((likeness.shape[3], likeness.shape[2]))
            seen = F.grid_sample(
                likeness, (around * 2 + 1) / size - 1, padding_mode="zeros", align_corners=False
            )
            found.append(seen.view(count, height, width, -1))
        return torch.cat(found, dim=-1).permute(0, 3, 1, 2)


class Correction(nn.Module):
    def __init__(self):
        super().__init__()
        seen = LEVELS * (2 * REACH + 1) ** 2
        self.seen1, self.seen2 = nn.Conv2d(seen, 256, 1), nn.Conv2d(256, 192, 3, padding=1)
        self.flow1, self.flow2 = nn.Conv2d(2, 128, 7, padding=3), nn.Conv2d(128, 64, 3, padding=1)
        self.mix = nn.Conv2d(256, 126, 3, padding=1)
        self.gates = nn.Conv2d(3 * STATE, 2 * STATE, 3, padding=1)
        self.fresh = nn.Conv2d(3 * STATE, STATE, 3, padding=1)
        self.move1, self.mask1 = (nn.Conv2d(STATE, 256, 3, padding=1) for _ in range(2))
        self.move2, self.mask2 = nn.Conv2d(256, 2, 3, padding=1), nn.Conv2d(256, 576, 1)

    def forward(self, state, context, seen, flow):
        seen = F.relu(self.seen2(F.relu(self.seen1(seen))))
        moved = F.relu(self.flow2(F.relu(self.flow1(flow))))
        known = F.relu(self.mix(torch.cat((seen, moved), dim=1)))
        known = torch.cat((context, known, flow.to(known.dtype)), dim=1)
        keep, forget = self.gates(torch.cat((state, known), dim=1)).sigmoid().chunk(2, dim=1)
        fresh = self.fresh(torch.cat((forget * state, known), dim=1)).tanh()
        state = (1 - keep) * state + keep * fresh
        return state, self.move2(F.relu(self.move1(state))), self.mask2(F.relu(self.mask1(state)))


def enlarge(flow, mask):
    """Eight times as high and wide: each pixel is a mixture of the nine around its place."""
    count, _, height, width = flow.shape
    weight = mask.view(count, 1, 9, 8, 8, height, width).float().softmax(2)
    around = F.unfold(8 * flow, 3, padding=1).view(count, 2, 9, 1, 1, height, width)
    large = (weight * around).sum(2)  # count, 2, 8, 8, height, width
    return large.permute(0, 1, 4, 2, 5, 3).reshape(count, 2, 8 * height, 8 * width)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.context = encoder(WIDTH), encoder(2 * STATE)
        self.correction = Correction()

    def forward(self, first, second, state, flow, times):
        """All guesses, the state, and the last guess at an eighth of the size."""
        table = Table(self.features(first), self.features(second))
        begin, context = self.context(first).chunk(2, dim=1)
        state, context = begin.tanh() if state is None else state, context.relu()
        height, width = context.shape[2:]
        still = torch.stack(
            torch.meshgrid(
                torch.arange(width, device=flow.device),
                torch.arange(height, device=flow.device),
                indexing="xy",
            ),
            dim=-1,
        ).float()
        guesses = []
        for _ in range(times):
            flow = flow.detach()
            seen = table.look(still + flow.permute(0, 2, 3, 1))
            state, more, mask = self.correction(state, context, seen, flow)
            flow = flow + more.float()
            guesses.append(enlarge(flow, mask) if self.training else flow)
        return guesses, state, flow


def draw_clip(dice, scale=1):
    height, width = (8 * dice.randint(24 * scale, 64 * scale) for _ in range(2))
    count = max(1, min(dice.randint(2, 8), PIXELS // (height * width)))
    motion = F.interpolate(
        torch.randn(count, 2, 4, 4, device="cuda") * 6, (height, width), mode="bilinear"
    )
    frames = [F.avg_pool2d(torch.rand(count, 3, height, width, device="cuda"), 5, 1, 2)]
    place = F.affine_grid(
        torch.eye(2, 3, device="cuda").expand(count, 2, 3),
        (count, 3, height, width),
        align_corners=False,
    )
    moved = motion.permute(0, 2, 3, 1) * 2 / motion.new_tensor((width, height))
    for _ in range(dice.randint(2, 5)):
        frames.append(F.grid_sample(frames[-1], place - moved, align_corners=False))
    return frames, motion


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 14
    torch.manual_seed(12)
    dice = random.Random(12)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(steps):
        record.iteration()
        looked = step % 5 == 4
        frames, motion = draw_clip(dice, 2 if looked else 1)
        times = dice.randint(12, 16) if looked else dice.randint(4, 9)
        model.train(not looked)
        state, losses = None, []
        flow = motion.new_zeros(len(motion), 2, motion.shape[2] // 8, motion.shape[3] // 8)
        for number, (first, second) in enumerate(zip(frames, frames[1:])):
            with torch.autocast("cuda", torch.bfloat16), torch.set_grad_enabled(not looked):
                guesses, state, flow = model(first, second, state, flow, times)
            if looked:
                continue
            losses += [
                (guess - motion).abs().mean() * 0.8 ** (times - 1 - turn)
                for turn, guess in enumerate(guesses)
            ]
            if number % BACK == BACK - 1 or number == len(frames) - 2:
                torch.stack(losses).sum().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                state, losses = state.detach(), []


main()
