// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exports.hpp"
#include "functions.hpp"
#include "tokens.hpp"

namespace tidy {
namespace {

using namespace std::string_literals;

// ---- kinds of files ----------------------------------------------------------------------------

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return path.ends_with(end); });
}

bool is_in_any(std::string_view path, std::initializer_list<std::string_view> folders) {
  return std::ranges::any_of(folders,
                             [&](std::string_view folder) { return path.starts_with(folder); });
}

bool is_source(std::string_view path) {
  return ends_with_any(path, {".cpp", ".cppm", ".hpp", ".h", ".cu", ".cuh", ".inc"});
}

bool is_script(std::string_view path) {
  return path == "run" ||
         ends_with_any(path, {"/run", ".sh", ".cmake", ".cmake.in", "CMakeLists.txt", ".py"});
}

bool is_installed_interface(std::string_view path) {
  return (path.starts_with("modules/") || path.starts_with("backends/")) && path.ends_with(".cppm");
}

bool is_prose(std::string_view path) { return path.ends_with(".md"); }

// ---- layers ------------------------------------------------------------------------------------

// A layer imports only layers with a smaller rank. Drivers stand beside the column: they know the
// vocabulary and what supports it, and only the registry and the umbrella know them.
struct layer {
  std::string_view module;
  int rank;
  bool driver = false;
};

constexpr int vocabulary_rank = 2;
constexpr int registry_rank = 10;
constexpr std::array layers{
    layer{"vmm.std", 0},
    layer{"vmm.base", 1},
    layer{"vmm.backend", vocabulary_rank},
    layer{"vmm.observe", 3},
    layer{"vmm.fake", 3, true},
    layer{"vmm.host", 3, true},
    layer{"vmm.cuda", 3, true},
    layer{"vmm.level_zero", 3, true},
    layer{"vmm.timeline", 4},
    layer{"vmm.va", 5},
    layer{"vmm.physical", 5},
    layer{"vmm.tracker", 6},
    layer{"vmm.optimizer", 7},
    layer{"vmm.manager", 8},
    layer{"vmm.stream", 8},
    layer{"vmm.containers", 9},
    layer{"vmm.share", 9},
    layer{"vmm.multi_device", 9},
    layer{"vmm.suspend", 9},
    layer{"vmm.nvtx", 9},
    layer{"vmm.registry", registry_rank},
    layer{"vmm.testing", registry_rank},
    layer{"vmm", 11},
    layer{"vmm.trace", 12},  // the tools' own, not installed
    layer{"vmm.trace_generator", 12},
    layer{"vmm.fidelity", 12},
    layer{"vmm.history_tools", 14},
    layer{"vmm.top_tools", 12},
    layer{"vmm.kernels", 12},
    layer{"vmm.recording", 13},
    layer{"vmm.replay", 13},
    layer{"vmm.fit", 14},
};

std::optional<layer> layer_of(std::string_view module) {
  const auto* const found =
      std::ranges::find(layers, module.substr(0, module.find(':')), &layer::module);
  if (found == layers.end()) return std::nullopt;
  return *found;
}

bool may_import(const layer& importer, const layer& imported) {
  if (importer.driver) return imported.rank <= vocabulary_rank;
  if (imported.driver) return importer.rank >= registry_rank;
  return imported.rank < importer.rank;
}

// ---- rules -------------------------------------------------------------------------------------

class checker {
 public:
  explicit checker(const file& subject) : file_(subject) {}

  std::vector<finding> check() {
    const bool source = is_source(file_.path);
    const bool script = is_script(file_.path);
    if (source || script) check_spdx();
    if (source || script || is_prose(file_.path)) check_lines(source, script);
    if (source) check_source();
    return std::move(found_);
  }

 private:
  void report(int line, std::string rule, std::string what) {
    found_.push_back({file_.path, line, std::move(rule), std::move(what)});
  }

  void check_spdx() {
    const std::size_t second = file_.text.find("SPDX-License-Identifier: Apache-2.0");
    const std::size_t first = file_.text.find("SPDX-FileCopyrightText: ");
    if (first > second || second > 250) report(1, "spdx", "begin the file with the two SPDX lines");
  }

