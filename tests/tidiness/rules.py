# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# The rules of this tree that a program can check: of files, layers, names, checks and public calls.
# CONTRIBUTING.md gives them and their reasons.
from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

from cpp import PublicCalls, Source, Unit, exported_names, functions_of, using_declarations

COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

SOURCES = (".cpp", ".cppm", ".hpp", ".h", ".cu", ".cuh", ".inc")
SCRIPTS = ("/run", ".sh", ".cmake", ".cmake.in", "CMakeLists.txt", ".py")
CORE = ("modules/", "backends/")
INSTALLED = (*CORE, "adapters/preload/", "adapters/c/")
LIBRARY = (*CORE, "adapters/preload/", "adapters/c/src/")
WITH_INVARIANTS = (*LIBRARY, "adapters/python/src/", "gpu_tests/", "tools/")
# In pieces, so that this file has no reminders and no address itself.
REMINDERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
ADDRESSES = ("http:" + "//", "https:" + "//", "ftp:" + "//", "git" + "@")
OF_MACROS = ("cerrno", "cinttypes", "climits", "cstdarg", "cstdio")

# A layer imports only layers with a smaller rank. Drivers stand beside the column: they import the
# vocabulary and what supports it, and only the registry and the umbrella import them.
VOCABULARY, REGISTRY = 2, 10
RANKS = {
    0: "vmm.std",
    1: "vmm.base",
    VOCABULARY: "vmm.backend",
    3: "vmm.observe vmm.fake vmm.host vmm.cuda vmm.level_zero",
    4: "vmm.timeline",
    5: "vmm.va vmm.physical",
    6: "vmm.tracker",
    7: "vmm.optimizer",
    8: "vmm.manager vmm.stream",
    9: "vmm.containers vmm.share vmm.market vmm.multi_device vmm.suspend",
    REGISTRY: "vmm.registry vmm.testing",
    11: "vmm",
    # Modules of the tools are not installed.
    12: "vmm.trace vmm.trace_generator vmm.fidelity vmm.top_tools vmm.kernels",
    13: "vmm.recording vmm.replay",
    14: "vmm.history_tools vmm.fit",
}
LAYERS = {module: rank for rank, modules in RANKS.items() for module in modules.split()}
DRIVERS = ("vmm.fake", "vmm.host", "vmm.cuda", "vmm.level_zero")
# allocate(bytes, alignment, stream) and its like are what std::pmr and the allocators of the field
# have; round_up(value, unit) is arithmetic.
FIELD_CALLS = ("allocate", "deallocate", "do_allocate", "do_deallocate", "round_up")
# The machinery, which `import vmm;` does not bring, explains itself in the heads of its files.
MACHINERY = ("modules/backend/forwarding", "modules/backend/intrusive", "modules/base/")
MACHINERY += ("modules/optimizer/", "modules/timeline/", "modules/market/")

Files = dict[str, str]  # the text of each path


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


@functools.cache
def read(text: str) -> Source:
    return Source(text)


def is_library(path: str) -> bool:
    return path.startswith(LIBRARY) and path.endswith((".cpp", ".cppm", ".hpp", ".h"))


def is_interface(path: str) -> bool:
    return path.startswith(CORE) and path.endswith(".cppm")


def has_word(line: str, word: str) -> bool:
    return word in line and re.search(rf"(?<!\w){word}(?!\w)", line, re.ASCII) is not None


# ---- one file ------------------------------------------------------------------------------------


def check_file(path: str, text: str) -> list[Finding]:
    """Every rule that one file can break."""
    is_source = path.endswith(SOURCES)
    is_script = path == "run" or path.endswith(SCRIPTS)
    found = []
    if is_source or is_script:
        first = text.find("SPDX-FileCopyrightText: ")
        if not 0 <= first < text.find("SPDX-License-Identifier: Apache-2.0") <= 250:
            found.append(Finding(path, 1, "spdx", "begin the file with the two SPDX lines"))
    if is_source or is_script or path.endswith(".md"):
        for number, line in enumerate(text.split("\n"), 1):
            for rule, what in check_line(path, line, is_source, is_script):
                found.append(Finding(path, number, rule, what))
    if is_source:
        found += [Finding(path, *each) for each in check_source(path, read(text))]
    return found


