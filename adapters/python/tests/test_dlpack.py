# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a block is a DLPack producer whose consumers share its memory and keep it alive.
Method: numpy and, where it is there, PyTorch consume blocks of the host's memory; the same address
on both sides; frees while views live; capsules that no one consumes, and that a consumer refuses;
an exit with live views. The tests' stub of CUDA shows in which order streams are."""

import ctypes
import gc
import subprocess
import sys

import libvmm
import pytest

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
        for dtype, shape in (
            ("float32", (1025,)),
            ("float32", (-1,)),
            ("nothing", None),
            ("float7", None),
        ):
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
        for wrong, error in (
            ({"copy": True}, BufferError),
            ({"dl_device": (2, 0)}, BufferError),
            ({"dl_device": 1}, TypeError),
            ({"copy": "no"}, TypeError),
            ({"stream": "x"}, TypeError),
            ({"stream": -5}, libvmm.InvalidArgument),
            ({"stream": 99}, libvmm.InvalidArgument),  # the host has no streams
        ):
            with pytest.raises(error):
                block.__dlpack__(**wrong)
        block.__dlpack__(dl_device=(1, 0), max_version=(1, 0), copy=False, stream=-1)


def test_an_exit_with_live_views():
    code = (
        "import libvmm, numpy, builtins\n"
        "pool = libvmm.Pool(libvmm.Driver('host'), report_live=False)\n"
        "builtins.kept = numpy.from_dlpack(pool.allocate(4096))\n"
    )
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


def test_arrays_write_to_the_block(pool):
    with pool.allocate(4096) as block:
        shown = numpy.from_dlpack(block)
        if numpy.lib.NumpyVersion(numpy.__version__) < "2.1.0":
            assert not shown.flags.writeable
            del shown
            pytest.skip(
                f"NumPy {numpy.__version__} takes the older capsule alone: ./run check "
                "interpreters has a newer one"
            )
        shown[:] = 5
        assert pool.driver.read(block.address, 4096) == b"\5" * 4096
        del shown


@pytest.mark.parametrize(
    ("max_version", "name"),
    [
        (None, "dltensor"),
        ((0, 8), "dltensor"),
        ((1, 0), "dltensor_versioned"),
        ((1, 3), "dltensor_versioned"),
        ((2, 0), "dltensor_versioned"),
    ],
)
def test_the_version_that_a_consumer_takes(pool, max_version, name):
    with pool.allocate(64) as block:
        assert f'"{name}"' in repr(block.__dlpack__(max_version=max_version))
        with pytest.raises(TypeError):
            block.__dlpack__(max_version=5)


FIELDS = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.c_void_p),
    ("flags", ctypes.c_uint64),
    ("data", ctypes.c_void_p),
    ("device", ctypes.c_int32),
    ("number", ctypes.c_int32),
    ("ndim", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.c_void_p),
    ("offset", ctypes.c_uint64),
]


class Versioned(ctypes.Structure):
    _fields_ = FIELDS


