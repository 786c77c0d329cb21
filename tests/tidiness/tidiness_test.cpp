// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the tree keeps its own rules (layers, sizes, headers, reminders, names), and the checker
// sees it when not.
// Method: planted violations in texts written here, each of which must be found, each beside a
// clean twin that must not be; then every file of the tree.
#include <iostream>

#include "../support/test.h"
#include "checks.hpp"
#include "comments.hpp"
#include "exports.hpp"
#include "functions.hpp"
#include "integers.hpp"
#include "rules.hpp"
#include "sizes.hpp"
#include "tokens.hpp"
#include "words.hpp"

namespace {

using namespace std::string_literals;
using tidy::file;
using tidy::finding;

const std::string spdx =
    "// SPDX-FileCopyrightText: 2026 The vmm authors\n// SPDX-License-Identifier: Apache-2.0\n";

std::vector<std::string> rules_broken(const std::string& path, const std::string& text) {
  std::vector<std::string> rules;
  for (const finding& each : tidy::check_file({path, text})) rules.push_back(each.rule);
  return rules;
}

using rules = std::vector<std::string>;

TEST(Planted, MissingLicenceLines) {
  EXPECT_EQ(rules_broken("modules/va/va.cpp", "int x;\n"), rules{"spdx"});
  EXPECT_EQ(rules_broken("tools/CMakeLists.txt", "project(x)\n"), rules{"spdx"});
  EXPECT_EQ(rules_broken("modules/va/va.cpp", spdx + "int x;\n"), rules{});
}

TEST(Planted, LongLine) {
  EXPECT_EQ(rules_broken("a.cpp", spdx + "// " + std::string(tidy::column_limit - 2, 'x') + "\n"),
            rules{"width"});
  EXPECT_EQ(rules_broken("a.cpp", spdx + "// " + std::string(tidy::column_limit - 3, 'x') + "\n"),
            rules{});
  std::string accents;
  for (int i = 0; i < tidy::column_limit - 3; ++i) accents += "\xC3\xA9";
  EXPECT_EQ(rules_broken("a.cpp", spdx + "// " + accents + "\n"), rules{}) << "columns, not bytes";
}

TEST(Planted, Reminder) {
  for (const std::string& word : {"TO"s + "DO", "FIX"s + "ME", "XX"s + "X", "HA"s + "CK"}) {
    EXPECT_EQ(rules_broken("a.cpp", spdx + "// " + word + ": later\n"), rules{"reminder"});
    EXPECT_EQ(rules_broken("docs/a.md", word + "\n"), rules{"reminder"});
    EXPECT_EQ(rules_broken("a.cpp", spdx + "int " + word + "S;\n"), rules{})
        << "part of another word";
  }
}

TEST(Planted, VariableThatASetUidProgramWouldObey) {
  const std::string reads = spdx + "const char* a = std::getenv(\"A\");\n";
  for (const char* path :
       {"modules/a/a.cpp", "backends/a/a.cpp", "adapters/preload/a.cpp", "adapters/c/src/a.cpp"})
    EXPECT_EQ(rules_broken(path, reads), rules{"variable"}) << path;
  EXPECT_EQ(rules_broken("tools/a/a.cpp", reads), rules{});
  EXPECT_EQ(rules_broken("adapters/c/src/a.cpp", spdx + "// Cost: a getenv.\n"), rules{});
}

TEST(Planted, WebAddressInAScript) {
  const std::string line = "# see https://example.org\n";
  EXPECT_EQ(rules_broken("fuzz/a.sh", spdx + line), rules{"address"});
  EXPECT_EQ(rules_broken("run", spdx + line), rules{"address"});
  EXPECT_EQ(rules_broken("README.md", line), rules{}) << "prose may point elsewhere";
}

TEST(Planted, HeaderInAnInterface) {
  const auto interface = [](const std::string& include) {
    return spdx + "module;\n#include " + include + "\nexport module vmm.va;\n";
  };
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<cuda.h>")), rules{"header"});
  EXPECT_EQ(rules_broken("benchmarks/a.hpp", spdx + "#include <cuda.h>\n"), rules{"header"})
      << "vmm declares the driver itself";
  EXPECT_EQ(rules_broken("tests/c/a.cu", spdx + "#include <cuda.h>\n"), rules{})
      << "nvcc comes with it";
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<sys/mman.h>")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<boost/intrusive/set.hpp>")),
            rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("\"private.hpp\"")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<vector>")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<cstdio>")), rules{})
      << "macros do not pass through an import";
  EXPECT_EQ(rules_broken("tools/trace/trace.cppm", interface("<vector>")), rules{})
      << "the tools may";
  EXPECT_EQ(rules_broken("modules/std/std.cppm",
                         spdx + "module;\n#include <vector>\nexport module vmm.std;\n"
                                "export namespace std {\nusing std::vector;\n}\n"),
            rules{})
      << "it is where they are read";
  EXPECT_EQ(
      rules_broken("modules/va/va.cpp", spdx + "module;\n#include <vector>\nmodule vmm.va;\n"),
      rules{"header"})
      << "an implementation unit too";
  EXPECT_EQ(
      rules_broken("modules/va/va.cpp", spdx + "module;\n#include <sys/mman.h>\nmodule vmm.va;\n"),
      rules{})
      << "an implementation unit may";
}