def check_line(path: str, line: str, is_source: bool, is_script: bool):
    if (is_source or is_script) and len(line) > COLUMNS_MAX:
        yield "width", f"{len(line)} columns; the limit is {COLUMNS_MAX}"
    for word in REMINDERS:
        if has_word(line, word):
            yield "reminder", "do it or file an issue; no reminders stay"
    # A program with more rights than its caller must not obey its caller's variables.
    is_harmless = 'getenv("TERM")' in line
    if is_source and "getenv(" in line and has_word(line, "getenv") and not is_harmless:
        if path.startswith((*INSTALLED, "tools/")) and path != "modules/backend/environment.cpp":
            yield "variable", "read it by environment_text, which is null in a set-uid program"
    if is_script:
        for mark in ADDRESSES:
            if mark in line:
                yield "address", "scripts name no web address; the package manager has its own"


def check_source(path: str, source: Source):
    unit = Unit(source)
    yield from check_layers(unit)
    # Clang and GCC both read a header wrongly after an import; see docs/decisions.
    for text, line in source.directives if unit.imports else []:
        if line > unit.imports[0][1] and "include" in text:
            yield line, "order", "includes come before imports"
    if unit.module != "vmm.std":
        yield from check_headers(path, source, unit)
        for line in unit.export_blocks:
            yield line, "export", "say export on each declaration, not on a block"
    functions = functions_of(source)
    if functions is None:
        yield 1, "braces", "the braces do not pair, so the functions cannot be measured"
    for first, last in functions or []:
        if last - first + 1 > FUNCTION_LINES_MAX:
            lines = f"a function of {last - first + 1} lines"
            yield first, "length", f"{lines}; the limit is {FUNCTION_LINES_MAX}"


def may_import(importer: str, imported: str) -> bool:
    if importer in DRIVERS:
        return LAYERS[imported] <= VOCABULARY
    if imported in DRIVERS:
        return LAYERS[importer] >= REGISTRY
    return LAYERS[imported] < LAYERS[importer]


def check_layers(unit: Unit):
    own = unit.module.split(":")[0]
    if own and own not in LAYERS:
        yield 1, "layer", f"{own} has no place in the layers of tests/tidiness/rules.py"
        return
    for module, line in unit.imports:
        other = module.split(":")[0]
        if module.startswith(":"):
            continue
        if other not in LAYERS:
            yield line, "layer", f"import {module}: not a module of this library"
        elif own and own != other and not may_import(own, other):
            yield line, "layer", f"{unit.module} must not import {module}, which is not below it"


def check_headers(path: str, source: Source, unit: Unit):
    """An importer of an interface compiles it: it must need nothing but the standard library. And
    that comes to every unit of the library from one module: docs/decisions/0012."""
    for text, line in source.directives:
        found = re.search(r'include.*?([<"])([^>"]*)[>"]', text)
        if not found:
            continue
        sign, name = found.groups()
        if name in ("cuda.h", "cudaTypedefs.h") and not path.endswith(".cu"):
            yield line, "header", "the CUDA driver is declared in backends/cuda/abi.h"
            continue
        if not unit.module or name.endswith("thread_annotations.h"):
            continue  # attributes are installed with the units
        foreign = sign == '"' or "." in name or "/" in name
        if foreign and unit.interface:
            yield line, "header", f"{name} in an interface: move it to an implementation unit"
        elif not foreign and path.startswith(CORE) and name not in OF_MACROS:
            yield line, "header", f"import vmm.std instead of {name}, and add to it what it lacks"


def check_calls(path: str, text: str) -> list[Finding]:
    """Public calls: a comment states their contract, and no two integers of one type stand side by
    side, which a caller could exchange by mistake."""
    if not is_interface(path) or not Unit(read(text)).interface:
        return []
    calls = PublicCalls(text, path)
    uncommented = [] if path.startswith(MACHINERY) else calls.uncommented
    contract = "state under Requires, Effects, Errors and Cost its contract"
    found = [
        Finding(path, line, "comment", f"{name} is a public call without a comment: {contract}")
        for name, line in uncommented
    ]
    mend = "side by side: make them fields of a request, or types of their own"
    found += [
        Finding(path, line, "integers", f"{name} takes two of {kind} {mend}")
        for name, line, kind in calls.integer_pairs
        if name not in FIELD_CALLS
    ]
    return found


