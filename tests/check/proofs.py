# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Goal: each page of proofs names the code that it was made with, and says where that has changed.
#
# A proof's line, under the heading of what it is of:
#
#   Code: 3f2a9c1d7e50 of modules/stream, tests/stream at 0b59b7c, 2026-11-25.
#
# The first word is a hash of all files in these folders, then come the commit and the day of the
# run. Where the folders hold something else now, the line ends with "**Behind:** it has changed
# since." Without words this prints each line and whether it is behind, and ends with 1 where one is
# and does not say so. `--mark` writes these ends. `--ran PAGE:LINE` or `--ran PAGE#HEADING` writes
# the hash, commit and day of HEAD into a line, or into those under a heading (as links name it);
# PAGE alone is enough where it has one line. `--commit COMMIT` takes another commit, with its day.
from __future__ import annotations

import dataclasses
import hashlib
import io
import pathlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The pages that prove something, each of which has such a line.
PAGES = ("driver", "proofs")

BEHIND = " **Behind:** it has changed since."
LINE = re.compile(
    r"Code: (?P<hash>[0-9a-f]{12}) of (?P<folders>[a-z_0-9/, ]+) at "
    r"(?P<commit>[0-9a-f]{7,40}), (?P<day>\d{4}-\d\d-\d\d)\."
    r"(?P<behind> \*\*Behind:\*\* it has changed since\.)?"
)


@dataclasses.dataclass
class Proof:
    """One line of a page."""

    page: str
    line: int  # from 1 on
    hash: str
    folders: tuple[str, ...]
    commit: str
    day: str
    says_behind: bool

    def text(self) -> str:
        end = BEHIND if self.says_behind else ""
        return f"Code: {self.hash} of {', '.join(self.folders)} at {self.commit}, {self.day}.{end}"


def hash_of(files: list[tuple[str, bytes]]) -> str:
    """Of pairs of a path and its bytes, in the order of their paths."""
    whole = hashlib.sha256()
    for path, content in sorted(files):
        whole.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return whole.hexdigest()[:12]


def is_source(path: str) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))


def hash_here(folders: tuple[str, ...], root: pathlib.Path = ROOT) -> str:
    """Of what the folders hold now. A folder that is not there holds nothing."""
    files = []
    for folder in folders:
        for path in (root / folder).rglob("*"):
            name = path.relative_to(root).as_posix()
            if path.is_file() and is_source(name):
                files.append((name, path.read_bytes()))
    return hash_of(files)


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def hash_at(commit: str, folders: tuple[str, ...]) -> str:
    """Of what the folders held at a commit."""
    there = [name for name in folders if git("ls-tree", commit, "--", name)]
    files = []
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "--", *there))) as archive:
        for each in archive.getmembers():
            content = archive.extractfile(each) if each.isfile() else None
            if content and is_source(each.name):
                files.append((each.name, content.read()))
    return hash_of(files)


def proofs_of(page: str, text: str) -> tuple[list[Proof], list[str]]:
    """The lines of a page, and complaints about what looks like one."""
    found, wrong = [], []
    for at, line in enumerate(text.split("\n"), 1):
        if not line.startswith("Code:"):
            continue
        match = LINE.fullmatch(line)
        if not match:
            wrong.append(f"{page}:{at}: this is no line of a proof: {line}")
            continue
        folders, is_behind = tuple(match["folders"].split(", ")), match["behind"] is not None
        found.append(
            Proof(page, at, match["hash"], folders, match["commit"], match["day"], is_behind)
        )
    return found, wrong


