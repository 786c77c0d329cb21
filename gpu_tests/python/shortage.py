# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What is held after a request that the device cannot serve, and idle memory of one allocator that
serves another.

    python3 shortage.py [--driver cuda|fake]

Requests of more than the device, of more than is left of it, and of more than a budget fail in a
pool, a manager and a growable range; afterwards the device has as much free memory as before. Then
one allocator retains most of the device, and another one requests it. Prints one line a check; exit
code 1 where one does not hold.
"""

import argparse
import sys
import threading
import time

import common  # noqa: F401  (the variables that keep multicast objects away)
import libvmm
from libvmm.growable import Growable

MIB = 1 << 20
bad = []


def tell(name, holds, detail=""):
    print(f"{'ok' if holds else 'FAILED':7} {name:46} {detail}", flush=True)
    if not holds:
        bad.append(name)


def fails(name, driver, call, slack):
    """The call raises OutOfMemory, and the device's free memory is as before."""
    before, _ = driver.memory()
    began = time.perf_counter()
    try:
        call()
        text = "no error"
    except libvmm.OutOfMemory as error:
        text = str(error)
    seconds = time.perf_counter() - began
    after, _ = driver.memory()
    holds = text != "no error" and before - after <= slack and "request of" in text
    tell(name, holds, f"{(before - after) / MIB:.0f} MiB less free, {seconds * 1e3:.1f} ms: {text}")


def failures(driver, slack):
    free, total = driver.memory()
    with (
        libvmm.Pool(driver, report_live=False) as pool,
        libvmm.Manager(driver, report_live=False) as blocks,
        Growable(blocks, 4 * total) as cache,
        Growable(blocks, total, segments=4) as layers,
    ):
        kept = pool.allocate(64 * MIB), blocks.allocate(64 * MIB)
        cache.grow(64 * MIB)
        layers.grow(4 * MIB)
        free, total = driver.memory()
        for name, size in (
            ("more than the device", total + (1 << 30)),
            ("more than is left", free + (256 << 20)),
        ):
            fails(f"a pool's request of {name}", driver, lambda: pool.allocate(size), slack)
            fails(f"a manager's request of {name}", driver, lambda: blocks.allocate(size), slack)
            fails(f"a range's growth to {name}", driver, lambda: cache.grow(size), slack)
            fails(
                f"four segments' growth to {name}",
                driver,
                lambda: layers.grow(size // 4 + MIB),
                slack,
            )
        tell("segments are as before", all(layers.segment(i)[1] == 4 * MIB for i in range(4)))
        for each in kept:
            each.free()
    with (
        libvmm.Manager(driver, budget=8 << 30, report_live=False) as blocks,
        Growable(blocks, 8 << 30, segments=4) as layers,
    ):
        layers.grow(4 * MIB)
        fails("four segments' growth beyond a budget", driver, lambda: layers.grow(3 << 30), slack)


def relief(driver, second):
    free, _ = driver.memory()
    most = free // 4 * 3
    with (
        libvmm.Pool(driver, report_live=False) as pool,
        libvmm.Pool(second, report_live=False) as other,
        libvmm.Manager(driver, report_live=False) as blocks,
        Growable(blocks, free) as cache,
    ):

        def of_pool(which):
            return lambda: which.allocate(most).free()

        def of_range():
            cache.grow(most)
            cache.shrink(0)
            cache.synchronize()

        kinds = {
            "pool": of_pool(pool),
            "other pool": of_pool(other),
            "manager": lambda: blocks.allocate(most).free(),
            "range": of_range,
        }
        for name, served in kinds.items():
            for source, keep in kinds.items():
                keep()
                pool.synchronize()
                began = time.perf_counter()
                try:
                    served()
                    tell(
                        f"{source} serves {name}",
                        True,
                        f"{(time.perf_counter() - began) * 1e3:.1f} ms",
                    )
                except libvmm.OutOfMemory as error:
                    tell(f"{source} serves {name}", False, str(error))
        done = []

        def turns(which):
            for _ in range(20):
                try:
                    which()
                except libvmm.OutOfMemory:
                    pass
            done.append(which)

        threads = [
            threading.Thread(target=turns, args=(each,), daemon=True)
            for each in (kinds["pool"], kinds["other pool"], kinds["manager"])
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(120)
        tell("three that are short at once go on", len(done) == 3, f"{len(done)} threads ended")


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--driver", default="cuda")
    given = words.parse_args()
    with libvmm.Driver(given.driver) as driver:
        failures(driver, slack=64 * MIB)
        relief(driver, driver)
        if given.driver == "cuda":  # of another part of the program, for the same device
            with libvmm.Driver(given.driver) as second:
                relief(driver, second)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