TEST(Planted, ImportThatDoesNotPointDown) {
  const auto unit = [](const std::string& module, const std::string& import) {
    return spdx + "export module " + module + ";\nimport " + import + ";\n";
  };
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.va", "vmm.manager")), rules{"layer"});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.va", "vmm.physical")), rules{"layer"}) << "same layer";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.backend", "vmm.va")), rules{"layer"});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.backend:types", "vmm.va")), rules{"layer"})
      << "a partition too";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.fake", "vmm.va")), rules{"layer"})
      << "a driver uses the vocabulary only";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.manager", "vmm.fake")), rules{"layer"})
      << "no module depends on a driver";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.optimizer", "vmm")), rules{"layer"});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.surprise", "vmm.backend")), rules{"layer"})
      << "unknown module";
  EXPECT_EQ(rules_broken("a.cpp", spdx + "import std;\n"), rules{"layer"});
  EXPECT_EQ(rules_broken("a.cpp", spdx + "module vmm.va;\nimport vmm.optimizer;\n"), rules{"layer"})
      << "implementation units too";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.manager", "vmm.va")), rules{});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.registry", "vmm.host")), rules{});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.backend", ":types")), rules{});
  EXPECT_EQ(rules_broken("tools/a.cpp", spdx + "import vmm.fake;\nimport vmm;\n"), rules{})
      << "programs may";
}

TEST(Planted, IncludeAfterImport) {
  EXPECT_EQ(rules_broken("a.cpp", spdx + "import vmm;\n#include <vector>\n"), rules{"order"});
  EXPECT_EQ(rules_broken("a.cpp", spdx + "#include <vector>\nimport vmm;\n"), rules{});
}

TEST(Planted, ExportBlock) {
  EXPECT_EQ(rules_broken("a.cppm", spdx + "export module vmm.va;\nexport {\nint x;\n}\n"),
            rules{"export"});
  EXPECT_EQ(rules_broken("a.cppm", spdx + "export module vmm.va;\nexport namespace vmm {}\n"),
            rules{"export"});
}

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "  f();\n";
  return text;
}

TEST(Planted, LongFunction) {
  const std::vector<std::string> heads{
      "void f() {\n",
      "template <class T>\nvoid f(T x) noexcept {\n",
      "struct s {\n};\nint s::f() const {\n",
      "namespace a {\nstruct s { int x{}; explicit s(int y) : x{y} {\n",
      "namespace a {\nauto f() -> std::vector<int> {\n",
      "extern \"C\" {\nint f() {\n",
      "extern \"C\" int f() {\n",
      "bool operator<(a x, a y);\nTEST(A, B) {\n",
      "s& s::operator=(s&& other) noexcept {\n",
      "bool operator==(s a, s b) { return a.x == b.x; }\nint f() {\n",
      "bool s::operator()(int a, int b) const {\n",
      "s::operator bool() const {\n",
      "constexpr int limit = [] {\n  return 1;\n}();\nvoid f() {\n  auto g = [](int x) {\n",
      "const char* text = R\"(})\"; const char quote = '\"'; int n = 1'000;\nvoid f() {\n",
  };
  for (const std::string& head : heads) {
    const auto open = std::ranges::count(head, '{') - std::ranges::count(head, '}');
    // Those that close a brace inside a literal count it here and not in the source.
    const auto missing = open + (head.find("R\"(") != std::string::npos ? 1 : 0);
    const std::string tail(static_cast<std::size_t>(missing), '}');
    EXPECT_EQ(rules_broken("a.cpp", spdx + head + lines(80) + tail + "\n"), rules{"length"})
        << head;
    EXPECT_EQ(rules_broken("a.cpp", spdx + head + lines(60) + tail + "\n"), rules{}) << head;
  }
  EXPECT_EQ(rules_broken("a.cpp", spdx + "struct s {\n" + lines(80) + "};\n"), rules{})
      << "a type, not a function";
  EXPECT_EQ(
      rules_broken("a.cpp", spdx + "template <class T>\n  requires(sizeof(T) > 1)\nclass s {\n" +
                                lines(80) + "};\n"),
      rules{});
}

