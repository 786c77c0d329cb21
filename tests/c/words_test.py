# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what the C library says of an error names nothing that a reader of vmm.h cannot find.

Method: every text of an error in the sources is read, and replaced as adapters/c/src/words.cpp
does. A word that looks like a name (with an underscore, a scope or brackets) stands in a header of
the C library, is an environment variable, or is a name of the system's. The table has no text that
no source has.

    python3 tests/c/words_test.py PROJECT
"""

import pathlib
import re
import sys

# Texts of these are never returned through the C library, each for its reason.
NOT_REACHED = {
    "modules/backend/concepts.cppm": "compile-time messages",
    "modules/containers": "vmm.hpp has its own vector, buffers and resources",
    "modules/va/range_allocator.cpp": "the manager asks for no such size",
    "backends/fake/driver.cpp": "profiles are the C library's own",
}

# Options of the modules that no caller of C sets, by the first word of their text.
NOT_SET = {
    *"first_fit_bytes handle_bytes_max small_handle_bytes move_budget_ns headroom".split(),
    *"slack_bytes small_pool_bytes min_move_share min_move_bytes growth_share".split(),
    *"growth_gap_bytes stale_count_max".split(),
    *(f"host_options::{size}_bytes" for size in ("capacity", "minimum", "recommended")),
    "cuda_options::device is a device number",
    "multicast is off: open the device with cuda_options",
    "plain memory (cuda_options::memory",
    "level_zero_options::driver",
    "level_zero_options::device is a device number",
    "level_zero_options::loader_library",
    "memory_options::contents",
    "memory_options::spill",
    "capture is one of",
    "stream_arenas is one of",
    "manager_policy::on_free",
    "memory_options::recorder already records",
    "two grants for host()",
}

# Assertions end the process with their text: no call of C returns it.
ASSERTIONS = {"check", "debug_check", "paranoid_check", "static_assert", "audit", "require"}

# Names that are not ours.
OF_OTHERS = set(
    "AF_ALG DVMM_LEVEL_ZERO LD_LIBRARY_PATH ZE_AFFINITY_MASK libze_loader max_map_count "
    "memfd_create ZE_ENABLE_ALT_DRIVERS cntvct_el0".split()
)

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"\((?P<inside>.*?)\)")
    |"(?P<text>(?:\\.|[^"\\\n])*)"|(?P<char>'(?:\\.|[^'\\\n])+')|(?P<name>[A-Za-z_]\w*)
    |(?P<mark>[^\s])|(?P<space>\s+)""",
    re.DOTALL | re.VERBOSE,
)


def texts(source):
    """(text, called): each literal, parts joined, and the names of the calls that it stands in."""
    frames = []
    name = ""
    joined = None
    for token in TOKEN.finditer(source):
        kind = token.lastgroup
        if kind in ("comment", "space"):
            continue
        if kind == "text":
            joined = (joined or "") + token["text"].replace('\\"', '"')
            continue
        if joined is not None:
            yield joined, list(frames)
            joined = None
        if kind == "name":
            name = token["name"]
            continue
        if kind == "mark" and token["mark"] in "({[":
            frames.append(name)
        elif kind == "mark" and token["mark"] in ")}]" and frames:
            frames.pop()
        name = ""


def words_that_are_names(text):
    for found in re.finditer(r"[A-Za-z][\w.]*(?:::\w+)*(?:\(\))?", text):
        word = found.group().rstrip(".")
        if "_" in word or "::" in word or word.endswith("()"):
            yield word


def is_known(word, headers):
    if word.endswith("()"):
        return word.startswith("vmm_") and word[:-2] in headers
    if "::" in word:
        return False
    return all(
        part in headers or part in OF_OTHERS or part.startswith(("VMM_", "VPMM_", "CUDA_"))
        for part in word.split(".")
        if "_" in part
    )


# The class and the number, for its authors.
INVARIANT = re.compile(r"^[a-z_]+ I\d+: ")


def error_texts(project):
    for folder in ("modules", "backends"):
        for path in sorted((project / folder).rglob("*.cpp*")):
            where = path.relative_to(project).as_posix()
            if any(where == each or where.startswith(each + "/") for each in NOT_REACHED):
                continue
            for text, frames in texts(path.read_text()):
                is_sentence = text.count(" ") >= 2 and not text.startswith("\\n")
                is_answer = not ASSERTIONS.intersection(frames) and "moved from" not in text
                if is_sentence and is_answer and not text.startswith(tuple(NOT_SET)):
                    yield where, INVARIANT.sub("", text)


def main():
    project = pathlib.Path(sys.argv[1])
    include = project / "adapters" / "c" / "include"
    headers = set(
        re.findall(
            r"\w+", (include / "vmm.h").read_text() + (include / "vmm_allocator.h").read_text()
        )
    )
    table_texts = [
        text
        for text, frames in texts((project / "adapters/c/src/words.cpp").read_text())
        if " " in text and "starts_with" not in frames
    ]
    table = dict(zip(table_texts[::2], table_texts[1::2], strict=True))
    wrong = []
    seen = set()
    for where, text in error_texts(project):
        seen.add(text)
        said = table.get(text, text)
        for word in words_that_are_names(said):
            if not is_known(word, headers):
                wrong.append(f"{where}: {word!r} is no word of vmm.h: {said}")
    for text in table:
        if text not in seen:
            wrong.append(f"adapters/c/src/words.cpp: no source says {text!r}")
    for path in sorted((project / "adapters" / "c" / "src").glob("*.*pp")):
        if path.name == "words.cpp":
            continue
        for text, frames in texts(path.read_text()):
            if text.count(" ") < 2 or ASSERTIONS.intersection(frames):
                continue
            for word in words_that_are_names(INVARIANT.sub("", text)):
                if not is_known(word, headers):
                    wrong.append(f"{path.name}: {word!r} is no word of vmm.h: {text}")
    if len(seen) < 200 or len(table) < 15:
        wrong.append(f"only {len(seen)} texts and {len(table)} replacements were found")
    print("\n".join(wrong) or f"{len(seen)} texts, {len(table)} replaced")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
