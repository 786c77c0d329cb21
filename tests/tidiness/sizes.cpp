// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "sizes.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <set>

#include "checks.hpp"
#include "exports.hpp"
#include "tokens.hpp"

namespace tidy {
namespace {

constexpr int functions_max = 25;  // of a class without a row
constexpr int files_max = 2;       // with bodies of such a class
constexpr int lines_max = 500;     // of a source

constexpr std::string_view more_is_better = "functions that declare the locks they require";
// They change with every sentence and test: no row is taken anew for less of them.
constexpr std::string_view words_of_docs = "thousands of words in docs";
constexpr std::string_view lines_of_yard =
    "thousands of code lines in tests, tools, benchmarks and fuzz";

bool is_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

bool is_library(std::string_view path) {
  const bool inside = path.starts_with("modules/") || path.starts_with("backends/") ||
                      path.starts_with("adapters/c/src/") || path.starts_with("adapters/preload/");
  return inside && (path.ends_with(".cpp") || path.ends_with(".cppm") || path.ends_with(".hpp") ||
                    path.ends_with(".h"));
}

// The sources of the library, of its adapters and of the Python package.
bool has_length_limit(std::string_view path) {
  return is_library(path) ||
         (path.find("/src/libvmm/") != path.npos &&
          (path.ends_with(".cpp") || path.ends_with(".hpp") || path.ends_with(".py")));
}

// What tests, measures or runs the library; not the tests of the Python package.
bool is_yard(std::string_view path) {
  if (path == "run") return true;
  if (path.starts_with("gpu_tests/python/")) return false;
  const std::string_view top = path.substr(0, path.find('/'));
  if (!is_any(top, {"benchmarks", "fuzz", "gpu_tests", "packaging", "tests", "tools"}))
    return false;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  return name == "CMakeLists.txt" ||
         (dot != name.npos &&
          is_any(name.substr(dot + 1),
                 {"c", "cmake", "cpp", "cppm", "cu", "cuh", "h", "hpp", "html", "js", "py", "sh"}));
}

// Lines that are neither empty nor a comment as a whole.
int code_lines_in(const file& source) {
  const bool has_hash_comments = source.path == "run" || source.path.ends_with(".txt") ||
                                 source.path.ends_with(".cmake") || source.path.ends_with(".py") ||
                                 source.path.ends_with(".sh");
  int count = 0;
  for (std::size_t at = 0, end = 0; at < source.text.size(); at = end + 1) {
    end = std::min(source.text.find('\n', at), source.text.size());
    std::string_view line = std::string_view{source.text}.substr(at, end - at);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    count += !line.empty() && !line.starts_with(has_hash_comments ? "#" : "//") ? 1 : 0;
  }
  return count;
}

int words_in(std::string_view text) {
  int count = 0;
  bool inside = false;
  for (const char c : text) {
    const bool is_space = std::isspace(static_cast<unsigned char>(c)) != 0;
    count += !is_space && !inside ? 1 : 0;
    inside = !is_space;
  }
  return count;
}

// Reads the declarations of classes, those inside of others too.
class class_reader {
 public:
  explicit class_reader(std::string_view text) : text_(read_source(text)) {}

  std::vector<size> read() {
    for (at_ = 0; at_ < tokens().size();) step();
    std::vector<size> found;
    for (const auto& [name, count] : counts_) found.push_back({name, count});
    return found;
  }

 private:
  [[nodiscard]] const std::vector<token>& tokens() const { return text_.tokens; }
  [[nodiscard]] std::string_view text(std::size_t at) const {
    return at < tokens().size() ? tokens()[at].text : std::string_view{};
  }

  void skip(std::string_view open, std::string_view close) {
    int depth = 0;
    for (; at_ < tokens().size(); ++at_) {
      if (text(at_) == open) ++depth;
      if (text(at_) == close && --depth == 0) break;
    }
    ++at_;
  }

  void step() {
    const std::string_view now = text(at_);
    if (now == "template" && text(at_ + 1) == "<") {
      ++at_;
      return skip("<", ">");
    }
    if (is_any(now, {"class", "struct", "union"}) && class_.empty() && !has_parameters_ &&
        text(at_ - 1) != "enum")
      class_ = name_of_class();
    if (is_any(now, {"namespace", "extern", "enum", "using", "friend", "static_assert"}))
      is_other_ = true;
    if (now == "operator") is_operator_ = true;
    if (now == "<" && !is_operator_) ++angles_;
    if (now == ">" && angles_ > 0) --angles_;
    if (now == "=" && !is_operator_ && !has_parameters_) is_other_ = true;
    if (now == "=" && is_any(text(at_ + 1), {"delete", "default"})) is_other_ = true;
    if (now == "(") return parameters();
    if (now == "{") return open();
    if (now == "}" && !scopes_.empty()) scopes_.pop_back();
    if (now == ";") end_of_declaration();
    if (now == "}") forget();
    if (now == ":" && is_any(text(at_ - 1), {"public", "private", "protected"})) forget();
    ++at_;
  }