def tensor_of(capsule):
    """What a consumer reads of DLManagedTensorVersioned."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Versioned.from_address(get(capsule, b"dltensor_versioned"))


# Codes and bits of dlpack.h, 1.1 and newer.
@pytest.mark.parametrize(
    ("dtype", "code", "bits", "lanes", "count"),
    [
        ("float8_e3m4", 7, 8, 1, 64),
        ("float8_e4m3", 8, 8, 1, 64),
        ("float8_e4m3b11fnuz", 9, 8, 1, 64),
        ("float8_e4m3fn", 10, 8, 1, 64),
        ("float8_e4m3fnuz", 11, 8, 1, 64),
        ("float8_e5m2", 12, 8, 1, 64),
        ("float8_e5m2fnuz", 13, 8, 1, 64),
        ("float8_e8m0fnu", 14, 8, 1, 64),
        ("float6_e2m3fn", 15, 6, 1, 85),
        ("float6_e3m2fn", 16, 6, 1, 85),
        ("float4_e2m1fn", 17, 4, 1, 128),
        ("float4_e2m1fn_x2", 17, 4, 2, 64),
        ("bfloat16", 4, 16, 1, 32),
        ("bool", 6, 8, 1, 64),
        ("complex64", 5, 64, 1, 8),
    ],
)
def test_types_of_dlpack(pool, dtype, code, bits, lanes, count):
    with pool.allocate(64) as block:
        capsule = block.view(dtype).__dlpack__(max_version=(1, 1))
        tensor = tensor_of(capsule)
        assert (tensor.major, tensor.minor, tensor.flags) == (1, 1, 0)
        assert (tensor.code, tensor.bits, tensor.lanes) == (code, bits, lanes)
        assert (tensor.ndim, tensor.shape[0], tensor.data) == (1, count, block.address)
        del capsule
        with pytest.raises(libvmm.InvalidArgument):
            block.view(dtype, (count + 1,))
        assert block.view(dtype, (1, count)).shape == (1, count)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((0, 1 << 63), "has strides of more than 2.63 bytes"),
        ((1 << 63, 0), "has strides"),
        ((1 << 62, 0, 4), "has strides"),
        ((1 << 63,), "takes 9223372036854775808 bytes; there are 64"),
        ((-1,), "sizes from 0 on are wanted"),
        ((0, -1), "sizes from 0 on are wanted"),
        ((1 << 40, 1 << 40, 0), "has strides"),
        ((65,), r"\(65,\) of uint8 takes 65 bytes; there are 64$"),
    ],
)
def test_shapes_that_a_consumer_could_not_hold(pool, shape, why):
    with pool.allocate(64) as block:
        with pytest.raises(libvmm.InvalidArgument, match=why):
            block.view("uint8", shape)
        assert numpy.from_dlpack(block.view("uint8", (0, 5))).shape == (0, 5)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("bfloat16", None), ("float8_e4m3fn", None), ("uint8", (1,) * 65)]
)
def test_a_consumer_that_refuses(pool, dtype, shape):
    """Its own exception is raised, and nothing is shown any more."""
    with pool.allocate(64) as block:
        for _ in range(3):
            with pytest.raises((RuntimeError, BufferError)) as refused:
                numpy.from_dlpack(block.view(dtype, shape))
            assert not isinstance(refused.value, SystemError)
            assert "NULL" not in str(refused.value)


def test_a_tensor_that_ends_while_an_exception_is_pending(pool):
    """A consumer that calls the deleter where another call has failed, as C++ does in the
    destructors of what an expression had made so far."""
    block = pool.allocate(64)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            # The capsule is on the frame's stack, and ends there, when the division fails.
            print(block.__dlpack__(max_version=(1, 0)), 1 // 0)
    capsule = block.__dlpack__(max_version=(1, 0))
    tensor = tensor_of(capsule)
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, b"used_dltensor_versioned")
    del capsule
    with pytest.raises(libvmm.InUse):
        block.free()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(tensor.deleter)(ctypes.addressof(tensor))
    block.free()


def is_captured(library, stream):
    state = ctypes.c_int()
    assert library.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(state)) == 0
    return state.value != 0


def test_the_consumers_stream_comes_behind_the_blocks(standin):
    """A stream that waits for one that is being captured is captured, too, which can be seen."""
    with libvmm.Driver("cuda", 0) as driver, libvmm.Pool(driver) as pool:
        own, consumer = driver.create_stream(), driver.create_stream()
        block = pool.allocate(4096, own)
        assert block.__dlpack_device__() == (2, 0)
        for stream, waits in ((-1, False), (own, False), (consumer, True)):
            assert standin.cuStreamBeginCapture_v2(ctypes.c_void_p(own), 2) == 0
            capsule = block.__dlpack__(stream=stream, max_version=(1, 0))
            assert is_captured(standin, consumer) == waits, stream
            graph = ctypes.c_void_p()
            standin.cuStreamEndCapture(ctypes.c_void_p(own), ctypes.byref(graph))
            del capsule
        with pytest.raises(libvmm.InvalidArgument, match="0 names neither"):
            block.__dlpack__(stream=0)
        block.free()
        for stream in (own, consumer):
            pool.forget_stream(stream)
            driver.destroy_stream(stream)


def test_the_deleter_of_no_tensor_does_nothing(pool):
    numpy.from_dlpack(pool.allocate(64).view())  # the library has its function by now
    libvmm._native.LIBRARY.vmm_python_end_tensor(None)
