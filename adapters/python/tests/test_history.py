# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a program in Python gets a history of its pool or manager, with its own lines and tags, and
a file at a shortage without asking. Method: the files are read by a reader of tools/history's
format that is written here."""

import inspect
import struct

import libvmm
import libvmm.history
import pytest

ALLOCATED, FREED, SHORT = 1, 2, 37


class File:
    """Events with their tags and lines as texts, and the facts."""

    def __init__(self, path):
        whole = path.read_bytes()
        assert whole[:16] == b"vmmhist\n" + struct.pack("<II", 1, 0)
        at, sections = 16, {}
        while at < len(whole):
            what, _, size = struct.unpack_from("<IIQ", whole, at)
            sections[what] = whole[at + 16 : at + 16 + size]
            at += 16 + size + -size % 8
        tags = self.texts(sections[4], "t")
        lines = self.texts(sections[5], "ntt")
        self.facts = dict(self.texts(sections[6], "tt"))
        self.lost = struct.unpack_from("<Q", sections[1])[0]
        self.events = []
        for _, at, size, _stream, _detail, line, tag, kind, _ in struct.iter_unpack(
            "<QQQQQIHBB", sections[1][8:]
        ):
            self.events.append(
                (
                    kind,
                    at,
                    size,
                    tags[tag - 1][0] if tag else None,
                    lines[line - 1] if line else None,
                )
            )

    @staticmethod
    def texts(data, shape):
        at, rows = 0, []
        while at < len(data):
            row = []
            for each in shape:
                number = struct.unpack_from("<I", data, at)[0]
                at += 4
                if each == "t":
                    row.append(data[at : at + number].decode())
                    at += number
                else:
                    row.append(number)
            rows.append(tuple(row))
        return rows

    def of(self, kind):
        return [each for each in self.events if each[0] == kind]


@pytest.fixture
def driver():
    with libvmm.Driver("fake") as opened:
        yield opened


def test_a_pool_is_recorded_from_start_to_stop(driver, tmp_path):
    with libvmm.Pool(driver) as pool:
        before = pool.allocate(4096)
        libvmm.history.start(pool)
        with pool.allocate(1000):
            libvmm.history.dump(pool, tmp_path / "half")
        libvmm.history.stop(pool, tmp_path / "whole")
        with pool.allocate(1000):
            pass
        half, whole = File(tmp_path / "half"), File(tmp_path / "whole")
        assert [each[2] for each in half.of(ALLOCATED)] == [1024] and not half.of(FREED)
        assert len(whole.of(ALLOCATED)) == len(whole.of(FREED)) == 1, "nothing after the stop"
        assert whole.facts["allocator"] == "stream_pool"
        with pytest.raises(libvmm.InvalidArgument):
            libvmm.history.dump(pool, tmp_path / "none")
        before.free()


def test_a_second_start_is_refused_and_a_later_one_is_not(driver, tmp_path):
    with libvmm.Pool(driver) as pool:
        libvmm.history.start(pool)
        with pytest.raises(libvmm.InUse):
            libvmm.history.start(pool)
        libvmm.history.stop(pool)
        with libvmm.history.record(pool, tmp_path / "again", event_count=1024):
            pool.allocate(512).free()
        assert len(File(tmp_path / "again").of(FREED)) == 1
        with pytest.raises(libvmm.Error):
            libvmm.history.start(pool, event_count=1000)


def test_what_cannot_be_is_refused_and_nothing_is_cut(driver, tmp_path):
    with libvmm.Pool(driver) as pool:
        with pytest.raises(libvmm.InvalidArgument, match="clock_interval"):
            libvmm.history.start(pool, clock_interval=(1 << 32) + 1)
        for wrong in ("", tmp_path / "no" / "folder"):
            with pytest.raises(libvmm.InvalidArgument, match="shortage"):
                libvmm.history.start(pool, shortage=wrong)
        with pytest.raises(TypeError, match=r"a Pool or a Manager is wanted, .*\(Driver\)"):
            libvmm.history.start(driver)
        with pytest.raises(TypeError, match="name"), libvmm.history.tag(3):
            pass
        with pytest.raises(libvmm.Unavailable, match=r"unavailable \(ENOENT, 2\): the history"):
            libvmm.history.start(pool)
            libvmm.history.stop(pool, tmp_path / "no" / "folder")


def test_what_fails_within_the_with_is_recorded_all_the_same(driver, tmp_path):
    with libvmm.Pool(driver) as pool:
        with pytest.raises(KeyError), libvmm.history.record(pool, tmp_path / "failed"):
            pool.allocate(512).free()
            raise KeyError
        assert len(File(tmp_path / "failed").of(ALLOCATED)) == 1


def test_a_path_that_cannot_be_written_is_told_before_the_work(driver, tmp_path):
    with libvmm.Pool(driver) as pool:
        for path in (tmp_path / "no" / "folder", tmp_path):
            said = f"no history can be written there: .*: name a file in a folder.*: '{path}'$"
            with pytest.raises(OSError, match=said):
                with libvmm.history.record(pool, path):
                    pytest.fail("the work has begun")
        libvmm.history.start(pool)  # nothing was begun
        with pytest.raises(libvmm.Unavailable):
            libvmm.history.stop(pool, tmp_path / "no" / "folder")
        libvmm.history.start(pool)  # it was stopped all the same
        libvmm.history.stop(pool)


@pytest.mark.parametrize("kind", [libvmm.Pool, libvmm.Manager])
def test_lines_and_tags(driver, tmp_path, kind):
    with kind(driver) as owner:
        with libvmm.history.record(owner, tmp_path / "lines", frames=True):
            with libvmm.history.tag("weights"):
                line = inspect.currentframe().f_lineno + 1
                block = owner.allocate(1 << 20)
            gone = inspect.currentframe().f_lineno + 1
            block.free()
        owner.allocate(1 << 20).free()
        file = File(tmp_path / "lines")
        ((_, _, _, tag, where),) = file.of(ALLOCATED)
        assert tag == "weights" and where == (line, __file__, "test_lines_and_tags")
        ((_, _, _, tag, where),) = file.of(FREED)
        assert tag is None and where[0] == gone


def test_a_block_of_whole_pages_bears_its_line(driver, tmp_path):
    with libvmm.Pool(driver) as pool:
        with libvmm.history.record(pool, tmp_path / "lines", frames=True):
            line = inspect.currentframe().f_lineno + 1
            block = pool.allocate_dedicated(1 << 20)
            block.free()
        ((_, _, _, _, where),) = File(tmp_path / "lines").of(ALLOCATED)
        assert where[:2] == (line, __file__)


def test_a_shortage_writes_by_itself(driver, tmp_path):
    with libvmm.Pool(driver, budget=64 << 20) as pool:
        libvmm.history.start(pool, shortage=tmp_path / "short", shortage_count_max=1)
        held = pool.allocate(48 << 20)
        for _ in range(2):
            with pytest.raises(libvmm.OutOfMemory):
                pool.allocate(48 << 20)
        assert [each.name for each in tmp_path.iterdir()] == ["short.0"], "no more than asked for"
        short = File(tmp_path / "short.0").of(SHORT)
        assert [each[2] for each in short] == [48 << 20]
        held.free()
        libvmm.history.stop(pool)
