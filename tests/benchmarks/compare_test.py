# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the comparison of two commits computes its ratios and intervals as it says, and refuses
what is wrong before it builds. Method: benchmarks/compare.py over figures worked out by hand, and
its command lines."""

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
import compare


def ratios_of(turns):
    """Of turns of four figures each: A, B, B, A; every other turn B, A, A, B."""
    made = compare.Ratios()
    for turn, figures in enumerate(turns):
        ends = (figures[0::3], figures[1:3])
        first, second = ([{"x": each} for each in some] for some in ends)
        made.add(turn, (first, second) if turn % 2 == 0 else (second, first))
    return made


class Arithmetic(unittest.TestCase):
    def test_a_ratio_is_the_geometric_mean_of_all_figures(self):
        self.assertAlmostEqual(compare.ratio_of({"a": 10, "b": 10}, {"a": 40, "b": 10}), 2)
        self.assertAlmostEqual(compare.ratio_of({"a": 10, "b": 10}, {"a": 20, "b": 5}), 1)
        self.assertAlmostEqual(compare.ratio_of({"a": 1}, {"a": 2, "b": 9}), 2)
        for other in ({}, {"b": 1}):
            with self.assertRaises(ValueError):
                compare.ratio_of({"a": 1}, other)

    def test_an_interval_drops_as_many_as_95_percent_allow(self):
        # By tables of the sign test: the first and last value for 6 to 8, the second for 9 to 11.
        for count, dropped in ((1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (18, 4), (30, 9)):
            values = list(range(count))
            wanted = (dropped, count - 1 - dropped)
            self.assertEqual(compare.interval_of(values[::-1]), wanted, count)

    def test_equal_commits_are_equal(self):
        made = ratios_of([(100, 100, 100, 100)] * 9)
        self.assertEqual(made.row(), ["1.000", *["1.000 to 1.000"] * 3, "100.0", "100.0"])
        self.assertEqual(compare.verdict({"warm": made}, 1.02), (["mean 1.000"], False))

    def test_a_slower_commit_is_found_and_a_faster_one_is_not(self):
        slower = ratios_of([(100, 103, 103, 100), (103, 100, 100, 103)] * 4)
        self.assertEqual(slower.row()[:2], ["1.030", "1.030 to 1.030"])
        lines, is_above = compare.verdict({"warm": slower, "cold": slower}, 1.02)
        self.assertEqual(lines, ["mean 1.030", "above 1.02: warm 1.030, cold 1.030"])
        self.assertTrue(is_above)
        self.assertFalse(compare.verdict({"warm": slower}, 1.04)[1])
        faster = ratios_of([(103, 100, 100, 103), (100, 103, 103, 100)] * 4)
        self.assertFalse(compare.verdict({"warm": faster}, 1.02)[1])

    def test_a_machine_that_slows_down_is_no_ratio(self):
        made = ratios_of([[100 * 1.001 ** (4 * i + run) for run in range(4)] for i in range(8)])
        lines, is_above = compare.verdict({"warm": made}, 1.02)
        self.assertEqual((lines, is_above), (["mean 1.000"], False))

    def test_noise_is_shown(self):
        made = ratios_of([(100, 100, 100, 104), (104, 100, 100, 100)] * 4)
        lines, _ = compare.verdict({"live": made}, 1.02)
        self.assertIn("noise: a commit over itself is not within 0.01 of 1: live", lines)


class Figures(unittest.TestCase):
    def test_each_measure_reads_what_its_benchmark_prints(self):
        live = {"live_blocks": [{"count": 10, "random_ns": 2.0, "recent_ns": 1.0}]}
        self.assertEqual(compare.of_live(live), {(10, "random_ns"): 2.0, (10, "recent_ns"): 1.0})
        names = ("one_pool_ns", "without_arenas_ns", "arenas_at_once_ns")
        rows = [{"threads": count, **dict.fromkeys(names, float(count))} for count in (1, 16)]
        self.assertEqual(compare.of_threads({"rows": rows}), dict.fromkeys(names, 16.0))


class WrongUse(unittest.TestCase):
    def test_wrong_words_are_refused(self):
        script = str(compare.ROOT / "benchmarks" / "compare.py")
        for words, text in (
            ([], "required: COMMIT"),
            (["a", "b", "c"], "two commits at most"),
            (["a", "--turns", "0"], "--turns is a whole number from 1 on"),
            (["a", "--turns", "x"], "invalid int value: 'x'"),
            (["a", "--limit", "nan"], "--limit a ratio above 0"),
            (["a", "--only", "warm,hot"], "no measure 'hot'; measures are: warm, created"),
            (["no-such-commit"], "'no-such-commit' is no commit of this tree"),
        ):
            command = [sys.executable, "-B", script, *words]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