TEST(Planted, ExactlyTheLimit) {
  EXPECT_EQ(rules_broken("a.cpp", spdx + "void f() {\n" + lines(68) + "}\n"), rules{});
  EXPECT_EQ(rules_broken("a.cpp", spdx + "void f() {\n" + lines(69) + "}\n"), rules{"length"});
}

TEST(Planted, BracesThatDoNotPair) {
  EXPECT_EQ(rules_broken("a.cpp", spdx + "void f() {\n"), rules{"braces"});
  EXPECT_EQ(rules_broken("a.cpp", spdx + "void f() }\n"), rules{"braces"});
}

TEST(Planted, NameThatIsNotListed) {
  const std::string interface = R"(
module;
export module vmm.va;
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
)";
  const std::vector<file> files{{"modules/va/va.cppm", interface},
                                {"modules/va/va.cpp", "export int other;"}};
  std::vector<std::string> found;
  for (const finding& each : tidy::check_names(files, {{"umbrella.cpp", ""}, {"names.cpp", ""}}))
    found.push_back(each.what);
  std::vector<std::string> expected;
  for (const char* name :
       {"plain", "kind", "box", "able", "table", "name_of", "find", "status", "detail::hidden"}) {
    expected.push_back(std::string{"add `using vmm::"} + name + ";` to names.cpp");
  }
  EXPECT_EQ(found, expected);
  const file list{
      "names.cpp",
      "using vmm::plain; using vmm::kind; using vmm::box; using vmm::able; using vmm::table;"
      "using vmm::name_of; using vmm::find; using vmm::status; using vmm::detail::hidden;"};
  EXPECT_TRUE(tidy::check_names(files, {{"umbrella.cpp", ""}, list}).empty());
}

