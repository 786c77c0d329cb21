# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vmm-fit and vmm-history read every shape of recordings that programs write, say of each
what is in it, and refuse what is none with one line. Method: snapshots in the shapes of PyTorch's
versions (shapes.py), logs of RMM, vmm's traces; what is expected was worked out by hand.

    program_test.py VMM_FIT VMM_HISTORY VMM_REPLAY TRACES
"""

import gzip
import itertools
import json
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

import shapes
from shapes import BASE, MIB

FIT, HISTORY, REPLAY, TRACES = sys.argv[1:5]
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="vmm_fit_test_"))
GIB = 1 << 30


def written(content, name="made"):
    path = FOLDER / name
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, 4))
    return path


def run(program, *arguments):
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, errors="replace"
    )


def fit(what, *options):
    path = what if isinstance(what, pathlib.Path) else written(what)
    done = run(FIT, path, "--json", *options)
    if done.returncode == 3:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def summary(what, *options):
    path = what if isinstance(what, pathlib.Path) else written(what)
    done = run(HISTORY, "summary", path, *options)
    if done.returncode:
        raise AssertionError(done.stderr)
    return dict(line.strip().rsplit(": ", 1) for line in done.stdout.splitlines() if ": " in line)


def read_again(what):
    """A snapshot read, and written by memory_viz."""
    out = FOLDER / "again"
    done = run(HISTORY, "memory_viz", written(what), "--out", out)
    if done.returncode or "one line of each stack" not in done.stderr:
        raise AssertionError(done.stderr)
    return pickle.loads(out.read_bytes())


def live_blocks(what):
    blocks = [each for segment in read_again(what)["segments"] for each in segment["blocks"]]
    return [each for each in blocks if each["state"] != "inactive"]


def emptied(**event):
    """A recording of a segment that is requested, freed and given back."""
    program = shapes.Recording(12)
    program.filled(BASE, 100 * MIB)
    program.free(BASE)
    program.event("segment_free", BASE, 100 * MIB, **event)
    del program.segments[BASE]
    return program


class Shapes(unittest.TestCase):
    def test_every_version_in_every_form(self):
        for version in shapes.VERSIONS:
            made = shapes.snapshot([shapes.small_program(version)])
            for name, content in shapes.forms(made):
                with self.subTest(version=version, form=name):
                    for packed in (content, gzip.compress(content)):
                        found = fit(packed)
                        self.assertEqual(found["peak_live_bytes"], 1024 + 38 * MIB)
                        for each, held in (("native", 52 * MIB), ("expandable", 42 * MIB)):
                            self.assertEqual(found["allocators"][each]["held_bytes"], held)
                        self.assertEqual(found["recorded_allocator"], "native")
                        check = found["self_check"]
                        self.assertEqual(check["error"], 0)
                        for name in ("", "replayed_", "same_"):
                            self.assertEqual(check[f"{name}segment_events"], 3)
                        self.assertFalse([each for each in found["notes"] if "live" in each])
                    self.assertEqual(summary(content)["events left out"], "0")
                    self.assertEqual(summary(content)["live_bytes"], str(1024 + 8 * MIB))

    def test_who_lives_at_the_peak(self):
        found = fit(shapes.snapshot([shapes.small_program(12)]))
        owners = [(each["bytes"], each["stack"], each["tag"]) for each in found["live_at_peak"]]
        sites = ((30 * MIB, 9, ""), (8 * MIB, 42, ""), (1024, 7, "weights"))
        expected = [(size, [f"model.py:{line} forward"], tag) for size, line, tag in sites]
        self.assertEqual(owners, expected)

    def test_the_list_of_memory_snapshot(self):
        made = shapes.small_program(12).listed()
        found = fit(made)
        self.assertEqual(found["peak_live_bytes"], 1024 + 8 * MIB)
        self.assertIn("no events", found["notes"][0])
        self.assertEqual(summary(made)["held_bytes"], str(52 * MIB))

    def test_without_events_no_device_is_said_to_fit(self):
        made = shapes.snapshot([shapes.small_program(12)])
        made["device_traces"] = []
        self.assertEqual(fit(made)["peak_live_bytes"], 1024 + 8 * MIB)
        for content in (made, shapes.small_program(12).listed()):
            for size, verdict, code in (("80GiB", "within_error", 2), ("8MiB", "no", 1)):
                found = fit(content, "--device", size, "--beside", 0)
                self.assertEqual(set(found["fits"][size].values()), {verdict})
                self.assertFalse(found["is_peak_known"])
                self.assertEqual(found["allocators"]["native"]["held_bytes"], 52 * MIB)
                done = run(FIT, written(content), "--device", size, "--beside", 0)
                self.assertEqual(done.returncode, code)
                self.assertNotIn("at the peak", done.stdout)

    def test_a_ring_that_lost_its_beginning(self):
        for kept in range(1, 12):
            program = shapes.small_program(12)
            program.events = program.events[-kept:]
            found = fit(shapes.snapshot([program]))
            self.assertEqual(found["peak_live_bytes"], 1024 + 38 * MIB)
            # What is cached before the first event is known from the segments at the end.
            has_segments = any(e["action"] == "segment_alloc" for e in program.events)
            self.assertEqual(found["self_check"] is not None, has_segments)
            if has_segments:
                self.assertEqual(found["self_check"]["error"], 0)
            else:
                self.assertEqual(found["allocators"]["native"]["error"], 0.01)
            self.assertEqual(found["allocators"]["native"]["held_bytes"], 52 * MIB)
            has_lost = any("lost its beginning" in each for each in found["notes"])
            self.assertEqual(has_lost, kept < 11)
            self.assertEqual(found["is_peak_known"], kept == 11)

    def test_after_a_lost_beginning_no_device_is_said_to_fit(self):
        program = shapes.Recording(12)
        program.segment(BASE, 100 * MIB)
        program.alloc(BASE, 90 * MIB)
        program.alloc(BASE + 90 * MIB, 4 * MIB)
        program.free(BASE)
        program.event("snapshot", 0, 0)
        program.alloc(BASE, 20 * MIB)
        program.events = program.events[-1:]
        path = written(shapes.snapshot([program]))
        # The segment is in use, and the recorded allocator cannot give it back.
        for size, native, expandable in (
            ("23MiB", "no", "no"),
            ("60MiB", "no", "within_error"),
            ("80GiB", "within_error", "within_error"),
        ):
            found = fit(path, "--device", size, "--beside", 0)["fits"][size]
            self.assertEqual((found["native"], found["expandable"]), (native, expandable))
            done = run(FIT, path, "--device", size, "--beside", 0)
            self.assertEqual(done.returncode, 1 if native == "no" else 2)
            self.assertIn("native      at least 100.00 MiB", done.stdout)
            self.assertIn("most live at once: at least 24.00 MiB", done.stdout)
            self.assertNotIn(" yes", done.stdout)

    def test_frees_that_were_not_recorded(self):
        program = shapes.small_program(12)
        program.events = [e for e in program.events if not e["action"].startswith("free")]
        path = written(shapes.snapshot([program]))
        found = fit(path)
        self.assertEqual(found["peak_live_bytes"], 1024 + 38 * MIB)
        self.assertIn("frees missing in the file: 1", found["notes"])
        for size in ("1MiB", "80GiB"):  # memory may have ended earlier
            done = run(FIT, path, "--device", size, "--beside", 0)
            self.assertEqual(done.returncode, 2)
            self.assertIn("most live at once: about 38.00 MiB", done.stdout)

    def test_events_that_are_missing_leave_the_peak_unknown(self):
        left_out, ended = shapes.small_program(12), shapes.small_program(12)
        left_out.event("alloc", BASE + 90 * MIB, 1 << 57)
        ended.events = ended.events[:6]
        for program, note in (
            (left_out, "events that fit no allocation, and are left out: 1"),
            (ended, "Recording ended before the file was written"),
        ):
            done = run(FIT, written(shapes.snapshot([program])), "--device", "80GiB")
            self.assertIn(note, done.stdout)
            self.assertEqual(done.returncode, 2, done.stdout)

    def test_two_devices(self):
        small, large = shapes.small_program(12), shapes.small_program(12, 2)
        large.filled(BASE + 128 * MIB, 100 * MIB)
        path = written(shapes.snapshot([small, large]))
        found = fit(path)
        self.assertEqual((found["device"], found["devices"]), (2, 3))
        self.assertEqual(found["allocators"]["native"]["held_bytes"], 152 * MIB)
        self.assertEqual(fit(path, "--of", 0)["allocators"]["native"]["held_bytes"], 52 * MIB)
        self.assertEqual(summary(path)["device"], "2 of 3")
        self.assertEqual(summary(path, "--device", 0)["held_bytes"], str(52 * MIB))
        for program, option in ((FIT, "--of"), (HISTORY, "--device")):
            words = [path] if program is FIT else ["summary", path]
            self.assertIn("has 3 devices", run(program, *words, option, 3).stderr)
        for path in (kinds()[-1][0], kinds()[-2][0], written(LOG.encode(), "log")):
            self.assertEqual(summary(path, "--device", 0), summary(path))
            self.assertIn("has 1 device", run(HISTORY, "summary", path, "--device", 1).stderr)

    def test_annotations_alone_are_no_work(self):
        program = shapes.small_program(12, 1)
        made = shapes.snapshot([program])
        event = {"action": "user_defined", "addr": 0, "size": 0, "stream": 0}
        made["device_traces"][0] = [{**event, "time_us": i} for i in range(3000)]
        self.assertEqual(fit(made)["device"], 1)
        self.assertEqual(summary(made)["device"], "1 of 2")

    def test_a_ring_of_expandable_segments(self):
        program = shapes.Recording(12)
        program.segment(BASE, 60 * MIB, expandable=True)
        program.alloc(BASE, 30 * MIB)
        program.alloc(BASE + 30 * MIB, 25 * MIB)
        program.free(BASE)
        program.event("segment_unmap", BASE, 20 * MIB)
        program.event("snapshot", 0, 0)
        program.event("segment_map", BASE, 20 * MIB)
        program.alloc(BASE, 25 * MIB)
        for kept in range(1, 10):
            made = shapes.snapshot([program], expandable_segments=True)
            made["device_traces"][0] = program.events[-kept:]
            found = fit(made)
            self.assertEqual(found["recorded_allocator"], "expandable")
            has_segments = any(e["action"].startswith("segment") for e in program.events[-kept:])
            self.assertEqual(found["self_check"] is not None, has_segments)
            if has_segments:
                self.assertEqual(found["self_check"]["recorded_held_bytes"], 60 * MIB)
                self.assertEqual(found["self_check"]["error"], 0, kept)

    def test_private_pools_share_nothing(self):
        for version in (5, 12):  # events name their pool since 2.12
            program = shapes.Recording(version)
            program.segment(BASE, 20 * MIB)
            program.alloc(BASE, 5 * MIB)
            program.free(BASE)
            program.segment(BASE + 32 * MIB, 20 * MIB, pool=(0, 1))
            program.alloc(BASE + 32 * MIB, 5 * MIB)
            found = fit(shapes.snapshot([program]))
            self.assertEqual(found["allocators"]["native"]["held_bytes"], 40 * MIB)
            self.assertEqual(found["self_check"]["error"], 0)

    def test_every_event_is_counted(self):
        program, other = shapes.Recording(12, 1), BASE + 32 * MIB
        program.segment(BASE, 4 * MIB, expandable=True)
        program.alloc(BASE, 512)
        program.alloc(BASE + 512, 1024)
        program.segment(other, 10 * MIB)
        program.free(BASE + 512)
        program.alloc(other, 4096)
        program.event("free_requested", other, 4096)
        program.event("segment_unmap", BASE + 2 * MIB, 2 * MIB)
        program.segments[BASE]["total_size"] = 2 * MIB
        for name, size in (("oom", 1 << 40), ("snapshot", 0), ("new_action", 0)):
            program.event(name, 0, size)
        made = shapes.snapshot([program], ratio=0.5, none=None, negative=-1)
        made["segments"][1]["blocks"][0]["state"] = "active_pending_free"
        expected = {"live_bytes": str(512 + 4096), "held_bytes": str(12 * MIB)}
        expected |= {"device": "1 of 2", "events left out": "0", "allocated": "3", "freed": "1"}
        # An expandable segment is mapped in parts.
        expected |= {"free_pinned": "1", "mapped": "3", "short_of_memory": "1"}
        for protocol in (2, 3, 4, 5):
            read = summary(pickle.dumps(made, protocol))
            self.assertEqual({**read, **expected}, read)

    def test_what_is_named_again_and_again_is_not_looked_at_again_and_again(self):
        frames = [{"filename": "a.cpp", "line": 1, "name": "b"}] * 20_000
        event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": frames}
        made = {"segments": [], "device_traces": [[event] * 20_000]}
        self.assertEqual(summary(made)["allocated"], "20000")
        event.update({str(i): 0 for i in range(900)}, frames=[], time_us=1)
        self.assertEqual(summary(made)["allocated"], "20000")


class Sizes(unittest.TestCase):
    def test_asked_and_rounded(self):
        program = shapes.Recording(12)
        program.segment(BASE, 2 * MIB)
        program.alloc(BASE, 1000, tag="weights")
        program.segment(BASE + 32 * MIB, 12 * MIB)
        program.alloc(BASE + 32 * MIB, 11 * MIB + MIB // 2, rounded=12 * MIB)
        made = shapes.snapshot([program])
        self.assertEqual(summary(made)["events left out"], "0")
        blocks = live_blocks(made)
        self.assertEqual([each["requested_size"] for each in blocks], [1000, 11 * MIB + MIB // 2])
        self.assertEqual({each["frames"][0]["filename"] for each in blocks}, {"model.py"})

    def test_large_expandable_segments(self):
        program = shapes.Recording(12)
        program.segment(BASE, 80 * GIB, expandable=True)
        for i in range(80):
            program.alloc(BASE + i * GIB, GIB)
        program.events = []
        found = summary(shapes.snapshot([program]))
        self.assertEqual((found["live_bytes"], found["held_bytes"]), (str(80 * GIB),) * 2)
        self.assertEqual(fit(shapes.snapshot([program]))["recorded_allocator"], "expandable")

    def test_numbers_of_64_bits(self):
        high = 18446720620317114368
        program = shapes.Recording(12)
        program.segment(high, 20 * MIB)
        program.alloc(high, 4 * MIB)
        program.event("oom", 3 * GIB, 1 << 57)
        for content in dict(shapes.forms(shapes.snapshot([program]))).values():
            self.assertEqual(summary(content)["live_bytes"], str(4 * MIB))
            self.assertEqual(summary(content)["events left out"], "0")
            self.assertEqual(fit(content)["peak_live_bytes"], 4 * MIB)
            self.assertEqual(fit(content)["beside"]["available_at_oom_bytes"], 3 * GIB + 20 * MIB)

    def test_the_block_names_what_the_events_have_lost(self):
        program = shapes.small_program(12)
        program.events = program.events[-2:]
        named = [each["frames"][0]["line"] for each in live_blocks(shapes.snapshot([program]))]
        self.assertEqual(named, [7, 42])

    def test_a_tag_that_is_known_when_there_are_too_many(self):
        program = shapes.Recording(12)
        program.segment(BASE, 20 * MIB)
        for i in range(66000):
            program.alloc(BASE, 4 * MIB, tag=f"step {i}")
            program.free(BASE)
        program.alloc(BASE, 4 * MIB, tag="step 0")
        made = shapes.snapshot([program])
        shown = summary(made)
        self.assertEqual(shown["stacks cut to a line"], "1")
        self.assertEqual(shown["tags left out"], str(66000 - 65535))
        last = [e for e in read_again(made)["device_traces"][0] if e["action"] == "alloc"][-1]
        self.assertEqual(last["user_metadata"], "step 0")


# By PyTorch 2.11, with these words.
REFUSED = {
    "max_split_size_mb:5": "option max_split_size_mb too small, must be >= 20",
    "max_non_split_rounding_mb:10": "max_non_split_rounding_mb too small, must be >= 20",
    "large_segment_size_mb:1": "option large_segment_size_mb must be > 10 MB",
    "expandable_segments:1": "Expected 'True' or 'False'",
    "release_lock_on_cudamalloc:maybe": "Expected 'True' or 'False'",
    "garbage_collection_threshold:1": "is invalid, set it in (0.0, 1.0)",
    "per_process_memory_fraction:1.5": "is invalid, set it in [0.0, 1.0]",
    "roundup_power2_divisions:3": "the divisions has to be power of 2",
    "roundup_power2_divisions:[256:1,500:4]": "the intervals have to be power of 2",
    "backend:foo": "options are native and cudaMallocAsync",
    "foo:1": "Unrecognized key 'foo' in CUDA allocator config",
}


class Settings(unittest.TestCase):
    def held(self, conf=(), **changed):
        program = shapes.Recording(12)
        program.segment(BASE, 20 * MIB)
        program.alloc(BASE, 5 * MIB + 1)
        program.segment(BASE + 32 * MIB, 34 * MIB)
        program.alloc(BASE + 32 * MIB, 33 * MIB)
        found = fit(shapes.snapshot([program], **changed), *conf)
        return found["allocators"]["native"]["held_bytes"] // MIB

    def test_they_are_the_files_or_those_of_the_command_line(self):
        self.assertEqual(self.held(), 54)
        divisions = {str(1 << i): 4 for i in range(16)}
        self.assertEqual(self.held(roundup_power2_divisions=divisions), 60)
        self.assertEqual(self.held(["--conf", "roundup_power2_divisions:4"]), 60)
        self.assertEqual(self.held(["--conf", "roundup_power2_divisions:[16:1,32:4,>:1]"]), 60)
        self.assertEqual(self.held(["--conf", "roundup_power2_divisions:[32:1,64:4]"]), 54)
        text = {"PYTORCH_CUDA_ALLOC_CONF": "later:1, large_segment_size_mb: 40"}
        self.assertEqual(self.held(**text), 40)
        program = shapes.snapshot([shapes.small_program(12)], **text)
        self.assertIn("left out: Unrecognized key 'later'", fit(program)["notes"][-1])

    def test_an_allocation_of_an_impossible_size_is_noted(self):
        made = shapes.snapshot([shapes.small_program(12)])
        event = next(each for each in made["device_traces"][0] if each["action"] == "alloc")
        for size in (-1, 1 << 62):
            event["size"] = size
            self.assertIn("fit no allocation", str(fit(made)["notes"]))

    def test_a_fraction_limits_every_allocator(self):
        path = written(shapes.snapshot([shapes.small_program(12)]))
        fraction = ("--conf", "per_process_memory_fraction:0.1", "--beside", "0")
        fits = fit(path, "--device", "100MiB", *fraction)["fits"]
        self.assertEqual(set(next(iter(fits.values())).values()), {"no"})

    def test_the_check_replays_the_files_own(self):
        path = written(shapes.snapshot([shapes.small_program(12)]))
        found = fit(path, "--conf", "large_segment_size_mb:200")
        self.assertEqual(found["allocators"]["native"]["held_bytes"], 202 * MIB)
        check = found["self_check"]
        self.assertEqual((check["error"], check["same_segment_events"]), (0, 3))
        self.assertEqual(check["predicted_held_bytes"], 52 * MIB)

    def test_a_wrong_one_is_named(self):
        for conf, why in (
            ("max_split_size_mb", "NAME:VALUE"),
            ("max_split_size_mb:x", "'x': it is a number of MiB from 20 to 10^9"),
            ("max_split_size_mb:-1", "'-1': it is a number of MiB from 20 to 10^9"),
            ("max_non_split_rounding_mb:", "'': it is a number of MiB from 20 to 10^9"),
            ("large_segment_size_mb:10", "must be > 10 MB; it is a number of MiB above 10"),
            ("garbage_collection_threshold:no", "'no': it is a number above 0 and below 1"),
            ("per_process_memory_fraction:all", "'all': it is a number from 0 to 1"),
            ("roundup_power2_divisions:x", "'x': it is a power of two, or intervals as [256:1"),
            ("foo:1", "keys are backend, roundup_power2_divisions, expandable_segments"),
            ("backend:cudaMallocAsync", "no model"),
            *((conf, why) for conf, why in REFUSED.items()),
        ):
            done = run(FIT, written(shapes.snapshot([shapes.small_program(12)])), "--conf", conf)
            self.assertEqual(done.returncode, 3)
            self.assertIn(why, done.stderr)


class Answers(unittest.TestCase):
    def test_devices_have_many_names(self):
        path = written(shapes.snapshot([shapes.small_program(12)]))
        names = {
            15360: ("T4-16", "Tesla T4", "15360MiB", "15360 mib"),
            24564: ("RTX4090-24", "rtx 4090", "NVIDIA GeForce RTX 4090"),
            40960: ("a100-40", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "40G"),
            81920: ("A100 80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-80GB"),
            16384: ("V100-16", "Tesla V100-PCIE-16GB", "Tesla V100-SXM2-16GB"),
            81559: ("h100-80", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
            95830: ("H100-94", "NVIDIA H100 NVL"),
            143771: ("H200", "NVIDIA H200"),
        }
        page = FOLDER / "devices.html"
        for size, each in names.items():
            words = [word for name in each for word in ("--device", name)]
            self.assertEqual(run(FIT, path, *words, "--page", page).returncode, 0, each)
            found = json.loads(re.search(r'"device_bytes": (\{[^}]*\d\})', page.read_text())[1])
            self.assertEqual(found, dict.fromkeys(each, size * MIB))

    def test_a_full_cache_runs_on_less(self):
        program = shapes.Recording(12)
        for i in range(3):
            at = BASE + i * 128 * MIB
            program.filled(at, (100 + 2 * i) * MIB)
            program.free(at)
        found = fit(shapes.snapshot([program]), "--device", "110MiB", "--beside", "0")
        self.assertEqual(found["allocators"]["native"]["held_bytes"], 306 * MIB)
        self.assertEqual(found["fits"]["110MiB"]["native"], "yes")
        self.assertEqual(found["retries"]["110MiB"]["native"], 2)
        text = run(FIT, FOLDER / "made", "--device", "110MiB", "--beside", "0").stdout
        why = "after releasing cached memory, and the retries for it: native 110MiB 2"
        self.assertIn(why, text)

    def test_empty_cache_is_played(self):
        program = emptied()
        program.event("snapshot", 0, 0)
        program.segment(BASE, 2 * MIB)
        program.alloc(BASE, 100)
        program.filled(BASE + 256 * MIB, 90 * MIB)
        found = fit(shapes.snapshot([program]))
        self.assertEqual(found["allocators"]["native"]["held_bytes"], 100 * MIB)
        self.assertEqual(found["self_check"]["error"], 0)

    def test_empty_cache_before_a_segment(self):
        """As each capture begins: what is released has another stack than the request after it."""
        program = emptied(line=7)
        program.filled(BASE + 256 * MIB, 90 * MIB)
        program.filled(BASE + 512 * MIB, 60 * MIB)
        found = fit(shapes.snapshot([program]))
        self.assertEqual(found["allocators"]["native"]["held_bytes"], 150 * MIB)
        self.assertEqual(found["self_check"]["same_segment_events"], 4)

    def test_a_refusal_of_the_recorded_device(self):
        """The check repeats it; the figure is of a device with room."""
        program = emptied()
        program.filled(BASE, 110 * MIB)
        found = fit(shapes.snapshot([program]))
        self.assertEqual(found["allocators"]["native"]["held_bytes"], 210 * MIB)
        check = found["self_check"]
        self.assertEqual((check["error"], check["replayed_segment_events"]), (0, 3))
        self.assertEqual(check["same_segment_events"], 3)

    def test_segments_lie_where_the_driver_put_them(self):
        """Of two equal free blocks the lower one is taken: here that of the later segment."""
        program, high = shapes.Recording(12), BASE + 256 * MIB
        program.segment(high, 20 * MIB)
        for offset, size in ((0, 5), (5, 9), (14, 6)):
            program.alloc(high + offset * MIB, size * MIB)
        program.segment(BASE, 20 * MIB)
        program.alloc(BASE, 5 * MIB)
        program.alloc(BASE + 5 * MIB, 15 * MIB)
        program.free(high)
        program.free(BASE)
        program.alloc(BASE, 5 * MIB)
        program.free(high + 5 * MIB)
        program.free(high + 14 * MIB)
        program.alloc(high, 18 * MIB)
        native = fit(shapes.snapshot([program]))["allocators"]["native"]
        self.assertEqual((native["held_bytes"], native["error"]), (40 * MIB, 0))

    def test_the_text_is_for_people(self):
        path = written(shapes.snapshot([shapes.small_program(12)]))
        done = run(FIT, path, "--device", "rtx 4090")
        self.assertIn("native      52.00 MiB, error 0.0 % (check)", done.stdout)
        self.assertIn("beside the allocator: 528.00 MiB", done.stdout)
        self.assertIn("model.py:9 forward", done.stdout)
        self.assertIn("  rtx 4090    native yes ", done.stdout)

    def test_the_page_shows_an_answer(self):
        root = pathlib.Path(__file__).parents[2]
        example = "examples/fit/training.pickle.gz"
        done = subprocess.run([FIT, example], capture_output=True, text=True, cwd=root)
        self.assertIn("```text\n" + done.stdout + "```", (root / "docs/fit.md").read_text())

    def test_an_ambiguous_device_has_candidates(self):
        for name, why in (
            ("A100", "A100-40 (40960MiB) or A100-80 (81920MiB); not 'A100'"),
            ("Tesla V100", "V100-16 (16384MiB) or V100-32 (32768MiB)"),
            ("H100", "H100-80 (81559MiB) or H100-94 (95830MiB)"),
            ("Voodoo", "a size from 1MiB to 64PiB, as 24GiB, or one of T4-16, V100-16"),
        ):
            self.assertIn(why, run(FIT, "x", "--device", name).stderr)


ALLOCATORS = ("native", "expandable", "async", "vmm")
CODES = {"yes": 0, "no": 1, "within_error": 2}


def kinds():
    """A file of each kind: its name, the allocator that it names, and whether its peak is known."""
    plain, ring, refused = (shapes.small_program(12) for _ in range(3))
    ring.events = ring.events[-3:]
    refused.event("oom", 0, 100 * MIB)
    expandable = shapes.Recording(12)
    expandable.segment(BASE, 60 * MIB, expandable=True)
    expandable.alloc(BASE, 50 * MIB)
    trace, out = written(b"a 1 52428800 0\na 2 1000 1\nf 1\na 3 31457280 0\n", "kind.trace"), {}
    for policy in ("pool", "va_pool"):
        out[policy] = FOLDER / f"kind.{policy}"
        run(REPLAY, trace, "--policy", policy, "--history", out[policy])
    return [
        (written(shapes.snapshot([plain]), "kind.native"), "native", True),
        (written(gzip.compress(written(expandable.listed()).read_bytes())), "expandable", False),
        (written(shapes.snapshot([expandable]), "kind.expandable"), "expandable", True),
        (written(shapes.snapshot([ring]), "kind.ring"), "native", False),
        (written(plain.listed(), "kind.list"), "native", False),
        (written(shapes.snapshot([refused]), "kind.refused"), "native", False),
        (written(LOG.encode(), "kind.log"), None, False),
        (trace, None, True),
        (out["pool"], "vmm", True),
        (out["va_pool"], "vmm", True),
    ]


# Options, and the allocator whose result the exit code is with them.
OPTIONS = (
    ((), None),
    (("--conf", "expandable_segments:True"), "expandable"),
    (("--conf", "max_split_size_mb:20,expandable_segments:False"), "native"),
    (("--conf", "max_split_size_mb:20"), None),
    (("--allocator", "vmm", "--conf", "expandable_segments:True"), "vmm"),
    (("--allocator", "async"), "async"),
)
SIZES = (("24GiB",), ("1MiB",), ("70MiB",), ("128MiB", "24GiB"), ())


class Table(unittest.TestCase):
    """Text, JSON and exit code say the same of each kind of file with each option."""

    def read(self, files, options):
        """The JSON, the lines of the text, and the exit code of both."""
        done = run(FIT, *files, *options)
        with_json = run(FIT, *files, *options, "--json")
        slow = "vmm-fit: replaying "  # of a run that takes a second
        errors = [each for each in done.stderr.splitlines() if not each.startswith(slow)]
        self.assertEqual((done.returncode, errors), (with_json.returncode, []))
        return json.loads(with_json.stdout), done.stdout.splitlines(), done.returncode

    def check_code(self, found, lines, code):
        """Of one recording or of two batch sizes."""
        self.assertEqual(found["exit_code"], code)
        judged = [CODES[each[found["judged_allocator"]]] for each in found["fits"].values()]
        self.assertEqual(code, 1 if 1 in judged else max(judged))
        self.assertIn(f"exit code {code}: {found['judged_allocator']} ", lines[-1])

    def check_text(self, found, lines):
        for device, fits in found["fits"].items():
            row = next(each for each in lines if each.startswith(f"  {device} "))
            for name in ALLOCATORS:
                is_known = found["is_peak_known"] or fits[name] == "no"
                self.assertIn(f" {name} {fits[name] if is_known else 'not known'}", row)
        notes = [each[6:] for each in lines if each.startswith("note: ")]
        self.assertEqual(notes, found["notes"])
        for name, of in found["allocators"].items():
            if name != "async":
                shown = f"error {100 * of['error']:.1f} % ({of['error_source'].replace('_', ' ')})"
                rows = [each for each in lines if each.startswith(f"  {name} ")]
                self.assertTrue(any(shown in each for each in rows))

    @staticmethod
    def words(sizes, options):
        return (*(w for size in sizes for w in ("--device", size)), *options, "--beside", "0")

    def test_one_file(self):
        """Each kind with each option, and both with each list of sizes."""
        pairs = itertools.product(enumerate(kinds()), enumerate(OPTIONS))
        for (one, kind), (two, (options, judged)) in pairs:
            sizes = SIZES[(one + two) % len(SIZES)]
            path, recorded, is_known = kind
            words = self.words(sizes, options)
            with self.subTest(file=path.name, options=words):
                found, lines, code = self.read([path], words)
                self.assertEqual(found["recorded_allocator"], recorded)
                self.assertEqual(found["judged_allocator"], judged or recorded or "native")
                self.assertEqual(found["is_peak_known"], is_known)
                self.check_text(found, lines)
                if sizes:
                    self.check_code(found, lines, code)
                else:
                    self.assertEqual((code, found["exit_code"]), (0, 0))
                if not is_known:
                    self.assertNotIn("yes", str(found["fits"]))

    def test_ranks(self):
        """The worst counts: 0, 1 and 2 by their allocators, and a length of its own each."""
        good, bad = shapes.small_program(12), shapes.Recording(12)
        bad.filled(BASE, 200 * MIB)
        ring = kinds()[3][0]
        one, two = (written(shapes.snapshot([p]), f"rank{i}") for i, p in enumerate((good, bad)))
        for files, code, worst in (
            ((one, ring), 2, ring),
            ((one, two), 1, two),
            ((ring, two, one), 1, two),
        ):
            found, lines, seen = self.read(files, ("--device", "100MiB", "--beside", "0"))
            self.assertEqual((seen, found["exit_code"]), (code, code))
            self.assertEqual([each["file"] for each in found["ranks"]], [str(f) for f in files])
            codes = [int(each[10]) for each in lines if each.startswith("exit code ")]
            self.assertEqual(codes, [each["exit_code"] for each in found["ranks"]])
            self.assertEqual(lines[-1], f"all ranks: exit code {code}, by {worst}")
        self.assertIn("is named twice", run(FIT, one, one).stderr)

    def check_limits(self, found, lines):
        for device, limits in found["largest_batch"].items():
            row = next(each for each in lines if each.startswith(f"  {device} "))
            for name, of in limits.items():
                numbers = f"{of['low']}, {of['best']}, {of['high']}"
                self.assertIn(f" {name} {numbers if of['high'] else 'none'}", row)

    def test_two_batches(self):
        files, rings = [Batch.recorded(8), Batch.recorded(16)], []
        for batch in (8, 16):
            made = pickle.loads(Batch.recorded(batch).read_bytes())
            del made["device_traces"][0][:2]
            rings.append(written(made, f"ring{batch}"))
        sizes = ((("1GiB",), 0), (("64MiB",), 1), (("1GiB", "64MiB"), 1))
        known = ((files, True), (rings, False))
        pairs = itertools.product(enumerate(OPTIONS), enumerate(known))
        for (one, (options, judged)), (two, which) in pairs:
            size = sizes[(one + two) % len(sizes)]
            words = ("--batch", "8,16", *self.words(size[0], options))
            with self.subTest(options=words, is_known=which[1]):
                found, lines, code = self.read(which[0], words)
                self.check_code(found, lines, code)
                self.check_limits(found, lines)
                self.assertEqual(found["judged_allocator"], judged or "native")
                if judged != "async":
                    self.assertEqual(code, size[1] or (0 if which[1] else 2))
                self.assertEqual(found["is_peak_known"], which[1])
                notes = [each[6:] for each in lines if each.startswith("note: ")]
                self.assertEqual(notes, found["notes"])
                lost = sum("lost its beginning" in each for each in notes)
                self.assertEqual(lost, 0 if which[1] else 2)
        self.assertIn("has 1 device", run(FIT, *files, *words, "--of", 1).stderr)

    def test_the_page_has_all_keys(self):
        page = (pathlib.Path(__file__).parents[2] / "docs/fit.md").read_text().split("## ")
        told = next(each for each in page if each.startswith("JSON"))
        keys = set(re.findall(r"`([a-z_]+)`", told.replace("`null`", "")))
        program = shapes.small_program(12)
        program.event("oom", 3 * GIB, 1 << 57)
        full = fit(shapes.snapshot([program]), "--device", "1GiB")
        one, two = Batch.recorded(8), Batch.recorded(16)
        batch, _, _ = self.read([one, two], ("--batch", "8,16", "--device", "1GiB"))
        ranks, _, _ = self.read([one, two], ())
        seen = set(ALLOCATORS[2:3])  # the page names async

        def walk(what, names):
            seen.update(names)
            for key in names:
                inner = what[key]
                inner = inner[0] if isinstance(inner, list) and inner else inner
                by_name = key in ("allocators", "largest_batch", "fits", "retries")
                for each in inner.values() if by_name and key != "allocators" else [inner]:
                    each = each if isinstance(each, dict) else {}
                    for last in each.values() if by_name else [each]:
                        walk(last, last if isinstance(last, dict) else ())

        for each in (full, batch, ranks):
            walk(each, each)
        self.assertEqual(keys, seen)


class Batch(unittest.TestCase):
    """Weights of 100 MiB, and 3 MiB and 1,000 bytes for each item of the batch."""

    @staticmethod
    def recorded(batch, extra=0):
        program, at = shapes.Recording(12), BASE
        for line, size in ((1, 100 * MIB), (2, batch * 3 * MIB + 4096), (3, batch * 1000)):
            program.segment(at, -(-size // (2 * MIB)) * 2 * MIB)
            program.alloc(at, size, line=line)
            at += 512 * MIB
        for i in range(extra):
            program.segment(at, 2 * MIB)
            program.alloc(at, 100, line=50 + i)
            at += 32 * MIB
        return written(shapes.snapshot([program]), f"batch{batch}")

    @staticmethod
    def largest(files, batches="8,16", options=()):
        """What is found, and its limits on 1 GiB."""
        words = ("--batch", batches, "--device", "1GiB", "--beside", "0", "--json", *options)
        found = json.loads(run(FIT, *files, *words).stdout)
        return found, found["largest_batch"]["1GiB"]

    def test_two_recordings_give_the_largest(self):
        one, two = self.recorded(8), self.recorded(16, extra=2)
        for files, batches in (((one, two), "8,16"), ((two, one), "16,8")):
            found, limits = self.largest(files, batches)
            # 1,024 less 100, and less 2 for small blocks: 3 b and 4 KiB, in steps of 2, are 922.
            self.assertEqual(limits["native"]["best"], 307)
            self.assertEqual(found["requests_by_line"], 2)
            self.assertEqual(found["requests_constant"], 1)
            self.assertEqual(found["requests_unmatched"], 2)
            best = [limits["native"][k] for k in ("low", "best", "high")]
            self.assertEqual(best, sorted(best))
        # So little grows that every batch fits.
        found, limits = self.largest((one, two), "500000,1000000")
        self.assertEqual(limits["native"]["best"], 1 << 20)
        self.assertIn("the search ends at batch 1048576", found["notes"])

    @staticmethod
    def trained(batch, steps):
        """Weights, and in each step activations, a workspace from batch 16 on, and a gradient."""
        program = shapes.Recording(12)
        program.filled(BASE, 100 * MIB, line=1)
        places = [BASE + (i + 1) * 4096 * MIB for i in range(3)]
        sizes = [batch * 3 * MIB, batch * MIB, 100 * MIB]
        for step in range(steps):
            for i, (at, size) in enumerate(zip(places, sizes)):
                if i == 1 and batch < 16:
                    continue
                if step == 0:
                    program.segment(at, size)
                program.alloc(at, size, line=20 + i)
            for i, at in enumerate(places):
                if i != 1 or batch >= 16:
                    program.free(at)
        return written(shapes.snapshot([program]), f"trained{batch}")

    def test_the_numbers_of_steps_may_differ(self):
        files = (self.trained(8, 2000), self.trained(16, 5))
        found, limits = self.largest(files)
        self.assertEqual(found["requests_per_iteration"], 3)
        # 1,024 less 200: 3 b and a workspace of b, which the smaller batch does not have.
        self.assertEqual(limits["native"]["best"], 206)
        self.assertEqual(found["requests_unmatched"], 2)

    def test_a_workspace_that_is_refused_is_left_out(self):
        """As a convolution of PyTorch does, which then takes another algorithm."""
        files = []
        for batch in (8, 16):
            program, places = shapes.Recording(12), [BASE + i * 4096 * MIB for i in range(3)]
            for at, size in zip(places, (100, 3 * batch, 10 * batch)):
                program.segment(at, size * MIB)
            program.alloc(places[0], 100 * MIB, line=1)
            for _ in range(4):
                program.alloc(places[1], 3 * batch * MIB, line=2)
                program.alloc(places[2], 10 * batch * MIB, line=3)
                program.free(places[2])
                program.free(places[1])
            files.append(written(shapes.snapshot([program]), f"workspace{batch}"))
        _, limits = self.largest(files, options=("--page", FOLDER / "page.html"))
        self.assertEqual(limits["native"]["best"], 308)  # 100 and 3 b of 1,024
        page = (FOLDER / "page.html").read_text()
        fits = re.search(r'"fits": {"1GiB": {"native": "(\w+)"', page)[1]
        self.assertEqual(fits, "within_error")  # at 308: with 3 % more or less memory

    def test_iterations_may_differ(self):
        """The third of four holds the most: 100 MiB, and 10 MiB for each item of the batch."""
        files = []
        for batch in (8, 16):
            program = shapes.Recording(12)
            program.segment(BASE, 2048 * MIB)
            program.alloc(BASE, 100 * MIB, line=1)
            for length in (3, 3, 5, 3):
                places = [BASE + 100 * MIB, BASE + (100 + batch * length) * MIB]
                for line, at in enumerate(places):
                    program.alloc(at, batch * length * MIB, line=2 + line)
                for at in places:
                    program.free(at)
            files.append(written(shapes.snapshot([program]), f"lengths{batch}"))
        _, limits = self.largest(files)
        self.assertIn(limits["expandable"]["best"], range(88, 93))

    def test_the_files_are_of_two_batches_and_in_order(self):
        one, two = self.recorded(8), self.recorded(16)
        same = written(one.read_bytes(), "same")
        other = shapes.Recording(12)
        for i in range(6):
            other.segment(BASE + i * 64 * MIB, 2 * MIB)
            other.alloc(BASE + i * 64 * MIB, 1000 * i + 1, line=900 + i)
        other = written(shapes.snapshot([other]), "other")
        listed = written(shapes.small_program(12).listed(), "listed")
        for files, why in (
            ((one, one), "is named twice"),
            ((one, same), "no request is larger at batch 16 than at batch 8"),
            ((two, one), "in the order of the files"),
            ((one, other), "only 0 of 6 requests of batch 16 come from places"),
            ((one, listed), "no events"),
        ):
            done = run(FIT, *files, "--batch", "8,16", "--device", "24GiB")
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn(why, done.stderr)

    def test_other_programs_are_refused(self):
        other = shapes.small_program(12)
        for i in range(5000):
            other.alloc(BASE + 4096 + i % 1000 * 512, 100, line=1000 + i)
            other.free(BASE + 4096 + i % 1000 * 512)
        path = written(shapes.snapshot([other]), "other")
        done = run(FIT, self.recorded(8), path, "--batch", "8,16", "--device", "24GiB")
        self.assertEqual(done.returncode, 3)
        self.assertIn("differ in more than 4096", done.stderr)
        done = run(FIT, self.recorded(8), "--batch", "8,16", "--device", "24GiB")
        self.assertIn("--batch takes two files", done.stderr)


LOG = (
    "Thread,Time,Action,Pointer,Size,Stream\n"
    "1,13:00:00:000001,allocate,0x7f0000000000,1000,0\n"
    "1,13:00:00:000002,allocate,0x7f0000100000,2000,0x55aa\n"
    "1,13:00:00:000003,free,0x7f0000000000,1000,0\n"
    "1,13:00:00:000004,allocate failure,(nil),9000000,0\n"
)


class Calls:
    def __reduce__(self):
        return (print, ("a pickle was run",))


class Others(unittest.TestCase):
    def test_a_log_of_rmm(self):
        for content in (LOG, LOG.replace("\n", "\r\n"), LOG.rstrip("\n")):
            path = written(content.encode())
            self.assertEqual(fit(path)["peak_live_bytes"], 1024 + 2048)
            self.assertEqual(fit(path)["allocators"]["native"]["held_bytes"], 4 * MIB)
            shown = summary(path)
            self.assertEqual((shown["allocated"], shown["events left out"]), ("2", "0"))
            self.assertEqual(shown["live_bytes"], "2048")
            done = run(REPLAY, path, "--policy", "pool", "--json")
            self.assertEqual(json.loads(done.stdout)["peak_live_bytes"], 3072, done.stderr)
            self.assertIsNone(fit(path)["recorded_allocator"])
            self.assertIn("refused while the program was recorded: 1", fit(path)["notes"][0])

    def test_a_log_of_a_program_that_was_killed(self):
        last = "1,13:00:00:000005,allocate,0x7f0000200000,4000,0\n"
        for kept in range(1, len(last) - 3):
            found = fit(written((LOG + last[:kept]).encode()))
            self.assertEqual(found["peak_live_bytes"], 3072, last[:kept])
            self.assertIn("lines cut at the end of the file, and left out: 1", found["notes"])
            self.assertFalse(found["is_peak_known"])

    def test_a_wrong_line_is_named(self):
        for line, why in (
            ("1,t,allocate,0x1,1", "line 2: too few fields"),
            ("1,t,allocate,zz,1,0", "line 2: a pointer, size or stream is not a number"),
            ("1,t,grow,0x1,1,0", "line 2: an action is"),
        ):
            content = "Thread,Time,Action,Pointer,Size,Stream\n" + line + "\n"
            self.assertIn(why, run(FIT, written(content.encode())).stderr)

    def test_a_snapshot_is_replayed(self):
        path = written(shapes.snapshot([shapes.small_program(12)]))
        done = run(REPLAY, path, "--policy", "pool", "--json")
        self.assertEqual(json.loads(done.stdout)["peak_live_bytes"], 1024 + 38 * MIB)

    def test_a_trace(self):
        path = pathlib.Path(TRACES) / "gpt_train.trace.gz"
        found = fit(path, "--device", "24GiB")
        live = found["peak_live_bytes"]
        for name, ratio in (("native", 1.201), ("expandable", 1.045), ("vmm", 1.014)):
            held = found["allocators"][name]["held_bytes"] / live
            self.assertAlmostEqual(held, ratio, delta=0.005, msg=name)
        self.assertEqual(found["fits"]["24GiB"]["native"], "no")
        self.assertIn("no addresses", run(HISTORY, "summary", path).stderr)

    def test_what_is_no_recording(self):
        whole = pickle.dumps(shapes.snapshot([shapes.small_program(12)]), 4)
        unequal = shapes.snapshot([shapes.small_program(12)])
        unequal["segments"][0]["total_size"] *= -1
        unsized = {"action": "alloc", "addr": BASE, "size": -512, "stream": 0, "frames": []}
        impossible = {"segments": [], "device_traces": [[unsized]]}
        for content, why in (
            (b"", "is empty"),
            (pickle.dumps(unequal, 4), "the blocks of a segment do not add up to its size"),
            (pickle.dumps(impossible, 4), "no program can have made its events, 1 in number"),
            (b"{}", "its first bytes differ"),
            (b"PK\x03\x04", "zip archive: "),
            (pickle.dumps(Calls(), 4), "more than plain data"),
            (whole[:300] + b"\x99" + whole[301:], "(opcode 0x99 at byte 300 of the pickle); exp"),
            (pickle.dumps({}, 4), "no segments"),
            (pickle.dumps([1, 2], 4), "no segments"),
            (whole[:1000], "cut short (after byte"),
            (whole + whole, "further bytes behind the end of the pickle, from byte "),
            (gzip.compress(whole) * 2, "further bytes behind the end of the pickle"),
            (gzip.compress(whole) + b"x", "further bytes behind the end of the gzip data"),
            (gzip.compress(whole)[:-6] + bytes(6), "damaged (incorrect data check)"),
            *((gzip.compress(whole)[:-cut], "gzip data is cut short") for cut in (1, 4, 8, 9, 40)),
            (b"\x1b[31m{}", "its first bytes differ"),
        ):
            done = run(FIT, written(content))
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn(why.split(": ")[0], done.stderr)
        for name in ("none", "a name with\nlines\x1b[31m"):
            told = run(FIT, FOLDER / name).stderr
            self.assertIn("cannot be read", told)
            self.assertTrue(told.rstrip("\n").isprintable(), told)
        empty = written({"segments": [], "device_traces": []})
        self.assertIn("has no allocation", run(FIT, empty).stderr)

    def test_what_is_no_history(self):
        overlap, loop = shapes.snapshot([shapes.small_program(12)]), []
        whole = pickle.dumps(overlap, 4)
        overlap["segments"].append(overlap["segments"][0])
        loop.append(loop)
        for content, why in (
            (b"", "is empty"),
            (b"{}", "not a history"),
            (Calls(), "more than plain data"),
            ({}, "no segments"),
            ([1, 2], "no segments"),
            (overlap, "overlap"),
            ({"segments": 3, "device_traces": []}, "'segments' that is a number (3)"),
            *((whole[:size], "cut short") for size in range(2, len(whole), 41)),
        ):
            done = run(HISTORY, "summary", written(content))
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)
            self.assertIn("made: ", done.stderr)
        for path, why in ((FOLDER / "none", "No such file"), (FOLDER, "Is a directory")):
            self.assertIn(why, run(HISTORY, "summary", path).stderr)
        run(HISTORY, "summary", written({"segments": loop, "device_traces": [loop]}))  # ends


LACKS = object()
TRACE, SEGMENT, BLOCK = "device_traces[1][4]", "segments[4]", "segments[4]['blocks'][1]"
#: Of the record at a place: a field, its damaged value, and what is said of it.
DAMAGE = (
    *[
        (at, field, value, said)
        for at, field, expected in (
            (TRACE, "action", "a text"),
            (TRACE, "addr", "a number"),
            (TRACE, "size", "a number"),
            (TRACE, "stream", "a number"),
            (SEGMENT, "address", "a number"),
            (SEGMENT, "total_size", "a number"),
            (BLOCK, "size", "a number"),
            (BLOCK, "state", "a text"),
        )
        for value, said in (
            (LACKS, f"has no '{field}'; expected {expected}."),
            (None, f"has '{field}' that is None; expected {expected}."),
            ([1], f"has '{field}' that is a list of other values; expected {expected}."),
            ({"x": 1}, f"has '{field}' that is a dictionary; expected {expected}."),
        )
    ],
    *[
        (at, field, value, f"has '{field}' that is {found}; expected {expected}.")
        for at, field, value, found, expected in (
            (TRACE, "action", 3, "a number (3)", "a text"),
            (TRACE, "addr", "0x7f", "a text ('0x7f')", "a number"),
            (TRACE, "size", 1.5, "a float", "a number"),
            (TRACE, "stream", 0.5, "a float", "a number"),
            (TRACE, "time_us", "now", "a text ('now')", "a number"),
            (TRACE, "pool_id", 7, "a number (7)", "a pair of numbers"),
            (TRACE, "frames", -1, "a number (-1)", "a list of frames"),
            (TRACE, "frames", [1, 2], "a list of other values", "a list of frames"),
            (SEGMENT, "device", "cuda", "a text ('cuda')", "a number"),
            (SEGMENT, "stream", (1,), "a tuple", "a number"),
            (SEGMENT, "segment_pool_id", "x", "a text ('x')", "a pair of numbers"),
            (SEGMENT, "segment_type", 1, "a number (1)", "a text"),
            (SEGMENT, "is_expandable", "yes", "a text ('yes')", "a number"),
            (SEGMENT, "blocks", 3, "a number (3)", "a list of blocks"),
            (BLOCK, "address", "x", "a text ('x')", "a number"),
            (BLOCK, "requested_size", [], "an empty list", "a number"),
            (BLOCK, "frames", "x", "a text ('x')", "a list of frames"),
        )
    ],
    *[
        (at, None, value, f"is {found}; expected {expected}.")
        for at, expected in ((TRACE, "an event"), (SEGMENT, "a segment"), (BLOCK, "a block"))
        for value, found in ((None, "None"), (3, "a number (3)"), ({}, "a dictionary"))
    ],
    *[
        ("", field, value, f"the dictionary has {said}.")
        for field, expected in (
            ("segments", "a list of segments"),
            ("device_traces", "a list of lists of events"),
        )
        for value, said in (
            (LACKS, f"no '{field}'; expected {expected}"),
            ([1], f"'{field}' that is a list of other values; expected {expected}"),
        )
    ],
)


class Damaged(unittest.TestCase):
    def damaged(self, at, field, value):
        made = shapes.snapshot([shapes.small_program(12, device) for device in (0, 1)])
        keys = [int(key) if key.isdecimal() else key for key in re.findall(r"\w+", at)]
        *path, last = keys if field is None else [*keys, field]
        record = made
        for key in path:
            record = record[key]
        record[last] = value
        if value is LACKS:
            del record[last]
        return made

    def test_the_record_and_the_field_are_named(self):
        for number, (at, field, value, said) in enumerate(DAMAGE):
            forms = list(shapes.forms(self.damaged(at, field, value)))
            form, content = forms[number % len(forms)]
            with self.subTest(at=at, field=field, form=form):
                done = run(FIT, written(content))
                self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
                self.assertIn("a memory snapshot of PyTorch that is damaged: ", done.stderr)
                self.assertIn(f"{at} {said}".lstrip(), done.stderr)
                self.assertIn("Record the snapshot again, or ", done.stderr)
        for program, *words in ((REPLAY, "--policy", "pool"), (HISTORY, "summary")):
            path = written(self.damaged(TRACE, "action", 3))
            command = (program, path, *words) if program is REPLAY else (program, *words, path)
            self.assertIn(f"{TRACE} has 'action' that is a number", run(*command).stderr)

    def test_an_action_of_a_later_version_may_lack_fields(self):
        for made in (
            self.damaged(TRACE, None, {"action": "new_action"}),
            self.damaged(TRACE, "frames", None),
            self.damaged(TRACE, "time_us", LACKS),
            self.damaged(TRACE, "user_metadata", {"x": 1}),
        ):
            self.assertEqual(run(FIT, written(made)).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
