# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: every public name has a comment, and the reference has every public name. Method: texts
with planted gaps, each beside a clean twin; then the tree, where each line that exports has a name
that the reader sees, and the C library's names are compared with the list of its symbols."""

import re
import unittest

import pages  # first: it says where the others lie

# isort: split
import comments
import reference

# All of a declaration that is exported up to the end of its name.
EXPORT = re.compile(
    r"^export (?!module|import|namespace)(?:template <[^;{]*?>\s+)?(?:requires [^\n]*\s+)?"
    r"(?:(?:class|struct) VMM_\w+\([^)]*\) )?([^;]*?)(?: final)?\s*(?:;|\{| =|\(|\s:\s)",
    re.MULTILINE,
)


def names(text, path="a.hpp"):
    return [each.name for each in comments.read_source(text, path)]


def gaps(text, path="a.hpp"):
    return [
        line.split(": ")[1].split(" ")[0] for line in comments.header_without_comments(text, path)
    ]


class Prose(unittest.TestCase):
    def test_code_ends_before_the_bracket_of_its_sentence(self):
        self.assertEqual(
            reference.escape("refused (see last_shortage), by f() and vmm::g"),
            "refused (see `last_shortage`), by `f()` and `vmm::g`",
        )

    def test_a_list_stays_a_list(self):
        text = "Rules:\n\n- One,\n  of two lines.\n- two_of() it.\n"
        prose = "Rules:\n\n- One, of two lines.\n- `two_of()` it."
        self.assertEqual(reference.Writer(None).prose(text), prose)


class Reader(unittest.TestCase):
    def test_names_of_declarations(self):
        for text, expected in (
            ("int f(int a = g(1));", "f"),
            ("auto h() -> int { return 1'000; }\nint i;", "h i"),
            ("template <class T, class = void>\nstruct s : b<T> { int x; };", "s"),
            ("template <class T>\n[[nodiscard]] void* f(T t, int n = m) const {\n  g(n);\n}", "f"),
            ("void f(void (*on)(int), int n);", "f"),
            ("template <class T>\n  requires(a<T>) && b<T>\nT g(T x);", "g"),
            ('class VMM_CAPABILITY("mutex") m {\n int x;\n};', "m"),
            ("bool operator==(a x, a y) noexcept { return g(x); }\nint j;", "operator== j"),
            ("enum { A = 1, B };", ""),
            ("typedef struct x { int a; } y;", "y"),
            ("typedef void (*callback)(int, void*);", "callback"),
            ("inline constexpr std::array<int, 3> table{1, 2};", "table"),
            ("template <class T>\nconcept c = requires(T t) { t.f(); };\nint g;", "c g"),
            ("s(int a) : x{a}, y(a) { f(); }\nint k;", "s k"),
            ('#define M "/*"\n#define N(x) x\nint f();', "M f"),
            ('const char* t = "};//";\nint u;', "t u"),
        ):
            self.assertEqual(names(text), expected.split(" "), text)

    def test_comments_of_declarations(self):
        def said(text):
            return [each.comment for each in comments.read_source(text, "a.hpp")]

        self.assertEqual(said("/// One.\n/// Two.\nint f();"), ["One.\nTwo."])
        self.assertEqual(said("/// Far.\n\nint f();"), [""])
        self.assertEqual(said("int f();  // behind\nint g();"), ["behind", "behind"])
        self.assertEqual(
            said("/** Of both. */\nint f();\nint g();\n\nint h();"), ["Of both.", "Of both.", ""]
        )
        self.assertEqual(said("// ---- a section ----\nint f();"), [""])

    def test_only_what_is_exported(self):
        unit = (
            "export module m;\nnamespace vmm {\nexport int f();\nint g();\n"
            "namespace n { export struct s { int x; }; }\n}\n"
        )
        found = list(comments._exported(comments.read_source(unit, "a.cppm"), ""))
        self.assertEqual([each.name for each in found], ["f", "n::s"])


class Planted(unittest.TestCase):
    def test_a_name_without_a_comment(self):
        self.assertEqual(gaps("int f();"), ["f"])
        self.assertEqual(gaps("/** Yes. */\nint f();\n\nint g();", "a.h"), ["g"])
        self.assertEqual(gaps("#define VMM_X 1\n", "a.h"), ["VMM_X"])
        self.assertEqual(gaps("enum { A, /* one */\n B\n};", "a.h"), ["B"])
        self.assertEqual(gaps("typedef struct s { int a; } s;", "a.h"), ["s"])
        self.assertEqual(gaps("/// Yes.\nclass c {\n public:\n  void f();\n};"), ["f"])

    def test_its_clean_twin(self):
        self.assertEqual(gaps("/// Yes.\nint f();"), [])
        self.assertEqual(gaps("#define VMM_X 1 /* yes */\n", "a.h"), [])
        self.assertEqual(gaps("enum { A, /* one */\n B /* two */\n};", "a.h"), [])
        text = "/// Yes.\nclass c {\n public:\n  c(const c&) = delete;\n  ~c();\n"
        self.assertEqual(gaps(f"{text} private:\n  void g();\n}};"), [])
        self.assertEqual(gaps("namespace detail { int f(); }"), [])

    def test_python(self):
        said, entities, exports = comments.read_python(
            '"""Yes."""\ndef f():\n    pass\nclass c:\n    """Yes."""\n    def g(self): pass\n'
            'N = 1\n"""Yes."""\n__all__ = ["f"]\n',
            "a.py",
        )
        lines = list(comments.python_without_comments({"m": (said, entities)}))
        self.assertEqual(exports, ["f"])
        self.assertEqual(len(lines), 2, lines)


class Tree(unittest.TestCase):
    def test_members_of_private_bases(self):
        """close() of a pool stands in a class that has no page."""
        _, pools = comments.python_modules(pages.ROOT)["libvmm.pools"]
        (pool,) = (each for each in pools if each.name == "Pool")
        names = [each.name for each in pool.members]
        self.assertIn("close", names)
        self.assertEqual(len(names), len(set(names)))

    def test_every_public_name_has_a_comment(self):
        found = comments.without_comments(pages.ROOT)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_the_reader_sees_every_exported_name(self):
        modules = comments.read_modules(pages.ROOT)
        seen = {
            each.name for name, unit in modules.items() if name != "vmm" for each in unit.entities
        }
        units = sorted((pages.ROOT / "modules").glob("*/**/*.cppm"))
        found = EXPORT.findall("\n".join(each.read_text() for each in units))
        exported = {re.findall(r"\w+", each)[-1] for each in found if "operator" not in each}
        self.assertGreater(len(exported), 400)
        last = {each.split("::")[-1] for each in seen}
        self.assertEqual(exported - last, set(), "the reference does not have these")
        self.assertGreater(len(comments.umbrella(modules)), 50)
        self.assertEqual(comments.umbrella(modules) - seen, set(), "nor these")

    def test_the_reader_sees_every_function_of_the_c_library(self):
        listed = set((pages.ROOT / "tests/c/symbols.txt").read_text().split())
        listed = {name.split("@")[0] for name in listed if name.startswith("vmm_")}
        self.assertGreater(len(listed), 50)
        seen = set()
        for path in comments.HEADERS[:2]:
            text = (pages.ROOT / path).read_text()
            seen |= {each.name for each in reference._flat(comments.read_source(text, path))}
        self.assertEqual(listed - seen, set())


if __name__ == "__main__":
    unittest.main()