TEST(Planted, NameThatTheUmbrellaBrings) {
  const std::vector<file> files{{"modules/stream/book.cppm",
                                 "export module vmm.stream:book;\nnamespace vmm { export struct "
                                 "region; export struct piece; }\n"}};
  const file umbrella{"vmm.cppm", "export using vmm::region;"};
  EXPECT_TRUE(tidy::check_names(files, {umbrella, {"parts.cpp", "using vmm::piece;"}}).empty());
  const std::vector<finding> found = tidy::check_names(files, {umbrella, {"parts.cpp", ""}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "add `using vmm::piece;` to parts.cpp");
}

// ---- checks -------------------------------------------------------------------------------------

std::vector<std::string> redundancies(const std::string& body) {
  std::vector<std::string> found;
  for (const finding& each :
       tidy::check_redundancy({"modules/va/a.cpp", "void f() {\n" + body + "\n}\n"}))
    found.push_back(each.what);
  return found;
}

TEST(Checks, OfWhatAnIfHasReturnedForAreFound) {
  const rules by_if{"an if that returns says it"};
  EXPECT_EQ(redundancies("if (a == nullptr) return;\ncheck(a != nullptr, \"\");"), by_if);
  EXPECT_EQ(redundancies("if (g.empty()) return;\nfor (x : g) { h(x); }\ncheck(!g.empty(), \"\");"),
            by_if);
  EXPECT_EQ(redundancies("if (!a || b == 0) { return 1; }\ndebug_check(b != 0, \"\");"), by_if);
  EXPECT_EQ(redundancies("if (a == 0) return;\na = g();\ncheck(a != 0, \"\");"), rules{})
      << "it changes";
  EXPECT_EQ(redundancies("if (a.b == 0) return;\na.g();\ncheck(a.b != 0, \"\");"), rules{});
  EXPECT_EQ(redundancies("if (a_ == 0) return;\ncheck(a_ != 0, \"\");"), rules{}) << "a member";
  EXPECT_EQ(redundancies("if (c) { if (a == 0) return; }\ncheck(a != 0, \"\");"), rules{});
  EXPECT_EQ(redundancies("if (a == 0) g();\ncheck(a != 0, \"\");"), rules{});
  EXPECT_EQ(redundancies("if (a == 0) return;\ncheck(a != b, \"\");"), rules{});
  EXPECT_EQ(redundancies("if (a == 0) return;\n" + lines(11) + "check(a != 0, \"\");"), rules{})
      << "far away";
}

TEST(Checks, OfTheLoopAndTheAssignmentBeforeAreFound) {
  EXPECT_EQ(redundancies("while (a != b) {\n  check(a != b, \"\");\n}"),
            rules{"the condition of the loop says it"});
  EXPECT_EQ(redundancies("for (int i = 0; i < n; ++i) { check(i < n, \"\"); }"),
            rules{"the condition of the loop says it"});
  EXPECT_EQ(redundancies("for (int i = 0; i < n; ++i) { check(i < m, \"\"); }"), rules{});
  EXPECT_EQ(redundancies("a.b = c;\ncheck(a.b == c, \"\");"),
            rules{"the assignment before it says it"});
  EXPECT_EQ(redundancies("a.b = c;\ncheck(a.b == d, \"\");"), rules{});
}

TEST(Checks, OfTwoConditionsAreCounted) {
  const auto count = [](const std::string& check) {
    return tidy::count_double_checks({"modules/va/a.cpp", "void f() {\n" + check + "\n}\n"});
  };
  EXPECT_EQ(count("check(a != 0 && b != 0, \"\");"), 1);
  EXPECT_EQ(count("check(a != 0 || (b && c), \"\");"), 0);
  EXPECT_EQ(count("debug_check([&] { return a && b; }, \"\");"), 0) << "a whole structure";
}

TEST(Checks, NameTheInvariantsOfTheHeads) {
  const std::vector<file> files{
      {"modules/va/bins.cppm",
       "// I1  A bin is a list.\n// I2  It is short.\n// I3, of a record.\n"},
      {"modules/va/bins.cpp", "void f() { check(x, \"I1: a bin is not a list\"); }\n"},
      {"modules/va/map.cpp",
       "const char* g() { return \"bins I2: it is long\"; }\n"
       "void h() { check(x, \"I2: x\"); check(y, \"bins I4: y\"); }\n"}};
  const auto report = tidy::read_invariants(files);
  ASSERT_EQ(report.all.size(), 2u) << "a comment of one function is not a head";
  EXPECT_TRUE(report.all[0].is_named);
  EXPECT_TRUE(report.all[1].is_named) << "from another file of the folder";
  ASSERT_EQ(report.unknown.size(), 2u);
  EXPECT_TRUE(report.unknown[0].what.starts_with("no head of modules/va/map has I2"));
  EXPECT_TRUE(report.unknown[1].what.starts_with("no head of modules/va/bins has I4"));
}

// ---- sizes --------------------------------------------------------------------------------------

TEST(Sizes, OfClassesAreTheFunctionsThatTheyDeclare) {
  const std::string text = R"(
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
})";
  const auto found = tidy::functions_of_classes(text);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "inner");
  EXPECT_EQ(found[0].value, 1);
  EXPECT_EQ(found[1].name, "pool");
  EXPECT_EQ(found[1].value, 5);
}

TEST(Sizes, OnlyGetBetter) {
  const auto said = [](int value, const std::string& table) {
    std::vector<std::string> found;
    for (const finding& each : tidy::compare_sizes({{"modules", value}}, tidy::read_table(table)))
      found.push_back(each.what);
    return found;
  };
  EXPECT_EQ(said(3, "# a table\n3 modules\n"), rules{});
  EXPECT_EQ(said(4, "3 modules\n"),
            rules{"modules: 4, and the table has 3: worse; a commit that takes it up says why"});
  EXPECT_EQ(said(2, "3 modules\n").size(), 1u) << "the table is taken down";
  EXPECT_EQ(said(3, "").size(), 1u) << "no row";
  EXPECT_EQ(said(3, "3 modules\n9 functions of pool\n").size(), 1u) << "a row too many";
}

