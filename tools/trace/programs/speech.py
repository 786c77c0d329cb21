# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""speech.py [STEPS]: trains a recognizer of speech on recordings of any length; two streams.

A second stream copies the next batch and makes its spectrogram while the first trains: blocks of
one stream are used on the other, and their frees complete late. Convolutions, four recurrent
layers that run both ways over packed sequences, three layers of attention, the CTC loss. Hard:
lengths are never the same, and a batch is bounded by its seconds, so that it has from
twenty to forty rows.
"""

import random
import sys

import record
import torch
import torch.nn.functional as F
from torch import nn

RATE, BANDS, WIDTH, LETTERS = 16_000, 80, 512, 1_000


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 256, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.enter = nn.Linear(256 * BANDS // 4, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, num_layers=4, dropout=0.1, bidirectional=True)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)
        self.attention = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True) for _ in range(3)
        )
        self.leave = nn.Linear(WIDTH, LETTERS)

    def forward(self, x, lengths):
        x = self.convs(x[:, None])  # count, 256, bands / 4, frames / 4
        x = self.enter(x.permute(0, 3, 1, 2).flatten(2))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        x = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0]
        x = self.narrow(x)
        padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
        padding = padding.to(x.device, non_blocking=True)
        for layer in self.attention:
            x = layer(x, src_key_padding_mask=padding)
        return self.leave(x)


class Loader:
    """Makes batches ahead, on a stream of its own."""

    def __init__(self, dice):
        self.dice = dice
        self.stream = torch.cuda.Stream()
        self.window = torch.hann_window(400, device="cuda")
        self.bands = torch.rand(BANDS, 201, device="cuda")
        self.noise = torch.randn(RATE * 40)
        self.ready = None
        torch.cuda.synchronize()
        self.prepare()

    def prepare(self):
        longest = self.dice.uniform(4, 24)  # seconds; a batch is of recordings of like length
        count = min(40, int(480 / longest))
        seconds = sorted((longest * self.dice.uniform(0.7, 1) for _ in range(count)), reverse=True)
        sizes = [int(RATE * each) for each in seconds]
        sound = torch.zeros(count, sizes[0])
        for row, size in enumerate(sizes):
            begin = self.dice.randrange(len(self.noise) - size)
            sound[row, :size] = self.noise[begin : begin + size]
        letters = [int(6 * each) for each in seconds]
        with torch.cuda.stream(self.stream):
            sound = sound.pin_memory().to("cuda", non_blocking=True)
            sound = sound - 0.97 * F.pad(sound, (1, 0))[:, :-1]
            seen = torch.stft(sound, 400, 160, window=self.window, return_complex=True)
            features = (self.bands @ seen.abs().square()).clamp_min(1e-6).log()
            features = features - features.mean(2, keepdim=True)
            targets = torch.randint(1, LETTERS, (sum(letters),), device="cuda")
        lengths = torch.tensor([(size // 160 + 4) // 4 for size in sizes])
        self.ready = features, lengths, targets, torch.tensor(letters)

    def take(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.ready
        for part in (batch[0], batch[2]):
            part.record_stream(torch.cuda.current_stream())
        self.prepare()
        return batch


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.manual_seed(3)
    model = Recognizer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = Loader(random.Random(3))
    for _ in range(steps):
        record.iteration()
        features, lengths, targets, letters = loader.take()
        logits = model(features, lengths)
        scores = logits.log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(scores, targets, lengths, letters, zero_infinity=True)
        del features, logits, scores
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
