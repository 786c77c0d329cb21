# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""diffusion.py [STEPS]: a U-Net learns to remove noise from pictures of random size.

Half precision with a gradient scaler, gradients of two batches summed, a moving average of the
weights, and every eighth step a picture drawn with that average. Hard: height, width and number
of the pictures differ in every batch, so that no activation has the size of one before; the
drawing needs little memory, and leaves its pieces among the large blocks of training.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTHS = (160, 320, 480, 640)
PIXELS = 420_000  # in a batch at most


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(512, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Pixels look at each other, then at the words."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.own = nn.MultiheadAttention(width, 8, batch_first=True)
        self.words = nn.MultiheadAttention(width, 8, kdim=768, vdim=768, batch_first=True)

    def forward(self, x, words):
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = y + self.own(y, y, y, need_weights=False)[0]
        y = y + self.words(y, words, words, need_weights=False)[0]
        return x + y.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 512))
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = WIDTHS[0]
        for width in WIDTHS:
            self.down.append(nn.ModuleList((Residual(before, width), Residual(width, width))))
            before = width
        self.middle = nn.ModuleList((Residual(before, before), Attention(before)))
        for width in reversed(WIDTHS):
            self.up.append(nn.ModuleList((Residual(before + width, width), Residual(width, width))))
            before = width
        self.leave = nn.Conv2d(before, 3, 3, padding=1)

    def forward(self, x, time, words):
        turns = time[:, None] * torch.exp(torch.linspace(0, -9, 128, device=x.device))
        time = self.time(torch.cat((turns.sin(), turns.cos()), dim=1))
        x, kept = self.enter(x), []
        for first, second in self.down:
            x = second(first(x, time), time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle[1](self.middle[0](x, time), words)
        for first, second in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = second(first(torch.cat((x, kept.pop()), dim=1), time), time)
        return self.leave(x)


def draw_batch(dice):
    height, width = (16 * dice.randint(8, 28) for _ in range(2))
    count = max(1, min(dice.randint(2, 16), PIXELS // (height * width)))
    pictures = torch.randn(count, 3, height, width, device="cuda")
    words = torch.randn(count, dice.randint(8, 77), 768, device="cuda")
    return pictures, words


def draw_picture(model, dice):
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        x = torch.randn(1, 3, *(16 * dice.randint(12, 32) for _ in range(2)), device="cuda")
        words = torch.randn(1, 77, 768, device="cuda")
        for step in range(4):
            x = x - 0.1 * model(x, torch.full((1,), 1000.0 - 250 * step, device="cuda"), words)
    return x.float().clamp(-1, 1).cpu()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    torch.manual_seed(1)
    dice = random.Random(1)
    model, average = UNet().cuda(), UNet().cuda().requires_grad_(False)
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(steps):
        record.iteration()
        for _ in range(2):
            pictures, words = draw_batch(dice)
            time = torch.rand(len(pictures), device="cuda")
            noise = torch.randn_like(pictures)
            mixed = pictures + time[:, None, None, None] * noise
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(mixed, 1000 * time, words).float(), noise)
            scaler.scale(loss / 2).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
        if step % 8 == 7:
            draw_picture(average, dice)


main()
