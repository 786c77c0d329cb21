# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The torch_memory_saver adapter on a GPU: memory of tensors is given back by tag and comes back at
the same addresses, kept or not, and a captured graph goes on to replay over it.

    python3 memory_saver.py [--weights MIB] [--cache MIB] [--cycles 20]

Needs what run.py needs. Prints one line a check; exit code 1 where one does not hold.
"""

import argparse
import sys
import time

import common  # noqa: F401  (the variables that keep multicast objects away)

MIB = 1 << 20


def captured(torch, saver, tell):
    """A capture whose memory is the tag's: given back, and replayed when it is there again."""
    x = torch.ones(64, 1024, device="cuda")
    x @ x.T  # cuBLAS cannot be set up inside a capture
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graphs"):
        between = torch.randn(1024, 1024, device="cuda") * 0 + 2.0
        y = (x @ between).relu() + 1
    graph.replay()
    place, want = y.data_ptr(), float(y.sum())
    tell("a capture allocates in its tag", want == 64 * 1024 * 2049.0, f"{want}")
    free = torch.cuda.mem_get_info()[0]
    saver.pause("graphs")
    given = torch.cuda.mem_get_info()[0] - free
    tell("its memory is given back", given > 0, f"{given // MIB} MiB")
    saver.resume("graphs")
    graph.replay()
    tell("it replays at the same addresses", (y.data_ptr(), float(y.sum())) == (place, want), "")
    del y, between, graph


def main():
    import torch
    from libvmm.torch_memory_saver import torch_memory_saver as saver

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--weights", type=int, default=4096)
    parser.add_argument("--cache", type=int, default=8192)
    parser.add_argument("--cycles", type=int, default=20)
    wanted = parser.parse_args()
    bad = []

    def tell(name, holds, detail):
        print(f"{'ok' if holds else 'FAILED':7} {name:38} {detail}", flush=True)
        if not holds:
            bad.append(name)

    torch.zeros(1, device="cuda")
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.empty(wanted.weights * MIB // 4, device="cuda").normal_()
    with saver.region(tag="cache"):
        cache = torch.zeros(wanted.cache * MIB // 4, device="cuda")
    out = torch.zeros(1024, device="cuda")

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache[:1024].mul_(0.5).add_(weights[:1024])
        out.copy_(cache[:1024])

    def replayed():
        cache.zero_()
        graph.replay()
        return out.clone()

    before = replayed()
    sums = weights.view(-1, MIB).double().sum(1)
    places = weights.data_ptr(), cache.data_ptr()

    def free_mib():
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0] // MIB

    start = free_mib()
    saver.pause()
    paused = free_mib()
    asked = wanted.weights + wanted.cache
    code_mib = 64  # kernels that are loaded for the checks take memory, too
    tell(
        "a pause gives the memory back",
        paused - start >= asked - code_mib,
        f"{paused - start} MiB of {asked}",
    )
    taken = torch.zeros(asked * MIB // 2, dtype=torch.uint8, device="cuda")
    tell("others can have it meanwhile", taken.numel() > 0, f"{taken.numel() // MIB} MiB")
    del taken
    torch.cuda.empty_cache()
    saver.resume()
    tell("addresses stay", places == (weights.data_ptr(), cache.data_ptr()), hex(places[0]))
    tell(
        "what is kept comes back bit by bit",
        torch.equal(sums, weights.view(-1, MIB).double().sum(1)),
        f"{wanted.weights} MiB",
    )
    tell("a captured graph replays the same bits", torch.equal(before, replayed()), "1024 values")

    saver.pause()
    shown = saver.get_cpu_backup(weights[1000:5000])
    tell("a backup is shown while it is paused", saver.get_cpu_backup(cache) is None, "")
    saver.resume()
    tell("with the contents", torch.equal(shown, weights[1000:5000].cpu()), "4000 values")
    tell("and not afterwards", saver.get_cpu_backup(weights) is None, "")
    captured(torch, saver, tell)

    level = free_mib()
    pauses, resumes = [], []
    for _ in range(wanted.cycles):
        begun = time.perf_counter()
        saver.pause()
        middle = time.perf_counter()
        saver.resume()
        pauses.append(middle - begun)
        resumes.append(time.perf_counter() - middle)
    lost = level - free_mib()
    tell("cycles lose no memory", lost <= 2, f"{wanted.cycles} cycles, {lost} MiB")
    tell("and no contents", torch.equal(sums, weights.view(-1, MIB).double().sum(1)), "")
    half = wanted.cycles // 2
    print(
        f"pause {sorted(pauses)[half] * 1e3:.1f} ms, "
        f"resume {sorted(resumes)[half] * 1e3:.1f} ms: "
        f"{wanted.weights} MiB kept in host memory, {wanted.cache} MiB discarded"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