TEST(Sizes, OfTestsAndToolsAreLinesOfCode) {
  const auto thousands = [](const char* path, const std::string& line) {
    std::string text = "a = 1\n";
    for (int i = 0; i < 1000; ++i) text += line;
    const auto rows = tidy::sizes_of({{path, text}});
    return rows.back().value;
  };
  EXPECT_EQ(thousands("tests/va/a.cpp", "\n"), 1);
  EXPECT_EQ(thousands("tests/va/a.cpp", "  // why\n"), 1);
  EXPECT_EQ(thousands("tests/va/a.cpp", "#include <a>\n"), 2);
  EXPECT_EQ(thousands("tests/a.py", "# why\n"), 1);
  EXPECT_EQ(thousands("run", "true\n"), 2);
  EXPECT_EQ(thousands("tests/features.csv", "a\n"), 0) << "no code";
  EXPECT_EQ(thousands("modules/va/a.cpp", "f();\n"), 0) << "the library";
}

TEST(Sizes, OfSourcesHaveALimit) {
  const auto lines = [](const char* path, std::size_t count) {
    return tidy::check_lengths({{path, std::string(count, '\n')}}).size();
  };
  EXPECT_EQ(lines("modules/va/a.cppm", 500), 0u);
  EXPECT_EQ(lines("modules/va/a.cppm", 501), 1u);
  EXPECT_EQ(lines("adapters/python/src/libvmm/torch/allocator.cpp", 501), 1u);
  EXPECT_EQ(lines("tests/va/a_test.cpp", 501), 0u);
}

// ---- words --------------------------------------------------------------------------------------

constexpr std::string_view word_columns = "word,instead,scope,allowed,core,adapters,rest\n";

// What is found of the words of a list in files of the library, an adapter and a test.
std::vector<std::string> words_found(const std::string& list, const std::string& text) {
  const tidy::word_list read =
      tidy::read_words({"words.csv", std::string{word_columns} + list + "\n"});
  const std::vector<file> files{
      {"modules/va/a.cpp", text}, {"adapters/c/src/a.cpp", text}, {"docs/a.md", text}};
  std::vector<std::string> found;
  for (const finding& each : tidy::check_words(files, read).found)
    found.push_back(each.what.substr(0, each.what.find(';')));
  return found;
}

using sentences = std::vector<std::string>;

TEST(Words, OfNamesAreFoundMoreOftenThanTheListSays) {
  const std::string list = R"(slab,"a record, or a map",name,,1,0,0)";
  EXPECT_EQ(words_found(list, "int slab; int x = slab;"),
            sentences{"slab (name, adapters): 1 where 0 may be"});
  EXPECT_EQ(words_found(list, "int slab, live_slabs_;"),
            (sentences{"slab (name, core): 2 where 1 may be",
                       "slab (name, adapters): 2 where 0 may be"}));
  EXPECT_EQ(words_found(list, "#define MY_SLAB_X\nint MY_SLAB_X;").size(), 1u);
  EXPECT_EQ(words_found(list, "int slabby; f(\"slab\");  // slab"), sentences{});
  EXPECT_EQ(words_found("view,mapping,name,string_view,0,0,9", "std::string_view view_;").size(),
            2u);
  EXPECT_EQ(words_found("view,mapping,name,string_view,0,0,9", "std::string_view x;"), sentences{});
  EXPECT_EQ(words_found("pool_book,state,name,,0,0,9", "int pool; int book;"), sentences{});
}

TEST(Words, OfProseAreFoundOutsideOfCode) {
  const std::string list = "how come,the caller,prose,,0,9,9";
  const sentences one{"how come (prose, core): 1 where 0 may be"};
  EXPECT_EQ(words_found(list, "// How come first.\nint how_come;"), one);
  EXPECT_EQ(words_found(list, "/* Of\n * how\n * come. */"), one) << "a mark between";
  EXPECT_EQ(words_found(list, "int x = 1'000;  // how\n// come"), one) << "over two lines";
  EXPECT_EQ(words_found(list, "f(\"how come\"); g(R\"(\"how come\" // how come)\"); how come;"),
            sentences{"how come (prose, core): 3 where 0 may be"});
  EXPECT_EQ(words_found(list, "// `how come` howler come, how comet"), sentences{});
}

TEST(Words, AreSaidWithTheirPlaces) {
  const std::string list = std::string{word_columns} + "gone,freed,prose,,0,0,0\n";
  const tidy::word_list read = tidy::read_words({"words.csv", list});
  const std::vector<file> files{{"modules/va/a.cpp", "int a;\n\n// gone\nint b;  // is gone\n"}};
  const std::vector<finding> found = tidy::check_words(files, read).found;
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 2) << "of the list";
  EXPECT_NE(found[0].what.find("modules/va/a.cpp:3 modules/va/a.cpp:4"), std::string::npos)
      << found[0].what;
}

