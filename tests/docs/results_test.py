# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: each file of figures says what made it and has whole rows; benchmarks/results.py writes
such a file from a page's tables without changing a figure; a decision keeps its shape and its
length. Method: benchmarks/results.py over planted pages, then docs/results/data and
docs/decisions."""

import csv
import pathlib
import re
import sys
import tempfile
import unittest

import pages  # first: it says where the tree lies

sys.path.insert(0, str(pages.ROOT / "benchmarks"))
import results

DATA = pages.ROOT / "docs" / "results" / "data"
DECISION_WORDS = 400
RESULTS_WORDS = 10000

PAGE = """# Doubling a buffer

2026-11-23, NVIDIA H200, driver 580.159.04, commit 0ac75f5.

| from, to | copy, us | `vmm` |
| --- | ---: | --- |
| 1 GiB, 2 GiB | 42,648 | **342** |

## Ratios

| program | held | over own |
| --- | --- | --- |
| a | 1.02 @ 9.0 (9.2) | 0.94 (0.81 to 1.21) |
| b |  | [1.00](x.md) (0.9 to 1.1) |

Command: `./run bench resize`.
"""


class Planted(unittest.TestCase):
    def written(self, text):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "resize.md"
            page.write_text(text)
            return {
                path.name: path.read_text() for path in results.write(page, pathlib.Path(folder))
            }

    def test_each_table_is_a_file(self):
        made = "# command: ./run bench resize; 2026-11-23, NVIDIA H200, driver 580.159.04, "
        made += "commit 0ac75f5\n"
        self.assertEqual(
            self.written(PAGE),
            {
                "resize.csv": made + '"from, to","copy, us",vmm\n"1 GiB, 2 GiB",42648,342\n',
                "resize-ratios.csv": made + "program,held,held: ms,held: ms with unmaps,over own,"
                "over own: lowest,over own: highest\n"
                "a,1.02,9.0,9.2,0.94,0.81,1.21\nb,,,,1.00,0.9,1.1\n",
            },
        )

    def test_tables_of_the_same_columns_are_one_file(self):
        table = "| a | b |\n| --- | --- |\n| {} | 2 |\n\n"
        text = PAGE.split("|")[0] + table.format(1) + table.format(3) + "Command: `x`.\n"
        lines = self.written(text)["resize.csv"].split("\n")
        self.assertEqual(lines[1:], ["a,b", "1,2", "3,2", ""])

    def test_a_page_that_does_not_say_what_made_it(self):
        for text in (PAGE.replace("Command", "Order"), PAGE.replace("2026-11-23, ", "")):
            with self.assertRaisesRegex(ValueError, "says no day and machine, or no command"):
                self.written(text)


class Tree(unittest.TestCase):
    def test_each_file_says_what_made_it_and_has_whole_rows(self):
        files = sorted(DATA.glob("*.csv"))
        self.assertTrue(files)
        for path in files:
            with path.open(newline="") as file:
                made = file.readline().rstrip("\n")
                rows = list(csv.reader(file))
            self.assertRegex(made, results.MADE, path.name)
            self.assertGreater(len(rows), 1, path.name)
            self.assertEqual({len(row) for row in rows}, {len(rows[0])}, path.name)

    def test_each_file_is_named_by_a_page_and_the_pages_are_short(self):
        folder = pages.ROOT / "docs"
        text = {path: path.read_text() for path in folder.rglob("*.md")}
        named = {name for each in text.values() for name in re.findall(r"data/([\w-]+\.csv)", each)}
        self.assertEqual({path.name for path in DATA.glob("*.csv")} - named, set())
        words = sum(len(each.split()) for path, each in text.items() if path.parent == DATA.parent)
        self.assertLessEqual(words, RESULTS_WORDS)

    def test_the_figures_of_the_pool_are_those_of_the_file(self):
        with (DATA / "pool-h100.csv").open(newline="") as file:
            file.readline()
            rows = {(row["trace"], row["allocator"]): row for row in csv.DictReader(file)}
        torch = ("PyTorch caching", "PyTorch expandable segments")
        allocators = ("vmm, pool", "cuMemAllocAsync", *torch)
        for page in ("README.md", "docs/results/pool.md"):
            tables = results.tables_of((pages.ROOT / page).read_text())
            table = next(each for each in tables if each.columns[0] == "program")
            self.assertEqual(len(table.rows), 6, page)
            for row in table.rows:
                cells = [cell for cell in row[1:] if "," in cell]
                for allocator, cell in zip(allocators, cells):
                    found = rows[row[0], allocator]
                    said = (round(float(found["warm ns"])), float(found["peak by live"]))
                    time, held = cell.replace(" ns", "").split(", ")
                    self.assertEqual((int(time), float(held)), said, f"{page}: {row[0]}")

    def test_a_decision_is_short_and_says_what_it_costs(self):
        for path in sorted((pages.ROOT / "docs" / "decisions").glob("*.md")):
            text = path.read_text()
            self.assertLessEqual(len(text.split()), DECISION_WORDS, path.name)
            self.assertRegex(text, rf"^# {path.name[:4]}: ", path.name)
            parts = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
            self.assertEqual(parts, ["Context", "Options", "Decision", "Consequences"], path.name)
            costs = re.findall(r"^- ", text.split("## Consequences")[1], flags=re.MULTILINE)
            self.assertEqual(len(costs), 3, path.name)


if __name__ == "__main__":
    unittest.main()