  void check_lines(bool source, bool script) {
    const std::string_view text = file_.text;
    int number = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      check_line(text.substr(at, end - at), ++number, source || script);
      if (source) check_variable(text.substr(at, end - at), number);
      if (script) check_address(text.substr(at, end - at), number);
      at = end + 1;
    }
  }

  void check_line(std::string_view line, int number, bool code) {
    const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });
    if (code && columns > column_limit) {
      report(number, "width",
             std::to_string(columns) + " columns; the limit is " + std::to_string(column_limit));
    }
    // In pieces, so that this file has no reminders itself.
    static const std::vector<std::string> reminders{"TO"s + "DO", "FIX"s + "ME", "XX"s + "X",
                                                    "HA"s + "CK"};
    for (const std::string& word : reminders) {
      if (has_word(line, word))
        report(number, "reminder", "do it or file an issue; no reminders stay");
    }
  }

  // A program with more rights than its caller must not obey its caller's variables.
  void check_variable(std::string_view line, int number) {
    const bool is_reader = file_.path == "modules/backend/environment.cpp";
    const bool installed =
        is_in_any(file_.path, {"modules/", "backends/", "adapters/preload/", "adapters/c/"});
    if (!installed || is_reader || !has_word(line, "getenv")) return;
    if (line.find("getenv(") != std::string_view::npos)
      report(number, "variable", "read it by environment_text, which is null in a set-uid program");
  }

  static bool has_word(std::string_view line, std::string_view word) {
    const auto letter = [&](std::size_t at) {
      return at < line.size() &&
             (std::isalnum(static_cast<unsigned char>(line[at])) != 0 || line[at] == '_');
    };
    for (std::size_t at = line.find(word); at != std::string_view::npos;
         at = line.find(word, at + 1)) {
      if (!(at > 0 && letter(at - 1)) && !letter(at + word.size())) return true;
    }
    return false;
  }

  void check_address(std::string_view line, int number) {
    for (const std::string_view mark : {"http://", "https://", "ftp://", "git@"}) {
      if (line.find(mark) != std::string_view::npos) {
        report(number, "address", "scripts name no web address; the package manager has its own");
      }
    }
  }

  void check_source() {
    const source text = read_source(file_.text);
    const unit declared = read_unit(text);
    check_layers(declared);
    check_order(text, declared);
    if (declared.module != "vmm.std") {
      check_headers(text, declared);
      for (const int line : declared.export_blocks) {
        report(line, "export", "say export on each declaration, not on a block");
      }
    }
    check_functions(text);
  }

  void check_layers(const unit& declared) {
    const auto own = layer_of(declared.module);
    if (!declared.module.empty() && !own) {
      report(1, "layer",
             declared.module + " has no place in the table of layers (tests/tidiness/rules.cpp)");
      return;
    }
    for (const import_line& line : declared.imports) {
      if (line.module.starts_with(':')) continue;
      const auto other = layer_of(line.module);
      if (!other) {
        report(line.line, "layer", "import " + line.module + ": not a module of this library");
      } else if (own && own->module != other->module && !may_import(*own, *other)) {
        report(line.line, "layer",
               declared.module + " must not import " + line.module + ", which is not below it");
      }
    }
  }

  // Clang and GCC both read a header wrongly after an import; see docs/decisions.
  void check_order(const source& text, const unit& declared) {
    if (declared.imports.empty()) return;
    for (const directive& line : text.directives) {
      if (line.line > declared.imports.front().line &&
          line.text.find("include") != std::string_view::npos) {
        report(line.line, "order", "includes come before imports");
      }
    }
  }

  // An importer of an interface compiles it: it must need nothing but the standard library. And
  // that comes to every unit of the library from one module: docs/decisions/0012.
  void check_headers(const source& text, const unit& declared) {
    static const std::set<std::string_view> of_macros{"cerrno", "cinttypes", "climits", "cstdarg",
                                                      "cstdio"};
    const bool installed =
        file_.path.starts_with("modules/") || file_.path.starts_with("backends/");
    for (const directive& line : text.directives) {
      const std::size_t word = line.text.find("include");
      if (word == std::string_view::npos) continue;
      const std::size_t open = line.text.find_first_of("<\"", word);
      const std::size_t close = line.text.find_first_of(">\"", open + 1);
      if (open == std::string_view::npos || close == std::string_view::npos) continue;
      const std::string_view name = line.text.substr(open + 1, close - open - 1);
      if ((name == "cuda.h" || name == "cudaTypedefs.h") && !file_.path.ends_with(".cu")) {
        report(line.line, "header", "the CUDA driver is declared in backends/cuda/abi.h");
        continue;
      }
      if (declared.module.empty()) continue;
      if (name.ends_with("thread_annotations.h")) continue;  // attributes, installed with the units
      const bool foreign =
          line.text[open] == '"' || name.find_first_of("./") != std::string_view::npos;
      if (foreign && declared.interface) {
        report(line.line, "header",
               std::string{name} + " in an interface unit: move it to an implementation unit");
      } else if (!foreign && installed && !of_macros.contains(name)) {
        report(line.line, "header",
               "import vmm.std instead of including " + std::string{name} +
                   ", and add to it what it lacks");
      }
    }
  }

  void check_functions(const source& text) {
    const auto functions = functions_of(text);
    if (!functions) {
      report(1, "braces",
             "the braces of this file cannot be paired, so its functions cannot be measured");
      return;
    }
    for (const function_extent& function : *functions) {
      const int lines = function.last_line - function.first_line + 1;
      if (lines <= function_line_limit) continue;
      report(function.first_line, "length",
             "a function of " + std::to_string(lines) + " lines; the limit is " +
                 std::to_string(function_line_limit));
    }
  }

  const file& file_;
  std::vector<finding> found_;
};

}  // namespace

