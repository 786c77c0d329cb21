# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: each bug of tests/mutants, put into a copy of the sources, fails the test that it names.
#
# usage: ./run check mutants [NAME...]
#        ./run check mutants --check
#
# A mutant is a file: a line each for What, Peer (the kind of bug, and an allocator that had it if
# one is known), Test, Filter (GoogleTest's) and Flavour (debug; address, which also compares the
# objects of subtracted pointers; or thread), then blocks of a text and its replacement. A line for
# Assertion has the text of the assertion that ends the test, in its process or in a child of it.
#
#   --- find
#   if (passed(point)) return answer;
#   --- replace
#   return answer;
#
# The text is found anywhere in the sources of the library and its adapters, whatever its blanks and
# line ends, and has to be there exactly once. A replacement of nothing removes it.
#
# For each mutant the test that it names is built and has to fail within 60 seconds, or LIMIT_S. A
# mutant that does not fit, does not build or is not found fails the run; so does a test that fails
# without a mutant. The output of each test is kept in build/mutants/NAME.log. --check verifies,
# without a build, that the files are whole, each text is there once and each filter names a test.
from __future__ import annotations

import dataclasses
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests" / "mutants"
WORK = ROOT / "build" / "mutants"
SCOPE = ("modules", "backends", "adapters")
SUFFIXES = (".cpp", ".cppm", ".c", ".h", ".hpp")
FIELDS = ("What", "Peer", "Test", "Filter", "Flavour")
FLAVOURS = {  # sanitizers, check level, more flags
    "debug": ("", 3, ""),
    "address": ("address,undefined", 3, "-mllvm -asan-detect-invalid-pointer-sub"),
    "thread": ("thread", 2, ""),
}
COUNT_MIN = 92
LIMIT_S = int(os.environ.get("LIMIT_S", "60"))


class Unfit(Exception):
    """A mutant that is not whole or has no place in the sources."""


def dense(text: str) -> str:
    return re.sub(r"\s+", "", text)


