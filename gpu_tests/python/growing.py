# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""libvmm.growable beside PyTorch: a range of 120 GiB grows in 64 steps to 96 GiB, shrinks to 8 and
grows again, under tensors and a captured graph that show all of it.

    python3 growing.py [--gib 96] [--steps 64] [--driver cuda|host]

Then it grows step by step in turns with the same calls of the driver through ctypes: the same
handles, and the same bytes filled with zeros. Needs what run.py needs; on the host's memory (for
which PyTorch needs no CUDA, and --gib 1 is enough) graphs, streams and the driver's own calls are
left out. Prints one line a check; exit code 1 where one does not hold.
"""

import argparse
import ctypes
import statistics
import sys
import time

import common  # noqa: F401  (the variables that keep multicast objects away)
import libvmm
from libvmm.growable import Growable

GIB = 1 << 30
MIB = 1 << 20
WORD = 8
bad = []


def tell(name, holds, detail):
    print(f"{'ok' if holds else 'FAILED':7} {name:46} {detail}", flush=True)
    if not holds:
        bad.append(name)


class Bare:
    """The driver's own calls through ctypes: a range that grows by handles of one size."""

    class Property(ctypes.Structure):
        """CUmemAllocationProp: pinned memory of a device."""

        _fields_ = [
            ("type", ctypes.c_int),
            ("handle_types", ctypes.c_int),
            ("location_type", ctypes.c_int),
            ("device", ctypes.c_int),
            ("windows", ctypes.c_void_p),
            ("flags", ctypes.c_ubyte * 8),
        ]

    class Access(ctypes.Structure):
        """CUmemAccessDesc."""

        _fields_ = [
            ("location_type", ctypes.c_int),
            ("device", ctypes.c_int),
            ("rights", ctypes.c_int),
        ]

    def __init__(self, most, handle_bytes):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._handle_bytes = handle_bytes
        self._property = self.Property(1, 0, 1, 0)
        self._access = self.Access(1, 0, 3)
        self._most, self._handles = most, []
        self.base = ctypes.c_uint64()
        self._call(
            "cuMemAddressReserve",
            ctypes.byref(self.base),
            ctypes.c_size_t(most),
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )

    def _call(self, name, *words):
        code = getattr(self._cuda, name)(*words)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def grow(self, size):
        begin = len(self._handles) * self._handle_bytes
        for offset in range(begin, size, self._handle_bytes):
            handle = ctypes.c_uint64()
            self._call(
                "cuMemCreate",
                ctypes.byref(handle),
                ctypes.c_size_t(self._handle_bytes),
                ctypes.byref(self._property),
                ctypes.c_uint64(0),
            )
            self._handles.append(handle)
            self._call(
                "cuMemMap",
                ctypes.c_uint64(self.base.value + offset),
                ctypes.c_size_t(self._handle_bytes),
                ctypes.c_size_t(0),
                handle,
                ctypes.c_uint64(0),
            )
        first = ctypes.c_uint64(self.base.value + begin)
        self._call(
            "cuMemSetAccess",
            first,
            ctypes.c_size_t(size - begin),
            ctypes.byref(self._access),
            ctypes.c_size_t(1),
        )
        self._call(
            "cuMemsetD8Async",
            first,
            ctypes.c_ubyte(0),
            ctypes.c_size_t(size - begin),
            ctypes.c_void_p(0),
        )

    def close(self):
        size = len(self._handles) * self._handle_bytes
        self._call("cuMemUnmap", self.base, ctypes.c_size_t(size))
        for handle in self._handles:
            self._call("cuMemRelease", handle)
        self._call("cuMemAddressFree", self.base, ctypes.c_size_t(self._most))