def check_length(path: str, text: str) -> list[Finding]:
    lines = text.count("\n")
    package = "/src/libvmm/" in path and path.endswith((".cpp", ".hpp", ".py"))
    if lines <= FILE_LINES_MAX or not (package or is_library(path)):
        return []
    limit = f"{lines} lines, and {FILE_LINES_MAX} at most"
    return [Finding(path, lines, "file", f"{limit}: cut it where a part has its own duty")]


def allows_multicast(text: str) -> bool:
    """The option is given another value than false."""
    return re.search(r"allow_multicast *[={] *(?!false)(?! )", text) is not None


# ---- the tree ------------------------------------------------------------------------------------


def layer_table(files: Files) -> str:
    """The layers of the installed modules as the table of docs/architecture.md, top to bottom; a
    module's contents are the first sentence of its head."""
    table = "| layer | module | contents |\n| --- | --- | --- |\n"
    interfaces = [text for path, text in sorted(files.items()) if is_interface(path)]
    for module, rank in sorted(LAYERS.items(), key=lambda each: -each[1]):
        for text in interfaces:
            if f"\nexport module {module};\n" not in text:
                continue
            title = re.search(rf"// {re.escape(module)} - ((?s:.*?))\.[ \n]", text)
            contents = re.sub(r"\n// ", " ", title[1]) if title else ""
            level = "driver" if module in DRIVERS else rank
            table += f"| {level} | `{module}` | {re.sub(' +', ' ', contents)} |\n"
    return table


def check_exports(files: Files) -> list[Finding]:
    """Exported names that no import of their module brings: of partitions that it does not export,
    unless another unit declares the name, too."""
    units = {path: text for path, text in files.items() if is_interface(path)}
    exported = {path: exported_names(text, path) for path, text in units.items()}
    parts = {path: Unit(read(text)).module.partition(":") for path, text in units.items()}
    lines = {(parts[path][0], each) for path, text in units.items() for each in text.split("\n")}
    hidden = {
        path: module
        for path, (module, _, part) in parts.items()
        if part and (module, f"export import :{part};") not in lines
    }
    seen = {name for path, names in exported.items() if path not in hidden for name, _ in names}
    return [
        Finding(path, line, "export", f"an import of {module} does not bring {name}")
        for path, module in hidden.items()
        for name, line in exported[path]
        if name not in seen
    ]


def names_in(text: str) -> set[str]:
    return set(using_declarations(read(text)))


def read_invariants(files: Files):
    """The invariants of the heads of files, as `// I3  A cached piece has no holder.`, with whether
    a text of a check names them: one that begins with "I3: ", or with "STEM I3: " in other files of
    the folder. And the texts that name none."""
    code = {
        path: text
        for path, text in files.items()
        if path.startswith(WITH_INVARIANTS) and path.endswith(SOURCES)
    }
    named = {}
    for path, text in code.items():
        for number in re.findall(r"^// I([0-9]+)  ", text, re.MULTILINE):
            named[os.path.splitext(path)[0], int(number)] = False
    unknown = []
    for path, text in code.items():
        for number, line in enumerate(text.split("\n"), 1):
            for stem, which in re.findall(r'"(?:([a-z_]+) )?I([0-9]+): ', line.split("//")[0]):
                unit = os.path.join(os.path.dirname(path), stem or os.path.basename(path))
                key = (unit if stem else os.path.splitext(unit)[0], int(which))
                if key in named:
                    named[key] = True
                    continue
                what = f'no head of {key[0]} has I{which}: other files say "STEM I1: "'
                unknown.append(Finding(path, number, "invariant", what))
    return named, unknown


# ---- checks --------------------------------------------------------------------------------------


def count_double_checks(source: Source) -> int:
    """Of check() and debug_check(), those of two conditions: with && outside of all other
    parentheses, before the first comma there."""
    count = 0
    for at, word in enumerate(source.words):
        if word not in ("check", "debug_check") or source.text(at - 1) not in (";", "{", "}"):
            continue
        depth = 0
        for now in source.words[at + 1 :]:
            depth += (now in ("(", "{", "[")) - (now in (")", "}", "]"))
            count += depth == 1 and now == "&&"
            if depth == 0 or (depth == 1 and now in (",", "&&")):
                break
    return count