@dataclasses.dataclass
class Mutant:
    name: str
    head: dict[str, str]
    blocks: list[tuple[str, str]]  # of a text and its replacement

    @classmethod
    def read(cls, path: pathlib.Path) -> Mutant:
        head, *parts = re.split(r"^--- (find|replace)$", path.read_text(), flags=re.MULTILINE)
        fields = dict(re.findall(r"^(\w+): *(\S.*)$", head, flags=re.MULTILINE))
        if missing := [each for each in FIELDS if each not in fields]:
            raise Unfit(f"the head has no {missing[0]}")
        if fields["Flavour"] not in FLAVOURS:
            raise Unfit(f"there is no flavour '{fields['Flavour']}': {', '.join(FLAVOURS)}")
        texts = [each.strip() for each in parts[1::2]]
        if not parts or parts[0::2] != ["find", "replace"] * (len(texts) // 2):
            raise Unfit("a find is not followed by its replace")
        blocks = list(zip(texts[0::2], texts[1::2]))
        if any(dense(find) in ("", dense(replacement)) for find, replacement in blocks):
            raise Unfit("a block finds nothing or changes nothing")
        return cls(path.stem, fields, blocks)


class Sources:
    """The text of each file of the scope, in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.text = {
            path.relative_to(folder): path.read_text()
            for top in SCOPE
            for path in sorted((folder / top).rglob("*"))
            if path.suffix in SUFFIXES
        }
        self.dense = {path: dense(text) for path, text in self.text.items()}

    def has_check(self, text: str) -> bool:
        return any(dense(text) in each.replace('""', "") for each in self.dense.values())

    def place_of(self, find: str) -> tuple[pathlib.Path, int, int]:
        """The file, and where the text begins and ends in it."""
        wanted = dense(find)
        found = [(path, text.count(wanted)) for path, text in self.dense.items() if wanted in text]
        line = find.splitlines()[0]
        if not found:
            raise Unfit(f"'{line}' is nowhere in the sources")
        if sum(count for _, count in found) > 1:
            raise Unfit(f"'{line}' is in the sources more than once: {found[0][0]}, {found[-1][0]}")
        path = found[0][0]
        at = self.dense[path].index(wanted)
        kept = [i for i, letter in enumerate(self.text[path]) if not letter.isspace()]
        return path, kept[at], kept[at + len(wanted) - 1] + 1

    def mutate(self, mutant: Mutant) -> dict[pathlib.Path, str]:
        """The files that it changes, with their new text."""
        changed: dict[pathlib.Path, str] = {}
        places = [(*self.place_of(find), replacement) for find, replacement in mutant.blocks]
        for path, begin, end, replacement in sorted(places, reverse=True, key=lambda each: each[1]):
            text = changed.get(path, self.text[path])
            changed[path] = text[:begin] + replacement + text[end:]
        return changed


def die(why: str, code: int = 1) -> NoReturn:
    print(f"mutants: {why}", file=sys.stderr)
    sys.exit(code)


def chosen(words: list[str]) -> list[pathlib.Path]:
    paths = sorted(MUTANTS.glob("*.mutant"))
    for word in words:
        if not any(word in path.stem for path in paths):
            die(f"there is no mutant '{word}'", 2)
    return [path for path in paths if not words or any(word in path.stem for word in words)]


def test_names() -> set[str]:
    """SUITE.NAME of each GoogleTest in tests; of a TEST_P, ANY/SUITE.NAME, as GoogleTest has it."""
    text = "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.[ch]pp")))
    tests = re.findall(r"^(?:TYPED_)?TEST(\w*)\(\s*(\w+),\s*(\w+)", text, re.MULTILINE)
    return {("any/" if kind == "_P" else "") + f"{suite}.{name}" for kind, suite, name in tests}


def read_all(paths: list[pathlib.Path], sources: Sources) -> list[Mutant]:
    """All of them; ends the program where one does not fit."""
    mutants: list[Mutant] = []
    names = test_names()
    bad = 0
    for path in paths:
        try:
            mutants.append(Mutant.read(path))
            filters = mutants[-1].head["Filter"].split(":")
            if unknown := [each for each in filters if not fnmatch.filter(names, each)]:
                raise Unfit(f"no test is named '{unknown[0]}'")
            if not sources.has_check(mutants[-1].head.get("Assertion", "")):
                raise Unfit("no check of the sources has the text of its assertion")
            sources.mutate(mutants[-1])
        except Unfit as why:
            print(f"{path.name}: {why}", file=sys.stderr)
            bad += 1
    if bad:
        die(f"{bad} of {len(paths)} mutants do not fit")
    return mutants


# ---- builds and tests --------------------------------------------------------------------------


def copy_sources() -> pathlib.Path:
    """Copies what differs, so that little is built, and deletes what is gone."""
    source = WORK / "src"
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True
    )
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    kept = {each for each in names if not re.match("traces/|fuzz/corpus/|build/", each)}
    for name in kept:
        origin, copy = ROOT / name, source / name
        if not origin.is_file() or (copy.exists() and copy.read_bytes() == origin.read_bytes()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(origin, copy)
    for copy in source.rglob("*"):
        if copy.is_file() and str(copy.relative_to(source)) not in kept:
            copy.unlink()
    return source


def configure(flavour: str) -> None:
    folder = WORK / flavour
    if (folder / "build.ninja").exists():
        return
    sanitizers, level, more = FLAVOURS[flavour]
    # Without warnings: a mutant may be bad code. Tests of threads need the schedule points.
    options = "CMAKE_CXX_COMPILER=clang++-19 CMAKE_BUILD_TYPE=Debug CMAKE_CXX_FLAGS_DEBUG=-O0 "
    options += "VMM_BUILD_TOOLS=OFF VMM_INSTALL=OFF VMM_SCHEDULE_POINTS=ON "
    options += f"VMM_CHECK_LEVEL={level} VMM_SANITIZE={sanitizers}"
    command: list[str | pathlib.Path] = ["cmake", "-G", "Ninja", "-S", WORK / "src", "-B", folder]
    command += [f"-D{each}" for each in (f"CMAKE_CXX_FLAGS=-w {more}", *options.split())]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        die(f"cmake could not configure the copy:\n{done.stdout[-2000:]}")


def build(flavour: str, targets: list[str]) -> str:
    """What failed, or nothing."""
    jobs = ["-j", os.environ["JOBS"]] if os.environ.get("JOBS") else []
    command: list[str | pathlib.Path] = ["ninja", "-C", WORK / flavour, *jobs, *targets]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout[-2000:] if done.returncode != 0 else ""


def run_test(head: dict[str, str], log: pathlib.Path) -> int | None:
    """Its exit status; none where it ran out of time."""
    folder = WORK / head["Flavour"] / "tests"
    programs = [each for each in folder.rglob(head["Test"]) if each.is_file()]
    programs = [each for each in programs if os.access(each, os.X_OK)]
    if not programs:
        die(f"there is no test program {head['Test']}")
    options = os.environ.get("ASAN_OPTIONS", "")
    environment = dict(os.environ)
    environment["ASAN_OPTIONS"] = f"{options}:detect_invalid_pointer_pairs=2".lstrip(":")
    command = [str(programs[0]), "--gtest_brief=1", "--gtest_fail_fast"]
    command.append(f"--gtest_filter={head['Filter']}")
    with open(log, "w", encoding="utf-8") as out:
        try:
            return subprocess.run(
                command, stdout=out, stderr=out, env=environment, timeout=LIMIT_S
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def see_clean(mutants: list[Mutant]) -> None:
    """Builds everything that this run needs; each test passes without a mutant."""
    for flavour in FLAVOURS:
        targets = sorted({m.head["Test"] for m in mutants if m.head["Flavour"] == flavour})
        if not targets:
            continue
        configure(flavour)
        if failure := build(flavour, targets):
            die(f"the copy does not build:\n{failure}")
    log = WORK / "clean.log"
    seen = set()
    for head in (each.head for each in mutants):
        run = tuple(head[each] for each in ("Test", "Filter", "Flavour"))
        if run in seen:
            continue
        seen.add(run)
        if run_test(head, log) != 0:
            print(log.read_text()[-2000:], file=sys.stderr)
            die(f"{' '.join(run)} fails or takes {LIMIT_S} s without a mutant")


def outcome_of(mutant: Mutant, sources: Sources) -> str:
    changed = sources.mutate(mutant)
    for path, text in changed.items():
        (sources.folder / path).write_text(text)
    try:
        if failure := build(mutant.head["Flavour"], [mutant.head["Test"]]):
            print(failure, file=sys.stderr)
            return "does not build"
        log = WORK / f"{mutant.name}.log"
        code = run_test(mutant.head, log)
    finally:
        for path in changed:
            (sources.folder / path).write_text(sources.text[path])
    if code is None:
        return "NOT FOUND in time"
    if mutant.head.get("Assertion", "") not in log.read_text(errors="replace"):
        return "NOT ASSERTED"
    return "found" if code != 0 else "NOT FOUND"


def main(words: list[str]) -> int:
    if words == ["--check"]:
        paths = chosen([])
        if len(paths) < COUNT_MIN:
            die(f"{len(paths)} mutants; there are to be {COUNT_MIN}")
        print(f"{len(read_all(paths, Sources(ROOT)))} mutants, each has its place")
        return 0
    paths = chosen(words)
    sources = Sources(copy_sources())
    mutants = read_all(paths, sources)
    see_clean(mutants)
    missed = 0
    print(f"{'mutant':32} {'test':24} {'outcome':18}   s  what", flush=True)
    for mutant in mutants:
        begin = time.monotonic()
        outcome = outcome_of(mutant, sources)
        missed += outcome != "found"
        print(
            f"{mutant.name:32} {mutant.head['Test']:24} {outcome:18} "
            f"{time.monotonic() - begin:3.0f}  {mutant.head['What']}",
            flush=True,
        )
    print(f"{len(mutants)} mutants, {len(mutants) - missed} found, {missed} not")
    return int(missed != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