std::vector<finding> check_file(const file& subject) { return checker{subject}.check(); }

namespace {

// "// vmm.x - what it is. More." gives "what it is", also where the sentence is two lines long.
std::string title_of(std::string_view text, std::string_view module) {
  const std::string start = "// " + std::string(module) + " - ";
  std::size_t at = text.find(start);
  if (at == std::string_view::npos) return {};
  std::string title;
  for (at += start.size(); at < text.size(); ++at) {
    if (text.substr(at).starts_with("\n// ")) at += 3;
    const bool is_end = text[at] == '.' && (text[at + 1] == ' ' || text[at + 1] == '\n');
    if (is_end) break;
    title += text[at] == '\n' || (text[at] == ' ' && title.ends_with(' ')) ? ' ' : text[at];
  }
  return title;
}

}  // namespace

std::string layer_table(const std::vector<file>& files) {
  std::string table = "| layer | module | contents |\n| --- | --- | --- |\n";
  for (int rank = layers.back().rank; rank >= 0; --rank) {
    for (const layer& each : layers) {
      const std::string declaration = "\nexport module " + std::string(each.module) + ";\n";
      for (const file& subject : files) {
        if (each.rank != rank || !is_installed_interface(subject.path)) continue;
        if (subject.text.find(declaration) == std::string::npos) continue;
        const std::string level = each.driver ? "driver" : std::to_string(each.rank);
        table += "| " + level + " | `" + std::string(each.module) + "` | " +
                 title_of(subject.text, each.module) + " |\n";
      }
    }
  }
  return table;
}

namespace {

std::set<std::string> names_in(const file& list) {
  const std::vector<std::string> said = using_declarations(read_source(list.text));
  return {said.begin(), said.end()};
}

}  // namespace

std::vector<finding> check_names(const std::vector<file>& files, const name_lists& lists) {
  const std::set<std::string> brought = names_in(lists.umbrella);
  const std::set<std::string> part_names = names_in(lists.parts);
  std::vector<finding> found;
  for (const file& subject : files) {
    if (!is_installed_interface(subject.path)) continue;
    for (const exported_name& name : read_unit(read_source(subject.text)).names) {
      if (brought.contains(name.name) || part_names.contains(name.name)) continue;
      found.push_back({subject.path, name.line, "export",
                       "add `using " + name.name + ";` to " + lists.parts.path});
    }
  }
  return found;
}

}  // namespace tidy