TEST(Words, OfPagesAreThoseOutsideOfCode) {
  const auto prose = [](const std::string& text) { return tidy::prose_of({"docs/a.md", text}); };
  EXPECT_EQ(prose("a `b` c\n```\nd\n```\n    e\nf [g](h) i"),
            "a     c\n   \n \n   \n     \nf [g     i");
  EXPECT_EQ(tidy::prose_of({"run", "f=1  # gone\n"}), "       gone\n");
  EXPECT_EQ(tidy::prose_of({"traces/a.csv", "gone"}), "");
}

TEST(Words, OfAListAreRead) {
  const tidy::word_list read = tidy::read_words(
      {"words.csv", "# a comment\n" + std::string{word_columns} +
                        "a,b,name,c d,1,2,3\na,b,nouns,,1,2,3\nA,b,name,,1,2,3\na,b,prose,,1,2\n"});
  ASSERT_EQ(read.words.size(), 1u);
  EXPECT_EQ(read.words[0].allowed, (sentences{"c", "d"}));
  EXPECT_EQ(read.words[0].limits, (tidy::area_counts{1, 2, 3}));
  EXPECT_EQ(read.mistakes.size(), 3u);
  const tidy::word_report report = tidy::check_words({}, read);
  EXPECT_EQ(report.found.size(), 3u) << "what cannot be read is found";
  EXPECT_EQ(report.fewer.size(), 3u);
}

// ---- integers -----------------------------------------------------------------------------------

int integers_found(const std::string& text) {
  const std::string unit = "export module vmm.va;\nnamespace vmm {\n" + text + "\n}\n";
  return static_cast<int>(tidy::check_integers({"modules/va/a.cppm", unit}).size());
}

TEST(Integers, SideBySideAreFound) {
  EXPECT_EQ(integers_found("export void f(std::uint64_t a, std::uint64_t b);"), 1);
  EXPECT_EQ(integers_found("export void f(int x, std::size_t a, const std::size_t b = 1) {}"), 1);
  EXPECT_EQ(integers_found("export class c { public: void f(int a, int b); };"), 1);
  EXPECT_EQ(integers_found("export struct s { s(int a, int b) : x(a) {} int x; };"), 1);
  EXPECT_EQ(integers_found("export class c { public: struct d { void f(int a, int b); }; };"), 1);
  EXPECT_EQ(integers_found("export template <class T>\nvoid f(T t, int a, int b);"), 1);
}

TEST(Integers, ApartOrOutOfReachAreNot) {
  EXPECT_EQ(integers_found("export void f(std::uint64_t a, std::uint32_t b);"), 0);
  EXPECT_EQ(integers_found("export void f(int a, char* b, int c);"), 0);
  EXPECT_EQ(integers_found("void f(int a, int b);"), 0) << "not exported";
  EXPECT_EQ(integers_found("export class c { void f(int a, int b); };"), 0) << "private";
  EXPECT_EQ(integers_found("class c { public: void f(int a, int b); };"), 0);
  EXPECT_EQ(integers_found("export void f(int* a, int& b);"), 0);
  EXPECT_EQ(integers_found("export int f(int a) { return g(int(1), int(2)); }"), 0) << "a body";
  EXPECT_EQ(integers_found("export void* allocate(std::size_t bytes, std::size_t alignment);"), 0)
      << "the field's own";
}

// ---- comments -----------------------------------------------------------------------------------

int calls_without_a_comment(const std::string& text) {
  const std::string unit = "export module vmm.va;\nnamespace vmm {\n\n" + text + "\n}\n";
  return static_cast<int>(tidy::check_comments({"modules/va/a.cppm", unit}).size());
}

TEST(Comments, OfPublicCallsAreMissed) {
  EXPECT_EQ(calls_without_a_comment("export void f(int x);"), 1);
  EXPECT_EQ(calls_without_a_comment("export template <class T>\nint f(T x) { return g(x); }"), 1);
  EXPECT_EQ(calls_without_a_comment("export class c {\n public:\n  int f() const;\n};"), 1);
  EXPECT_EQ(calls_without_a_comment("export struct s {\n  int x = 0;\n  s(int y) : x(y) {}\n};"),
            1);
  EXPECT_EQ(calls_without_a_comment("// Of f.\nexport void f();\n\nexport void g();"), 1);
  EXPECT_EQ(calls_without_a_comment("// Of c.\nexport class c {\n public:\n  void f();\n};"), 1)
      << "a class's comment is not its functions'";
}

