# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: each feature of tests/features.csv, each rule of tests/preload/rules.csv and each row of
docs/misuse.md names places and tests that are there. Method: a place is a path of the tree; a test
is a test of its sources, a path, a program or a CTest test of its CMake files, or a command that
./run takes."""

import csv
import functools
import re
import unittest

import pages  # first: it says where the others lie

# isort: split
import samples_test

ROOT = pages.ROOT
GTEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)")


@functools.cache
def gtest_names():
    """Suite.Name of each test, and Suite.* and Suite/* of each suite."""
    sources = [*(ROOT / "tests").rglob("*.cpp"), *(ROOT / "tests").rglob("*.h")]
    text = "".join(path.read_text() for path in sources)
    tests = {f"{suite}.{name}" for suite, name in GTEST.findall(text)}
    suites = {test.split(".")[0] for test in tests}
    return tests | {f"{suite}.*" for suite in suites} | {f"{suite}/*" for suite in suites}


def missing(test):
    """What is not there, or None."""
    if test in gtest_names() or (ROOT / test).exists():
        return None
    if test.startswith(("./run ", "gpu_tests/")):
        return samples_test.check_command(test)
    name = test.removesuffix(".*").split(".")[-1]  # CTest's names are put together of parts
    python = ROOT / "adapters" / "python" / "tests" / f"test_{name}.py"
    if python.is_file() and test.startswith("python."):
        return None
    return None if name in samples_test.cmake_names() else f"there is no test {test}"


class Planted(unittest.TestCase):
    def test_what_is_not_there(self):
        tests = "Pool.NoSuchTest,NoSuchSuite.*,tests/nowhere,./run nothing,no-such-test"
        for test in tests.split(","):
            self.assertIsNotNone(missing(test), test)

    def test_what_is_there(self):
        for test in "Conformance.MapAPart Hazards.* tests/fake python.sleep docs.site".split():
            self.assertIsNone(missing(test), test)


def rows_of(path):
    with (ROOT / path).open(newline="") as file:
        return list(csv.DictReader(file))


def tests_of(row):
    return [test for test in row["tests"].split("; ") if test]


class Tree(unittest.TestCase):
    def test_each_feature_has_its_place_and_its_tests(self):
        rows = rows_of("tests/features.csv")
        self.assertGreater(len(rows), 50)
        wrong = []
        for row in rows:
            places = [place for place in row["where"].split("; ") if "/" in place]
            self.assertTrue(row["id"] and row["feature"] and (tests_of(row) or row["how"]), row)
            wrong += [f"{row['id']}: {each}" for each in map(missing, tests_of(row)) if each]
            wrong += [f"{row['id']}: no {each}" for each in places if not (ROOT / each).exists()]
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_each_rule_of_the_preload_library_has_its_tests(self):
        rows = rows_of("tests/preload/rules.csv")
        self.assertGreater(len(rows), 20)
        for row in rows:
            self.assertTrue(tests_of(row), row)
            self.assertEqual([each for each in map(missing, tests_of(row)) if each], [], row)

    def test_each_wrong_use_has_its_tests_and_each_test_its_row(self):
        lines = (ROOT / "docs" / "misuse.md").read_text().splitlines()
        rows = [line.rstrip("| ").rsplit("|", 1) for line in lines if line.startswith("|")]
        named = {test for row in rows for test in re.findall(r"`(\w+\.\w+)`", row[-1])}
        self.assertEqual([each for each in map(missing, named) if each], [])
        sources = (path.read_text() for path in (ROOT / "tests" / "misuse").glob("*.cpp"))
        here = {".".join(test) for test in GTEST.findall("".join(sources))}
        self.assertGreater(len(here), 20)
        self.assertEqual(here - named, set())


if __name__ == "__main__":
    unittest.main()
