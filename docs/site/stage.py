# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the sources of the site together: the pages of docs/, those beside README.md, the reference,
and a page for each file that they link to. Links are written anew for where the pages lie there.

The pages stay plain Markdown that any forge shows. Which page stands in which part of the site is
said here; a page that is named in none stands last among the guides.
"""

import html
import os
import pathlib
import re
import shutil

import reference

PARTS = (
    ("Start", ("start", "pytorch", "fit", "concepts")),
    (
        "Guides",
        (
            "pool",
            "manager",
            "c",
            "python",
            "one_variable",
            "preload",
            "sharing",
            "multi_device",
            "suspend",
            "observe",
            "misuse",
        ),
    ),
    ("Reference", ("options", "contract", "architecture")),
    ("Project", ("support",)),
)
# Pages beside README.md, and what they are called on the site.
BESIDE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
HEADER_PAGES = {
    "adapters/c/include/vmm.h": "reference/vmm.h.md",
    "adapters/c/include/vmm.hpp": "reference/vmm.hpp.md",
    "adapters/c/include/vmm_allocator.h": "reference/vmm_allocator.h.md",
}
LANGUAGES = {
    ".cpp": "cpp",
    ".cppm": "cpp",
    ".h": "c",
    ".hpp": "cpp",
    ".cu": "cpp",
    ".py": "python",
    ".sh": "bash",
    ".cmake": "cmake",
    ".txt": "text",
    ".json": "json",
}
# Terms of docs/concepts.md that each other page links to where it uses them first.
TERMS = (
    "reservation",
    "granule",
    "retained",
    "stale mapping",
    "stranded",
    "headroom",
    "arena",
    "shortage",
)
# A link or picture; code is passed over before.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(
    r"(^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL
)


def outside_of_code(text, change):
    """`text` with its prose given to `change`, and its code as it is."""
    parts, at = [], 0
    for match in CODE.finditer(text):
        parts.append(change(text[at : match.start()]))
        parts.append(match.group(0))
        at = match.end()
    return "".join(parts) + change(text[at:])


def terms_linked(text):
    """`text` with a link to the glossary at the first use of each term in its sentences."""
    for term in TERMS:
        use = re.compile(rf"(?<![\w\[-])({term}s?)(?![\w\]-])", flags=re.IGNORECASE)
        state = {"done": False, "is_code": False}

        def one_line(line, use=use, state=state):
            state["is_code"] ^= line.startswith(("```", "~~~"))
            if state["done"] or state["is_code"] or re.match(r"[#|!]| {4}|```|~~~", line):
                return line
            plain = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)?", lambda m: "`" * len(m.group(0)), line)
            if "[" in plain or "]" in plain or not (found := use.search(plain)):
                return line
            state["done"] = True
            begin, end = found.span()
            return f"{line[:begin]}[{line[begin:end]}](concepts.md#terms){line[end:]}"

        text = "\n".join(one_line(line) for line in text.split("\n"))
    return text


class Site:
    """The sources of one site, in a folder of their own."""

    def __init__(self, root, out):
        self.root, self.out = root, out
        self.files = set()  # of the tree, that pages link to
        self.mistakes = []

    def place(self, path):
        """Where a file of the tree, named from its root, stands among the site's sources."""
        if path in BESIDE:
            return BESIDE[path]
        if path in HEADER_PAGES:
            return HEADER_PAGES[path]
        if path.startswith("docs/") and path.endswith("/README.md"):
            return path.removeprefix("docs/").replace("README.md", "index.md")
        if path.startswith("docs/") and path.endswith((".md", ".svg")):
            return path.removeprefix("docs/")
        target = self.root / path
        if path in ("docs/decisions", "docs/results"):
            return f"{path.removeprefix('docs/')}/index.md"
        if target.is_file() and path.endswith(".md"):
            self.files.add(path)
            return f"files/{path}"
        if target.is_dir():
            return None
        self.files.add(path)
        return f"files/{path}.md"

    def rewritten(self, text, path, place):
        """A page's text with its links as they have to be on the site."""

        def one(match):
            mark, said, target = match.groups()
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                return match.group(0)
            target, _, anchor = target.partition("#")
            if target.startswith("/"):
                return match.group(0)
            found = os.path.normpath(os.path.join(os.path.dirname(path), target))
            if not (self.root / found).exists():
                self.mistakes.append(f"{path}: there is no {target}")
                return match.group(0)
            if mark and found.endswith(".svg"):
                return self.picture(found, said)
            new = self.place(found)
            if new is None:
                return said
            link = os.path.relpath(new, os.path.dirname(place) or ".")
            return f"{mark}[{said}]({link}{'#' + anchor if anchor else ''})"

        return outside_of_code(text, lambda prose: LINK.sub(one, prose))

    def picture(self, path, said):
        """A drawing becomes part of the page, so that its colours follow the page's."""
        drawn = (self.root / path).read_text()
        drawn = re.sub(r"<!--.*?-->\s*|<\?xml.*?\?>\s*", "", drawn, flags=re.DOTALL)
        label = html.escape(said, quote=True)
        drawn = drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        drawn = "\n".join(line for line in drawn.split("\n") if line.strip())
        return (
            f'\n\n```{{raw}} html\n<figure class="picture">\n{drawn}\n'
            f"<figcaption>{html.escape(said)}</figcaption></figure>\n```\n\n"
        )

    def write(self, place, text):
        target = self.out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def page(self, path, tail=""):
        text = (self.root / path).read_text()
        if re.fullmatch(r"docs/[a-z_]+\.md", path) and path != "docs/concepts.md":
            text = terms_linked(text)
        place = self.place(path)
        self.write(place, self.rewritten(text, path, place) + tail)


