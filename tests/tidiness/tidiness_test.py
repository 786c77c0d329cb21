# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the tree keeps its own rules (layers, sizes, headers, reminders, names), and the checker
# finds each violation.
# Method: planted violations in texts written here, each of which must be found, each beside a clean
# twin that must not be; then every file of the tree. --update writes the table of sizes.
from __future__ import annotations

import os
import pathlib
import re
import sys
import unittest

import rules
import sizes
import words
from cpp import Classes, PublicCalls, Source

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "tidiness" / "sizes.txt"
SPDX = "// SPDX-FileCopyrightText: 2026 The vmm authors\n// SPDX-License-Identifier: Apache-2.0\n"
LINE = "  f();\n"


class Planted(unittest.TestCase):
    def expect(self, rule: str, path: str, *texts: str) -> None:
        """Each text, behind a licence, breaks that rule alone, or none."""
        for text in texts:
            with self.subTest(path=path, text=text):
                found = [each.rule for each in rules.check_file(path, SPDX + text)]
                self.assertEqual(found, [rule] if rule else [])

    def test_licence_lines(self) -> None:
        for path in ("modules/va/va.cpp", "tools/CMakeLists.txt"):
            self.assertEqual([each.rule for each in rules.check_file(path, "x\n")], ["spdx"])
        self.expect("", "modules/va/va.cpp", "int x;\n")

    def test_long_line(self) -> None:
        self.expect("width", "a.cpp", "// " + "x" * (rules.COLUMNS_MAX - 2) + "\n")
        self.expect("", "a.cpp", "// " + "\u00e9" * (rules.COLUMNS_MAX - 3) + "\n")

    def test_reminder(self) -> None:
        for word in rules.REMINDERS:
            self.expect("reminder", "a.cpp", f"// {word}: later\n")
            self.expect("reminder", "docs/a.md", f"{word}\n")
            self.expect("", "a.cpp", f"int {word}S;\n")

    def test_variable_that_a_set_uid_program_would_obey(self) -> None:
        reads = 'const char* a = std::getenv("A");\n'
        for folder in (*rules.INSTALLED, "tools/top/"):
            self.expect("variable", f"{folder}a.cpp", reads)
        self.expect("", "tests/a/a.cpp", reads)
        self.expect("", "tools/a/a.cpp", reads.replace('"A"', '"TERM"'))
        self.expect("", "adapters/c/src/a.cpp", "// Cost: a getenv.\n")

    def test_web_address_in_a_script(self) -> None:
        line = f"# see {rules.ADDRESSES[1]}example.org\n"
        self.expect("address", "fuzz/a.sh", line)
        self.expect("address", "run", line)
        self.expect("", "README.md", line)

    def test_header_in_an_interface(self) -> None:
        unit = "module;\n#include {}\n{}module vmm.va;\n"
        for include in ("<cuda.h>", "<sys/mman.h>", "<boost/set.hpp>", '"private.hpp"', "<vector>"):
            self.expect("header", "modules/va/va.cppm", unit.format(include, "export "))
        self.expect("header", "modules/va/va.cpp", unit.format("<vector>", ""))
        self.expect("header", "benchmarks/a.hpp", "#include <cuda.h>\n")
        self.expect("", "tests/c/a.cu", "#include <cuda.h>\n")
        self.expect("", "modules/va/va.cppm", unit.format("<cstdio>", "export "))
        self.expect("", "modules/va/va.cpp", unit.format("<sys/mman.h>", ""))
        self.expect("", "tools/trace/trace.cppm", unit.format("<vector>", "export "))
        whole = "module;\n#include <vector>\nexport module vmm.std;\nexport namespace std {\n}\n"
        self.expect("", "modules/std/std.cppm", whole)

    def test_import_that_does_not_point_down(self) -> None:
        unit = "export module vmm.{};\nimport {};\n"
        for importer, imported in (
            ("va", "vmm.manager"),
            ("va", "vmm.physical"),  # the same layer
            ("backend", "vmm.va"),
            ("backend:types", "vmm.va"),
            ("fake", "vmm.va"),  # a driver uses the vocabulary only
            ("manager", "vmm.fake"),  # no module depends on a driver
            ("optimizer", "vmm"),
            ("surprise", "vmm.backend"),
        ):
            self.expect("layer", "a.cppm", unit.format(importer, imported))
        self.expect("layer", "a.cpp", "import std;\n", "module vmm.va;\nimport vmm.optimizer;\n")
        for importer, imported in (
            ("manager", "vmm.va"),
            ("registry", "vmm.host"),
            ("backend", ":types"),
        ):
            self.expect("", "a.cppm", unit.format(importer, imported))
        self.expect("", "tools/a.cpp", "import vmm.fake;\nimport vmm;\n")

    def test_order_and_export(self) -> None:
        self.expect("order", "a.cpp", "import vmm;\n#include <vector>\n")
        self.expect("", "a.cpp", "#include <vector>\nimport vmm;\n")
        self.expect("export", "a.cppm", "export module vmm.va;\nexport {\nint x;\n}\n")
        self.expect("export", "a.cppm", "export module vmm.va;\nexport namespace vmm {}\n")

    def test_long_function(self) -> None:
        for head in (
            "void f() {\n",
            "template <class T>\nvoid f(T x) noexcept {\n",
            "struct s {\n};\nint s::f() const {\n",
            "namespace a {\nstruct s { int x{}; explicit s(int y) : x{y} {\n",
            "namespace a {\nauto f() -> std::vector<int> {\n",
            'extern "C" {\nint f() {\n',
            'extern "C" int f() {\n',
            "bool operator<(a x, a y);\nTEST(A, B) {\n",
            "s& s::operator=(s&& other) noexcept {\n",
            "bool operator==(s a, s b) { return a.x == b.x; }\nint f() {\n",
            "bool s::operator()(int a, int b) const {\n",
            "s::operator bool() const {\n",
            "constexpr int limit = [] {\n  return 1;\n}();\nvoid f() {\n  auto g = [](int x) {\n",
            "auto text = R\"(})\"; const char quote = '\"'; int n = 1'000;\nvoid f() {\n",
        ):
            words = Source(head).words
            tail = "}" * (words.count("{") - words.count("}"))
            self.expect("length", "a.cpp", head + LINE * 80 + tail + "\n")
            self.expect("", "a.cpp", head + LINE * 60 + tail + "\n")
        self.expect("", "a.cpp", "void f() {\n" + LINE * 68 + "}\n")
        self.expect("length", "a.cpp", "void f() {\n" + LINE * 69 + "}\n")
        head = "template <class T>\n  requires(sizeof(T) > 1)\n"
        for what in ("", head):
            self.expect("", "a.cpp", what + "struct s {\n" + LINE * 80 + "};\n")
        self.expect("braces", "a.cpp", "void f() {\n", "void f() }\n")

    def test_name_that_no_import_brings(self) -> None:
        interface = """
module;
export module vmm.va:part;
import vmm.backend;
namespace vmm {
export struct plain { int export_me; };
export enum class kind : std::uint8_t { none };
export template <class T, class U = std::vector<std::pair<T, int>>>
class [[nodiscard]] box {};
export template <>
class box<void> {};
export template <class T>
class box<T*> {};
export template <class B>
concept able = requires(B b) { { b.f() } -> same<int>; };
export inline constexpr std::array<int, 3> table{1, 2, 3};
export [[nodiscard]] const char* name_of(kind which) noexcept;
export template <class T>
  requires(sizeof(T) > 1) && able<T>
[[nodiscard]] std::optional<T> find(T x) { return x; }
export using status = box<int>;
export bool operator==(plain a, plain b);
namespace detail { export void hidden(); }
void not_exported();
}
"""
        head = "export module vmm.va;\n"
        files = {"modules/va/part.cppm": interface, "modules/va/va.cpp": "export int other;"}
        exported = "plain kind box able table name_of find status detail::hidden".split()
        for imports, hidden in (
            ("import :part;\n", exported),
            ("export import :part;\n", []),
            ("namespace vmm { export class plain; }", exported[1:]),
        ):
            files["modules/va/va.cppm"] = head + imports
            found = [each.what for each in rules.check_exports(files)]
            wanted = [f"an import of vmm.va does not bring vmm::{name}" for name in hidden]
            self.assertEqual(found, wanted)


