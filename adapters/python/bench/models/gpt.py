# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""gpt.py [STEPS]: trains GPT-2 medium of the transformers package from nothing, on random words;
texts of a batch, and their length, differ in every step."""

import random
import sys

import record
import torch
from transformers import GPT2Config, GPT2LMHeadModel

WIDTH, LAYERS, HEADS, WORDS = 1024, 24, 16, 50_257
TEXTS, LENGTH = 5, 1024  # at most


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    torch.manual_seed(11)
    dice = random.Random(11)
    model = (
        GPT2LMHeadModel(
            GPT2Config(
                n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=WORDS, n_positions=LENGTH
            )
        )
        .to("cuda")
        .train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        record.iteration()
        texts, length = dice.randint(1, TEXTS), dice.randint(LENGTH // 8, LENGTH)
        words = torch.randint(WORDS, (texts, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
