# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a block is a DLPack producer whose consumers share its memory and keep it alive.
Method: numpy and, where it is there, PyTorch consume blocks of the host's memory; the same address
on both sides; frees while views live; capsules that nobody consumes; an exit with live views."""
import gc
import subprocess
import sys

import pytest

import libvmm

numpy = pytest.importorskip("numpy")


@pytest.fixture
def pool():
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as made:
        yield made


def test_no_byte_is_copied(pool):
    with pool.allocate(4096) as block:
        shown = numpy.from_dlpack(block)
        assert shown.dtype == numpy.uint8 and shown.shape == (4096,)
        assert shown.__array_interface__["data"][0] == block.address
        pool.driver.write(block.address, b"seen")
        assert bytes(shown[:4]) == b"seen"
        del shown


def test_types_and_shapes(pool):
    with pool.allocate(4096) as block:
        shown = numpy.from_dlpack(block.view("float32", (4, 8)))
        assert shown.shape == (4, 8) and shown.dtype == numpy.float32
        shown = numpy.from_dlpack(block.view("int64"))
        assert shown.shape == (512,)
        del shown
        for dtype, shape in (("float32", (1025,)), ("float32", (-1,)), ("nothing", None),
                             ("float7", None)):
            with pytest.raises(libvmm.InvalidArgument):
                block.view(dtype, shape)


def test_a_view_keeps_the_block(pool):
    block = pool.allocate(4096)
    shown = numpy.from_dlpack(block)
    with pytest.raises(libvmm.InUse):
        block.free()
    del block
    gc.collect()
    assert pool.statistics().live_count == 1
    del shown
    gc.collect()
    assert pool.statistics().live_count == 0


def test_a_capsule_that_nobody_takes(pool):
    block = pool.allocate(4096)
    capsule = block.__dlpack__()
    with pytest.raises(libvmm.InUse):
        block.free()
    del capsule
    gc.collect()
    block.free()
    with pytest.raises(BufferError):
        block.__dlpack__()


def test_what_cannot_be_shown_says_so():
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        with pool.allocate(4096) as block:
            with pytest.raises(libvmm.NotSupported, match="fake"):
                block.__dlpack_device__()


def test_a_copy_is_refused(pool):
    with pool.allocate(64) as block:
        with pytest.raises(BufferError):
            block.__dlpack__(copy=True)
        with pytest.raises(BufferError):
            block.__dlpack__(dl_device=(2, 0))
        block.__dlpack__(dl_device=(1, 0), max_version=(1, 0))


def test_an_exit_with_live_views():
    code = ("import libvmm, numpy, builtins\n"
            "pool = libvmm.Pool(libvmm.Driver('host'), report_live=False)\n"
            "builtins.kept = numpy.from_dlpack(pool.allocate(4096))\n")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_sees_the_same_memory(pool):
    torch = pytest.importorskip("torch")
    with pool.allocate(4096) as block:
        shown = torch.from_dlpack(block.view("float32"))
        assert shown.data_ptr() == block.address and shown.numel() == 1024
        shown.fill_(2.5)
        assert numpy.from_dlpack(block.view("float32"))[1023] == 2.5
        del shown
        gc.collect()
