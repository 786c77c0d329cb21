# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""search.py [STEPS]: answers questions from documents that come, are put together and grow old.

Every step encodes a pile of new documents to a shard of the index, with a vector for each word,
puts small shards together, drops the oldest, and answers questions: the best of each shard by one
vector a document, those again by every word, the first few again by a model that reads both.
Hard: nothing is trained, and shards of any size live for some dozen steps between blocks that
live for a moment.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VECTOR, WORDS = 512, 8, 6, 128, 30_000
INDEX_BYTES, SMALL_BYTES = 3 << 30, 160 << 20
TOKENS = 65_536  # in a batch of the encoder at most
BEST, READ = 48, 4  # documents of a question that go on to be scored by word, and to be read


class Encoder(nn.Module):
    def __init__(self, leave):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(1024, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(WIDTH),
                    "mix": nn.Linear(WIDTH, 3 * WIDTH),
                    "out": nn.Linear(WIDTH, WIDTH),
                    "norm2": nn.LayerNorm(WIDTH),
                    "up": nn.Linear(WIDTH, 4 * WIDTH),
                    "down": nn.Linear(4 * WIDTH, WIDTH),
                }
            )
            for _ in range(LAYERS)
        )
        self.norm, self.leave = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, leave)

    def forward(self, words, lengths):
        """words: one text a row, filled up; lengths: how much of each row counts."""
        place = torch.arange(words.shape[1], device="cuda")
        counts = place < lengths[:, None]
        x = self.words(words) + self.places(place)
        for layer in self.layers:
            parts = layer["mix"](layer["norm1"](x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
            query, key, value = (part.transpose(1, 2) for part in parts)
            seen = F.scaled_dot_product_attention(
                query, key, value, attn_mask=counts[:, None, None]
            )
            x = x + layer["out"](seen.transpose(1, 2).flatten(2))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x))))
        return self.leave(self.norm(x)), counts


class Shard:
    """Vectors of all words, one document after the other, and one vector a document."""

    def __init__(self, vectors, lengths, words):
        self.vectors, self.lengths, self.words = vectors, lengths, words
        self.starts = lengths.cumsum(0) - lengths
        owner = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), lengths)
        total = torch.zeros(len(lengths), VECTOR, device="cuda")
        total.index_add_(0, owner, vectors.float())
        self.documents = F.normalize(total, dim=-1).bfloat16()

    def bytes(self):
        return self.vectors.nbytes + self.documents.nbytes + self.words.nbytes


def join(shards):
    return Shard(
        *(
            torch.cat([getattr(shard, name) for shard in shards])
            for name in ("vectors", "lengths", "words")
        )
    )


def draw_lengths(dice, count, most):
    return sorted(int(min(most, 12 + dice.expovariate(5 / most))) for _ in range(count))


def encode(encoder, dice, count, most):
    """Texts of like length go together; what comes back is without the filling."""
    lengths = draw_lengths(dice, count, most)
    vectors, words, begin = [], [], 0
    while begin < count:
        end = begin + 1
        while end < count and (end + 1 - begin) * lengths[end] <= TOKENS:
            end += 1
        part = torch.tensor(lengths[begin:end]).to("cuda")
        texts = torch.randint(WORDS, (end - begin, lengths[end - 1]), device="cuda")
        found, counts = encoder(texts, part)
        vectors.append(F.normalize(found[counts], dim=-1))
        words.append(texts[counts].int())
        begin = end
    return torch.cat(vectors), torch.tensor(lengths).to("cuda"), torch.cat(words)


def gather(flat, starts, lengths):
    """Rows of jagged texts as a rectangle, and which places of it count."""
    place = torch.arange(int(lengths.max()), device="cuda")
    counts = place < lengths[..., None]
    return flat[(starts[..., None] + place).clamp_max(len(flat) - 1)], counts


def find(shard, questions, counts, means):
    """The best documents of a shard for each question, by one vector and then by every word."""
    scores = means @ shard.documents.t()
    best = scores.float().topk(min(BEST, len(shard.documents)), dim=-1).indices
    good = []
    for part in range(0, len(best), 32):
        chosen = best[part : part + 32]
        vectors, there = gather(shard.vectors, shard.starts[chosen], shard.lengths[chosen])
        likeness = torch.einsum("qwv,qdtv->qdwt", questions[part : part + 32], vectors)
        likeness = likeness.masked_fill(~there[:, :, None], -1.0).amax(-1).float()
        good.append((likeness * counts[part : part + 32, None]).sum(-1))
    return torch.cat(good), best


def answer(encoder, reader, shards, dice):
    count = dice.randint(32, 256)
    lengths = torch.tensor(draw_lengths(dice, count, 64)).to("cuda")
    texts = torch.randint(WORDS, (count, int(lengths.max())), device="cuda")
    questions, counts = encoder(texts, lengths)
    questions = F.normalize(questions, dim=-1) * counts[..., None]
    means = F.normalize(questions.sum(1), dim=-1)
    found = [find(shard, questions, counts, means) for shard in shards]
    shard_of = torch.repeat_interleave(
        torch.arange(len(shards), device="cuda"),
        torch.tensor([best.shape[1] for _, best in found]).to("cuda"),
    )
    top = torch.cat([good for good, _ in found], dim=1).topk(READ, dim=-1)
    documents = torch.cat([best for _, best in found], dim=1).gather(1, top.indices)
    home = shard_of[top.indices]
    verdicts = torch.zeros(count, READ, device="cuda")
    for number, shard in enumerate(shards):
        question, place = torch.where(home == number)
        for asked, seat in zip(question.split(256), place.split(256)):
            if not len(asked):
                continue
            document = documents[asked, seat]
            words, there = gather(shard.words, shard.starts[document], shard.lengths[document])
            both = torch.cat((texts[asked], (words * there).long()), dim=1)
            verdict, _ = reader(both, texts.shape[1] + shard.lengths[document])
            verdicts[asked, seat] = verdict[:, 0, 0].float()
    return documents.gather(1, verdicts.argsort(dim=1, descending=True)).cpu()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    torch.manual_seed(9)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    dice = random.Random(9)
    encoder, reader = (Encoder(leave).to("cuda", torch.bfloat16).eval() for leave in (VECTOR, 1))
    shards = []
    with torch.inference_mode():
        for _ in range(steps):
            record.iteration()
            count = dice.choice((dice.randint(300, 2_000), dice.randint(2_000, 9_000)))
            shards.append(Shard(*encode(encoder, dice, count, 900)))
            small = [shard for shard in shards if shard.bytes() < SMALL_BYTES]
            if len(small) > 3:
                shards = [shard for shard in shards if shard not in small] + [join(small)]
            del small
            while sum(shard.bytes() for shard in shards) > INDEX_BYTES:
                del shards[0]
            for _ in range(dice.randint(1, 4)):
                answer(encoder, reader, shards, dice)


main()