def toctree(caption, entries, depth=1):
    lines = ["", "```{toctree}", ":hidden:", f":maxdepth: {depth}", f":caption: {caption}", ""]
    return "\n".join([*lines, *entries, "```", ""])


def first_heading(path):
    return re.search(r"^# (.+)$", path.read_text(), flags=re.MULTILINE).group(1)


def folder_index(site, folder, title, said):
    """The list of a folder of docs/: decisions and results."""
    source = site.root / "docs" / folder
    pages = sorted(path for path in source.glob("*.md") if path.name != "README.md")
    rows = [f"- [{first_heading(path)}]({path.name})" for path in pages]
    text = f"# {title}\n\n{said}\n\n" + "\n".join(rows) + "\n"
    if (source / "README.md").exists():
        path = f"docs/{folder}/README.md"
        text = site.rewritten((source / "README.md").read_text(), path, f"{folder}/index.md")
    entries = [path.stem for path in pages]
    site.write(f"{folder}/index.md", text + toctree(title, entries))
    for path in pages:
        site.page(f"docs/{folder}/{path.name}")


def write_files(site):
    """A page for each file of the tree that a page links to; those pages may link to more."""
    done = set()
    while site.files - done:
        path = min(site.files - done)
        done.add(path)
        if path.endswith(".md"):
            text = site.rewritten((site.root / path).read_text(), path, f"files/{path}")
            site.write(f"files/{path}", f"---\norphan: true\n---\n\n{text}")
            continue
        place = f"files/{path}.md"
        target = site.out / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site.root / path, target)
        language = LANGUAGES.get(pathlib.Path(path).suffix, "text")
        site.write(
            place,
            f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n```{{literalinclude}} "
            f"{pathlib.Path(path).name}\n:language: {language}\n```\n",
        )


def reference_toctree(groups):
    return "".join(toctree(title, pages) for title, pages in groups) + toctree("Names", ["names"])


def stage(root, out):
    """Writes all sources of the site into `out`, a new folder, and returns the pages' mistakes."""
    out.mkdir(parents=True)
    site = Site(root, out)
    named = {name for _, names in PARTS for name in names} | {"index"}
    there = sorted(path.stem for path in (root / "docs").glob("*.md"))
    others = [name for name in there if name not in named]
    for name in there:
        if name != "index":
            site.page(f"docs/{name}.md")
    for path in BESIDE:
        site.page(path)
    folder_index(
        site,
        "decisions",
        "Decisions",
        "One page for each choice that is hard to undo: what it is, and what it costs.",
    )
    folder_index(site, "results", "Results", "")
    groups = reference.write(root, out / "reference")
    with (out / "reference" / "index.md").open("a") as file:
        file.write(reference_toctree(groups))
    extra = {
        "Reference": ["reference/index"],
        "Project": [
            "results/index",
            "decisions/index",
            "readme",
            "contributing",
            "changelog",
            "security",
        ],
    }
    extra_last = {"Guides": others}
    trees = "".join(
        toctree(title, [*extra.get(title, ()), *names, *extra_last.get(title, ())])
        for title, names in PARTS
    )
    path = "docs/index.md"
    site.write("index.md", site.rewritten((root / path).read_text(), path, "index.md") + trees)
    write_files(site)
    for name in ("conf.py", "scorer.js"):
        shutil.copyfile(root / "docs" / "site" / name, out / name)
    shutil.copytree(root / "docs" / "site" / "theme", out / "theme")
    return site.mistakes
