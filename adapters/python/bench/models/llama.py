# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""llama.py [STEPS]: a Llama of 1 B with random weights writes: in each step as many texts as the
dice say, word by word; the key-value cache of the transformers package grows by concatenation."""

import random
import sys

import record
import torch
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS, WORDS = 2048, 8192, 16, 32, 8, 128_256
TEXTS, PROMPT, WRITTEN = 24, 1024, 40  # at most


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    torch.manual_seed(12)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length
    dice = random.Random(12)
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        vocab_size=WORDS,
        max_position_embeddings=4096,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
    with torch.inference_mode():
        for _ in range(steps):
            record.iteration()
            texts, length = dice.randint(1, TEXTS), dice.randint(PROMPT // 16, PROMPT)
            words = torch.randint(WORDS, (texts, length), device="cuda")
            cache, answer = None, []
            for _ in range(dice.randint(WRITTEN // 2, WRITTEN)):
                out = model(
                    input_ids=words, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                cache, words = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
                answer.append(words)
            torch.cat(answer, 1).cpu()


main()
