# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: ./run docs makes a site without a warning, whose pages link to pages and places that are
there, fetch nothing from elsewhere, have a search index, colours for dark, and all that a keyboard
needs; in a browser its search finds, its theme's button works, and no script fails. Method: the
site is built by docs/site/build.py and its HTML is read; then headless Chromium opens it, without
a network, where there is one.

usage: site_test.py FOLDER
"""

import html.parser
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import unittest
import urllib.parse

import pages  # first: it says where the other lies
import stage

sys.path.insert(0, str(pages.ROOT / "tests/history"))
import browser
from browser import BROWSER, COMMAND, WHY_NONE

OUT = pathlib.Path(sys.argv.pop(1))
HTML = OUT / "html"


def sphinx_python():
    for each in ("python3", "/usr/bin/python3"):
        if pages.ran(each, "-c", "import sphinx, myst_parser").returncode == 0:
            return each
    return None


def build(folder):
    return pages.ran(sphinx_python(), "-B", pages.ROOT / "docs/site/build.py", folder)


class Reader(html.parser.HTMLParser):
    """The links, the ids, and what a page fetches."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.fetched, self.tags = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        for name in ("src", "srcset", "data"):
            if attributes.get(name):
                self.fetched.append(attributes[name])
        if tag == "link" and attributes.get("rel") in ("stylesheet", "icon", "preload"):
            self.fetched.append(attributes["href"])


def is_elsewhere(address):
    return bool(re.match(r"([a-z]+:|//)", address))


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.read = {
            path.relative_to(HTML).as_posix(): Reader(path.read_text())
            for path in sorted(HTML.rglob("*.html"))
        }

    def test_there_is_a_page_for_each_page(self):
        self.assertGreater(len(self.read), 60)
        for page in (pages.ROOT / "docs").glob("*.md"):
            self.assertIn(page.stem + ".html", self.read)
        for name in "vmm.stream vmm.h names libvmm.torch".split():
            self.assertIn(f"reference/{name}.html", self.read)
        self.assertLessEqual({"search.html", "changelog.html"}, set(self.read))

    def test_each_link_leads_somewhere(self):
        wrong = []
        for page, read in self.read.items():
            for link in read.links:
                path, _, anchor = urllib.parse.unquote(link).partition("#")
                if is_elsewhere(link):
                    continue
                there = os.path.normpath(os.path.join(os.path.dirname(page), path))
                target = there if path else page
                if not (HTML / target).exists():
                    wrong.append(f"{page}: there is no {link}")
                elif anchor and target in self.read and anchor not in self.read[target].ids:
                    wrong.append(f"{page}: there is no place {link}")
        self.assertEqual(wrong, [], "\n".join(wrong[:40]))

    def test_terms_lead_to_the_glossary_once(self):
        table = (pages.ROOT / "docs" / "concepts.md").read_text().split("## ")[1]
        for term in stage.TERMS:
            self.assertRegex(table, rf"(?m)^\| (\w+, )?{term}\b")
        self.assertIn("concepts.html#terms", self.read["pool.html"].links)
        text = "# Arena\n| arena |\n`arena`\nan [arena](a.md), arenas and an arena\n"
        linked = text.replace("arenas", "[arenas](concepts.md#terms)")
        self.assertEqual(stage.terms_linked(text), linked)

    def test_nothing_is_fetched_from_elsewhere(self):
        for page, read in self.read.items():
            for address in read.fetched:
                is_wrong = is_elsewhere(address) and not address.startswith("data:")
                self.assertFalse(is_wrong, f"{page} fetches {address}")
        for sheet in HTML.rglob("*.css"):
            for address in re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", sheet.read_text()):
                is_wrong = is_elsewhere(address) or address.startswith("/")
                self.assertFalse(is_wrong, f"{sheet.name} fetches {address}")

    def test_it_is_for_keyboards_and_readers(self):
        for page, read in self.read.items():
            self.assertIn("content", read.ids, page)
            tags = read.tags
            self.assertIn(("a", {"class": "skip", "href": "#content"}), tags, page)
            self.assertTrue(any(tag == "html" and each.get("lang") for tag, each in tags), page)
            asked = [each for tag, each in tags if tag == "input" and each.get("name") == "q"]
            self.assertTrue(any(each.get("aria-label") for each in asked), page)
            for _tag, each in tags:
                self.assertIn(each.get("tabindex"), ("-1", "0", None), page)

    def test_dark_is_there(self):
        text = (HTML / "_static" / "site.css").read_text()
        light = re.search(r"\n:root \{(.*?)\n\}", text, flags=re.DOTALL).group(1)
        names = set(re.findall(r"--[\w-]+(?=:)", light))
        for dark in (
            r"prefers-color-scheme: dark\) \{\s*:root[^{]*\{(.*?)\}",
            r":root\[data-theme=\"dark\"\] \{(.*?)\}",
        ):
            found = re.search(dark, text, flags=re.DOTALL)
            self.assertEqual(names - set(re.findall(r"--[\w-]+(?=:)", found.group(1))), set())

    def test_the_search_has_an_index(self):
        index = (HTML / "searchindex.js").read_text()
        self.assertIn("reference/vmm.stream", index)
        self.assertIn("granul", index)