class Checks(unittest.TestCase):
    def test_of_two_conditions(self) -> None:
        for text, count in (
            ("check(a != 0 && b != 0, 1);", 1),
            ("check(a != 0 || (b && c), 1);", 0),
            ("debug_check([&] { return a && b; }, 1);", 0),  # a whole structure
        ):
            source = Source(f"void f() {{ {text} }}")
            self.assertEqual(rules.count_double_checks(source), count, text)

    def test_name_the_invariants_of_the_heads(self) -> None:
        heads = "// I1  A bin is a list.\n// I2  It is short.\n// I3, of a record.\n"
        files = {
            "modules/va/bins.cppm": heads,
            "modules/va/bins.cpp": 'void f() { check(x, "I1: a bin is not a list"); }\n',
            "modules/va/map.cpp": 'const char* g() { return "bins I2: it is long"; }\n'
            'void h() { check(x, "I2: x"); check(y, "bins I4: y"); }\n',
        }
        files["tools/fit/model.cppm"] = "// I1  A model is exact.\n"
        named, unknown = rules.read_invariants(files)
        self.assertEqual(list(named.values()), [True, True, False])
        self.assertEqual(
            [each.what.split(":")[0] for each in unknown],
            ["no head of modules/va/map has I2", "no head of modules/va/bins has I4"],
        )


