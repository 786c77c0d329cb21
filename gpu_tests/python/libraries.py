# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""CuPy, Numba and RMM on a GPU over libvmm's adapters: kernels on streams that end before their
arrays, memory that runs short, slices, resources that are replaced.

    python3 libraries.py [NAME...]

Each check is a process of its own. Needs libvmm; a library that is missing skips its checks. Exit
code 1 where one fails.
"""

import gc
import subprocess
import sys

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def cupy_over_vmm(**options):
    import cupy
    import libvmm
    import libvmm.cupy

    pool = libvmm.Pool(libvmm.Driver("cuda"), **options)
    libvmm.cupy.enable(pool)
    return cupy, pool


@check
def cupy_streams_that_end():
    """Arrays outlive the streams that they were made under; their memory is used again."""
    cupy, pool = cupy_over_vmm()
    wrong, kept = 0, []
    for number in range(600):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            made = cupy.full(50_000 + 997 * (number % 17), number, dtype=cupy.int32) * 2 + 1
        stream.synchronize()
        kept.append((number, made))
        del stream, made
        if len(kept) > 40:
            before, array = kept.pop(number % 40)
            wrong += int((array != before * 2 + 1).any())
            del array
    assert wrong == 0, f"{wrong} arrays were overwritten"
    kept.clear()
    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
    pool.trim()
    pool.validate()
    return "600 streams"


@check
def cupy_out_of_memory():
    """The error of CuPy, and the next array is fine."""
    cupy, _ = cupy_over_vmm(budget=256 << 20)
    live = []
    try:
        while True:
            live.append(cupy.zeros(32 << 20, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError as short:
        text = str(short)
    assert live and all(int(each[-1]) == 0 for each in live)
    live.clear()
    assert int(cupy.arange(1000).sum()) == 499_500
    return text


def numba_over_vmm():
    import numpy
    from numba import cuda

    if not hasattr(numpy, "row_stack"):  # Numba 0.68 compiles no kernel with NumPy 2.5 otherwise
        numpy.row_stack = numpy.vstack
    import libvmm.numba

    libvmm.numba.enable()
    return cuda, lambda: cuda.current_context().memory_manager


@check
def numba_slices():
    """Arrays and slices hold the memory; copies and kernels see it."""
    import numpy

    cuda, manager = numba_over_vmm()

    @cuda.jit
    def add(array, by):
        at = cuda.grid(1)
        if at < array.size:
            array[at] += by

    array = cuda.to_device(numpy.arange(10_000, dtype=numpy.float64))
    part = array[1000:2000]
    add[4, 256](part, 5.0)
    del part
    gc.collect()
    other = cuda.device_array(10_000)  # would get the memory if the slice's end had freed it
    add[40, 256](other, 1.0)
    part = array[1000:2000]
    del array
    gc.collect()
    assert (part.copy_to_host() == numpy.arange(1000, 2000) + 5.0).all()
    del part, other
    gc.collect()
    cuda.synchronize()
    assert manager()._pool.statistics().live_count == 0
    return "freed once"


@check
def numba_streams():
    """What one stream still writes to is not handed to another."""
    import numpy

    cuda, _ = numba_over_vmm()

    @cuda.jit
    def slow(array, value):
        at = cuda.grid(1)
        if at < array.size:
            for _ in range(2000):
                array[at] = value

    wrong = 0
    for number in range(100):
        first, second = cuda.stream(), cuda.stream()
        gone = cuda.device_array(100_000, dtype=numpy.int32)
        slow[400, 256, first](gone, -1)
        del gone
        made = cuda.device_array(100_000, dtype=numpy.int32)
        slow[400, 256, second](made, number)
        second.synchronize()
        first.synchronize()
        wrong += int((made.copy_to_host() != number).sum())
    assert wrong == 0, f"{wrong} words were overwritten"
    return "100 rounds"


@check
def numba_close():
    """cuda.close() ends the pool; arrays that outlive it harm nothing; the next array works."""
    cuda, manager = numba_over_vmm()
    array = cuda.to_device(list(range(100)))
    pool = manager()._pool
    cuda.close()
    assert not pool.is_open
    del array
    gc.collect()
    again = cuda.to_device(list(range(50)))
    assert int(again.copy_to_host().sum()) == 1225
    return "opened again"


@check
def rmm_replaced():
    """A pool of RMM's over the adapter, replaced as the current resource."""
    import libvmm
    import libvmm.rmm
    import rmm

    pool = libvmm.Pool(libvmm.Driver("cuda"))
    for _ in range(5):
        over = rmm.mr.PoolMemoryResource(libvmm.rmm.resource(pool), initial_pool_size=1 << 20)
        rmm.mr.set_current_device_resource(over)
        buffer = rmm.DeviceBuffer(size=1000)
        del buffer, over
        rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource())
        gc.collect()
    assert pool.statistics().live_count == 0
    return "5 times"


def main():
    if sys.argv[1:2] == ["--one"]:
        print(CHECKS[sys.argv[2]](), flush=True)
        return 0
    failed = 0
    for name in sys.argv[1:] or CHECKS:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", __file__, "--one", name],
            capture_output=True,
            text=True,
            timeout=300,
        )
        last = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1:] or [""]
        missing = done.returncode and "ModuleNotFoundError: No module named" in last[0]
        state = "skipped" if missing else "FAILED" if done.returncode else "ok"
        failed += state == "FAILED"
        print(f"{state:8} {name:24} {last[0][:200]}", flush=True)
        if state == "FAILED":
            print(done.stderr[-2500:], flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
