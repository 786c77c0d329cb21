# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
import ctypes
import os

vmm = ctypes.CDLL(os.environ.get("LIBVMM", "libvmm.so.1"))
vmm.vmm_last_error_text.restype = ctypes.c_char_p
handle, u64 = ctypes.c_void_p, ctypes.c_uint64


def call(name, *arguments):
    if getattr(vmm, name)(*arguments) != 0:
        raise MemoryError(vmm.vmm_last_error_text().decode())


driver, pool, block = handle(), handle(), handle()
call("vmm_driver_open", b"host", -1, ctypes.byref(driver))  # or b"cuda"
call("vmm_pool_create", driver, None, ctypes.byref(pool))
call("vmm_pool_allocate", pool, u64(3 << 20), None, ctypes.byref(block))
print(hex(block.value))
call("vmm_pool_free", pool, block, None)
call("vmm_pool_destroy", pool)
call("vmm_driver_close", driver)
