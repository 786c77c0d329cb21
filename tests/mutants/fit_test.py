# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a mutant finds its text wherever it lies and however it is wrapped, changes nothing else,
and is refused where the text is missing, there twice, or not whole. Method: small trees written
here."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "check"))
import mutants

HEAD = "What: w\nPeer: p\nTest: t\nFilter: *\nFlavour: debug\n"


class Mutants(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def mutated(self, files, text):
        for name, content in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(content)
        (self.root / "a.mutant").write_text(text)
        mutant = mutants.Mutant.read(self.root / "a.mutant")
        changed = mutants.Sources(self.root).mutate(mutant)
        return {str(path): content for path, content in changed.items()}

    def block(self, find, replacement):
        return f"\n--- find\n{find}\n--- replace\n{replacement}\n"

    def refusal(self, files, text):
        with self.assertRaises(mutants.Unfit) as seen:
            self.mutated(files, text)
        return str(seen.exception)

    def test_a_text_is_found_in_any_file_and_with_any_wrapping(self):
        text = HEAD + self.block("if (a < b) return c;", "if (a <= b) return c;")
        for name in ("modules/x/y.cpp", "backends/z.cppm", "adapters/preload/deep/er.h"):
            files = {name: "one();\n  if (a <\n      b)\n    return c;\ntwo();\n"}
            self.assertEqual(
                self.mutated(files, text), {name: "one();\n  if (a <= b) return c;\ntwo();\n"}
            )
            (self.root / name).unlink()

    def test_blocks_change_their_places_alone(self):
        files = {"modules/a.cpp": "x = 1; y = 2; z = 3;\n", "modules/b.cpp": "x = 4;\n"}
        text = HEAD + self.block("z = 3;", "") + self.block("x = 1;", "xx = 1;")
        self.assertEqual(self.mutated(files, text), {"modules/a.cpp": "xx = 1; y = 2; \n"})

    def test_a_text_that_is_missing_or_there_twice_is_refused(self):
        text = HEAD + self.block("x = 1;", "")
        self.assertIn("is nowhere", self.refusal({"docs/a.cpp": "x = 1;"}, text))
        self.assertIn("more than once", self.refusal({"modules/a.cpp": "x = 1; x  =  1;"}, text))
        files = {"modules/a.cpp": "x = 1;", "modules/b.cpp": "x = 1;"}
        self.assertIn("modules/a.cpp, modules/b.cpp", self.refusal(files, text))

    def test_a_mutant_that_is_not_whole_is_refused(self):
        whole = self.block("x = 1;", "x = 2;")
        for text, why in (
            (HEAD.replace("Peer", "Pear") + whole, "no Peer"),
            (HEAD.replace("debug", "fast") + whole, "no flavour 'fast'"),
            (HEAD, "not followed"),
            (HEAD + "\n--- find\nx = 1;\n", "not followed"),
            (HEAD + self.block("x = 1;", "x  =  1;"), "changes nothing"),
            (HEAD + self.block("", "x = 1;"), "finds nothing"),
        ):
            self.assertIn(why, self.refusal({"modules/a.cpp": "x = 1;"}, text), text)


if __name__ == "__main__":
    unittest.main()
