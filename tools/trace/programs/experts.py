# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""experts.py [STEPS]: trains a transformer whose layers have sixteen experts, two for each token.

The data decides how many tokens an expert gets. Hard: in every layer of every step sixteen
experts keep activations of sizes that no other has, freed in the order of the backward pass.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HIDDEN, LAYERS, EXPERTS, WORDS = 1024, 2048, 8, 16, 32_000


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        weights, chosen = self.router(x).float().softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                part = expert(x[token]) * weights[token, place, None].to(x.dtype)
                out = out.index_add(0, token, part)
        return out


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = Experts()

    def forward(self, x):
        count, length, _ = x.shape
        parts = self.mix(self.norm1(x)).view(count, length, 3, 16, WIDTH // 16).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, WIDTH))
        return x + self.experts(self.norm2(x).view(-1, WIDTH)).view(x.shape)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.t()


def draw_words(dice, maker):
    """Few words are frequent, and each text has favourites, so that experts are busy unevenly."""
    count, length = dice.randint(4, 16), 16 * dice.randint(16, 56)
    ranks = torch.rand(count, length + 1, device="cuda", generator=maker)
    return ((WORDS**ranks).long() * dice.randint(1, 97)) % WORDS


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.manual_seed(2)
    dice, maker = random.Random(2), torch.Generator("cuda").manual_seed(2)
    model = Model().to(device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    for _ in range(steps):
        record.iteration()
        words = draw_words(dice, maker)
        logits = model(words[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, WORDS).float(), words[:, 1:].reshape(-1))
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