TEST(Comments, AreNotAskedOfTheRest) {
  EXPECT_EQ(calls_without_a_comment("/// Of f.\nexport [[nodiscard]] int f();"), 0);
  EXPECT_EQ(calls_without_a_comment("/// Of both.\nexport int f();\nexport int g();"), 0);
  EXPECT_EQ(calls_without_a_comment("export int f();  // of f"), 0);
  EXPECT_EQ(calls_without_a_comment("void f();"), 0) << "not exported";
  EXPECT_EQ(calls_without_a_comment("export class c {\n  void f();\n private:\n  void g();\n};"),
            0);
  EXPECT_EQ(calls_without_a_comment("class c {\n public:\n  void f();\n};"), 0);
  EXPECT_EQ(calls_without_a_comment("export class c {\n public:\n  c(const c&) = delete;\n"
                                    "  c(c&& other) noexcept : x(other.x) {}\n  ~c() { g(); }\n"
                                    "  bool operator==(const c& b) const;\n  int x = f();\n};"),
            0);
}

// ---- the tree itself ---------------------------------------------------------------------------

// What is not ours to write by hand: build folders, the repository's own, captured traces, fuzzing
// corpora.
bool is_walked(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  return name != ".git" && name != ".cache" && name != "traces" && name != "corpus" &&
         !name.starts_with("build");
}

std::vector<file> read_files() {
  namespace fs = std::filesystem;
  const fs::path root = VMM_SOURCE_DIR;
  std::vector<file> files;
  for (auto at = fs::recursive_directory_iterator(root); at != fs::recursive_directory_iterator();
       ++at) {
    if (at->is_directory() && !is_walked(at->path())) at.disable_recursion_pending();
    if (!at->is_regular_file()) continue;
    std::ifstream stream(at->path(), std::ios::binary);
    files.push_back(
        {at->path().lexically_relative(root).generic_string(),
         std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>())});
  }
  std::ranges::sort(files, {}, &file::path);
  return files;
}

const std::vector<file>& read_tree() {
  static const std::vector<file> files = read_files();
  return files;
}

std::string report(const std::vector<finding>& found) {
  std::string text;
  for (const finding& each : found) {
    text +=
        each.path + ":" + std::to_string(each.line) + ": " + each.rule + ": " + each.what + "\n";
  }
  return text;
}

TEST(Tree, KeepsItsRules) {
  const std::vector<file>& files = read_tree();
  ASSERT_GT(files.size(), 10u) << "this is not the tree";
  std::vector<finding> found;
  for (const file& each : files)
    std::ranges::move(tidy::check_file(each), std::back_inserter(found));
  EXPECT_TRUE(found.empty()) << report(found);
}

TEST(Tree, ChecksWhatNothingElseSays) {
  const std::vector<file>& files = read_tree();
  std::vector<finding> found = tidy::read_invariants(files).unknown;
  for (const file& each : files) {
    std::ranges::move(tidy::check_redundancy(each), std::back_inserter(found));
  }
  EXPECT_TRUE(found.empty()) << report(found);
}

TEST(Tree, HasNoLongSource) {
  const std::vector<finding> found = tidy::check_lengths(read_tree());
  EXPECT_TRUE(found.empty()) << report(found);
}

constexpr const char* table_path = VMM_SOURCE_DIR "/tests/tidiness/sizes.txt";
bool updates_table = false;  // main() sets it

