# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""feedback.py [ROUNDS]: a model writes answers, another scores them, the first learns from that.

Each round: answers are written word by word with a cache that grows by concatenation; the scoring
model comes to the device, scores and goes; the first trains twice over the answers in batches of
like length, its activations computed again in the backward pass. The optimizer's state is made in
the first round. Hard: three habits take turns in one memory, and what one leaves must serve the
next.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS = 32_000


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        count, length, width = x.shape
        parts = self.mix(self.norm1(x)).view(count, length, 3, width // 128, 128).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        if cache is not None:
            if cache:
                key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
            cache[:] = key, value
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words, caches=None):
        x = self.words(words)
        for number, layer in enumerate(self.layers):
            if caches is not None:
                x = layer(x, caches[number])
            elif self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.norm(x)

    def score(self, words):
        """The logarithm of how likely each word was, from the second on."""
        logits = F.linear(self(words[:, :-1]), self.words.weight).float()
        picked = logits.gather(-1, words[:, 1:, None])[..., 0]
        return picked - logits.logsumexp(-1)


@torch.no_grad()
def write(model, dice):
    """A batch of answers to questions of one random length."""
    words = torch.randint(WORDS, (dice.randint(16, 48), dice.randint(64, 640)), device="cuda")
    caches = [[] for _ in model.layers]
    fresh, answers = words, [words]
    for _ in range(dice.randint(32, 64)):
        likely = F.linear(model(fresh, caches)[:, -1], model.words.weight).float()
        best, place = likely.topk(50, dim=-1)
        fresh = place.gather(-1, torch.multinomial(best.softmax(-1), 1))
        answers.append(fresh)
    return torch.cat(answers, 1)


def learn(model, optimizer, words, reward, before):
    gain = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None]
    for rows in torch.randperm(len(words), device="cuda").split(12):
        with torch.autocast("cuda", torch.bfloat16):
            ratio = (model.score(words[rows]) - before[rows]).exp()
            loss = -torch.minimum(ratio * gain[rows], ratio.clamp(0.8, 1.2) * gain[rows]).mean()
        loss.backward()
        del ratio, loss
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.manual_seed(6)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    dice = random.Random(6)
    with torch.device("cuda"):
        writer = Model(2048, 8)
    judge = Model(1024, 12).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(writer.parameters(), lr=1e-5)
    for _ in range(rounds):
        record.iteration()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            written = [write(writer.eval(), dice) for _ in range(2)]
            judge.cuda()
            rewards = [judge.score(words).mean(1) for words in written]
            before = [writer.score(words) for words in written]
        judge.cpu()
        for _ in range(2):
            for words, reward, old in zip(written, rewards, before):
                learn(writer.train(), optimizer, words, reward, old)
        del written, rewards, before


main()