class Sizes(unittest.TestCase):
    def test_of_classes(self) -> None:
        source = Source("""
namespace vmm {
export class [[nodiscard]] VMM_CAPABILITY("x") pool : public base<int> {
 public:
  explicit pool(int x) : a_{x}, b_(f(x)) { g(); }
  pool(const pool&) = delete;
  ~pool();
  [[nodiscard]] int f(int x) const noexcept VMM_REQUIRES(lock_) { return x; }
  template <class T>
  void g(T x);
  bool operator==(const pool& other) const;
  struct inner {
    int h() const { return 1; }
    int value = k();
  };
  friend void swap(pool& a, pool& b);

 private:
  std::function<void(int)> callback_;
  int a_{3}, b_ = f(1);
};
enum class kind { a, b };
void free_function();
}""")
        self.assertEqual(Classes(source).counts, {"inner": 1, "pool": 5})

    def test_only_get_better(self) -> None:
        for value, table, found in (
            (3, "# a table\n3 modules\n", 0),
            (4, "3 modules\n", 1),
            (2, "3 modules\n", 1),
            (3, "", 1),
            (3, "3 modules\n9 functions of pool\n", 1),
        ):
            said = sizes.compare_sizes({"modules": value}, sizes.read_table(table))
            self.assertEqual(len(said), found, table)
        worse = sizes.compare_sizes({sizes.MORE_IS_BETTER: 2}, {sizes.MORE_IS_BETTER: 3})
        self.assertIn("worse", worse[0])

    def test_of_tests_and_tools(self) -> None:
        for path, line, thousands in (
            ("tests/va/a.cpp", "\n", 1),
            ("tests/va/a.cpp", "  // why\n", 1),
            ("tests/va/a.cpp", "#include <a>\n", 2),
            ("tests/a.py", "# why\n", 1),
            ("run", "true\n", 2),
            ("tests/features.csv", "a\n", 0),
            ("modules/va/a.cpp", "f();\n", 0),
        ):
            rows = sizes.sizes_of({path: "a = 1\n" + line * 1000})
            self.assertEqual(rows[sizes.CODE_LINES], thousands, path + line)

    def test_of_sources(self) -> None:
        for path, lines, found in (
            ("modules/va/a.cppm", 500, 0),
            ("modules/va/a.cppm", 501, 1),
            ("adapters/python/src/libvmm/torch/allocator.cpp", 501, 1),
            ("tests/va/a_test.cpp", 501, 0),
        ):
            self.assertEqual(len(rules.check_length(path, "\n" * lines)), found, path)