TEST(Tree, OnlyGetsBetter) {
  const std::vector<tidy::size> now = tidy::sizes_of(read_tree());
  ASSERT_GT(now.size(), 9u) << "this is not the tree";
  std::ifstream stream(table_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  for (const tidy::size& each : now) std::cout << each.value << ' ' << each.name << '\n';
  if (updates_table) {
    std::ofstream table(table_path, std::ios::binary);
    table << text.substr(0, text.find("\n\n")) << "\n\n";
    for (const tidy::size& each : now) table << each.value << ' ' << each.name << '\n';
    return;
  }
  const std::vector<finding> found = tidy::compare_sizes(now, tidy::read_table(text));
  EXPECT_TRUE(found.empty()) << report(found);
}

// What users can call. The machinery, which `import vmm;` does not bring, explains itself in the
// heads of its files.
bool is_for_users(const std::string& path) {
  return std::ranges::none_of(std::array{"modules/backend/intrusive", "modules/base/",
                                         "modules/optimizer/", "modules/timeline/"},
                              [&](const char* folder) { return path.starts_with(folder); });
}

TEST(Tree, SaysWhatPublicCallsAsk) {
  std::vector<finding> found;
  for (const file& each : read_tree()) {
    if (is_for_users(each.path))
      std::ranges::move(tidy::check_comments(each), std::back_inserter(found));
  }
  EXPECT_TRUE(found.empty()) << report(found);
}

// Whether the option is given another value than false.
bool allows_multicast(std::string_view text) {
  constexpr std::string_view option = "allow_multicast";
  const auto skip_spaces = [&] {
    while (text.starts_with(' ')) text.remove_prefix(1);
  };
  for (auto at = text.find(option); at != text.npos; at = text.find(option)) {
    text.remove_prefix(at + option.size());
    skip_spaces();
    if (!text.starts_with('=') && !text.starts_with('{')) continue;
    text.remove_prefix(1);
    skip_spaces();
    if (!text.starts_with("false")) return true;
  }
  return false;
}

// A driver makes multicast calls where it is allowed to: these tests let it, on the stub libcuda,
// and no program that goes to a device is one of them.
TEST(Tree, AllowsMulticastOnTheStandInAlone) {
  std::vector<std::string> allowing;
  for (const file& each : read_tree()) {
    if (allows_multicast(each.text)) allowing.push_back(each.path);
    if (each.path != "gpu_tests/gpu.sh") continue;
    EXPECT_EQ(each.text.find("cuda_driver_test"), std::string::npos);
    EXPECT_EQ(each.text.find("cuda_plain_test"), std::string::npos);
  }
  const std::vector<std::string> on_the_standin{"tests/cuda/driver_test.cpp",
                                                "tests/cuda/plain_test.cpp"};
  EXPECT_EQ(allowing, on_the_standin);
}

TEST(Tree, SaysTheFieldsWords) {
  const std::vector<file>& files = read_tree();
  const auto list = std::ranges::find(files, "tests/tidiness/words.csv", &file::path);
  ASSERT_NE(list, files.end());
  const tidy::word_report words = tidy::check_words(files, tidy::read_words(*list));
  EXPECT_TRUE(words.found.empty()) << report(words.found);
  for (const std::string& each : words.fewer)
    std::cout << "words.csv can say less: " << each << "\n";
}

TEST(Tree, TakesNoTwoIntegersSideBySide) {
  std::vector<finding> found;
  for (const file& each : read_tree())
    std::ranges::move(tidy::check_integers(each), std::back_inserter(found));
  EXPECT_TRUE(found.empty()) << report(found);
}

const file& at(const std::vector<file>& files, const std::string& path) {
  const auto found = std::ranges::find(files, path, &file::path);
  EXPECT_NE(found, files.end()) << path;
  static const file none{};
  return found == files.end() ? none : *found;
}

TEST(Tree, EveryExportedNameIsSaidWithoutHeaders) {
  const std::vector<file>& files = read_tree();
  const tidy::name_lists lists{at(files, "modules/vmm.cppm"),
                               at(files, "tests/package/consumer/parts.cpp")};
  const std::vector<finding> missing = tidy::check_names(files, lists);
  EXPECT_TRUE(missing.empty()) << report(missing);
  EXPECT_EQ(lists.parts.text.find("#include", lists.parts.text.find("#include") + 1),
            std::string::npos)
      << lists.parts.path << " includes <cstdio> only";
}

// What is checked is what the page says.
TEST(Tree, ThePageHasTheLayers) {
  const std::string table = tidy::layer_table(read_tree());
  EXPECT_NE(at(read_tree(), "docs/architecture.md").text.find("\n\n" + table + "\n"),
            std::string::npos)
      << "the table of docs/architecture.md is:\n"
      << table;
}

// A name that most programs do not use is imported by its module.
TEST(Tree, TheUmbrellaBringsFewNames) {
  const std::vector<std::string> names =
      tidy::using_declarations(tidy::read_source(at(read_tree(), "modules/vmm.cppm").text));
  EXPECT_GE(names.size(), 50u);
  EXPECT_LE(names.size(), 90u);
}

}  // namespace

// tidiness_test --update writes the table of sizes.
int main(int count, char** words) {
  testing::InitGoogleTest(&count, words);
  updates_table = count > 1 && std::string_view{words[1]} == "--update";
  return RUN_ALL_TESTS();
}