  [[nodiscard]] std::string name_of_class() const {
    std::size_t at = at_ + 1;
    while (text(at) == "[[" || text(at).starts_with("VMM_") || text(at) == "alignas") {
      const bool is_attribute = text(at) == "[[";
      while (at < tokens().size() && text(at) != (is_attribute ? "]]" : ")")) ++at;
      ++at;
    }
    return std::string{text(at)};
  }

  void parameters() {
    const std::string_view before = text(at_ - 1);
    const bool is_call = is_word(before) && !before.starts_with("VMM_") &&
                         !is_any(before, {"alignas", "decltype", "noexcept", "requires"});
    if ((is_call && angles_ == 0) || is_operator_) has_parameters_ = true;
    skip("(", ")");
    if (is_operator_ && text(at_) == "(") skip("(", ")");  // operator()(…)
  }

  void open() {
    const std::string_view before = text(at_ - 1);
    if (has_parameters_) {
      const bool is_body = !is_word(before) || is_any(before, {"const", "noexcept", "override"});
      skip("{", "}");
      if (is_body || !is_any(text(at_), {",", "{"})) end_of_declaration();
      return;
    }
    if (class_.empty() && !is_other_) return skip("{", "}");  // a value
    if (text(at_ - 1) != "{") scopes_.push_back(is_other_ ? std::string{} : class_);
    forget();
    ++at_;
  }

  void end_of_declaration() {
    const bool is_in_class = !scopes_.empty() && !scopes_.back().empty();
    if (is_in_class && has_parameters_ && !is_other_) ++counts_[scopes_.back()];
    forget();
  }

  void forget() {
    class_.clear();
    has_parameters_ = is_other_ = is_operator_ = false;
    angles_ = 0;
  }

