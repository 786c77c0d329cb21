# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, for its tests: their code blocks, links and headings."""

import dataclasses
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "docs" / "site"))

BESIDE = "README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md adapters/python/README.md".split()


@dataclasses.dataclass
class Block:
    """Code of a page: fenced, with the language that its fence names, or indented by four."""

    page: str
    line: int
    language: str
    text: str


def ran(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=False, **more)


def paths():
    """Every page, named from the root of the tree."""
    docs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return [*BESIDE, *docs]


def text_of(page):
    return (ROOT / page).read_text()


def blocks_of(text, page):
    """The code blocks of a page. What is indented after a heading counts, as forges show it; what
    continues an item of a list does not."""
    found, lines, at, item = [], text.split("\n"), 0, False
    while at < len(lines):
        line = lines[at]
        if fence := re.match(r"^(```+|~~~+)\s*(\S*)", line):
            end = at + 1
            while not lines[end].startswith(fence.group(1)):
                end += 1
            found.append(Block(page, at + 1, fence.group(2), "\n".join(lines[at + 1 : end]) + "\n"))
            at = end + 1
            continue
        before = lines[at - 1] if at else ""
        if line.startswith("    ") and (not before.strip() or before.startswith("#")) and not item:
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text_block = "\n".join(each[4:] for each in lines[at:end]).rstrip() + "\n"
            found.append(Block(page, at + 1, "", text_block))
            at = end
            continue
        if re.match(r"\s*([*-]|\d+\.)\s", line):
            item = True
        elif line.strip() and not line.startswith(" "):
            item = False
        at += 1
    return found


def prose_of(text):
    """A page without its code: fenced, indented and inline."""
    text = re.sub(
        r"^(```+|~~~+).*?^\1[ \t]*$",
        lambda code: "\n" * code.group(0).count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    return re.sub(r"`[^`\n]+`", "`code`", text)


def links_of(text):
    """(line, target) of each link and picture of a page."""
    prose = prose_of(text)
    for found in re.finditer(r"\]\(([^()\s]+)\)", prose):
        yield prose.count("\n", 0, found.start()) + 1, found.group(1)


def anchors_of(text):
    """The anchors that forges make of a page's headings."""
    anchors, seen = set(), {}
    without_code = re.sub(r"^(```+|~~~+).*?^\1[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", without_code, flags=re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        anchors.add(f"{slug}-{count}" if count else slug)
    return anchors
