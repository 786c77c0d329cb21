# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a page of proofs names the code that it was made with, and says so where that has changed
since. Method: tests/check/proofs.py over planted pages and folders, then over the tree."""

import pathlib
import sys
import tempfile
import unittest

import pages  # first: it says where the tree lies

sys.path.insert(0, str(pages.ROOT / "tests" / "check"))
import proofs


class Planted(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "code").mkdir()
        (self.root / "code" / "a.cpp").write_text("int a;\n")
        self.hash = proofs.hash_here(("code",), self.root)

    def line(self, behind=False):
        return proofs.Proof("p", 1, self.hash, ("code",), "0123abc", "2026-11-25", behind).text()

    def complaints(self, text, required=True):
        return proofs.complaints_of("p", text, required, self.root)[0]

    def test_a_proof_of_the_code_as_it_is(self):
        self.assertEqual(self.complaints(self.line()), [])
        (self.root / "code" / ".swp").write_text("an editor's")
        self.assertEqual(self.complaints(self.line()), [])

    def test_a_proof_of_other_code_that_does_not_say_so(self):
        changes = {"code/a.cpp": "int b;\n", "code/b.cpp": "", "code/deep/a.cpp": "int a;\n"}
        for path, text in changes.items():
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).write_text(text)
            found = self.complaints(f"# Proof\n\n{self.line()}\n")
            self.assertEqual(len(found), 1, path)
            self.assertIn("p:3: the code of 0123abc has changed since", found[0])
            self.assertEqual(self.complaints(self.line(behind=True)), [])
        (self.root / "code" / "a.cpp").unlink()
        self.assertEqual(len(self.complaints(self.line())), 1)

    def test_a_file_that_moves_is_a_change(self):
        (self.root / "code" / "a.cpp").rename(self.root / "code" / "b.cpp")
        self.assertEqual(len(self.complaints(self.line())), 1)

    def test_a_run_is_of_one_proof(self):
        two = f"# P\n\n## A run\n\n{self.line()}\n\n## Another, `b`\n\n{self.line()}\n"

        def lines(which, text=two):
            return [each.line for each in proofs.choose(which, "p", text)]

        self.assertEqual(lines("p:5"), [5])
        self.assertEqual(lines("p#another-b"), [9])
        self.assertEqual(lines("p", two.split("## Another")[0]), [5])
        for which in ("p", "p:6", "p#third"):
            with self.assertRaises(SystemExit):
                lines(which)

    def test_a_page_without_a_line(self):
        self.assertIn("no line names", self.complaints("# Proof\n")[0])
        self.assertEqual(self.complaints("# Not a proof\n", required=False), [])

    def test_a_line_that_cannot_be_read(self):
        self.assertIn("is no line of a proof", self.complaints("Code: of code at 1", False)[0])


class Tree(unittest.TestCase):
    def test_each_page_says_where_it_is_behind(self):
        wrong = []
        for page, text in proofs.pages():
            is_proof = pathlib.Path(page).stem in proofs.PAGES
            found, states = proofs.complaints_of(page, text, is_proof)
            wrong += found
            for each, is_behind in states:
                if is_behind:
                    print(f"behind: {page}:{each.line}, of {each.commit}", file=sys.stderr)
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_each_page_of_proofs_is_there(self):
        there = {pathlib.Path(page).stem for page, _ in proofs.pages()}
        self.assertEqual(set(proofs.PAGES) - there, set())


if __name__ == "__main__":
    unittest.main()
