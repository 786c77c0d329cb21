# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""build.py OUT: the site, as HTML that needs no network and no server, in OUT/html. Every warning
of Sphinx is an error: a link that leads nowhere stops the build. A folder OUT/html of another
program is not replaced."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser

sys.dont_write_bytecode = True
import stage  # noqa: E402 (after the line above)

MARK = ".made-by-vmm-docs"  # in a folder that this program made, and so may remove


def why_kept(root, html):
    """Why the folder is not replaced; empty if it is."""
    if not os.path.lexists(html) or root / "build" in html.parents:
        return ""
    if html.is_symlink() or not html.is_dir():
        return f"{html} is not a folder of pages: remove it, or name another folder"
    if (html / MARK).is_file() or not any(html.iterdir()):
        return ""
    return f"{html} has files that ./run docs did not make: remove it, or name another folder"


def make_pages(root, work):
    """Stages the sources in `work`, runs Sphinx on them, and returns the exit code."""
    wrong = stage.stage(root, work / "sources")
    for line in wrong:
        print(f"docs: {line}", file=sys.stderr)
    if wrong:
        return 1
    version = re.search(r"project\(vmm VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())
    flags = ["-q", "-W", "--keep-going", "-j", "2", "-b", "html", "-d", str(work / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-B", "-m", "sphinx", *flags, str(work / "sources"), str(work / "html")],
        env={**os.environ, "SITE_VERSION": version.group(1)},
        check=False,
    )
    return done.returncode


class Words(HTMLParser):
    """The text of a page's <main>, without its code listings, drawings and scripts."""

    _PASSED = ("pre", "svg", "script", "nav", "footer")

    def __init__(self, text):
        super().__init__()
        self.text, self.main, self.passed = [], False, 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.main |= tag == "main"
        self.passed += tag in self._PASSED

    def handle_endtag(self, tag):
        self.main &= tag != "main"
        self.passed -= tag in self._PASSED

    def handle_data(self, data):
        if self.main and not self.passed:
            self.text.append(data)


def write_excerpts(html):
    """Writes the text of each page for the search, which shows the words around a hit."""
    texts = {}
    for path in sorted(html.rglob("*.html")):
        name = path.relative_to(html).as_posix()[: -len(".html")]
        if not name.startswith("files/"):
            texts[name] = " ".join(
                "".join(Words(path.read_text()).text).replace("\xb6", "").split()
            )
    (html / "_static" / "excerpts.js").write_text(f"const EXCERPTS = {json.dumps(texts)};\n")


def main():
    """Makes the pages in a temporary folder, then puts them into OUT/html."""
    if len(sys.argv) != 2:
        print("usage: build.py OUT", file=sys.stderr)
        return 2
    root = pathlib.Path(__file__).resolve().parents[2]
    html = pathlib.Path(sys.argv[1]).resolve() / "html"
    try:
        why = why_kept(root, html)
        if why:
            print(f"docs: {why}", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory(prefix="vmm-docs-") as folder:
            work = pathlib.Path(folder).resolve()
            code = make_pages(root, work)
            if code:
                return code
            write_excerpts(work / "html")
            (work / "html" / MARK).touch()
            html.parent.mkdir(parents=True, exist_ok=True)
            if html.exists():
                shutil.rmtree(html)
            shutil.move(work / "html", html)
    except OSError as trouble:
        print(f"docs: {trouble.filename or html}: {trouble.strerror}", file=sys.stderr)
        return 1
    print(html / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
