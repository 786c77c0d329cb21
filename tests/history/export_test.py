# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: other tools take what vmm-history writes, and read the truth in it. Method: histories of
seeded programs; Python's own pickle and json read the files, a second implementation of the rules
of PyTorch's viewer goes back through the events, and sums are compared with the allocator's
statistics.

usage: export_test.py VMM_HISTORY WRITE_SAMPLE
"""

import json
import pickle
import pickletools
import re
import sys
import unittest

import tool
from made import ALLOCATED, BLOCKED, FREED, GROW, PASSED, SERVED, hostile, made_history
from tool import FOLDER, facts, summary

# The actions that the reader of PyTorch's page accepts.
OPCODES = set(
    """PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
SHORT_BINUNICODE BINUNICODE EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 LIST
DICT APPEND APPENDS SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE""".split()
)
NAMES = ("pool.history", "lost.history", "manager.history", "manager_lost.history")


setUpModule = tool.begin
tearDownModule = tool.end


def export(word, name):
    return tool.export(word, name).read_bytes()


class Walk:
    """The rules of MemoryViz.js: segments are known at the end, events are undone one by one."""

    def __init__(self, snapshot):
        self.segments = []  # [address, size, stream], by address
        self.blocks = {}
        for segment in snapshot["segments"]:
            self.segments.append([segment["address"], segment["total_size"], segment["stream"]])
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at, "blocks are not laid end to end"
                if block["state"] != "inactive":
                    self.blocks[at] = [block["size"], block["state"] == "active_pending_free"]
                at += block["size"]
            assert at == segment["address"] + segment["total_size"], "a segment is not filled"
        self.segments.sort()

    def segment_of(self, at, size):
        for segment in self.segments:
            if segment[0] <= at and at + size <= segment[0] + segment[1]:
                return segment
        raise AssertionError("a block or a mapping lies in no segment: %#x" % at)

    def map(self, at, size, stream, merges):
        for segment in self.segments:
            assert at + size <= segment[0] or segment[0] + segment[1] <= at, "segments overlap"
        self.segments.append([at, size, stream])
        self.segments.sort()
        index = next(i for i, each in enumerate(self.segments) if each[0] == at)
        if not merges:
            return
        for left in (index, index - 1):
            if left < 0 or left + 1 >= len(self.segments):
                continue
            one, other = self.segments[left], self.segments[left + 1]
            if one[0] + one[1] == other[0] and one[2] == other[2]:
                one[1] += other[1]
                del self.segments[left + 1]

    def unmap(self, at, size, merges):
        segment = self.segment_of(at, size)
        begin, whole, stream = segment
        assert merges or (begin, whole) == (at, size), "a segment was made in another size"
        self.segments.remove(segment)
        for rest in ([begin, at - begin, stream], [at + size, begin + whole - at - size, stream]):
            if rest[1]:
                self.segments.append(rest)
        self.segments.sort()

    def undo(self, event):
        action, at, size = event["action"], event.get("addr"), event["size"]
        if action == "alloc":
            assert self.blocks.pop(at)[0] == size, "another block was allocated there"
        elif action == "free_completed":
            assert at not in self.blocks, "a block was freed that is still there"
            self.segment_of(at, size)
            self.blocks[at] = [size, True]
        elif action == "free_requested":
            assert self.blocks[at][1], "a block is freed twice"
            self.blocks[at][1] = False
        elif action in ("segment_unmap", "segment_free"):
            self.map(at, size, event["stream"], action == "segment_unmap")
        elif action in ("segment_map", "segment_alloc"):
            self.unmap(at, size, action == "segment_map")
        else:
            assert action == "oom", action

    def check(self):
        for at, (size, _) in self.blocks.items():
            self.segment_of(at, size)


class MemoryViz(unittest.TestCase):
    def load(self, name):
        data = export("memory_viz", name)
        used = {each[0].name for each in pickletools.genops(data)}
        self.assertLessEqual(used, OPCODES)
        self.assertEqual(data[:2], b"\x80\x04")
        return pickle.loads(data)

    def test_shape(self):
        snapshot = self.load("pool.history")
        self.assertEqual(set(snapshot), {"segments", "device_traces", "allocator_settings"})
        self.assertEqual(len(snapshot["device_traces"]), 1)
        for segment in snapshot["segments"]:
            self.assertEqual(segment["segment_pool_id"], (0, 0))
            self.assertIs(segment["is_expandable"], True)
            self.assertLess(segment["address"] + segment["total_size"], 2**53)
        for event in snapshot["device_traces"][0]:
            self.assertTrue({"size", "stream", "time_us", "frames"} <= set(event))
            self.assertIn("device_free" if event["action"] == "oom" else "addr", event)
            for frame in event["frames"]:
                expected = {"filename": 'train "step".py', "line": 40, "name": "forward"}
                self.assertEqual(frame, expected)
        times = [event["time_us"] for event in snapshot["device_traces"][0]]
        self.assertEqual(times, sorted(times))
        events = snapshot["device_traces"][0]
        actions = "alloc free_requested free_completed segment_map segment_unmap oom"
        self.assertEqual({each["action"] for each in events}, set(actions.split()))
        tags = [each.get("user_metadata", "") for each in events]
        self.assertTrue(any(tag.startswith("moved from 0x") for tag in tags))
        categories = {each.get("category") for each in events}
        self.assertEqual(categories, {None, "weights", "activations"})

    def test_totals_are_the_statistics(self):
        snapshot, said = self.load("pool.history"), facts("pool.history")
        segments = snapshot["segments"]
        self.assertEqual(sum(each["total_size"] for each in segments), int(said["mapped_bytes"]))
        self.assertEqual(sum(each["active_size"] for each in segments), int(said["live_bytes"]))
        blocks = [block for each in segments for block in each["blocks"]]
        live = [block for block in blocks if block["state"] != "inactive"]
        self.assertEqual(len(live), int(said["live_count"]))
        self.assertEqual(sum(block["size"] for block in live), int(said["live_bytes"]))
        pending = [block for block in blocks if block["state"] == "active_pending_free"]
        self.assertEqual(len(pending), 1, "one block waits for its pin")
        for block in live:
            self.assertTrue(0 < block["requested_size"] <= block["size"])
        self.assertEqual(snapshot["allocator_settings"]["vmm_live_bytes"], said["live_bytes"])

    def test_going_back(self):
        """A whole history ends empty; a part of one meets no orphan."""
        for name in NAMES:
            snapshot, said = self.load(name), facts(name)
            self.assertEqual(said["events left out"], "0", name)
            walk = Walk(snapshot)
            for i, event in enumerate(reversed(snapshot["device_traces"][0])):
                walk.undo(event)
                if i % 10 == 0 or "pool" not in name:
                    walk.check()
            lost_count = int(said["events lost before"])
            if "lost" in name:
                self.assertGreater(lost_count, 1000)
                self.assertNotEqual(walk.segments, [])
            else:
                self.assertEqual((lost_count, walk.segments, walk.blocks), (0, [], {}), name)
        total = sum(each["total_size"] for each in self.load("manager.history")["segments"])
        self.assertEqual(total, int(facts("manager.history")["live_bytes"]))

    def test_torchs_own_commands_take_it(self):
        try:
            from torch.cuda import _memory_viz
        except ImportError:
            self.skipTest("there is no PyTorch here")
        for name, total in (
            ("pool.history", "mapped_bytes"),
            ("lost.history", "mapped_bytes"),
            ("manager.history", "live_bytes"),
            ("manager_lost.history", "live_bytes"),
        ):
            snapshot = self.load(name)
            self.assertIn("total_reserved", _memory_viz.segsum(snapshot))
            self.assertIn("entries", _memory_viz.trace(snapshot))
            for command in (_memory_viz.trace_plot, _memory_viz.segment_plot):
                self.assertIn("<script", command(snapshot))
            # What a script that they load from the network would be given.
            for command in (_memory_viz.segments, _memory_viz.memory):
                lines = command(snapshot, format_flamegraph=str).splitlines()
                sizes = [int(line.rsplit(" ", 1)[1]) for line in lines]
                self.assertEqual(sum(sizes), int(facts(name)[total]))
            pair = (snapshot["segments"],) * 2
            self.assertEqual(_memory_viz.compare(*pair, format_flamegraph=str), "")

    def test_what_we_write_is_read_back(self):
        for name in ("pool.history", "lost.history"):
            read, said = facts(tool.export("memory_viz", name).name), facts(name)
            allocated = int(said["allocated"]) + int(said.get("captured", 0))
            expected = {
                "allocator": "PyTorch",
                "live_bytes": said["live_bytes"],
                "held_bytes": said["mapped_bytes"],
                "events left out": "0",
                "allocated": str(allocated),
            }
            self.assertEqual({**read, **expected}, read)


class Perfetto(unittest.TestCase):
    FIELDS = {
        "M": {"name", "args"},
        "C": {"name", "ts", "args"},
        "b": {"cat", "id", "name", "ts", "args"},
        "e": {"cat", "id", "name", "ts"},
        "X": {"name", "ts", "dur"},
        "i": {"name", "ts", "s"},
        "s": {"cat", "id", "name", "ts"},
        "f": {"cat", "id", "name", "ts", "bp"},
    }

    def load(self, name):
        return json.loads(export("perfetto", name))

    def test_schema(self):
        for name in NAMES:
            for event in self.load(name):
                wanted = self.FIELDS[event["ph"]]
                self.assertEqual(set(event) - {"ph", "pid", "tid"}, wanted, event)
                self.assertEqual(event["pid"], 1)
                for number in wanted & {"ts", "dur"}:
                    self.assertIsInstance(event[number], (int, float))
                    self.assertGreaterEqual(event[number], 0)

    def test_slices_nest(self):
        for name in NAMES:
            tracks = {}
            for event in self.load(name):
                if event["ph"] == "X":
                    tracks.setdefault(event["tid"], []).append((event["ts"], -event["dur"]))
            for slices in tracks.values():
                open_ends = []
                for begin, length in sorted(slices):
                    while open_ends and open_ends[-1] <= begin + 1e-9:
                        open_ends.pop()
                    self.assertTrue(not open_ends or begin - length <= open_ends[-1] + 2e-3)
                    open_ends.append(begin - length)

    def test_counters_are_the_sums(self):
        for name in NAMES:
            live, sizes, last = 0, {}, None
            for event in self.load(name):
                if event["ph"] == "b":
                    self.assertNotIn(event["id"], sizes)
                    sizes[event["id"]] = event["args"]["size"]
                    live += event["args"]["size"]
                if event["ph"] == "e":
                    live -= sizes.pop(event["id"])
                if event["ph"] == "C":
                    self.assertEqual(event["args"]["live"], live)
                    last = event["args"]
            said = facts(name)
            self.assertEqual(last["live"], int(said["live_bytes"]))
            self.assertEqual(last["footprint"], int(said["held_bytes"]))

    def test_arrows_join_two_streams(self):
        begins, ends = {}, {}
        for event in self.load("pool.history"):
            if event["ph"] in "sf":
                into = begins if event["ph"] == "s" else ends
                self.assertNotIn(event["id"], into)
                into[event["id"]] = event
        self.assertGreater(len(begins), 10, "the sample's streams take each other's memory")
        self.assertEqual(set(begins), set(ends))
        for arrow, begin in begins.items():
            self.assertNotEqual(begin["tid"], ends[arrow]["tid"])
            self.assertLessEqual(begin["ts"], ends[arrow]["ts"])


class OddNames(unittest.TestCase):
    """Names are bytes: of any encoding or none, with whatever means something elsewhere."""

    NAMES = [
        b'"quoted" \\back',
        b"\x00\x01\x1b[31m\r\n\x7f",
        b"\xff\xfe\x80cut \xe2\x82",
        b"x" * 70000,
        "gr\u00fc\u00df \u6f22 \U0001f600".encode(),
        b"</script><script>alert(1)</script>",
        b"\xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80",
        b"/*HISTORIES*/",
        b"",
    ]

    def setUp(self):
        lines = [(i, name, name) for i, name in enumerate(self.NAMES)]
        events = []
        for i in range(len(self.NAMES)):
            events += [
                (2 * i, (i + 1) << 21, 512, 0, 500, i + 1, i + 1, ALLOCATED),
                (2 * i + 1, (i + 1) << 21, 512, 0, 0, 0, 0, FREED),
            ]
        made_history(
            FOLDER / "made.history",
            events,
            self.NAMES,
            lines,
            [(b"allocator", b"stream_pool"), (b"odd \x1b]0;title\x07", b"\xc2\x9b\xff\n")],
        )
        self.expected = [name.decode("utf-8", "replace") for name in self.NAMES]

    @staticmethod
    def kept(text):
        """Readers agree on which bytes are none, not on how many characters stand for them."""
        return re.sub("\ufffd+", "\ufffd", text)

    def test_perfetto(self):
        events = json.loads(export("perfetto", "made.history").decode("utf-8"))
        tags = [each["args"]["tag"] for each in events if each["ph"] == "b"]
        lines = [each["args"]["line"] for each in events if each["ph"] == "b"]
        self.assertEqual(
            [self.kept(each) for each in tags], [self.kept(each) for each in self.expected]
        )
        for i, line in enumerate(lines):
            name = self.kept(self.expected[i])
            self.assertEqual(self.kept(line), "%s:%d %s" % (name, i, name))

    def test_memory_viz(self):
        snapshot = pickle.loads(export("memory_viz", "made.history"))
        # Each block is gone at the end, so that no event of it is left out.
        tags = [
            each.get("category", "")
            for each in snapshot["device_traces"][0]
            if each["action"] == "alloc"
        ]
        self.assertEqual(
            [self.kept(each) for each in tags], [self.kept(each) for each in self.expected]
        )

    def test_page(self):
        page = export("page", "made.history")
        plain = export("page", "pool.history")
        self.assertEqual(page.count(b"</script>"), plain.count(b"</script>"))
        self.assertNotIn(b"alert(1)", page)

    def test_summary(self):
        out = summary("made.history")
        self.assertEqual(re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f]", out), [])
        self.assertIn("odd ?]0;title?: ?\ufffd?\n", out)


class Pairs(unittest.TestCase):
    """Growths and waits of which the history has one end, or which cross."""

    def slices(self, *events):
        made_history(
            FOLDER / "made.history", [(time, 0, 4096, 0, 0, 0, 0, kind) for time, kind in events]
        )
        return [
            (each["name"], each["tid"], each["ts"], each["dur"])
            for each in json.loads(export("perfetto", "made.history"))
            if each["ph"] == "X"
        ]

    def test_what_began_before_begins_with_the_history(self):
        grown, waited = self.slices((5_000_000, SERVED), (6_000_000, PASSED))
        self.assertEqual(grown[2:], (5000, 0))
        self.assertEqual(waited[2:], (5000, 1000))

    def test_what_crosses_lies_on_two_tracks(self):
        grown, waited = self.slices((1000, GROW), (2000, BLOCKED), (3000, SERVED), (4000, PASSED))
        self.assertEqual(grown[2:], (1, 2))
        self.assertEqual(waited[2:], (2, 2))
        self.assertNotEqual(grown[1], waited[1])


class Hostile(unittest.TestCase):
    """Files that no allocator wrote: each word ends, with something that its reader takes."""

    def test_each_is_read(self):
        for name, parts in hostile().items():
            with self.subTest(name):
                made_history(FOLDER / "made.history", **parts)
                json.loads(export("perfetto", "made.history"))
                self.assertEqual(
                    set(pickle.loads(export("memory_viz", "made.history"))),
                    {"segments", "device_traces", "allocator_settings"},
                )
                self.assertIn("\nevents left out: ", summary("made.history"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
