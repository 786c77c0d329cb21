# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: growable ranges keep address and contents while they grow and shrink, share a manager's
memory, and are shown by DLPack without a copy, by views that hold what they show.
Method: numpy and, where it is there, PyTorch consume views of the host's memory; the same address
on both sides; every wrong use raises; contents after random steps beside a model."""

import gc
import pathlib
import random
import re
import subprocess
import sys
import threading

import libvmm
import pytest
from libvmm.growable import FEW_HANDLES, Growable

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def manager(driver):
    with libvmm.Manager(driver) as made:
        yield made
        made.validate()


@pytest.fixture
def on_host():
    with libvmm.Driver("host") as driver, libvmm.Manager(driver) as made:
        yield made
        made.validate()


def test_the_acceptance_of_growing(on_host):
    """Reserve 120 GiB, commit a granule, grow in 64 steps, shrink, grow again."""
    with Growable(on_host, 120 * GIB) as cache:
        granule = cache.handle_bytes
        assert cache.physical_bytes == 0 and on_host.statistics().held_bytes == 0
        cache.grow(1)
        base = cache.segment()[0]
        for step in range(1, 65):
            cache.grow(step * MIB)
            on_host.driver.write(base + (step - 1) * MIB, bytes([step]) * 16)
            assert cache.physical_bytes - step * MIB < granule
        cache.shrink(8 * MIB)
        assert cache.physical_bytes - 8 * MIB < granule
        made = on_host.statistics().created_count
        cache.grow(64 * MIB)
        assert on_host.statistics().created_count == made, "memory comes from the manager's cache"
        assert cache.segment() == (base, 64 * MIB)
        for step in range(1, 9):
            assert on_host.driver.read(base + (step - 1) * MIB, 1)[0] == step
        for step in range(9, 65):
            assert on_host.driver.read(base + (step - 1) * MIB, 16) == bytes(16), "new bytes are 0"


def test_a_view_grows_with_the_range(on_host):
    numpy = pytest.importorskip("numpy")
    cache = Growable(on_host, 64 * MIB, segments=3)
    cache.grow(2 * MIB)
    shown = numpy.asarray(cache.view("float32", (128, 1024)))
    assert shown.shape == (3, 128, 1024)
    assert shown.__array_interface__["data"][0] == cache.address
    assert shown.strides == (cache.stride, 4096, 4)
    for layer in range(3):
        shown[layer] = layer + 1.5
    cache.grow(32 * MIB)
    more = numpy.from_dlpack(cache.view("float32", (4096, 1024)))
    assert more[2, 127, 1023] == 3.5 and more[2, 128, 0] == 0
    assert shown[1, 0, 0] == 2.5
    shown[0, 0, 0] = 9
    assert more[0, 0, 0] == 9, "the same memory"
    with pytest.raises(libvmm.InUse, match="view"):
        cache.shrink(15 * MIB)
    assert cache.size == 32 * MIB
    del more
    gc.collect()
    cache.shrink(2 * MIB)
    with pytest.raises(libvmm.InUse):
        cache.shrink(512 * KIB - 1)
    with pytest.raises(libvmm.InUse):
        cache.close()
    del shown
    gc.collect()
    assert cache.statistics().pin_count == 0
    cache.close()
    assert not cache.is_open


def test_torch_sees_the_same_memory(on_host):
    torch = pytest.importorskip("torch")
    with Growable(on_host, 120 * GIB, segments=2) as cache:
        cache.grow(2 * MIB)
        shown = torch.from_dlpack(cache.view("float16", (64, 128)))
        assert shown.data_ptr() == cache.address and shown.stride(0) == cache.stride // 2
        shown.fill_(1)
        cache.grow(4 * MIB)
        assert float(shown[1, 63, 127]) == 1
        del shown
        gc.collect()


def test_a_view_keeps_the_range_alive(on_host):
    numpy = pytest.importorskip("numpy")
    cache = Growable(on_host, 8 * MIB)
    cache.grow(2 * MIB)
    view = cache.view()
    shown = numpy.from_dlpack(view)
    del cache, view
    gc.collect()
    assert shown[5] == 0
    assert on_host.statistics().live_count == 1
    del shown
    gc.collect()
    assert on_host.statistics().live_count == 0


def test_full_views_hold_addresses_only(on_host):
    numpy = pytest.importorskip("numpy")
    cache = Growable(on_host, 64 * MIB)
    cache.grow(4 * MIB)
    whole = numpy.asarray(cache.full_view("uint8"))
    assert whole.shape == (64 * MIB,)
    whole[4 * MIB - 1] = 3
    cache.release()
    cache.grow(4 * MIB)
    assert whole[4 * MIB - 1] == 0
    with pytest.raises(libvmm.InUse):
        cache.close()
    del whole
    gc.collect()
    cache.close()


def test_views_are_released_by_hand_too(on_host):
    with Growable(on_host, 8 * MIB) as cache:
        cache.grow(MIB)
        with cache.view() as view:
            with pytest.raises(libvmm.InUse):
                cache.release()
        cache.release()
        with pytest.raises(BufferError):
            view.__dlpack__()
        cache.grow(MIB)
        capsule = cache.view().__dlpack__()
        gc.collect()
        with pytest.raises(libvmm.InUse):
            cache.release()
        del capsule
        gc.collect()
        cache.release()


def test_two_ranges_take_one_anothers_memory(driver):
    granule = driver.info.recommended
    with libvmm.Manager(driver, budget=16 * granule) as manager:
        with Growable(manager, 64 * granule) as first, Growable(manager, 64 * granule) as second:
            first.grow(12 * granule)
            with pytest.raises(libvmm.OutOfMemory) as caught:
                second.grow(8 * granule)
            assert caught.value.status_name == "VMM_ERROR_OVER_BUDGET"
            assert "budget" in str(caught.value)
            assert second.physical_bytes == 0 and first.size == 12 * granule
            first.shrink(8 * granule)
            made = manager.statistics().created_count
            second.grow(8 * granule)
            assert manager.statistics().created_count - made <= 4
            assert manager.statistics().held_bytes <= 16 * granule


def test_pages_and_handles(manager):
    with Growable(manager, 8 * MIB, segments=4) as pages:
        granule = pages.handle_bytes
        pages.grow(granule, first=2, count=1)
        assert [pages.segment(i)[1] for i in range(4)] == [0, 0, granule, 0]
        assert pages.size == 0 and pages.physical_bytes == granule
        pages.resize(4 * granule)
        assert [each.size for each in pages.parts(1)] == [granule] * 4
        pages.release()
        pages.grow(2 * granule, one_handle=True)
        assert [each.size for each in pages.parts(3)] == [2 * granule]
        assert all(each.handle for each in pages.parts(0))
        with pytest.raises(libvmm.InvalidArgument, match="one handle"):
            pages.grow(4 * granule, one_handle=True)
    with Growable(manager, 8 * MIB, handle_bytes=FEW_HANDLES) as few:
        few.grow(8 * MIB)
        assert few.size == 8 * MIB


def test_wrong_uses_raise(manager):
    for wrong in (
        {"most": 0},
        {"most": 1 << 60},
        {"most": (1 << 64) - 1},
        {"segments": 0},
        {"segments": 1 << 40},
    ):
        with pytest.raises(libvmm.InvalidArgument):
            Growable(manager, **{"most": MIB, **wrong})
    with pytest.raises(libvmm.InvalidArgument, match="handle_bytes"):
        Growable(manager, MIB, handle_bytes=100)
    cache = Growable(manager, 8 * MIB, segments=2)
    with pytest.raises(libvmm.InvalidArgument, match="Growable.most; not '8388609'.*has 8388608"):
        cache.grow(8 * MIB + 1)
    cache.grow(4 * MIB)
    with pytest.raises(libvmm.InvalidArgument, match="shrink"):
        cache.grow(MIB)
    with pytest.raises(libvmm.InvalidArgument, match="grow"):
        cache.shrink(5 * MIB)
    for wrong in ({"first": 2}, {"first": 1, "count": 2}, {"first": -1}):
        with pytest.raises(libvmm.InvalidArgument):
            cache.grow(5 * MIB, **wrong)
    with pytest.raises(libvmm.InvalidArgument):
        cache.segment(2)
    assert cache.size == 4 * MIB
    with pytest.raises(libvmm.InUse):
        manager.close()
    cache.close()
    cache.close()
    for call in (
        lambda: cache.grow(MIB),
        cache.release,
        cache.segment,
        cache.synchronize,
        cache.statistics,
        lambda: cache.physical_bytes,
    ):
        with pytest.raises(libvmm.InvalidHandle):
            call()


def test_wrong_views_raise(on_host):
    with Growable(on_host, 8 * MIB, segments=2) as cache:
        cache.grow(MIB)
        for dtype, shape in (
            ("float32", (MIB,)),
            ("float32", (-1,)),
            ("nothing", None),
            ("float7", None),
        ):
            with pytest.raises(libvmm.InvalidArgument):
                cache.view(dtype, shape)
        for wrong in ({"first": 2}, {"first": 1, "count": 2}, {"first": -1}):
            with pytest.raises(libvmm.InvalidArgument):
                cache.view(**wrong)
        for shape in ("all", 5, (1.5,)):
            with pytest.raises(TypeError, match="shape"):
                cache.view("float32", shape)
        with pytest.raises(BufferError):
            cache.view().__dlpack__(copy=True)
        with pytest.raises(BufferError):
            cache.view().__dlpack__(dl_device=(2, 0))
        gc.collect()
        assert cache.statistics().pin_count == 0


def test_what_cannot_be_shown_says_so():
    with libvmm.Driver("fake") as driver, libvmm.Manager(driver) as manager:
        with Growable(manager, 8 * MIB) as cache:
            with pytest.raises(libvmm.NotSupported, match="fake"):
                cache.view()


def test_random_steps_beside_a_model(on_host):
    numpy = pytest.importorskip("numpy")
    choose = random.Random(17)
    most = 300 * KIB
    caches = [Growable(on_host, most, segments=2) for _ in range(2)]
    models = [[bytearray(), bytearray()] for _ in caches]
    for _ in range(400):
        which, layer = choose.randrange(2), choose.randrange(2)
        cache, model = caches[which], models[which]
        if choose.random() < 0.5:
            size = choose.randrange(most + 1)
            cache.resize(size, first=layer, count=1)
            model[layer] = model[layer][:size] + bytearray(size - min(size, len(model[layer])))
        elif model[layer]:
            shown = numpy.asarray(cache.view(first=layer, count=1))[0]
            assert bytes(shown) == bytes(model[layer])
            begin = choose.randrange(len(model[layer]))
            end = choose.randrange(begin, len(model[layer])) + 1
            value = choose.randrange(256)
            shown[begin:end] = value
            model[layer][begin:end] = bytes([value]) * (end - begin)
            del shown
    for cache in caches:
        cache.validate()
        cache.close()


def test_threads_share_a_manager(on_host):
    trouble = []

    def work(number):
        try:
            with Growable(on_host, 4 * MIB) as own:
                for step in range(60):
                    own.resize((1 + (step * 7 + number) % 4) * 512 * KIB)
                    on_host.driver.write(own.address, bytes([number]))
                    assert on_host.driver.read(own.address, 1)[0] == number
        except Exception as error:
            trouble.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert not trouble


def test_the_example_prints_its_table():
    pytest.importorskip("numpy")
    said = subprocess.run(
        [sys.executable, str(EXAMPLES / "kv_cache.py"), "--driver", "host"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said == (EXAMPLES / "kv_cache.txt").read_text()
    rows = [line for line in said.splitlines() if re.match(r"^ *\d+ ", line)]
    assert len(rows) > 8