class Watched:
    """A range with a tensor over all its addresses, and a graph that gathers what an index says."""

    def __init__(self, torch, driver, most, is_device):
        self.torch, self.is_device = torch, is_device
        self.manager = libvmm.Manager(driver)
        self.cache = Growable(self.manager, most)
        self.granule = self.cache.handle_bytes
        self.cache.grow(self.granule)
        self.base = self.cache.address
        self.all = torch.from_dlpack(self.cache.full_view("int64", (most // WORD,)))
        device = self.all.device
        self.index = torch.zeros(64, dtype=torch.int64, device=device)
        self.seen = torch.zeros(64, dtype=torch.int64, device=device)
        self.graph = None
        if is_device:
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.seen.copy_(self.all[self.index])

    def replay(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            self.seen.copy_(self.all[self.index])
        return self.seen

    def settle(self):
        if self.is_device:
            self.torch.cuda.synchronize()
        else:
            self.cache.synchronize()

    def grow(self, size, mark):
        """Grows, looks at the new bytes, and marks 64 places of them. Answers whether they were
        zero, and the seconds of the growth."""
        old = self.cache.size // WORD
        self.settle()
        begun = time.perf_counter()
        self.cache.grow(size)
        self.settle()
        seconds = time.perf_counter() - begun
        new = self.all[old : size // WORD]
        is_zero = not bool(new.any())
        places = self.places(old, size // WORD)
        self.all[places] = places + mark
        self.index.copy_(places)
        is_right = bool((self.replay() == places + mark).all())
        return is_zero and is_right, seconds

    def places(self, begin, end):
        return (
            self.torch.linspace(begin, end - 1, 64, dtype=self.torch.float64)
            .to(self.torch.int64)
            .to(self.all.device)
        )

    def still_there(self, steps, mark):
        """Whether the marks of these (begin, end) are what they were, by the graph."""
        for begin, end in steps:
            places = self.places(begin // WORD, end // WORD)
            self.index.copy_(places)
            if not bool((self.replay() == places + mark).all()):
                return False
        return True


def check_order(watched, small):
    """A shrink below what a running reader reads: the reader is right, and the host goes on."""
    torch, cache = watched.torch, watched.cache
    side = torch.cuda.Stream()
    total = cache.size // WORD
    torch.cuda.synchronize()
    want = int(watched.all[total - (64 << 20) : total].sum())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        got = watched.all[total - (64 << 20) : total].sum()
        done = torch.cuda.Event()
        done.record()
    begun = time.perf_counter()
    cache.shrink(small, stream=side.cuda_stream)
    host_ms = (time.perf_counter() - begun) * 1e3
    was_running = not done.query()
    side.synchronize()
    tell("a shrink under a reader: the host goes on", was_running, f"{host_ms:.2f} ms in the call")
    tell("and the reader reads what was there", int(got) == want, "64 Mi words")


def check_sequence(watched, wanted):
    cache, gib = watched.cache, wanted.unit
    steps = [wanted.gib * gib * number // wanted.steps for number in range(wanted.steps + 1)]
    steps = [max(watched.granule, size // watched.granule * watched.granule) for size in steps]
    times, zero, near = [], True, True
    for size in steps[1:]:
        is_right, seconds = watched.grow(size, 5)
        times.append(seconds)
        zero = zero and is_right
        near = near and abs(cache.physical_bytes - size) <= watched.granule
    pairs = list(zip(steps, steps[1:]))
    tell("new bytes are zero, each replay right", zero, f"{len(times)} steps")
    tell("old bytes are kept", watched.still_there(pairs, 5), f"{len(pairs)} times 64 words")
    tell("physical bytes within a granule", near, f"{cache.physical_bytes / gib:.3f} units")
    tell("the address stays", cache.address == watched.base, hex(watched.base))
    small = 8 * gib // watched.granule * watched.granule
    if wanted.gib <= 8:
        small = wanted.gib * gib // 4 // watched.granule * watched.granule
    if watched.is_device:
        check_order(watched, small)
    else:
        cache.shrink(small)
    kept = [pair for pair in pairs if pair[1] <= small]
    tell("a shrink keeps what is below", watched.still_there(kept, 5), f"{len(kept)} steps")
    again = [size for size in steps if size > small]
    right = [watched.grow(size, 7)[0] for size in again]
    tell("and it grows again: zero, replays right", all(right), f"{len(right)} steps")
    tell(
        "the address stays to the end",
        cache.address == watched.base and watched.still_there(kept, 5),
        f"{cache.size / gib:.1f} units",
    )
    watched.cache.validate()
    return statistics.median(times)


def check_cost(torch, driver, wanted):
    """In turns: a step of ours, a step by hand."""
    step = wanted.gib * wanted.unit // 2 // wanted.steps // (2 * MIB) * (2 * MIB)
    most = step * wanted.steps
    with libvmm.Manager(driver) as manager:
        cache = Growable(manager, most)
        bare = Bare(most, cache.handle_bytes)
        ours, theirs = [], []

        def timed(into, grow, size):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            grow(size)
            torch.cuda.synchronize()
            into.append(time.perf_counter() - begun)

        for number in range(1, wanted.steps + 1):
            turn = [(ours, cache.grow), (theirs, bare.grow)]
            for into, grow in turn if number % 2 else turn[::-1]:
                timed(into, grow, number * step)
        ratios = sorted(mine / other for mine, other in zip(ours, theirs))
        cache.close()
        bare.close()
    middle, other = (statistics.median(each) * 1e3 for each in (ours, theirs))
    print(
        f"a step of {step >> 20} MiB in handles of 2 MiB: ours {middle:.2f} ms, through ctypes "
        f"{other:.2f} ms"
    )
    tell(
        "a step is faster than through ctypes",
        statistics.median(ratios) < 1.0,
        f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)})",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--gib", type=int, default=96)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--driver", default="cuda", choices=("cuda", "host"))
    wanted = parser.parse_args()
    wanted.unit = GIB
    import torch

    is_device = wanted.driver == "cuda"
    if is_device:
        torch.zeros(1, device="cuda")
    with libvmm.Driver(wanted.driver) as driver:
        watched = Watched(torch, driver, wanted.gib * GIB * 5 // 4, is_device)
        middle = check_sequence(watched, wanted)
        print(f"a step of the range: {middle * 1e3:.2f} ms, the middle one of {wanted.steps}")
        watched.graph = watched.all = None
        watched.cache.close()
        watched.manager.close()
        if is_device:
            check_cost(torch, driver, wanted)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
