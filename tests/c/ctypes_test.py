# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: Python's ctypes drives the C interface with no other help, and its shapes fit the callback
allocators of others: allocate(size, stream) -> int, deallocate(pointer, size, stream).
Method: structs by their fields; random allocations and frees on the host's memory through two plain
functions, whose contents are checked; a callback from C; errors as Python sees them; and the
library's numbers at the end."""

import ctypes
import os
import random
import unittest

LIBRARY = ctypes.CDLL(os.environ.get("LIBVMM", "libvmm.so.1"))
LIBRARY.vmm_last_error_text.restype = ctypes.c_char_p
LIBRARY.vmm_status_name.restype = ctypes.c_char_p
HANDLE, U64, U32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32

OUT_OF_MEMORY, NOT_ALLOCATED, INVALID_HANDLE = 3, 9, 18


class Statistics(ctypes.Structure):
    _fields_ = [
        (name, U64)
        for name in (
            "struct_size",
            "reserved_bytes",
            "mapped_bytes",
            "live_bytes",
            "peak_live_bytes",
            "peak_mapped_bytes",
            "reusable_bytes",
            "captured_bytes",
            "hole_bytes",
            "stale_bytes",
            "live_count",
            "stale_count",
            "pinned_count",
            "stream_count",
            "slow_count",
            "created_count",
            "moved_count",
            "moved_bytes",
            "other_stream_count",
            "device_wait_count",
            "event_count",
            "host_wait_count",
        )
    ]


class Notice(ctypes.Structure):
    _fields_ = [
        ("struct_size", U64),
        ("epoch", U64),
        ("base", HANDLE),
        ("size_bytes", U64),
        ("kind", U32),
        ("reserved", U32),
    ]


Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Notice))


class Pool:
    """A pool on a driver, with the two functions that others call."""

    def __init__(self, name):
        self.driver, self.pool = HANDLE(), HANDLE()
        self.check(LIBRARY.vmm_driver_open(name, -1, ctypes.byref(self.driver)))
        self.check(LIBRARY.vmm_pool_create(self.driver, None, ctypes.byref(self.pool)))

    @staticmethod
    def check(status):
        if status != 0:
            raise MemoryError(LIBRARY.vmm_last_error_text().decode())

    def allocate(self, size, stream=0):
        at = HANDLE()
        self.check(
            LIBRARY.vmm_pool_allocate(self.pool, U64(size), HANDLE(stream), ctypes.byref(at))
        )
        return at.value

    def deallocate(self, pointer, size, stream=0):
        self.check(
            LIBRARY.vmm_pool_free_sized(self.pool, HANDLE(pointer), U64(size), HANDLE(stream))
        )

    def statistics(self):
        numbers = Statistics(struct_size=ctypes.sizeof(Statistics))
        self.check(LIBRARY.vmm_pool_get_statistics(self.pool, ctypes.byref(numbers)))
        return numbers

    def close(self):
        self.check(LIBRARY.vmm_pool_destroy(self.pool))
        self.check(LIBRARY.vmm_driver_close(self.driver))


class Ctypes(unittest.TestCase):
    def setUp(self):
        self.pool = Pool(b"host")

    def tearDown(self):
        self.pool.close()

    def test_random_allocations(self):
        choose = random.Random(4711)
        live = []
        for number in range(20000):
            if len(live) < 200 or choose.random() < 0.5:
                size = choose.choice((1, 100, 4096, 70000))
                at = self.pool.allocate(size)
                ctypes.memset(at, number % 256, size)
                live.append((at, size, number % 256))
            else:
                at, size, mark = live.pop(choose.randrange(len(live)))
                self.assertEqual(ctypes.string_at(at + size - 1, 1)[0], mark)
                self.pool.deallocate(at, size)
        self.assertEqual(self.pool.statistics().live_count, len(live))
        for at, size, mark in live:
            self.assertEqual(ctypes.string_at(at, 1)[0], mark)
            self.pool.deallocate(at, size)
        self.assertEqual(self.pool.statistics().live_bytes, 0)

    def test_errors(self):
        at = HANDLE()
        status = LIBRARY.vmm_pool_allocate(self.pool.pool, U64(1 << 60), None, ctypes.byref(at))
        self.assertEqual(status, OUT_OF_MEMORY)
        self.assertEqual(LIBRARY.vmm_status_name(status), b"VMM_ERROR_OUT_OF_MEMORY")
        block = self.pool.allocate(4096)
        self.pool.deallocate(block, 4096)
        self.assertEqual(LIBRARY.vmm_pool_free(self.pool.pool, HANDLE(block), None), NOT_ALLOCATED)
        with self.assertRaisesRegex(MemoryError, "not_allocated"):
            self.pool.deallocate(block, 4096)
        self.assertEqual(LIBRARY.vmm_pool_validate(None), INVALID_HANDLE)
        self.assertEqual(LIBRARY.vmm_pool_validate(self.pool.driver), INVALID_HANDLE)
        self.assertEqual(LIBRARY.vmm_pool_validate(HANDLE(id(self))), INVALID_HANDLE)

    def test_callback(self):
        seen = []
        callback = Callback(
            lambda context, notice: seen.append(
                (context, notice.contents.kind, notice.contents.size_bytes)
            )
        )
        number = U64()
        self.pool.check(
            LIBRARY.vmm_pool_subscribe(self.pool.pool, callback, HANDLE(77), ctypes.byref(number))
        )
        self.pool.deallocate(self.pool.allocate(4 << 20), 4 << 20)
        self.pool.check(LIBRARY.vmm_pool_trim(self.pool.pool, U64(0), None))
        self.assertTrue(seen)
        self.assertEqual(seen[0][:2], (77, 2))
        self.assertGreaterEqual(seen[0][2], 4 << 20)
        self.pool.check(LIBRARY.vmm_pool_unsubscribe(self.pool.pool, number))


if __name__ == "__main__":
    unittest.main()
