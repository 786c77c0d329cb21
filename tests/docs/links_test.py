# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: each link of each page leads to a file of the tree, and to a heading of it where it names
one; each page is reached from the first one; each drawing stands alone. Method: the pages are read,
nothing is fetched; pages with planted mistakes come first."""

import os
import re
import unittest

import pages  # first: it says where the other lies
import stage


def broken(page, text):
    """A line for each link of the page that leads nowhere."""
    for line, target in pages.links_of(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not (pages.ROOT / found).exists():
            yield f"{page}:{line}: there is no {found}"
        elif anchor and found.endswith(".md"):
            if anchor not in pages.anchors_of(text if found == page else pages.text_of(found)):
                yield f"{page}:{line}: {found} has no heading #{anchor}"


class Planted(unittest.TestCase):
    def test_links_that_lead_nowhere(self):
        links = ("[x](nowhere.md)", "[x](c.md#no-such-heading)", "![x](pictures/nothing.svg)")
        for text in (*links, "# A b\n[x](#a-c)"):
            self.assertEqual(len(list(broken("docs/a.md", text))), 1, text)

    def test_links_that_lead_somewhere(self):
        text = (
            "# A `b`, c\n[x](c.md#rules) [y](#a-b-c) [z](../run) `[n](nowhere.md)`\n"
            "[w](http:x)\n```\n[n](nowhere.md)\n```\n"
        )
        self.assertEqual(list(broken("docs/concepts.md", text)), [])


class Tree(unittest.TestCase):
    def test_each_link_leads_somewhere(self):
        found = [each for page in pages.paths() for each in broken(page, pages.text_of(page))]
        self.assertEqual(found, [], "\n".join(found))

    def test_each_page_that_the_site_names_is_there(self):
        named = {name for _, names in stage.PARTS for name in names} | {"index"}
        there = {path.stem for path in (pages.ROOT / "docs").glob("*.md")}
        self.assertEqual(named - there, set(), "docs/site/stage.py names what is not there")

    def test_the_files_that_a_call_passes_are_there(self):
        text = pages.text_of("docs/architecture.md")
        ways = text.split("## Six ways through the files")[1].split("\n## ")[0]
        named = set(re.findall(r"`([\w/.]+\.(?:cppm|cpp|inc))`", ways))
        self.assertGreater(len(named), 30)
        there = [path.as_posix() for path in pages.ROOT.glob("modules/**/*.cpp*")]
        there += [path.as_posix() for path in pages.ROOT.glob("adapters/preload/*")]
        lost = [name for name in named if not any(path.endswith(f"/{name}") for path in there)]
        self.assertEqual(lost, [])

    def test_each_page_is_reached_from_the_first_one(self):
        seen, open_pages = set(), ["README.md", "docs/index.md"]
        while open_pages:
            page = open_pages.pop()
            if page in seen:
                continue
            seen.add(page)
            for _, target in pages.links_of(pages.text_of(page)):
                path = os.path.normpath(os.path.join(os.path.dirname(page), target.split("#")[0]))
                if path.endswith(".md") and (pages.ROOT / path).is_file():
                    open_pages.append(path)
                elif path == "docs/decisions":
                    open_pages += [each for each in pages.paths() if each.startswith(path)]
        lost = set(pages.paths()) - seen - {"adapters/python/README.md"}
        self.assertEqual(lost, set())

    def test_each_drawing_stands_alone(self):
        drawings = sorted((pages.ROOT / "docs" / "pictures").glob("*.svg"))
        self.assertTrue(drawings)
        for path in drawings:
            text = path.read_text()
            self.assertIn("prefers-color-scheme: dark", text, path.name)
            self.assertIn("<title>", text, path.name)
            self.assertIsNone(re.search(r"href|url\(", text), f"{path.name} fetches something")
            for name in set(re.findall(r'class="([a-z ]+)"', text)):
                for each in name.split():
                    self.assertIn(f".{each}", text, f"{path.name}: no style for {each}")


if __name__ == "__main__":
    unittest.main()
