// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the tree keeps its own rules (layers, sizes, headers, reminders, names), and the checker
// sees it when not.
// Method: planted violations in texts written here, each of which must be found, each beside a
// clean twin that must not be; then every file of the tree.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "exports.hpp"
#include "functions.hpp"
#include "rules.hpp"
#include "tokens.hpp"

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

TEST(Planted, WebAddressInAScript) {
  const std::string line = "# see https://example.org\n";
  EXPECT_EQ(rules_broken("scripts/a.sh", spdx + line), rules{"address"});
  EXPECT_EQ(rules_broken("run", spdx + line), rules{"address"});
  EXPECT_EQ(rules_broken("README.md", line), rules{}) << "prose may point elsewhere";
}

TEST(Planted, HeaderInAnInterface) {
  const auto interface = [](const std::string& include) {
    return spdx + "module;\n#include " + include + "\nexport module vmm.va;\n";
  };
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<cuda.h>")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<sys/mman.h>")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<boost/intrusive/set.hpp>")),
            rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("\"private.hpp\"")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<map>")), rules{"header"});
  EXPECT_EQ(rules_broken("modules/va/va.cppm", interface("<vector>")), rules{});
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
      << "a driver knows the words only";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.manager", "vmm.fake")), rules{"layer"})
      << "nobody knows a driver";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.optimizer", "vmm")), rules{"layer"});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.surprise", "vmm.backend")), rules{"layer"})
      << "unknown module";
  EXPECT_EQ(rules_broken("a.cpp", spdx + "import std;\n"), rules{"layer"});
  EXPECT_EQ(rules_broken("a.cpp", spdx + "module vmm.va;\nimport vmm.optimizer;\n"), rules{"layer"})
      << "implementation units too";
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.manager", "vmm.va")), rules{});
  EXPECT_EQ(rules_broken("a.cppm", unit("vmm.backends", "vmm.host")), rules{});
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
#include <cstdint>
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
  for (const finding& each : tidy::check_names(files, {"names.cpp", ""}))
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
  EXPECT_TRUE(tidy::check_names(files, list).empty());
}

// ---- the tree itself ---------------------------------------------------------------------------

// What is not ours to write by hand: build folders, the repository's own, captured traces, fuzzing
// corpora.
bool is_walked(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  return name != ".git" && name != ".cache" && name != "traces" && name != "corpus" &&
         !name.starts_with("build");
}

std::vector<file> read_tree() {
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

std::string report(const std::vector<finding>& found) {
  std::string text;
  for (const finding& each : found) {
    text +=
        each.path + ":" + std::to_string(each.line) + ": " + each.rule + ": " + each.what + "\n";
  }
  return text;
}

TEST(Tree, KeepsItsRules) {
  const std::vector<file> files = read_tree();
  ASSERT_GT(files.size(), 10u) << "this is not the tree";
  std::vector<finding> found;
  for (const file& each : files)
    std::ranges::move(tidy::check_file(each), std::back_inserter(found));
  EXPECT_TRUE(found.empty()) << report(found);
}

TEST(Tree, EveryExportedNameIsSaidWithoutHeaders) {
  const std::vector<file> files = read_tree();
  const auto list = std::ranges::find(files, "tests/package/consumer/names.cpp", &file::path);
  ASSERT_NE(list, files.end());
  const std::vector<finding> missing = tidy::check_names(files, *list);
  EXPECT_TRUE(missing.empty()) << report(missing);
  const auto include = list->text.find("#include");
  EXPECT_EQ(list->text.find("#include", include + 1), std::string::npos)
      << "names.cpp includes <cstdio> only";
}

}  // namespace
