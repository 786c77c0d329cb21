# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vmm-replay and vmm-demo do what their help says: options, report, JSON, picture, messages,
exit codes.
Method: the real program is run with its output in files; readers of JSON and XML that take nothing
else read what it wrote.

usage: program_test.py VMM_REPLAY VMM_DEMO EXAMPLE_FIRST TRACES LIMIT [TEST...]; LIMIT is one of the
address space in KiB, or none
"""

import gzip
import json
import os
import sys
import unittest
import xml.etree.ElementTree

from command import TINY, CommandTest

REPLAY, DEMO, EXAMPLE, TRACES, LIMIT = (sys.argv.pop(1) for _ in range(5))
MASK_RCNN = f"{TRACES}/maskrcnn_train.trace.gz"


def refuse(name):
    raise ValueError(f"{name} is not JSON")


class Program(CommandTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("tiny.trace", TINY)

    def replay(self, arguments, environment=""):
        return self.run_command(f"'{REPLAY}' {arguments}", environment)

    def json(self, arguments, environment="", code=0):
        """The object, one line, that the replay prints."""
        got = self.replay(f"{arguments} --json", environment)
        self.assertEqual(got.code, code, got.err)
        self.assertEqual(got.out.find("\n"), len(got.out) - 1)
        return json.loads(got.out, parse_constant=refuse), got

    def expect_picture(self, path):
        """Well-formed XML."""
        with open(path) as file:
            text = file.read()
        self.assertEqual(xml.etree.ElementTree.fromstring(text).tag.split("}")[-1], "svg")
        return text

    def test_prints_a_report_for_people(self):
        got = self.replay(self.trace)
        self.assertEqual((got.code, got.err), (0, ""))
        self.assert_starts(got.out, "Replay of tiny on the fake driver, policy va_pool\n")
        events = "  events                      3 (2 allocations, 1 frees)\n"
        self.assertIn(events, got.out)

    def test_prints_one_json_object(self):
        said, _ = self.json(f"'{MASK_RCNN}'")
        keys = (
            "events ns_per_event peak_live_bytes peak_reserved_bytes ratio driver_calls driver_us"
        )
        self.assertLessEqual({*keys.split(), "backend", "policy", "failures"}, set(said))
        self.assertEqual((said["events"], said["failures"]), (62574, 0))
        live, reserved = said["peak_live_bytes"], said["peak_reserved_bytes"]
        self.assertAlmostEqual(live / (1 << 30), 15.273, delta=0.0005)
        self.assertAlmostEqual(said["ratio"], reserved / live, delta=1e-6)
        self.assertGreaterEqual(reserved, live)
        self.assertGreater(said["driver_us"], 0)
        self.assertGreater(said["driver_calls"]["create"], 0)

    def test_says_the_same_of_the_same_trace(self):
        one, two = (self.json(f"'{MASK_RCNN}' --policy virtual_caching")[0] for _ in range(2))
        del one["ns_per_event"], two["ns_per_event"]
        self.assertEqual(one, two)

    def test_draws_a_picture(self):
        path = self.path("peak.svg")
        got = self.replay(f"'{MASK_RCNN}' --svg {path}")
        self.assertEqual(got.code, 0, got.err)
        self.assertIn(f"  picture: {path}", got.out)
        svg = self.expect_picture(path)
        self.assertLess(len(svg), 500_000)
        title = "Trace maskrcnn_train on the fake driver, policy va_pool"
        for text in (title, ">live<", ">free but mapped<", ">hole<", " GiB<"):
            self.assertIn(text, svg)

    def test_a_name_may_hold_anything(self):
        """In the picture's title and in JSON."""
        name, path = self.file('<a & "b"> \\ \x01.trace', TINY), self.path("peak.svg")
        said, _ = self.json(f"'{name}' --svg {path}")
        self.assertEqual(said["trace"], '<a & "b"> \\ \x01')
        self.assertIn("Trace &lt;a &amp; &quot;b&quot;&gt;", self.expect_picture(path))

    def test_repeats_on_the_host_driver(self):
        said, _ = self.json(f"{self.trace} --backend=host --repeat 3 --policy=keep_mapped")
        self.assertEqual((said["backend"], said["policy"]), ("host", "keep_mapped"))
        self.assertEqual((said["warm_passes"], said["driver_clock"]), (3, "wall"))

    def test_reports_the_peak_of_all_passes_and_of_the_first(self):
        first, both = (self.json(f"'{MASK_RCNN}'{more}")[0] for more in ("", " --repeat 1"))
        peak = first["peak_reserved_bytes"]
        self.assertEqual(first["first_pass_peak_reserved_bytes"], peak)
        self.assertEqual(both["first_pass_peak_reserved_bytes"], peak)
        self.assertGreater(both["peak_reserved_bytes"], peak)
        ratio = both["peak_reserved_bytes"] / peak
        self.assertAlmostEqual(both["ratio"] / first["ratio"], ratio, delta=1e-4)
        self.assertEqual(first["warm_driver_calls"]["map"], 0)
        self.assertGreater(both["warm_driver_calls"]["map"], 0)

    def test_jitters_sizes_and_says_so(self):
        alone, _ = self.json(f"'{MASK_RCNN}' --policy pool --jitter 2")
        self.assertEqual(alone["notes"], ["sizes are changed by up to 3 %, seed 2"])
        means, _ = self.json(f"'{MASK_RCNN}' --policy pool --jitter-seeds 2")
        self.assertEqual((means["seeds"], means["policy"]), (2, "pool"))
        self.assertEqual(means["ratios"][-1], alone["ratio"])
        self.assertGreaterEqual(means["ratio_most"], means["ratio_mean"])
        text = self.replay(f"{self.trace} --policy=pool --jitter-seeds=2")
        self.assertEqual(text.code, 0, text.err)
        self.assertIn("driver, policy pool, sizes changed by up to 3 %\n", text.out)
        self.assertIn("\n  mean ", text.out)
        few = self.replay(f"{self.trace} --jitter-seeds 2", "VMM_BUDGET=4MiB")
        self.assertEqual((few.code, few.err), (1, "vmm-replay: calls that failed: 2\n"))

    def test_reads_a_trace_from_a_pipe(self):
        for name in ("/dev/stdin", "-"):
            self.assertEqual(self.replay(f"{name} <{self.trace}").code, 0, name)

    def test_names_the_line_of_a_malformed_trace(self):
        bad = self.file("bad.trace", "a 1 5 0\na 2 5 0\nf 3\n")
        why = "free of id 3, which is not live; expected the id of an earlier 'a' line that was not"
        for more in ("", " --json", " --backend host"):
            said = f"vmm-replay: {bad}:3: {why} freed since\n"
            self.assertEqual(self.replay(bad + more), (2, "", said))

    def test_refuses_files_that_are_no_traces(self):
        with open(MASK_RCNN, "rb") as file:
            whole = file.read()
        for path, message in (
            (self.file("cut.gz", whole[: len(whole) // 2]), "the gzip data is cut short here"),
            (self.file("long.gz", whole + b"x"), "further bytes behind the end"),
            (self.file("empty"), ":1: the file is empty"),
            (self.path("missing"), "cannot be read: No such file"),
            (self.path(""), "cannot be read: Is a directory"),
        ):
            got = self.replay(path)
            self.assertEqual((got.code, got.out), (2, ""), message)
            self.assertIn(message, got.err)
            self.assertIn(path, got.err)

    def test_failures_are_reported_and_in_the_exit_code(self):
        said, got = self.json(self.trace, "VMM_BUDGET=4MiB", code=1)
        first = said["first_failure"]
        self.assertEqual((said["failures"], first["event"], first["native"]), (1, 1, 0))
        self.assertEqual((first["error"], first["call"]), ("over budget", "none"))
        self.assert_starts(first["text"], "over budget: ")
        failed = "vmm-replay: calls that failed: 1; the first at event 1: over budget: "
        self.assert_starts(got.err, failed)
        self.assertIsNone(self.json(self.trace)[0]["first_failure"])

    def test_a_request_beyond_the_device_says_how_much_is_there(self):
        huge = self.file("huge.trace", "a 1 281474976710656 0\n")
        for policy in ("va_pool", "pool"):
            said, got = self.json(f"{huge} --policy {policy}", code=1)
            first = said["first_failure"]
            self.assertEqual((first["error"], first["call"]), ("out of memory", "none"))
            self.assertEqual((said["failures"], said["driver_calls"]["create"]), (1, 0))
            self.assertIn("request of 256 TiB exceeds the available memory", got.err)

    def test_a_small_file_of_many_marks_is_refused_in_little_memory(self):
        """64 members of gzip are 67 million lines in 300 KB. A sanitizer takes all of the address
        space for itself."""
        member = gzip.compress(b"i 1\n" * (1 << 20))
        path = self.file("bomb.trace.gz", member * 64)
        limit = "" if LIMIT == "none" else f"ulimit -v {LIMIT}; "
        got = self.run_command(f"bash -c '{limit}exec \"$0\" \"$1\"' '{REPLAY}' {path}")
        why = ":1048577: the trace has too many marks of iterations; expected at most 1048576\n"
        self.assertEqual((got.code, got.err), (2, f"vmm-replay: {path}{why}"))

    def test_a_picture_that_cannot_be_kept_has_the_systems_reason_and_the_report_stands(self):
        full = self.replay(f"{self.trace} --svg /dev/full")
        why = "vmm-replay: /dev/full: cannot be written: No space left on device\n"
        self.assertEqual((full.code, full.err), (1, why))
        self.assert_starts(full.out, "Replay of tiny on the fake driver")
        self.assertNotIn("picture", full.out)
        # What was there before stays when the replay is refused, and no empty file is left behind.
        kept, new = self.file("kept.svg", "mine"), self.path("new.svg")
        for path in (kept, new):
            code = self.replay(f"{self.trace} --svg {path}", "VMM_CHUNK_SIZE=3").code
            self.assertEqual(code, 2)
        self.assertEqual(self.read("kept.svg"), "mine")
        self.assertFalse(os.path.exists(new))
        self.assertEqual(self.replay(f"{self.trace} --svg {kept}").code, 0)
        self.expect_picture(kept)

    def test_a_file_that_cannot_be_written_in_full_leaves_the_old_one(self):
        """The limit of a file's size stands for a disk that fills while the file is written."""
        for option in ("--svg", "--history"):
            for is_old in (True, False):
                folder = self.folder / f"{option}{is_old}"
                folder.mkdir()
                if is_old:
                    (folder / "x").write_text("mine")
                limited = "bash -c '(ulimit -f 0; exec \"$@\") 2>&1 | cat; exit ${PIPESTATUS[0]}' x"
                got = self.run_command(f"{limited} '{REPLAY}' {self.trace} {option} {folder}/x")
                self.assertEqual(got.code, 1, got.out)
                left = {each.name: each.read_text() for each in folder.iterdir()}
                self.assertEqual(left, {"x": "mine"} if is_old else {})

    def test_a_file_is_replaced_with_its_rights_and_behind_its_link(self):
        kept, link = self.file("kept.svg", "mine"), self.path("link.svg")
        os.chmod(kept, 0o600)
        os.symlink("kept.svg", link)
        self.assertEqual(self.replay(f"{self.trace} --svg {link}").code, 0)
        self.assertTrue(os.path.islink(link))
        self.expect_picture(kept)
        self.assertEqual(os.stat(kept).st_mode & 0o777, 0o600)

    def test_the_environments_backend_is_the_default(self):
        host = "VMM_BACKEND=host"
        self.assertIn("on the host driver", self.replay(self.trace, host).out)
        self.assertIn("on the fake driver", self.replay(f"{self.trace} --backend fake", host).out)

    def test_output_that_cannot_be_written_is_told_by_every_program(self):
        """The demo sees it before its work, an example when it ends."""
        svg = self.path("demo.svg")
        for command in (
            f"'{DEMO}' --backend host --up-to 4MiB --trace {self.trace} --svg {svg}",
            f"'{REPLAY}' {self.trace}",
            f"VMM_BACKEND=fake '{EXAMPLE}'",
        ):
            got = self.run_command(f"{command} >/dev/full")
            self.assertEqual(got.code, 1, command)
            why = "standard output cannot be written: No space left on device"
            self.assertIn(why, got.err, command)
            self.assertEqual(got.err.count("written"), 1, got.err)

    def test_the_demo_grows_replays_and_draws(self):
        svg = self.path("demo.svg")
        demo = f"'{DEMO}' --backend host --up-to 8MiB --trace {self.trace} --svg {svg}"
        got = self.run_command(demo)
        self.assertEqual(got.code, 0, got.err)
        for text in (
            "Driver: host",
            "2 MiB to 4 MiB",
            "4 MiB to 8 MiB",
            "bytes copied",
            "replaying: 100 %\n",
            "Replay of tiny on the fake driver",
            "pool          va_pool\n",
            svg,
            self.path("demo.html"),
        ):
            self.assertIn(text, got.out)
        self.assertNotIn("8 MiB to 16 MiB", got.out)
        self.assertNotIn("\r", got.out, "not a terminal")
        self.expect_picture(svg)
        self.assertIn('{name:"the pool",data:"', self.read("demo.html"))

    def test_the_demo_draws_into_the_current_folder(self):
        folder = self.folder / "a b"
        folder.mkdir()
        demo = f"'{DEMO}' --backend host --up-to 4MiB --trace {self.trace}"
        got = self.run_command(f"bash -c 'cd \"$0\" && exec \"$@\"' '{folder}' {demo}")
        self.assertEqual(got.code, 0, got.err)
        for name in ("vmm-demo.svg", "vmm-demo.html"):
            self.assertIn(str(folder / name), got.out)
            self.assertNotEqual(self.read(f"a b/{name}"), "")

    def test_help_names_the_options(self):
        replay, demo = self.replay("--help"), self.run_command(f"'{DEMO}' --help")
        self.assert_starts(replay.out, "usage: vmm-replay FILE")
        for option in "backend policy costs repeat json svg jitter jitter-seeds".split():
            self.assertIn(f"--{option}", replay.out)
        self.assertIn("--up-to", demo.out)
        self.assertEqual(self.run_command(f"'{DEMO}' -h"), demo)


if __name__ == "__main__":
    unittest.main()