def complaints_of(
    page: str, text: str, required: bool, root: pathlib.Path = ROOT
) -> tuple[list[str], list[tuple[Proof, bool]]]:
    """What is wrong with a page's lines, and each line with whether it is behind."""
    found, wrong = proofs_of(page, text)
    if required and not found:
        wrong.append(f"{page}: no line names the code that it was made with")
    states = []
    for each in found:
        missing = [name for name in each.folders if not (root / name).is_dir()]
        is_behind = hash_here(each.folders, root) != each.hash
        states.append((each, is_behind))
        where = f"{page}:{each.line}"
        if missing and not each.says_behind:
            wrong.append(f"{where}: there is no folder {missing[0]}")
        elif is_behind and not each.says_behind:
            wrong.append(
                f"{where}: the code of {each.commit} has changed since, and the line does "
                "not say so: run the proof anew, or ./run check proofs --mark"
            )
    return wrong, states


def pages(root: pathlib.Path = ROOT) -> Iterator[tuple[str, str]]:
    """Each page of results with its text."""
    for path in sorted((root / "docs" / "results").glob("*.md")):
        yield path.relative_to(root).as_posix(), path.read_text()


def rewrite(page: str, proofs: list[Proof]) -> None:
    path = ROOT / page
    lines = path.read_text().split("\n")
    for each in proofs:
        lines[each.line - 1] = each.text()
    path.write_text("\n".join(lines))


def mark() -> None:
    for page, text in pages():
        found = proofs_of(page, text)[0]
        for each in found:
            each.says_behind = hash_here(each.folders) != each.hash
        rewrite(page, found)


def heading_of(text: str, line: int) -> str:
    """The heading over a line of a page, as links name it."""
    found = re.findall(r"^#+ (.+)$", "\n".join(text.split("\n")[:line]), flags=re.MULTILINE)
    return re.sub(r"[^\w\- ]", "", found[-1].lower()).replace(" ", "-") if found else ""


def choose(which: str, page: str, text: str) -> list[Proof]:
    """The lines of PAGE, PAGE:LINE or PAGE#HEADING. A run is of one: several lines are refused."""
    _, mark, place = which.partition("#" if "#" in which else ":")
    lines = proofs_of(page, text)[0]
    if mark == "#":
        lines = [each for each in lines if heading_of(text, each.line) == place]
    elif mark:
        lines = [each for each in lines if str(each.line) == place]
    elif len(lines) > 1:
        sys.exit(f"{which}: there are {len(lines)} proofs: name a line or a heading")
    if not lines:
        sys.exit(f"{which}: there is no such line")
    return lines


def ran(which: str, commit: str) -> None:
    """Writes a commit into the lines that `which` names."""
    page = f"docs/results/{pathlib.Path(re.split('[:#]', which)[0]).stem}.md"
    chosen = choose(which, page, (ROOT / page).read_text())
    for each in chosen:
        each.hash = hash_at(commit, each.folders)
        each.commit = git("rev-parse", "--short", commit).decode().strip()
        each.day = git("show", "-s", "--format=%cs", commit).decode().strip()
        each.says_behind = hash_here(each.folders) != each.hash
    rewrite(page, chosen)


def check() -> int:
    wrong: list[str] = []
    behind = count = 0
    for page, text in pages():
        complaints, states = complaints_of(page, text, pathlib.Path(page).stem in PAGES)
        wrong += complaints
        for each, is_behind in states:
            count += 1
            behind += is_behind
            state = "behind " if is_behind else "as now "
            print(f"{state} {each.commit}, {each.day}  {each.page}:{each.line}")
    print(f"{count} proofs, {behind} of them of code that has changed since")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


def main(words: list[str]) -> int:
    if words[:1] == ["--mark"] and len(words) == 1:
        mark()
    elif words[:1] == ["--ran"] and len(words) == 2:
        ran(words[1], "HEAD")
    elif words[:1] == ["--ran"] and len(words) == 4 and words[2] == "--commit":
        ran(words[1], words[3])
    elif words:
        form = "[--mark | --ran PAGE[:LINE | #HEADING] [--commit COMMIT]]"
        print(f"usage: ./run check proofs {form}", file=sys.stderr)
        return 2
    return check()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
