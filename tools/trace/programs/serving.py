# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""serving.py [STEPS]: a language model answers many requests at once.

Requests come at random and are read whole between the steps that write; each has a cache of its
own in every layer. A step checks sixteen guessed words of every request and keeps some, and a
cache that is full is made 128 words longer by concatenation. Hard: sixteen buffers a request grow
by small steps while those of other requests lie between them, and all end at once.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, HIDDEN, LAYERS, WORDS = 4096, 32, 11_008, 8, 32_000
ACTIVE, GUESSED, CHUNK = 16, 16, 128


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, requests, number):
        """x: rows of all requests one after the other; each brings requests[..].rows of them."""
        query, key, value = (
            part.view(-1, HEADS, WIDTH // HEADS) for part in self.mix(self.norm1(x)).chunk(3, -1)
        )
        seen, begin = [], 0
        for request in requests:
            rows = slice(begin, begin + request.rows)
            keys, values = request.add(number, key[rows], value[rows])
            seen.append(
                F.scaled_dot_product_attention(
                    query[rows].transpose(0, 1)[None],
                    keys.transpose(0, 1)[None],
                    values.transpose(0, 1)[None],
                    is_causal=request.length == 0,
                )[0].transpose(0, 1)
            )
            begin += request.rows
        x = x + self.out(torch.cat(seen).reshape(-1, WIDTH))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Request:
    def __init__(self, dice):
        self.rows = dice.choice((dice.randint(16, 512), dice.randint(512, 4096)))
        self.left = int(min(2000, 40 + dice.expovariate(1 / 400)))
        self.length = 0  # words in the cache
        self.caches = [None] * LAYERS

    def add(self, number, key, value):
        """Appends rows to the cache of one layer: what attention may look at."""
        end = self.length + self.rows
        if self.caches[number] is None:
            room = -(-end // CHUNK) * CHUNK
            cache = [key.new_empty(room, *key.shape[1:]) for _ in range(2)]
        else:
            cache = self.caches[number]
            if end > len(cache[0]):
                more = cache[0].new_empty(CHUNK, *key.shape[1:])
                cache = [torch.cat((part, more)) for part in cache]
        self.caches[number] = cache
        for part, rows in zip(cache, (key, value)):
            part[self.length : end] = rows
        return [part[:end] for part in cache]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.leave = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words, requests):
        x = self.words(words)
        for number, layer in enumerate(self.layers):
            x = layer(x, requests, number)
        return self.leave(self.norm(x)).argmax(-1)


def run(model, requests):
    words = torch.randint(WORDS, (sum(request.rows for request in requests),), device="cuda")
    answer = model(words, requests)
    for request in requests:
        request.length += request.rows
    return answer.cpu()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 130
    torch.manual_seed(4)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    dice = random.Random(4)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Model()
    active = []
    with torch.inference_mode():
        for _ in range(steps):
            record.iteration()
            while len(active) < ACTIVE and dice.random() < 0.6:
                active.append(Request(dice))
                run(model, active[-1:])
            for request in active:
                request.rows = GUESSED
            if active:
                run(model, active)
            for request in active:  # guesses that were wrong are written over by the next step
                kept = dice.randint(1, GUESSED)
                request.length -= GUESSED - kept
                request.left -= kept
            active = [request for request in active if request.left > 0]


main()