class Words(unittest.TestCase):
    def found(self, rule: str, text: str) -> list[str]:
        """What is found of a word in two files that hold the same."""
        read, mistakes = words.read_words("words.csv", rule)
        self.assertEqual(mistakes, [])
        files = {"modules/va/a.cpp": text, "tests/va/a.cpp": text}
        return [each.what.split(";")[0] for each in words.check_words(files, read)]

    def test_of_names(self) -> None:
        slab, view = 'slab,"a record, or a map",name,', "view,mapping,name,string_view"
        for rule, text, count in (
            (slab, "int slab; int x = slab;", 1),
            (slab, "int slab, live_slabs_;", 2),
            (slab, "#define MY_SLAB_X\nint MY_SLAB_X;", 1),
            (slab, 'int slabby; f("slab");  // slab', 0),
            (view, "std::string_view x;", 0),
            (view, "std::string_view view_;", 1),
            ("pool_book,state,name,", "int pool; int book;", 0),
        ):
            word = rule.split(",")[0]
            expected = [f"{word} (name): {count}"] if count else []
            self.assertEqual(self.found(rule, text), expected, text)

    def test_of_prose(self) -> None:
        for text, count in (
            ("// How come first.\nint how_come;", 1),
            ("/* Of\n * how\n * come. */", 1),
            ("int x = 1'000;  // how\n// come", 1),
            ('f("how come"); g(R"("how come" // how come)"); how come;', 3),
            ("// `how come` howler come, how comet", 0),
        ):
            expected = [f"how come (prose): {2 * count}"] if count else []
            self.assertEqual(self.found("how come,the caller,prose,", text), expected, text)

    def test_are_said_with_their_places(self) -> None:
        read, _ = words.read_words("words.csv", "# a comment\ngone,freed,prose,\n")
        text = "int a;\n\n// gone\nint b;  // is gone\n"
        [found] = words.check_words({"modules/va/a.cpp": text}, read)
        self.assertEqual(found.line, 2)
        self.assertIn("modules/va/a.cpp:3 modules/va/a.cpp:4", found.what)

    def test_of_pages_are_those_outside_of_code(self) -> None:
        page = "a `b` c\n```\nd\n```\n    e\nf [g](h) i"
        blanked = "a     c\n   \n \n   \n     \nf [g     i"
        self.assertEqual(words.prose_of("docs/a.md", page), blanked)
        self.assertEqual(words.prose_of("run", "f=1  # gone\n"), "       gone\n")
        self.assertEqual(words.prose_of("traces/a.csv", "gone"), "")

    def test_of_a_list_are_read(self) -> None:
        rows = "a,b,name,c d\na,b,nouns,\nA,b,name,\na,b,prose\n"
        read, mistakes = words.read_words("words.csv", ",".join(words.COLUMNS) + "\n" + rows)
        self.assertEqual([each.allowed for each in read], [["c", "d"]])
        self.assertEqual(len(mistakes), 3)


class Calls(unittest.TestCase):
    def expect(self, pairs: int, uncommented: int, *texts: str) -> None:
        for text in texts:
            with self.subTest(text):
                unit = "export module vmm.va;\nnamespace vmm {\n\n" + text + "\n}\n"
                calls = PublicCalls(unit, "modules/va/a.cppm")
                found = rules.check_calls("modules/va/a.cppm", unit)
                self.assertEqual(sum(each.rule == "integers" for each in found), pairs)
                self.assertEqual(len(calls.uncommented), uncommented)

    def test_of_two_integers(self) -> None:
        self.expect(
            1,
            1,
            "export void f(std::uint64_t a, std::uint64_t b);",
            "export void f(int x, std::size_t a, const std::size_t b = 1) {}",
            "export class c { public: void f(int a, int b); };",
            "export struct s { s(int a, int b) : x(a) {} int x; };",
            "export class c { public: struct d { void f(int a, int b); }; };",
            "export template <class T>\nvoid f(T t, int a, int b);",
        )
        self.expect(
            0,
            1,
            "export void f(std::uint64_t a, std::uint32_t b);",
            "export void f(int a, char* b, int c);",
            "export void f(int* a, int& b);",
            "export int f(int a) { return g(int(1), int(2)); }",
            "export void* allocate(std::size_t bytes, std::size_t alignment);",
        )

    def test_without_a_comment(self) -> None:
        self.expect(
            0,
            1,
            "export void f(int x);",
            "export template <class T>\nint f(T x) { return g(x); }",
            "export class c {\n public:\n  int f() const;\n};",
            "export struct s {\n  int x = 0;\n  s(int y) : x(y) {}\n};",
            "// Of f.\nexport void f();\n\nexport void g();",
            "// Of c.\nexport class c {\n public:\n  void f();\n};",
        )

    def test_that_need_none(self) -> None:
        self.expect(
            0,
            0,
            "/// Of f.\nexport [[nodiscard]] int f();",
            "/// Of both.\nexport int f();\nexport int g();",
            "export int f();  // of f",
            "void f(int a, int b);",
            "export class c {\n  void f(int a, int b);\n private:\n  void g();\n};",
            "class c {\n public:\n  void f(int a, int b);\n};",
            "export class c {\n public:\n  c(const c&) = delete;\n"
            "  c(c&& other) noexcept : x(other.x) {}\n  ~c() { g(); }\n"
            "  bool operator==(const c& b) const;\n  int x = f();\n};",
        )


