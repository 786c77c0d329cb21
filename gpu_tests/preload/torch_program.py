# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch: a small network trained on batches of random length, with a second stream. Words:
`graph` captures and launches a graph, `nccl` reduces over all devices in one process, `workers`
loads the batches in forked processes."""

import os
import random
import sys
import zlib

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import common
import torch

random.seed(1)
torch.manual_seed(1)
torch.backends.cudnn.benchmark = False
torch.use_deterministic_algorithms("deterministic" in sys.argv)


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        return torch.randn(512 + 97 * (i % 7), 1024, generator=draw)


def load_batches():
    loader = torch.utils.data.DataLoader(
        Batches(), batch_size=None, num_workers=3, pin_memory=True, multiprocessing_context="fork"
    )
    return iter(loader)


device = torch.device("cuda", 0)
model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
side = torch.cuda.Stream()
loaded = load_batches() if "workers" in sys.argv else None

if "nccl" in sys.argv:
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)


said = ([], [])  # of each step, what the loss and the copy were


def make_batch():
    if loaded is not None:
        return next(loaded).to(device, non_blocking=True)
    rows = random.choice((512, 1024, 3000, 4096, 7000)) + random.randrange(64)
    return torch.randn(rows, 1024, device=device)


def reduce_everywhere(copy):
    dist.all_reduce(copy)
    count = torch.cuda.device_count()
    if count > 1:
        parts = [copy.to(f"cuda:{i}") * (i + 1) for i in range(count)]
        torch.cuda.nccl.all_reduce(parts)
        common.add(parts[-1][:2, :4].contiguous().cpu().numpy().reshape(-1))


def step(i):
    batch = make_batch()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copy = batch * 2
        batch.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    if "nccl" in sys.argv:
        reduce_everywhere(copy)
    if "settled" in sys.argv:
        torch.cuda.synchronize()
    seen = (
        loss.detach().cpu().numpy().reshape(1),
        copy[:4, :4].contiguous().cpu().numpy().reshape(-1),
    )
    for each, words in zip(seen, said):
        common.add(each)
        words.append(f"{zlib.crc32(each.tobytes()) & 0xFFFF:04x}")
    if i % 10 == 9:
        common.mark(f"step {i}", float(loss.detach()).hex())
    if i % 20 == 19 and "uncached" not in sys.argv and "turns" not in sys.argv:
        torch.cuda.empty_cache()
    torch.cuda.synchronize()


def launch_a_graph():
    static = torch.zeros(4096, 1024, device=device)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm), torch.no_grad():
        model(static)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        answer = model(static)
    for i in range(5):
        static.fill_(i)
        other = torch.empty(50 << 20, device=device)  # between the launches
        graph.replay()
        torch.cuda.synchronize()
        del other
        common.add(answer[:2].cpu().numpy().reshape(-1))
        common.mark(f"launch {i}", float(answer[1, 1]).hex())


common.play(step, 60, per_round=10)
if "turns" not in sys.argv:
    print("losses", *said[0])
    print("copies", *said[1])
if "graph" in sys.argv:
    launch_a_graph()
if "nccl" in sys.argv:
    dist.destroy_process_group()
common.finish()
