# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""lstm.py [BATCH] [STEPS]: a recurrent tagger reads sentences whose length differs by step."""

import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, TAGS, VOCABULARY = 768, 400, 20_000


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    torch.manual_seed(1)
    dice = random.Random(1)
    words = nn.Embedding(VOCABULARY, WIDTH).cuda()
    reader = nn.LSTM(WIDTH, WIDTH, num_layers=2, bidirectional=True, batch_first=True).cuda()
    tagger = nn.Linear(2 * WIDTH, TAGS).cuda()
    weights = [*words.parameters(), *reader.parameters(), *tagger.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    for _ in range(steps):
        length = dice.randint(24, 160)
        sentence = torch.randint(VOCABULARY, (batch, length)).cuda()
        tags = torch.randint(TAGS, (batch, length)).cuda()
        scores = tagger(F.dropout(reader(words(sentence))[0], 0.2))
        F.cross_entropy(scores.flatten(0, 1), tags.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
