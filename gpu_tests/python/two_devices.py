# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: programs of several GPUs have the same output under VMM=1 as without it.
Method: torchrun starts two_devices.py PART with one rank a process: `ddp` and `fsdp` train over
NCCL. `peers` is one process: copies between devices, and kernels that read a peer's memory. The
first rank prints a line with what came out, and on stderr the bytes that vmm served on each
device."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist


def model_of(device):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)


def train(wrapped, device, steps=12):
    opt, losses = torch.optim.AdamW(wrapped.parameters(), 1e-4), []
    generator = torch.Generator(device).manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(8, 64 + 16 * (step % 5), 256, device=device, generator=generator)
        loss = wrapped(x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.detach())
    total = torch.stack(losses).sum()
    dist.all_reduce(total)
    return f"{total.item():.7f}"


def ddp(device):
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(model_of(device), device_ids=[device])
    text = train(wrapped, device)
    gathered = [torch.empty(1 << 20, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.full((1 << 20,), dist.get_rank() + 1.0, device=device))
    return f"ddp {text} {[int(each.sum()) for each in gathered]}"


def fsdp(device):
    from torch.distributed.fsdp import fully_shard

    model = model_of(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return f"fsdp {train(model, device)}"


def peers():
    sums = []
    for source, target in ((0, 1), (1, 0)):
        x = torch.arange(1 << 24, dtype=torch.int32, device=f"cuda:{source}")
        y = x.to(f"cuda:{target}")
        x.add_(y.to(f"cuda:{source}"))
        y.copy_(x[: len(y)], non_blocking=True)
        torch.cuda.synchronize()
        sums += [x.sum().item(), y.sum().item()]
        with torch.cuda.device(target):  # a stream of the target uses the source's memory
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                z = torch.empty_like(y)
                z.copy_(x, non_blocking=True)
            x.record_stream(torch.cuda.current_stream(source))
            side.synchronize()
        sums.append(z.sum().item())
    return f"peers {sums} {torch.cuda.can_device_access_peer(0, 1)}"


def show_served(devices):
    if "VMM" not in os.environ:
        return
    import libvmm.torch

    peaks = [libvmm.torch.statistics(each).peak_live_bytes >> 20 for each in devices]
    print("SERVED", peaks, "MiB", file=sys.stderr, flush=True)


def main(part):
    if part == "peers":
        print(peers(), flush=True)
        return show_served((0, 1))
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    text = {"ddp": ddp, "fsdp": fsdp}[part](device)
    if dist.get_rank() == 0:
        print(text, flush=True)
    show_served((device,))
    dist.destroy_process_group()
    return None


if __name__ == "__main__":
    main(sys.argv[1])
