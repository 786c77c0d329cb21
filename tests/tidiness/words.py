# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# The words that the tree does not use, because the field has others: words.csv.
from __future__ import annotations

import bisect
import csv
import os
import re
from typing import NamedTuple

from cpp import QUOTED, RAW, is_word
from rules import Files, Finding, read

COLUMNS = ["word", "instead", "scope", "allowed"]
PLACES_SHOWN_MAX = 8
CPP = (".cpp", ".cppm", ".hpp", ".h", ".c", ".cu")
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt")
COMMENT = r"//[^\n]*|/\*(?s:.*?)(?=\*/|\Z)|"
PIECE = re.compile(COMMENT + r"(?<!\w)" + RAW + "|" + QUOTED.format(r"(?<!\w)"), re.ASCII)


class BannedWord(NamedTuple):
    """Of names: a part of an identifier or of a file's name, or several parts joined by _; an s may
    follow. Of prose: one or more words of a comment, a literal or a page, outside of code."""

    line: int
    word: str
    instead: str
    is_prose: bool
    allowed: list[str]  # identifiers of the standard, a driver or a source


def read_words(path: str, text: str) -> tuple[list[BannedWord], list[Finding]]:
    """The words, and the lines that cannot be read."""
    words, mistakes = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#") or line == ",".join(COLUMNS):
            continue
        cells = next(csv.reader([line]))
        is_right = len(cells) == len(COLUMNS) and cells[0] and cells[1]
        if is_right and cells[0] == cells[0].lower() and cells[2] in ("name", "prose"):
            is_prose, allowed = cells[2] == "prose", cells[3].split()
            words.append(BannedWord(number, cells[0], cells[1], is_prose, allowed))
        else:
            mistakes.append(Finding(path, number, "word", "a line is " + ",".join(COLUMNS)))
    return words, mistakes


# ---- prose ---------------------------------------------------------------------------------------


def blank(text: str | re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", text if isinstance(text, str) else text.group())


def prose_of(path: str, text: str) -> str:
    """The comments and literals of a source, or the text of a page without its code. Each word is
    where it is in the file."""
    lines = text.split("\n")
    if path.endswith(".md"):
        is_code = False
        for at, line in enumerate(lines):
            is_fence = line.startswith(("```", "~~~"))
            if is_code or is_fence or line.startswith("    "):
                lines[at] = blank(line)
            is_code = is_code != is_fence
        text = "\n".join(lines)
    elif path.endswith(CPP):
        parts, end = [], 0
        for found in PIECE.finditer(text):
            parts.append(blank(text[end : found.start()]))
            piece, end = found.group(), found.end()
            is_comment = piece.startswith("/")
            parts.append(re.sub(r"(?m)^[/*!< ]+", blank, piece) if is_comment else piece)
        text = "".join(parts) + blank(text[end:])
    elif path == "run" or path.endswith(SCRIPTS):
        for at, line in enumerate(lines):
            mark = line.find("#") + 1 or len(line)
            lines[at] = " " * mark + line[mark:]
        text = "\n".join(lines)
    else:
        return ""
    text = re.sub(r"`[^`]{0,399}`", blank, text)
    return re.sub(r"\]\([^)]{0,198}(?s:.)?", blank, text)


class Prose:
    """A file's prose in lower case, one space between words, and where each line begins in it."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.begins = []
        parts, size = [], 0
        for line in prose_of(path, text).lower().split("\n"):
            self.begins.append(size)
            if words := " ".join(filter(None, line.split(" "))):
                parts.append(words)
                size += len(words) + 1
        self.text = " ".join(parts)

    def find(self, phrase: str) -> list[str]:
        """The places of the phrase."""
        if phrase not in self.text:
            return []
        pattern = rf"(?<![\w-]){re.escape(phrase)}(?!\w)"
        return [
            f"{self.path}:{bisect.bisect_right(self.begins, found.start())}"
            for found in re.finditer(pattern, self.text, re.ASCII)
        ]


class Names:
    """The identifiers of all files in lower case, each with the first place that has it."""

    def __init__(self) -> None:
        self.first: dict[str, str] = {}
        self.seen: set[str] = set()  # as they are written

    def add(self, path: str, text: str) -> None:
        if not path.endswith(CPP):
            return
        source = read(text)
        stem = os.path.basename(path).split(".")[0]
        for name, line in zip([stem, *source.words], [1, *source.lines]):
            if name not in self.seen and (name is stem or is_word(name)):
                self.seen.add(name)
                self.first.setdefault(name.lower(), f"{path}:{line} ({name})")

    def find(self, rule: BannedWord) -> list[str]:
        says = re.compile(rf"(?:^|_){rule.word}s?(?:_|$)")
        return [
            self.first[name]
            for name in sorted(self.first)
            if rule.word in name and name not in rule.allowed and says.search(name)
        ]


def check_words(files: Files, words: list[BannedWord], path: str = "words.csv") -> list[Finding]:
    """The words that stand in the files, with their places."""
    names, texts, found = Names(), [], []
    for each, text in files.items():
        names.add(each, text)
        texts.append(Prose(each, text))
    for rule in words:
        kind = "prose" if rule.is_prose else "name"
        if rule.is_prose:
            places = [place for prose in texts for place in prose.find(rule.word)]
        else:
            places = names.find(rule)
        if places:
            shown = " ".join(places[:PLACES_SHOWN_MAX])
            what = f"{rule.word} ({kind}): {len(places)}; say {rule.instead}. It stands in {shown}"
            found.append(Finding(path, rule.line, "word", what))
    return found
