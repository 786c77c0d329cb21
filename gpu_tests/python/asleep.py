# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""libvmm.suspend beside PyTorch on a GPU: weights that are kept and a cache that is discarded, with
a captured graph over both and a trainer in the same process.

    python3 asleep.py [--weights GIB] [--cache GIB] [--cycles 1000] [--trainer neighbours]
                      [--iterations 30] [--driver cuda|host] [--way allocator|functions]

Checks that a suspension gives the memory back while a kernel of somebody else runs, and waits for
one that reads it; that contents, addresses and replays are what they were; that a resume without
memory leaves everything as it was; that cycles leak neither memory of the device nor of the host;
and what the trainer, a program of tools/trace/programs, holds over what lives while the regions
come and go, beside a process that has it alone under PyTorch's own allocator. --way is how
PyTorch's tensors have vmm's memory (docs/pytorch.md): "functions" are plugged in before the first
use of CUDA, and have no native(), so that a pool of vmm takes the memory away. Needs what run.py
needs; on the host's memory (PyTorch needs no CUDA then) kernels, graphs and the trainer are left
out. Prints one line a check; exit code 1 where one does not hold.
"""

import argparse
import os
import subprocess
import sys
import time

import common
import libvmm
from libvmm.suspend import Suspender

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "adapters", "python", "bench"))
MIB = 1 << 20
GIB = 1 << 30
bad = []


def tell(name, holds, detail):
    print(f"{'ok' if holds else 'FAILED':7} {name:46} {detail}", flush=True)
    if not holds:
        bad.append(name)


def resident():
    """Bytes of the process in the machine's memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Regions:
    """Pools with tags, and tensors that show all of their blocks."""

    def __init__(self, torch, driver, wanted):
        self.torch, self.driver = torch, driver
        self.is_device = wanted.driver == "cuda"
        # No stream ends here: a suspension waits for these pools' streams alone.
        self.pools = {
            tag: libvmm.Pool(driver, streams_forgotten=True) for tag in ("weights", "cache")
        }
        self.sleeper = Suspender()
        self.sleeper.add(self.pools["weights"], "weights", "keep")
        self.sleeper.add(self.pools["cache"], "cache", "discard")
        self.block_bytes = {
            "weights": wanted.weights * wanted.unit // 8,
            "cache": wanted.cache * wanted.unit // 16,
        }
        self.blocks = {
            tag: [self.pools[tag].allocate(size) for _ in range(8 if tag == "weights" else 16)]
            for tag, size in self.block_bytes.items()
        }
        self.tensors = {
            tag: [torch.from_dlpack(block.view("float32")) for block in blocks]
            for tag, blocks in self.blocks.items()
        }
        for number, each in enumerate(self.tensors["weights"]):
            each.uniform_(-1, 1) if number % 2 else each.normal_()
        self.fill_cache()
        self.places = self.addresses()
        self.sums = self.checksum()

    def fill_cache(self):
        for number, each in enumerate(self.tensors["cache"]):
            each.fill_(float(number))

    def addresses(self):
        return [each.data_ptr() for tensors in self.tensors.values() for each in tensors]

    def checksum(self):
        """Of the bits of the weights."""
        return [
            int(each.view(self.torch.int32).sum(dtype=self.torch.int64))
            for each in self.tensors["weights"]
        ]

    def free(self):
        if self.is_device:
            self.torch.cuda.synchronize()
        return self.driver.memory()[0]

    def capture(self):
        torch = self.torch
        self.out = torch.zeros(1024, device="cuda")
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for cache, weights in zip(self.tensors["cache"], self.tensors["weights"] * 2):
                cache[-1024:].mul_(0.5).add_(weights[-1024:])
                self.out.add_(cache[-1024:])

    def replay(self):
        self.fill_cache()
        self.out.zero_()
        self.graph.replay()
        return self.out.clone()


