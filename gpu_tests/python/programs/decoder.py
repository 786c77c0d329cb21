# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""decoder.py [BATCH] [ROUNDS]: a transformer writes 40 words after a prompt, round by round.

Inference in half precision. The cache of keys and values grows by concatenation.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY, PROMPT, WORDS = 1536, 12, 12, 32_000, 200, 40


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache):
        count, length, _ = x.shape
        parts = self.mix(self.norm1(x)).view(count, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        if cache is not None:
            key = torch.cat((cache[0], key), dim=2)
            value = torch.cat((cache[1], value), dim=2)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (key, value)


@torch.no_grad()
def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 48
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    torch.manual_seed(1)
    words = nn.Embedding(VOCABULARY, WIDTH).half().cuda()
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).half().cuda()
    for _ in range(rounds):
        x = words(torch.randint(VOCABULARY, (batch, PROMPT), device="cuda"))
        caches = [None] * LAYERS
        for _ in range(WORDS):
            for number, layer in enumerate(layers):
                x, caches[number] = layer(x, caches[number])
            chosen = (x[:, -1:] @ words.weight.t()).argmax(-1).clamp(0, VOCABULARY - 1)
            x = words(chosen)


main()
