# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: clang-format, ruff, mypy, shellcheck and clang-tidy find nothing; --fix formats
# Method: the first four, in the versions of lint.txt beside this file, read every file that git
# lists, which takes ten seconds. clang-tidy reads the sources of the library as build/dev compiles
# them. --sources leaves it out. --changed runs nothing else, over the sources that differ from the
# branch that this one follows or, if none does, from the commit before.
from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from _packages import KEPT, ROOT, pip, skip
from _wheels import python

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lint.txt")
CXX = (".c", ".cpp", ".cppm", ".cu", ".cuh", ".h", ".hpp", ".inc")
DATABASE = os.path.join(ROOT, "build", "dev", "compile_commands.json")
TIDY = os.path.join(KEPT, "tidy")
PARTS = ("CMakeFiles/vmm.dir/", "c/", "preload/")
JOINED = re.compile(r'#(?:line (\d+)|include) "(/.*\.cpp|modules/.*\.cppm)"')


def run(*command: str) -> tuple[int, str]:
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def git(*words: str) -> list[str]:
    code, said = run("git", *words)
    return said.splitlines() if code == 0 else []


def tools() -> str:
    """The folder of the tools' programs."""
    interpreter = python("lint")
    wanted = pathlib.Path(TOOLS).read_text()
    mark = pathlib.Path(KEPT, "lint", "installed.txt")
    if not mark.exists() or mark.read_text() != wanted:
        pip("install", "--quiet", "--only-binary=:all:", "--requirement", TOOLS, python=interpreter)
        mark.write_text(wanted)
    return os.path.dirname(interpreter)


def commands(folder: str, fix: bool) -> Iterator[tuple[str, ...]]:
    listed = git("ls-files", "--cached", "--others", "--exclude-standard") or skip("no git")
    present = [each for each in listed if os.path.exists(os.path.join(ROOT, each))]
    shells = [each for each in present if each.endswith(".sh") or each in ("run", ".ci/run")]
    tool = {each: os.path.join(folder, each) for each in ("clang-format", "ruff", "mypy")}
    how = ("-i",) if fix else ("--dry-run", "--Werror")
    yield (tool["clang-format"], *how, *(each for each in present if each.endswith(CXX)))
    yield (tool["ruff"], "check", "--quiet", *(("--fix",) if fix else ()), ".")
    yield (tool["ruff"], "format", "--quiet", *(() if fix else ("--check",)), ".")
    yield (tool["mypy"], "--no-error-summary")
    yield (tool["mypy"], "--no-error-summary", "tests/check")
    yield (os.path.join(folder, "shellcheck"), "--format=gcc", *shells)


def changed() -> set[str]:
    head, base = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "@{upstream}")
    if base == head and not git("status", "--porcelain"):
        base = git("rev-parse", "HEAD~1")
    there = git("diff", "--name-only", *(base or head))
    there += git("ls-files", "--others", "--exclude-standard")
    return {os.path.join(ROOT, each) for each in there}


def sources_in(file: str) -> list[tuple[int, int, str]]:
    """(line, line there, path) of each source in a file that build/dev has joined of several."""
    with open(file, encoding="utf-8") as text:
        marks = ((at, JOINED.match(line)) for at, line in enumerate(text, 2))
        return [(at, int(mark[1] or 1), os.path.join(ROOT, mark[2])) for at, mark in marks if mark]


def units(only: set[str] | None) -> list[str]:
    """The files of the library's units, those with a source of `only` where it is given."""
    with open(DATABASE, encoding="utf-8") as file:
        entries = [each for each in json.load(file) if each["output"].startswith(PARTS)]
    os.makedirs(TIDY, exist_ok=True)  # a source that other targets compile, too, is read once
    with open(os.path.join(TIDY, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file)
    files = [each["file"] for each in entries]
    return [
        each
        for each in files
        if only is None or not only.isdisjoint({each, *(path for _, _, path in sources_in(each))})
    ]


def tidy(file: str) -> tuple[int, str]:
    """What clang-tidy finds in a unit, at the lines of the sources themselves."""
    code, said = run("clang-tidy-19", "--quiet", "-p", TIDY, file)
    marks = sources_in(file)

    def place(found: re.Match[str]) -> str:
        line = int(found[1])
        at, there, path = max(each for each in marks if each[0] <= line)
        return f"{path}:{there + line - at}:"

    return code, re.sub(re.escape(file) + r":(\d+):", place, said) if marks else said


def main(words: list[str]) -> int:
    if set(words) - {"--fix", "--changed", "--sources"}:
        print("usage: ./run check lint [--fix] [--changed | --sources]", file=sys.stderr)
        return 2
    outcomes = []
    if "--changed" not in words:
        outcomes = [run(*each) for each in commands(tools(), "--fix" in words)]
    if "--sources" in words:
        pass
    elif not os.path.exists(DATABASE):
        print("clang-tidy reads nothing: ./run test --preset dev builds what it needs")
    else:
        chosen = units(changed() if "--changed" in words else None)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes += pool.map(tidy, chosen)
    wrong = [said.strip() for code, said in outcomes if code != 0]
    print("\n".join(wrong) or "nothing found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
