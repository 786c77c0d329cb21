# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Pools on a GPU without a framework: aligned blocks hold their bytes and the memory beside them
serves others; a pool that is turned off gives each block back; the dump says what lies where.
Ends with 0 where all holds, with 77 and a reason where there is no device.

    python3 gpu_tests/python/pools.py [random blocks]
"""

import os
import random
import sys

import libvmm

MIB = 1 << 20


def aligned(driver, count):
    choose = random.Random(count)
    with libvmm.Pool(driver) as pool:
        live = []
        for number in range(count):
            if len(live) < 50 or choose.random() < 0.5:
                size = choose.choice((1, 512, 5000, 70_000, 3 * MIB, 20 * MIB))
                alignment = 1 << choose.randrange(22)
                block = pool.allocate(size, alignment=alignment)
                assert block.address % alignment == 0, (block, alignment)
                mark = bytes([number % 251]) * min(size, 64)
                driver.write(block.address, mark)
                driver.write(block.address + size - len(mark), mark)
                live.append((block, mark))
            else:
                block, mark = live.pop(choose.randrange(len(live)))
                for at in (block.address, block.address + block.size - len(mark)):
                    assert driver.read(at, len(mark)) == mark, block
                block.free()
        pool.validate()
        now = pool.statistics()
        assert f"live {now.live_bytes}" in pool.dump().splitlines()
        print(
            f"aligned: {count} steps, {now.live_bytes / MIB:.1f} MiB live, "
            f"{now.mapped_bytes / MIB:.1f} MiB held"
        )
        del block, live[:]


def last_page(driver):
    with libvmm.Pool(driver, budget=4 * MIB) as pool:
        with pool.allocate(MIB + 512), pool.allocate(2 * MIB, alignment=2 * MIB):
            assert pool.statistics().mapped_bytes == 4 * MIB
    print("last page: the second of two serves an aligned block")


def turned_off(driver):
    os.environ["VPMM_PAGE_SIZE"] = str(32 << 30)
    with libvmm.Pool(driver, read_environment=True) as pool:
        for size in (100, 5 * MIB, 301 * MIB):
            block = pool.allocate(size)
            driver.write(block.address, b"x")
            assert pool.statistics().mapped_bytes == -(-size // (2 * MIB)) * 2 * MIB
            block.free()
            pool.synchronize()
            pool.allocate(1).free()
            assert pool.statistics().mapped_bytes <= 2 * MIB, pool.dump()
    del os.environ["VPMM_PAGE_SIZE"]
    print("turned off: nothing is kept")


def main():
    try:
        driver = libvmm.Driver("cuda")
    except libvmm.Error as error:
        print(f"skipped: {error}")
        return 77
    with driver:
        print(f"multicast: {libvmm.Feature.MULTICAST_CAPABLE in driver.info.features}")
        aligned(driver, int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
        last_page(driver)
        turned_off(driver)
    return 0


if __name__ == "__main__":
    sys.exit(main())
