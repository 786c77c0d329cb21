# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""autoencoder.py [BATCH] [STEPS]: convolutional autoencoder of pictures of one size, with Adam."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTHS = (3, 48, 96, 192, 384)


def halve(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)
    )


def double(before, after):
    return nn.Sequential(
        nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()
    )


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    torch.manual_seed(1)
    pairs = list(zip(WIDTHS, WIDTHS[1:]))
    encoder = nn.Sequential(*(halve(before, after) for before, after in pairs)).cuda()
    decoder = nn.Sequential(*(double(after, before) for before, after in reversed(pairs))).cuda()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    for _ in range(steps):
        pictures = torch.rand(batch, 3, 192, 192, device="cuda")
        loss = F.mse_loss(decoder(encoder(pictures)), pictures)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
