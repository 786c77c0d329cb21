# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""unet.py [BATCH] [STEPS]: a small U-Net learns noise in bfloat16, and keeps a moving average."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTHS = (64, 128, 256)


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        pairs = list(zip((WIDTHS[0], *WIDTHS), WIDTHS))
        self.down = nn.ModuleList(Residual(before, after) for before, after in pairs)
        self.up = nn.ModuleList(Residual(2 * after, before) for before, after in reversed(pairs))
        self.leave = nn.Conv2d(WIDTHS[0], 3, 3, padding=1)

    def forward(self, x):
        x, kept = self.enter(x), []
        for each in self.down:
            x = each(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for each in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = each(torch.cat((x, kept.pop()), dim=1))
        return self.leave(x)


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    torch.manual_seed(1)
    model = UNet().cuda()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        pictures = torch.rand(batch, 3, 96, 96, device="cuda")
        noise = torch.randn_like(pictures)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(pictures + noise).float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)


main()