def check_kernels(regions):
    """One that has nothing to do with the regions, and one that reads the cache."""
    torch, sleeper = regions.torch, regions.sleeper
    side = torch.cuda.Stream()
    before = regions.free()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
        done = torch.cuda.Event()
        done.record()
    begun = time.perf_counter()
    sleeper.suspend("cache")
    ms = (time.perf_counter() - begun) * 1e3
    given = regions.driver.memory()[0] - before
    was_running = not done.query()
    asked = sum(block.size for block in regions.blocks["cache"])
    tell(
        "beside a kernel of others: memory goes back",
        given >= asked - 2 * MIB * len(regions.blocks["cache"]),
        f"{given >> 20} MiB of {asked >> 20} in {ms:.0f} ms",
    )
    tell("and that kernel still runs", was_running, "1 s on another stream")
    side.synchronize()
    sleeper.resume("cache")
    regions.fill_cache()
    torch.cuda.synchronize()
    last = regions.tensors["cache"][-1]
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        total = last[-(1 << 20) :].sum()
    sleeper.suspend("cache", streams=[side.cuda_stream])
    side.synchronize()
    tell(
        "a kernel that reads it is waited for",
        float(total) == float((len(regions.tensors["cache"]) - 1) << 20),
        "it read what was there",
    )
    sleeper.resume("cache")


def check_contents(regions):
    before = regions.replay() if regions.is_device else None
    regions.sleeper.suspend()  # makes the backup, and loads what copies and checks need
    regions.sleeper.resume()
    regions.checksum()
    start = regions.free()
    report = regions.sleeper.suspend()
    tell(
        "everything is given back by the report",
        report.retained_bytes == 0,
        f"{report.suspended_bytes >> 20} MiB, backup {report.backup_bytes >> 20} MiB",
    )
    if regions.is_device:
        given = regions.free() - start
        tell(
            "and by the device's count",
            given >= report.suspended_bytes - 2 * MIB,
            f"{given >> 20} MiB",
        )
    regions.sleeper.resume()
    tell("addresses stay", regions.addresses() == regions.places, hex(regions.places[0]))
    tell("kept bits are the same", regions.checksum() == regions.sums, "by sums of words")
    if regions.is_device:
        tell(
            "the captured graph replays the same bits",
            regions.torch.equal(before, regions.replay()),
            "1024 values",
        )


def take_all_but(regions, rest_bytes):
    """Memory of somebody else: PyTorch's own, or another pool's where there is no native(). The
    answer is a function that gives it back."""
    import libvmm.torch

    size = regions.free() - rest_bytes
    if libvmm.torch.way() == "functions":
        pool = libvmm.Pool(regions.driver)
        block = pool.allocate(size)

        def close():
            block.free()
            pool.close()

        return close
    with libvmm.torch.native():
        held = [regions.torch.empty(size, dtype=regions.torch.uint8, device="cuda")]

    def drop():
        held.clear()
        regions.torch.cuda.empty_cache()

    return drop


def check_short(regions):
    """Others take the memory while it is away."""
    sleeper = regions.sleeper
    sleeper.suspend()
    give_back = take_all_but(regions, 3 * GIB)
    try:
        sleeper.resume()
        tell("a resume without memory is refused", False, "it went")
    except libvmm.OutOfMemory as short:
        tell("a resume without memory is refused", True, str(short)[:60])
    tell(
        "and everything still sleeps",
        sleeper.is_suspended("cache") and sleeper.is_suspended("weights"),
        "both tags",
    )
    give_back()
    sleeper.resume()
    tell("a second resume brings it back", regions.checksum() == regions.sums, "weights")


def check_cycles(torch, driver, cycles, is_device):
    with libvmm.Pool(driver) as pool, libvmm.Pool(driver) as small, Suspender() as sleeper:
        blocks = [pool.allocate(256 * MIB) for _ in range(4)] + [small.allocate(32 * MIB)]
        sleeper.add(pool, "discarded", "discard")
        sleeper.add(small, "kept", "keep")

        def figures():
            return driver.memory()[0], resident(), sleeper.backup_bytes

        sleeper.suspend()
        sleeper.resume()
        first = figures()
        begun = time.perf_counter()
        for _ in range(cycles):
            sleeper.suspend()
            sleeper.resume()
        seconds = time.perf_counter() - begun
        last = figures()
        what = f"{cycles} cycles of 1 GiB and 32 MiB kept, {seconds / cycles * 1e3:.2f} ms each"
        if is_device:
            tell(
                "cycles lose no memory of the device",
                first[0] - last[0] <= 2 * MIB,
                f"{(first[0] - last[0]) >> 10} KiB; {what}",
            )
        tell("nor of the host", last[1] - first[1] <= 16 * MIB, f"{(last[1] - first[1]) >> 10} KiB")
        tell("backups are made once", last[2] == first[2], f"{last[2] >> 20} MiB")
        del blocks


