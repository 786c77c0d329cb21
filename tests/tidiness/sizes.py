# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# What the tree may have at most, or must have at least: measures that only get better.
from __future__ import annotations

import collections
import itertools

from cpp import Classes, Source, Unit, using_declarations
from rules import Files, count_double_checks, is_library, read, read_invariants

FUNCTIONS_MAX = 25  # of a class without a row
FILES_MAX = 2  # with bodies of such a class
MORE_IS_BETTER = "functions that declare the locks they require"
WORDS = "thousands of words in docs"
CODE_LINES = "thousands of code lines in tests, tools, benchmarks and fuzz"
# They change with every sentence and test: no row is taken anew for less of them.
MAY_LAG = (WORDS, CODE_LINES)
MEASURED_FOLDERS = ("benchmarks", "fuzz", "gpu_tests", "packaging", "tests", "tools")
CODE = ("c", "cmake", "cpp", "cppm", "cu", "cuh", "h", "hpp", "html", "js", "py", "sh")


def is_measured(path: str) -> bool:
    """What tests, measures or runs the library; not the tests of the Python package."""
    if path == "run" or not path.startswith(tuple(f"{each}/" for each in MEASURED_FOLDERS)):
        return path == "run"
    name = path.split("/")[-1]
    is_code = name == "CMakeLists.txt" or ("." in name and name.split(".")[-1] in CODE)
    return is_code and not path.startswith("gpu_tests/python/")


def code_lines_in(path: str, text: str) -> int:
    """Lines that are neither empty nor a comment as a whole."""
    has_hash = path == "run" or path.endswith((".txt", ".cmake", ".py", ".sh"))
    lines = (line.lstrip(" \t") for line in text.split("\n"))
    return sum(bool(line) and not line.startswith("#" if has_hash else "//") for line in lines)


def classes_with_bodies(source: Source, known: dict[str, int]) -> set[str]:
    """The classes that the bodies of a file belong to: NAME::MEMBER( ... ) ... {"""
    found, text = set(), source.text
    for at in range(3, len(source.words) - 1):
        name = text(at - 3)
        if text(at) != "(" or text(at - 2) != "::" or name not in known:
            continue
        depth, end = 0, at
        while end < len(source.words):
            depth += (text(end) == "(") - (text(end) == ")")
            if depth == 0:
                break
            end += 1
        while text(end + 1) not in ("{", ";", ")", ",", "?", ""):
            end += 1
        if text(end + 1) == "{":
            found.add(f"{text(at - 5)}::{name}" if text(at - 4) == "::" else name)
    return found


def sizes_of(files: Files) -> dict[str, int]:
    """Every measure of the tree, in the order of the table. Classes of at most 25 functions, and
    those whose bodies lie in at most two files, have no row."""
    library = {path: text for path, text in files.items() if is_library(path)}
    functions: dict[str, int] = {}  # of a class; of two with one name, the larger
    tokens: collections.Counter[str] = collections.Counter()
    modules, states, doubles = set(), 0, 0
    for path, text in library.items():
        source = read(text)
        tokens.update(source.words)
        states += sum(
            source.words[at : at + 3] == ["state_", ".", "with"]
            for at in range(len(source.words))
            if source.words[at] == "state_"
        )
        doubles += count_double_checks(source)
        if path.endswith(".cppm"):
            modules.add(Unit(source).module.split(":")[0])
        for name, count in Classes(source).counts.items():
            functions[name] = max(functions.get(name, 0), count)
    bodies = collections.Counter(
        itertools.chain.from_iterable(
            classes_with_bodies(read(text), functions) for text in library.values()
        )
    )
    rows = {f"functions of {k}": functions[k] for k in sorted(functions)}
    rows = {name: count for name, count in rows.items() if count > FUNCTIONS_MAX}
    for name in sorted(bodies):
        if bodies[name] > FILES_MAX:
            rows[f"files with bodies of {name}"] = bodies[name]
    pages = (x for path, x in files.items() if path.startswith("docs/") and path.endswith(".md"))
    words = sum(len(text.encode().split()) for text in pages)
    code_lines = sum(code_lines_in(path, text) for path, text in files.items() if is_measured(path))
    rows["opt-outs of the lock analysis"] = tokens["VMM_NOT_ANALYSED"]
    rows[MORE_IS_BETTER] = tokens["VMM_REQUIRES"]
    rows["sites of state_.with"] = states
    rows["checks of two conditions"] = doubles
    rows["invariants that no check names"] = list(read_invariants(files)[0].values()).count(False)
    rows["modules"] = len(modules)
    rows["names of import vmm"] = len(using_declarations(read(files.get("modules/vmm.cppm", ""))))
    rows[WORDS] = -(-words // 1000)
    rows[CODE_LINES] = -(-code_lines // 1000)
    return rows


def read_table(text: str) -> dict[str, int]:
    """The rows of a table: `VALUE NAME`, lines that begin with # left out."""
    rows = (line.split(" ", 1) for line in text.split("\n") if line and not line.startswith("#"))
    return {name: int(value) for value, name in rows}


def compare_sizes(now: dict[str, int], table: dict[str, int]) -> list[str]:
    """What is worse than the table, or better and not in it."""
    found = []
    for name, value in now.items():
        if name not in table:
            found.append(f"{name}: {value}, which is more than is allowed without a row")
            continue
        was = f"{name}: {value}, and the table has {table[name]}"
        if value < table[name] if name == MORE_IS_BETTER else value > table[name]:
            found.append(f"{was}: worse; a commit that takes it up says why")
        elif value != table[name] and name not in MAY_LAG:
            found.append(f"{was}: better; ./run check size --update takes it down")
    gone = [each for each in table if each not in now]
    return found + [f"{each} needs no row any more: ./run check size --update" for each in gone]