  source text_;
  std::size_t at_ = 0;
  std::vector<std::string> scopes_;  // names of classes; empty for namespaces and enumerations
  std::string class_;                // that the declaration may open
  int angles_ = 0;                   // open brackets of the arguments of templates
  bool has_parameters_ = false;
  bool is_other_ = false;
  bool is_operator_ = false;
  std::map<std::string, int> counts_;
};

// The classes that the bodies of a file belong to: NAME::MEMBER( outside of all braces but those of
// namespaces.
std::set<std::string> classes_with_bodies(std::string_view text,
                                          const std::map<std::string, int>& known) {
  const source read = read_source(text);
  std::set<std::string> found;
  for (std::size_t at = 3; at + 1 < read.tokens.size(); ++at) {
    const auto text_at = [&](std::size_t i) { return read.tokens[i].text; };
    if (text_at(at) != "(" || text_at(at - 2) != "::") continue;
    const std::string name{text_at(at - 3)};
    if (!known.contains(name)) continue;
    std::size_t end = at;  // a definition: its parentheses are followed by a body, in the end
    for (int depth = 0; end < read.tokens.size(); ++end) {
      if (text_at(end) == "(") ++depth;
      if (text_at(end) == ")" && --depth == 0) break;
    }
    while (end + 1 < read.tokens.size() && !is_any(text_at(end + 1), {"{", ";", ")", ",", "?"}))
      ++end;
    if (end + 1 >= read.tokens.size() || text_at(end + 1) != "{") continue;
    const bool is_nested = at >= 5 && text_at(at - 4) == "::";
    found.insert(is_nested ? std::string{text_at(at - 5)} + "::" + name : name);
  }
  return found;
}

int count_tokens(const source& in, std::initializer_list<std::string_view> row) {
  int count = 0;
  for (std::size_t at = 0; at + row.size() <= in.tokens.size(); ++at) {
    std::size_t i = 0;
    count += std::ranges::all_of(row, [&](auto each) { return in.tokens[at + i++].text == each; });
  }
  return count;
}

struct sums {
  int opt_outs = 0, requirements = 0, state_sites = 0, double_checks = 0, words = 0;
  std::set<std::string> modules;
  std::map<std::string, int> functions;  // of a class; of two with one name, the larger
};

void add_source(sums& into, const file& each) {
  const source text = read_source(each.text);
  into.opt_outs += count_tokens(text, {"VMM_NOT_ANALYSED"});
  into.requirements += count_tokens(text, {"VMM_REQUIRES"});
  into.state_sites += count_tokens(text, {"state_", ".", "with"});
  into.double_checks += count_double_checks(each);
  if (each.path.ends_with(".cppm")) {
    const std::string module = read_unit(text).module;
    into.modules.insert(module.substr(0, module.find(':')));
  }
  for (const size& of : functions_of_classes(each.text))
    into.functions[of.name] = std::max(into.functions[of.name], of.value);
}

int round_up(int value, int step) { return (value + step - 1) / step; }

}  // namespace

std::vector<size> functions_of_classes(std::string_view text) { return class_reader{text}.read(); }

std::vector<size> sizes_of(const std::vector<file>& files) {
  sums sum;
  int names = 0;
  int yard = 0;
  for (const file& each : files) {
    if (is_library(each.path)) add_source(sum, each);
    if (each.path.starts_with("docs/") && each.path.ends_with(".md"))
      sum.words += words_in(each.text);
    if (is_yard(each.path)) yard += code_lines_in(each);
    if (each.path == "modules/vmm.cppm")
      names = static_cast<int>(using_declarations(read_source(each.text)).size());
  }
  std::vector<size> rows;
  std::map<std::string, int> file_counts;
  for (const file& each : files) {
    if (!is_library(each.path)) continue;
    for (const std::string& name : classes_with_bodies(each.text, sum.functions))
      ++file_counts[name];
  }
  for (const auto& [name, count] : sum.functions)
    if (count > functions_max) rows.push_back({"functions of " + name, count});
  for (const auto& [name, count] : file_counts)
    if (count > files_max) rows.push_back({"files with bodies of " + name, count});
  const auto invariants = read_invariants(files).all;
  const auto unnamed = std::ranges::count(invariants, false, &invariant::is_named);
  rows.push_back({"opt-outs of the lock analysis", sum.opt_outs});
  rows.push_back({std::string{more_is_better}, sum.requirements});
  rows.push_back({"sites of state_.with", sum.state_sites});
  rows.push_back({"checks of two conditions", sum.double_checks});
  rows.push_back({"invariants that no check names", static_cast<int>(unnamed)});
  rows.push_back({"modules", static_cast<int>(sum.modules.size())});
  rows.push_back({"names of import vmm", names});
  rows.push_back({std::string{words_of_docs}, round_up(sum.words, 1000)});
  rows.push_back({std::string{lines_of_yard}, round_up(yard, 1000)});
  return rows;
}

std::vector<finding> check_lengths(const std::vector<file>& files) {
  std::vector<finding> found;
  for (const file& each : files) {
    const auto lines = static_cast<int>(std::ranges::count(each.text, '\n'));
    if (!has_length_limit(each.path) || lines <= lines_max) continue;
    found.push_back({each.path, lines, "file",
                     std::to_string(lines) + " lines, and " + std::to_string(lines_max) +
                         " at most: cut it where a part has its own duty"});
  }
  return found;
}

std::vector<size> read_table(std::string_view text) {
  std::vector<size> rows;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t first = line.find_first_not_of(' ');
    if (first == line.npos || line[first] == '#') continue;
    size row;
    const auto [end, wrong] =
        std::from_chars(line.data() + first, line.data() + line.size(), row.value);
    if (wrong == std::errc{} && end + 1 < line.data() + line.size())
      row.name.assign(end + 1, line.data() + line.size());
    rows.push_back(row);
  }
  return rows;
}

std::vector<finding> compare_sizes(const std::vector<size>& now, const std::vector<size>& table) {
  std::vector<finding> found;
  const auto say = [&](std::string what) { found.push_back({"", 0, "size", std::move(what)}); };
  for (const size& row : now) {
    const auto kept = std::ranges::find(table, row.name, &size::name);
    const std::string is = row.name + ": " + std::to_string(row.value);
    if (kept == table.end()) {
      say(is + ", which is more than is allowed without a row");
      continue;
    }
    const std::string was = ", and the table has " + std::to_string(kept->value);
    const bool is_worse =
        row.name == more_is_better ? row.value < kept->value : row.value > kept->value;
    const bool may_lag = row.name == words_of_docs || row.name == lines_of_yard;
    if (is_worse) {
      say(is + was + ": worse; a commit that takes it up says why");
    } else if (row.value != kept->value && !may_lag) {
      say(is + was + ": better; ./run check size --update takes it down");
    }
  }
  for (const size& row : table) {
    if (std::ranges::find(now, row.name, &size::name) == now.end())
      say(row.name + " needs no row any more: ./run check size --update");
  }
  return found;
}

}  // namespace tidy
