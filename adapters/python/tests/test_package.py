# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the Python package does what the C library does, with its errors as exceptions.
Method: drivers, pools and managers on the host's memory and on the simulated device; contents are
written and read back; every wrong use is one that the C library refuses."""

import ctypes
import random
import subprocess
import sys

import libvmm
import pytest


@pytest.fixture
def pool(driver):
    with libvmm.Pool(driver) as made:
        yield made


def test_importing_needs_neither_torch_nor_cuda():
    code = (
        "import sys, libvmm, libvmm.cupy, libvmm.rmm, libvmm.torch\n"
        "print(any(name.split('.')[0] in ('torch', 'cupy', 'numba', 'rmm', 'numpy')"
        " for name in sys.modules))\n"
        "print('libcuda' in open('/proc/self/maps').read())"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["False", "False"]


def test_modules_are_imported_on_access():
    code = (
        "import sys, libvmm\n"
        "names = [name for name in libvmm._MODULES if f'libvmm.{name}' in sys.modules]\n"
        "assert set(libvmm._MODULES) <= set(dir(libvmm)), dir(libvmm)\n"
        "for name in libvmm._MODULES: assert getattr(libvmm, name).__name__ == f'libvmm.{name}'\n"
        "print(names)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout == "[]\n"
    with pytest.raises(AttributeError, match="module 'libvmm' has no attribute 'cuppy'"):
        libvmm.cuppy


@pytest.mark.parametrize(
    ("module", "call", "says"),
    [
        ("cupy", "libvmm.cupy.enable(pool)", "libvmm.cupy needs CuPy, which"),
        ("rmm", "libvmm.rmm.resource(pool)", "libvmm.rmm needs RMM, which"),
        ("numba", "libvmm.numba.enable()", "libvmm.numba needs Numba, which"),
        ("torch", "libvmm.torch.enable()", "libvmm.torch needs PyTorch, which"),
    ],
)
def test_a_library_that_is_missing_or_broken(monkeypatch, tmp_path, module, call, says):
    for name in [each for each in sys.modules if each.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    with libvmm.Driver("host") as driver, libvmm.Pool(driver) as pool:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=f"{says} is not installed"):
            eval(call, {"libvmm": libvmm, "pool": pool})
        monkeypatch.delitem(sys.modules, module)
        (tmp_path / f"{module}.py").write_text("raise ImportError('libnone.so.7: no such file')\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(ImportError, match=f"{says} cannot be imported: libnone.so.7: no such"):
            eval(call, {"libvmm": libvmm, "pool": pool})


def test_drivers_and_their_answers(driver):
    names = {each.name: each for each in libvmm.drivers()}
    assert names["host"].available and names["fake"].available
    assert all(each.available or each.reason for each in names.values())
    assert driver.info.granularity > 0
    assert driver.info.recommended % driver.info.granularity == 0
    free, total = driver.memory()
    assert 0 < free <= total


def test_an_unknown_driver_says_what_there_is():
    with pytest.raises(libvmm.InvalidArgument) as caught:
        libvmm.Driver("no_such_driver")
    assert caught.value.status_name == "VMM_ERROR_BAD_OPTION"
    assert caught.value.advice in str(caught.value)


def test_contents_of_random_blocks(pool):
    choose = random.Random(4711)
    live = []
    for number in range(2000):
        if len(live) < 100 or choose.random() < 0.5:
            size = choose.choice((1, 100, 4096, 70000, 3 << 20))
            block = pool.allocate(size)
            pool.driver.write(block.address, bytes([number % 256]) * min(size, 64))
            live.append((block, number % 256))
        else:
            block, mark = live.pop(choose.randrange(len(live)))
            assert pool.driver.read(block.address, 1)[0] == mark
            block.free()
    assert pool.statistics().live_count == len(live)
    pool.validate()
    del block, live[:]
    assert pool.statistics().live_bytes == 0


def test_alignments_up_to_two_mib(pool):
    small = pool.allocate(100)
    for alignment in (1, 512, 4096, 65536, 2 << 20):
        with pool.allocate(1000, alignment=alignment) as block:
            assert block.address % alignment == 0
            pool.driver.write(block.address, b"x" * 1000)
    for alignment, refusal in (
        (0, libvmm.InvalidArgument),
        (3, libvmm.InvalidArgument),
        (4 << 20, libvmm.NotSupported),
    ):
        with pytest.raises(refusal):
            pool.allocate(1000, alignment=alignment)
    assert pool.statistics().live_bytes == 512
    small.free()


def test_what_was_announced_is_there(pool):
    done = pool.preallocate(64 << 20)
    assert done.created_bytes >= 64 << 20 and done.left_bytes == 0
    with pool.allocate(64 << 20):
        assert pool.statistics().slow_count == 0
    with pytest.raises(libvmm.InvalidArgument):
        pool.preallocate(0)


def test_statistics_regions_and_trim(pool):
    with pool.allocate(4 << 20) as block:
        now = pool.statistics()
        assert now.live_bytes == 4 << 20 and now.mapped_bytes >= 4 << 20
        live = [r for r in pool.regions() if r.kind is libvmm.RegionKind.LIVE]
        assert [(r.base, r.size) for r in live] == [(block.address, 4 << 20)]
        dump = pool.dump().splitlines()
        assert f"live {4 << 20}" in dump
        assert f"{block.address:#x} {4 << 20} live" in dump
        assert len(dump) == 7 + len(pool.regions())
    report = pool.trim(0)
    assert report.released_bytes >= 4 << 20
    assert pool.statistics().mapped_bytes == 0


def test_arenas_are_an_option():
    """Streams get them at once, or never, as the option says."""
    with libvmm.Driver("fake") as driver:
        for arenas, count in (
            (libvmm.Arenas.WHEN_CONTENDED, 0),
            (libvmm.Arenas.ALWAYS, 1),
            (libvmm.Arenas.NEVER, 0),
            (1, 1),
        ):
            with libvmm.Pool(driver, stream_arenas=arenas) as pool:
                for _ in range(3):
                    pool.allocate(4096).free()
                now = pool.statistics()
                assert now.arena_count == count
                assert (now.arena_bytes > 0) == bool(count)
        for wrong in (3, -1):
            with pytest.raises(libvmm.InvalidArgument, match="one of libvmm.Arenas |int"):
                libvmm.Pool(driver, stream_arenas=wrong)


def test_a_member_of_another_enum_is_none_of_this_one():
    """Whatever its number is."""
    with libvmm.Driver("fake") as driver, libvmm.Manager(driver) as manager:
        for option, wrong in (
            ("stream_arenas", libvmm.Capture.PRIVATE),
            ("capture", libvmm.Arenas.NEVER),
        ):
            said = f"^{option}: one of libvmm.* is wanted, and .*{type(wrong).__name__}"
            with pytest.raises(TypeError, match=said):
                libvmm.Pool(driver, **{option: wrong})
        with pytest.raises(TypeError, match=r"^place\[0\]: one of libvmm.Place .* is wanted"):
            libvmm.Pool(driver, place=(libvmm.Rights.READ, 0))
        block = manager.allocate(2 << 20)
        with pytest.raises(TypeError, match="^rights: one of libvmm.Rights .* is wanted"):
            block.set_access({1: libvmm.Place.HOST})
        with pytest.raises(TypeError, match="^mode: one of libvmm.Copy .* is wanted"):
            manager.copy(block, block, 4096, mode=libvmm.Arenas.ALWAYS)
        block.free()


def test_captures_are_announced_in_pairs(driver):
    for announced in (False, True):
        with libvmm.Pool(driver, captures_announced=announced) as pool:
            with pytest.raises(libvmm.InvalidArgument, match="no capture was announced"):
                pool.capture_end()
            pool.capture_begin()
            pool.capture_begin()
            pool.allocate(4096).free()
            pool.capture_end()
            pool.capture_end()
            with pytest.raises(libvmm.InvalidArgument, match=r"Pool\.capture_begin\(\)"):
                pool.capture_end()
            pool.allocate(4096).free()


def test_captures_that_were_announced_are_asked_about(standin):
    with libvmm.Driver("cuda", 0) as driver, libvmm.Pool(driver, captures_announced=True) as pool:
        stream, graph = driver.create_stream(), ctypes.c_void_p()
        pool.allocate(4096, stream).free()
        for is_announced in (False, True):
            if is_announced:
                pool.capture_begin()
            assert standin.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 2) == 0
            if is_announced:
                with pytest.raises(libvmm.NotPermitted, match="captured into a graph"):
                    pool.allocate(4096, stream)
            else:
                pool.allocate(4096, stream).free()
                with pytest.raises(libvmm.NotPermitted, match="no capture was announced"):
                    pool.allocate(1 << 30, stream)
            assert standin.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
            assert standin.cuGraphDestroy(graph) == 0
        pool.capture_end()
        pool.allocate(4096, stream).free()
        pool.forget_stream(stream)
        driver.destroy_stream(stream)


def test_errors_are_exceptions_with_the_text(pool):
    block = pool.allocate(4096)
    at = block.address
    block.free()
    with pytest.raises(libvmm.UnknownAddress):
        block.free()
    with pytest.raises(libvmm.UnknownAddress, match="not_allocated") as caught:
        pool.free_raw(at)
    assert isinstance(caught.value, LookupError)
    with pytest.raises(MemoryError, match="out_of_memory"):
        pool.allocate(1 << 60)
    for wrong in (0, -1, 1 << 64):
        with pytest.raises(ValueError):
            pool.allocate(wrong)
    assert pool.statistics().live_count == 0


def test_what_objects_say_of_themselves(driver):
    with libvmm.Pool(driver, budget=8 << 20) as pool, libvmm.Manager(driver) as manager:
        block, other = pool.allocate(4096), manager.allocate(4096)
        assert f"of {driver!r}: 1 blocks of 4096 bytes live" in repr(pool)
        assert "1 blocks of 4096 bytes live" in repr(manager)
        assert f"{block.address:#x} 4096 bytes" in repr(block)
        with pytest.raises(libvmm.OutOfMemory):
            pool.allocate(1 << 30)
        short = pool.last_shortage()
        assert short.failure is libvmm.Status.OVER_BUDGET and "OVER_BUDGET" in repr(short)
        block.free()
        manager.close()
        assert other.address == 0 and repr(other) == "<libvmm.Range 4096 bytes, freed>"
        with pytest.raises(libvmm.InvalidHandle):
            other.free()
    assert repr(pool) == "<libvmm.Pool, closed>" and repr(manager) == "<libvmm.Manager, closed>"


def test_the_status_of_each_error_has_a_name():
    for status in libvmm.Status:
        name = libvmm._native.LIBRARY.vmm_status_name(status).decode()
        assert name.removeprefix("VMM_").removeprefix("ERROR_") == status.name


def test_the_budget_and_what_was_short(driver):
    with libvmm.Pool(driver, budget=8 << 20) as pool:
        assert pool.last_shortage() is None
        kept = pool.allocate(6 << 20)
        with pytest.raises(
            libvmm.OutOfMemory,
            match="over_budget: request of 4 MiB exceeds the budget: 6 of 8 MiB in use, ",
        ):
            pool.allocate(4 << 20)
        short = pool.last_shortage()
        assert short.request_bytes == 4 << 20 and short.budget_bytes == 8 << 20
        kept.free()
        pool.allocate(4 << 20).free()


def test_a_request_that_fails_holds_nothing_and_idle_memory_serves_another_pool():
    with (
        libvmm.Driver("fake") as driver,
        libvmm.Pool(driver, report_live=False) as pool,
        libvmm.Pool(driver, report_live=False) as other,
    ):
        pool.allocate(1 << 20)
        free, total = driver.memory()
        with pytest.raises(libvmm.OutOfMemory, match="exceeds the available memory"):
            pool.allocate(total + 1)
        assert driver.memory() == (free, total)
        assert pool.statistics().held_bytes == total - free
        pool.allocate(total // 2).free()
        other.allocate(total // 4 * 3).free()
        assert pool.statistics().held_bytes < total // 2


def test_an_order_of_ends_and_closed_objects(driver):
    pool = libvmm.Pool(driver, report_live=False)
    block = pool.allocate(4096)
    with pytest.raises(libvmm.InUse):
        driver.close()
    pool.close()
    pool.close()
    with pytest.raises(libvmm.InvalidHandle):
        pool.allocate(1)
    del block  # its pool took it along


def test_remap_callbacks(pool):
    seen = []
    number = pool.subscribe(seen.append)
    pool.allocate(4 << 20).free()
    pool.trim(0)
    assert seen and seen[0].kind is libvmm.RemapKind.RELEASED and seen[0].size >= 4 << 20
    pool.unsubscribe(number)
    with pytest.raises(libvmm.InvalidArgument):
        pool.unsubscribe(number)


def test_a_callback_that_raises_is_reported_once(pool, monkeypatch):
    said, calls = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda trouble: said.append(trouble.exc_value))
    pool.subscribe(lambda notice: calls.append(pool.close()))
    number = pool.subscribe(calls.append)
    for _ in range(3):
        pool.allocate(4 << 20).free()
        pool.trim(0)
    assert len(calls) >= 3 and [type(each) for each in said] == [libvmm.InUse]
    pool.unsubscribe(number)


def test_streams_of_the_simulated_device():
    with libvmm.Driver("fake") as driver, libvmm.Pool(driver) as pool:
        assert driver.info.features & libvmm.Feature.STREAMS
        stream = driver.create_stream()
        with pool.allocate(1 << 20, stream) as block:
            driver.fill(block.address, 7, 1 << 20, stream)
            driver.synchronize(stream)
            assert driver.read(block.address, 4) == b"\7" * 4
        pool.forget_stream(stream)
        pool.synchronize()
        driver.destroy_stream(stream)


def test_a_managed_range_grows_and_keeps_its_data(driver):
    unit = driver.info.granularity
    with libvmm.Manager(driver) as manager:
        block = manager.allocate(unit, growth=8 * unit)
        block.synchronize()
        driver.write(block.address, b"kept")
        at = block.address
        block.resize(4 * unit)
        assert block.address == at and block.size == 4 * unit
        assert driver.read(at, 4) == b"kept"
        other = manager.allocate(4 * unit)
        manager.copy(other, block)
        driver.synchronize()
        assert driver.read(other.address, 4) == b"kept"
        assert manager.statistics().live_count == 2
        with pytest.raises(libvmm.InvalidArgument):
            block.resize(0)
        block.free()
        for pair in ((other, block), (block, other)):
            with pytest.raises(libvmm.UnknownAddress, match="freed before"):
                manager.copy(*pair)
        other.free()
        manager.validate()
        manager.trim(0)
        assert manager.statistics().held_bytes == 0


def test_the_library_stays_when_it_is_closed():
    """Its threads and callbacks outlive a dlclose: one that published for vmm-top ended in memory
    that was gone."""
    library = libvmm.loaded_library()
    program = (
        "import ctypes, sys, _ctypes\n"
        "loaded = ctypes.CDLL(sys.argv[1])\n"
        "_ctypes.dlclose(loaded._handle)\n"
        "ctypes.CDLL(sys.argv[1], mode=4)\n"
    )  # RTLD_NOLOAD: fails where it is not there
    done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
