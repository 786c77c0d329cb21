#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of a page of measurements as CSV files for docs/results/data.

usage: benchmarks/results.py [--out FOLDER] PAGE...

Each table of a Markdown page, as gpu_tests/gpu.sh and the benchmarks write it, becomes
FOLDER/NAME.csv (default: beside the page). NAME is the page's name and, where the page has several
tables, the heading above the table. Tables with the same columns under one heading become one
file. The first line of a file says what made it:

    # command: ./run bench resize; 2026-11-23, NVIDIA H200, driver 580.159.04, commit 0ac75f5

The rest are the table's cells without Markdown. Cells "1.02 @ 9.0 (9.2)" and "0.94 (0.81 to 1.21)"
become columns. Two tables that would have one name get a number behind it.
"""

import csv
import dataclasses
import io
import pathlib
import re
import sys

NUMBER = r"-?[\d.]+"
# Cells of several figures, and what is appended to the column's name for each of them.
COMPOSITES = (
    (re.compile(rf"({NUMBER}) @ ({NUMBER}) \(({NUMBER})\)"), ("", ": ms", ": ms with unmaps")),
    (re.compile(rf"({NUMBER}) @ ({NUMBER})"), ("", ": ms")),
    (re.compile(rf"({NUMBER}) \(({NUMBER}) to ({NUMBER})\)"), ("", ": lowest", ": highest")),
)
MADE = re.compile(r"# command: (?P<command>.+); (?P<day>\d{4}-\d\d-\d\d), (?P<machine>.+)")


@dataclasses.dataclass
class Table:
    line: int  # of its columns, from 0 on
    heading: str
    columns: list[str]
    rows: list[list[str]]


def plain(cell: str) -> str:
    """A cell without Markdown, and numbers without separators."""
    cell = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell.replace("**", "").replace("`", "")).strip()
    cell = re.sub(r"(?<![\d.])(\d{1,3}(?:,\d{3})+)(?![\d])", lambda n: n[1].replace(",", ""), cell)
    return cell.replace("\u2212", "-")


def cells_of(line: str) -> list[str]:
    return [plain(cell) for cell in line.strip().strip("|").split("|")]


def tables_of(text: str) -> list[Table]:
    """The tables of a page in order."""
    tables, heading, lines = [], "", text.split("\n")
    for at, line in enumerate(lines):
        if found := re.match(r"#{1,6} (.+)", line):
            heading = found[1]
        if re.match(r"\|[ :|-]+\|$", line) and at and lines[at - 1].startswith("|"):
            table = Table(at - 1, heading, cells_of(lines[at - 1]), [])
            for row in lines[at + 1 :]:
                if not row.startswith("|"):
                    break
                table.rows.append(cells_of(row))
            tables.append(table)
    return tables


def split(table: Table) -> Table:
    """The table with a column for each figure of a cell."""
    columns: list[str] = []
    rows: list[list[str]] = [[] for _ in table.rows]
    for at, name in enumerate(table.columns):
        cells = [row[at] for row in table.rows]
        some = [cell for cell in cells if cell]
        fitting = (of for of in COMPOSITES if some and all(of[0].fullmatch(cell) for cell in some))
        pattern, ends = next(fitting, (re.compile(r"(.*)"), ("",)))
        columns += [name + end for end in ends]
        for row, cell in zip(rows, cells):
            found = pattern.fullmatch(cell) if cell else None
            row += found.groups() if found else [""] * len(ends)
    return Table(table.line, table.heading, columns, rows)


def csv_of(table: Table, made: str) -> str:
    """The text of a file."""
    text = io.StringIO()
    text.write(f"# {made}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return text.getvalue()


def made_by(text: str, line: int) -> str:
    """The first line of a table's file: the command behind the table, or the page's last one, and
    the day before it, or the page's first one."""
    commands, days = [], []
    for at, said in enumerate(text.split("\n")):
        if found := re.fullmatch(r"Command: `?([^`]+?)`?[.,]?(?:, .*)?", said):
            commands.append((at, found[1]))
        if found := re.fullmatch(r"(\d{4}-\d\d-\d\d, .+?)\.?", said):
            days.append((at, found[1]))
    if not commands or not days:
        raise ValueError("the page says no day and machine, or no command")
    command = next((said for at, said in commands if at > line), commands[-1][1])
    day = next((said for at, said in reversed(days) if at < line), days[0][1])
    return f"command: {command}; {day}"


def write(page: pathlib.Path, out: pathlib.Path) -> list[pathlib.Path]:
    """Writes the tables of a page, and returns the files."""
    text = page.read_text()
    files: dict[str, Table] = {}
    for table in tables_of(text):
        last = list(files)[-1] if files else None
        if last and files[last].columns == table.columns and files[last].heading == table.heading:
            files[last].rows += table.rows
            continue
        slug = re.sub(r"[^a-z0-9]+", "-", table.heading.lower()).strip("-")
        name = f"{page.stem}-{slug}" if files else page.stem
        while name in files:
            name = re.sub(r"(-\d+)?$", lambda end: f"-{int(end[0][1:] or 1) + 1}", name, count=1)
        files[name] = table
    written = []
    for name, table in files.items():
        written.append(out / f"{name}.csv")
        written[-1].write_text(csv_of(split(table), made_by(text, table.line)))
    return written


def main(words: list[str]) -> int:
    out = None
    if words[:1] == ["--out"] and len(words) > 1:
        out, words = pathlib.Path(words[1]), words[2:]
    if not words or words[0].startswith("-"):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    code = 0
    for word in words:
        page = pathlib.Path(word)
        try:
            for path in write(page, out or page.parent):
                print(path)
        except (OSError, ValueError) as error:
            print(f"{page}: {error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