def read_tree() -> rules.Files:
    """The files that are written by hand: no build folders, captured traces or fuzzing corpora."""
    files = {}
    for folder, folders, names in os.walk(ROOT):
        left_out = {".git", ".cache", "traces", "corpus", "__pycache__"}
        folders[:] = [x for x in folders if x not in left_out and not x.startswith("build")]
        for path in map(pathlib.Path(folder).joinpath, names):
            if path.is_file():
                data = path.read_bytes()
                files[path.relative_to(ROOT).as_posix()] = data.decode(errors="replace")
    return dict(sorted(files.items()))


class Tree(unittest.TestCase):
    files: rules.Files

    @classmethod
    def setUpClass(cls) -> None:
        cls.files = read_tree()
        assert len(cls.files) > 10, "this is not the tree"

    def expect_none(self, found) -> None:
        if lines := [str(each) for each in found]:
            self.fail("\n".join(["", *lines]))

    def test_keeps_its_rules(self) -> None:
        found = rules.read_invariants(self.files)[1]
        for path, text in self.files.items():
            found += rules.check_file(path, text) + rules.check_length(path, text)
            found += rules.check_calls(path, text)
        self.expect_none(found)

    def test_only_gets_better(self) -> None:
        now = sizes.sizes_of(self.files)
        for name, value in now.items():
            print(value, name)
        self.expect_none(sizes.compare_sizes(now, sizes.read_table(TABLE.read_text())))

    def test_allows_multicast_on_the_stub_alone(self) -> None:
        """A driver makes multicast calls where it is allowed to: these tests let it, on the stub
        libcuda, and no program that goes to a device is one of them."""
        for text, allowed in (
            ("how.allow_multicast = true;", True),
            ("{.allow_multicast=x}", True),
            ("bool allow_multicast{ false };", False),
            ("bool allow_multicast = false;", False),
            ("where allow_multicast is set", False),
        ):
            self.assertEqual(rules.allows_multicast(text), allowed, text)
        sources = {k: text for k, text in self.files.items() if k.endswith(rules.SOURCES)}
        allowing = [path for path, text in sources.items() if rules.allows_multicast(text)]
        on_the_stub = ["tests/cuda/driver_test.cpp", "tests/cuda/plain_test.cpp"]
        self.assertEqual(allowing, on_the_stub)
        for program in ("cuda_driver_test", "cuda_plain_test"):
            self.assertNotIn(program, self.files["gpu_tests/gpu.sh"])

    def test_says_the_fields_words(self) -> None:
        path = "tests/tidiness/words.csv"
        read, mistakes = words.read_words(path, self.files[path])
        self.expect_none(mistakes + words.check_words(self.files, read, path))

    def test_every_exported_name_can_be_reached(self) -> None:
        self.expect_none(rules.check_exports(self.files))
        parts = self.files["tests/package/consumer/parts.cpp"]
        self.assertEqual(parts.count("#include"), 1, "<cstdio> only")
        umbrella = rules.names_in(self.files["modules/vmm.cppm"])
        # A name that most programs do not use is imported by its module.
        self.assertTrue(50 <= len(umbrella) <= 90, len(umbrella))

    def test_the_page_has_the_layers(self) -> None:
        table = rules.layer_table(self.files)
        self.assertIn(f"\n\n{table}\n", self.files["docs/architecture.md"], table)

    def test_programs_of_pages_are_files_that_compile(self) -> None:
        for page, names, count in (
            ("README.md", ["examples/first.cpp"], 1),
            ("docs/start.md", ["examples/guide.cpp"], 1),
            ("docs/pool.md", ["examples/guide_parts.cpp", "tests/docs/samples/serving.cpp"], 6),
        ):
            texts = [self.files[each] for each in names]
            programs = [text[text.index("#include") :] for text in texts]
            shown = re.findall(r"```cpp\n(.*?)```", self.files[page], re.DOTALL)
            self.assertEqual(len(shown), count, page)
            for each in shown:
                self.assertTrue(any(each in program for program in programs), f"{page}: {each}")
            if count == 1:
                self.assertEqual(shown, programs)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        head, rows = TABLE.read_text().split("\n\n")[0], sizes.sizes_of(read_tree())
        TABLE.write_text(f"{head}\n\n" + "".join(f"{v} {name}\n" for name, v in rows.items()))
        sys.argv[1:] = ["Tree.test_only_gets_better"]
    unittest.main()
