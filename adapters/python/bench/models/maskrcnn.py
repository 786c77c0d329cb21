# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""maskrcnn.py [STEPS]: trains torchvision's Mask R-CNN from nothing on pictures of random size with
random boxes: hardly two requests of a run have the same size."""

import random
import sys

import record
import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

PICTURES, PIXELS, OBJECTS = 4, 1024, 12  # at most
SMALLEST = 800  # the model makes the shorter side as long


def draw(dice):
    height, width = dice.randint(PIXELS // 2, PIXELS), dice.randint(PIXELS // 2, PIXELS)
    count = dice.randint(1, OBJECTS)
    low = torch.rand(count, 2, device="cuda") * 0.6
    size = 0.1 + 0.3 * torch.rand(count, 2, device="cuda")
    scale = torch.tensor([width, height], device="cuda")
    boxes = torch.cat((low * scale, (low + size) * scale), 1)
    masks = torch.zeros(count, height, width, dtype=torch.uint8, device="cuda")
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist()):
        mask[top:bottom, left:right] = 1
    return (
        torch.rand(3, height, width, device="cuda"),
        {"boxes": boxes, "masks": masks, "labels": torch.randint(1, 91, (count,), device="cuda")},
    )


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 14
    torch.manual_seed(13)
    dice = random.Random(13)
    model = (
        maskrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=91, min_size=SMALLEST
        )
        .to("cuda")
        .train()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(steps):
        record.iteration()
        batch = [draw(dice) for _ in range(dice.randint(2, PICTURES))]
        losses = model([picture for picture, _ in batch], [target for _, target in batch])
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