def dump(address, dark=False):
    """What a browser has made of a page, after its scripts have run."""
    folder = OUT / "browser"
    shutil.rmtree(folder, ignore_errors=True)
    done = pages.ran(
        *(*COMMAND, "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder}"),
        *("--virtual-time-budget=8000", *(["--force-dark-mode"] if dark else []), "--dump-dom"),
        (HTML / "index.html").as_uri().removesuffix("index.html") + address,
        timeout=120,
    )
    said = [line for line in done.stderr.split("\n") if "CONSOLE" in line]
    return done.stdout, said


class Folder(unittest.TestCase):
    """A folder that another program made is refused with one line, and keeps its files."""

    def test_files_of_a_user_are_kept(self):
        for made in ("html/own.txt", "html/index.html", "html"):
            with self.subTest(made), tempfile.TemporaryDirectory() as folder:
                own = pathlib.Path(folder, made)
                own.parent.mkdir(exist_ok=True)
                own.write_text("of the user")
                done = build(folder)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, r"^docs: .*/html .*name another folder\n$")
                self.assertEqual(own.read_text(), "of the user")

    def test_other_folders_beside_the_pages_are_kept(self):
        for name in ("sources", "doctrees"):
            self.assertEqual((OUT / name / "own.txt").read_text(), "of the user")


@unittest.skipUnless(BROWSER, WHY_NONE)
class Browser(unittest.TestCase):
    def test_the_search_finds_without_a_server(self):
        text, said = dump("search.html?q=granularity")
        self.assertEqual(said, [])
        results = re.search(r'<ul class="search".*?</ul>', text, flags=re.DOTALL)
        self.assertIsNotNone(results, text[-2000:])
        self.assertGreater(results.group(0).count("<li"), 3)
        excerpts = re.findall(r'<p class="context">(.*?)</p>', results.group(0), flags=re.DOTALL)
        self.assertEqual(len(excerpts), results.group(0).count("<li"))
        self.assertIn("granularity", excerpts[0].lower())

    def test_the_search_lists_guides_first(self):
        text, _ = dump("search.html?q=fit")
        first = re.search(r'<ul class="search".*?<a href="([^"#?]*)', text, flags=re.DOTALL)
        self.assertEqual(first.group(1), "fit.html")

    def test_pages_run_without_a_complaint(self):
        for page in ("index.html", "concepts.html", "reference/vmm.stream.html"):
            text, said = dump(page, dark=True)
            self.assertEqual(said, [], page)
            self.assertIn("Theme: auto", text, page)

    def test_nothing_scrolls_sideways(self):
        """Code wraps where a window is narrow; tables of the other pages may scroll."""
        tab = browser.Browser()
        self.addCleanup(tab.close)
        wide = "[...document.querySelectorAll('html, pre')].filter(e => e.scrollWidth > "
        wide += "e.clientWidth).map(e => e.textContent.trim().slice(0, 60))"
        for page in ("index.html", "start.html", "manager.html"):
            address = (HTML / page).as_uri()
            tab.call("Page.navigate", url=address)
            while not tab.ask(f"location.href == '{address}' && document.readyState == 'complete'"):
                time.sleep(0.02)
            for width in (1280, 390):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                tab.call("Emulation.setDeviceMetricsOverride", **size)
                self.assertEqual(tab.ask(wide), [], f"{page} in {width} pixels")


if __name__ == "__main__":
    python = sphinx_python()
    if not python:
        print("skipped: no Python has sphinx and myst_parser (python3-sphinx, python3-myst-parser)")
        sys.exit(0)
    shutil.rmtree(OUT, ignore_errors=True)  # this test's own, perhaps of an earlier version
    OUT.mkdir(parents=True)
    for name in ("sources", "doctrees"):
        (OUT / name).mkdir()
        (OUT / name / "own.txt").write_text("of the user")
    built = build(OUT)
    if built.returncode:
        sys.exit(f"the site could not be built without a warning\n{built.stderr}")
    unittest.main()