class Trainer:
    """A program that goes on by so many iterations when it is asked to, in a thread of its own."""

    def __init__(self, torch, name):
        import threading

        import guest

        self.torch, self.failure = torch, None
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._left = 0

        def iteration():
            if self._left == 0:
                torch.cuda.synchronize()
                self._done.release()
                self._go.acquire()
                if self._left == 0:
                    raise guest.Stop
            self._left -= 1

        def work():
            try:
                guest.load(name, iteration).main()
            except guest.Stop:
                pass
            except BaseException as failure:
                self.failure = failure
            self._done.release()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        self._done.acquire()

    def run(self, iterations):
        self._left = iterations
        self._go.release()
        self._done.acquire()
        if self.failure is not None:
            raise self.failure


def check_trainer(regions, wanted, plain):
    """Four rounds of training beside regions that sleep, and generation with regions that run."""
    torch = regions.torch
    before = regions.replay()
    torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(torch, wanted.trainer)
    right = True
    for _ in range(4):
        regions.sleeper.suspend()
        trainer.run(wanted.iterations // 4)
        regions.sleeper.resume()
        right = right and torch.equal(before, regions.replay())
    held, live = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    tell(
        "a trainer beside it: held / live at most 1.10",
        held <= 1.10 * live,
        f"{held / live:.3f} of {live / GIB:.2f} GiB; alone, PyTorch's own: {plain}",
    )
    tell(
        "and regions are right after each round",
        right and regions.checksum() == regions.sums,
        "4 rounds, replays and weights",
    )
    trainer.run(0)


def run_plain(wanted):
    """The trainer alone, in a process of its own under PyTorch's own allocator."""
    done = subprocess.run(
        [
            sys.executable,
            os.path.abspath(__file__),
            "--plain",
            "--trainer",
            wanted.trainer,
            "--iterations",
            str(wanted.iterations),
        ],
        capture_output=True,
        text=True,
        env=common.environment("native"),
        timeout=240,
    )
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr[-300:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--weights", type=int, default=8)
    parser.add_argument("--cache", type=int, default=32)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--trainer", default="neighbours")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--driver", default="cuda", choices=("cuda", "host"))
    parser.add_argument("--way", default="allocator", choices=("allocator", "functions"))
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    import torch

    if wanted.plain:
        torch.cuda.init()
        Trainer(torch, wanted.trainer).run(wanted.iterations)
        print(
            f"{torch.cuda.max_memory_reserved() / torch.cuda.max_memory_allocated():.3f} of "
            f"{torch.cuda.max_memory_allocated() / GIB:.2f} GiB",
            flush=True,
        )
        os._exit(0)
    is_device = wanted.driver == "cuda"
    wanted.unit = GIB if is_device else MIB
    plain = run_plain(wanted) if is_device else ""
    if is_device:
        common.enable("vmm" if wanted.way == "allocator" else "functions")
        torch.zeros(1, device="cuda")
    if is_device:
        import libvmm.torch

        tell("tensors have vmm's memory", libvmm.torch.way() == wanted.way, wanted.way)
    driver = libvmm.Driver(wanted.driver)
    regions = Regions(torch, driver, wanted)
    if is_device:
        regions.capture()
        check_kernels(regions)
    check_contents(regions)
    if is_device:
        check_short(regions)
        check_trainer(regions, wanted, plain)
    check_cycles(torch, driver, wanted.cycles, is_device)
    return int(bool(bad))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
