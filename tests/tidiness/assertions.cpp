// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "assertions.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "functions.hpp"
#include "tokens.hpp"

namespace tidy {
namespace {

constexpr std::array<std::string_view, 3> assertions{"check", "debug_check", "paranoid_check"};

// The declaration of an assertion and a member function of the same name are no assertions.
bool is_site(const std::vector<token>& tokens, std::size_t at) {
  if (std::ranges::find(assertions, tokens[at].text) == assertions.end()) return false;
  if (at + 1 == tokens.size() || tokens[at + 1].text != "(") return false;
  if (at == 0) return false;
  const std::string_view before = tokens[at - 1].text;
  const bool is_qualified = before == "::" && at > 1 && tokens[at - 2].text == "vmm";
  return is_qualified || !(before == "." || before == "->" || before == "::" || is_word(before)) ||
         before == "else";
}

bool contains(const function_extent& function, int line) {
  return function.first_line <= line && line <= function.last_line;
}

// "modules/va" of "modules/va/va.cppm"; empty for a file that is not the library's.
std::string folder_of(std::string_view path) {
  if (!path.starts_with("modules/") && !path.starts_with("backends/")) return {};
  const std::size_t second = path.find('/', path.find('/') + 1);
  return std::string{path.substr(0, second == std::string_view::npos ? path.find('/') : second)};
}

bool is_code(std::string_view path) {
  return path.ends_with(".cpp") || path.ends_with(".cppm") || path.ends_with(".hpp") ||
         path.ends_with(".h");
}

}  // namespace

std::vector<assertion_count> count_assertions(const std::vector<file>& files) {
  std::map<std::string, assertion_count> by_folder;
  for (const file& each : files) {
    const std::string folder = folder_of(each.path);
    if (folder.empty() || !is_code(each.path)) continue;
    const source text = read_source(each.text);
    const auto functions = functions_of(text);
    if (!functions || functions->empty()) continue;
    assertion_count& into = by_folder[folder];
    into.folder = folder;
    into.function_count += static_cast<int>(functions->size());
    into.long_function_count += static_cast<int>(std::ranges::count_if(
        *functions, [](const function_extent& of) { return of.last_line - of.first_line >= 5; }));
    std::vector<int> sites;  // lines
    for (std::size_t at = 0; at < text.tokens.size(); ++at) {
      if (is_site(text.tokens, at)) sites.push_back(text.tokens[at].line);
    }
    into.site_count += static_cast<int>(std::ranges::count_if(sites, [&](int line) {
      return std::ranges::any_of(*functions,
                                 [line](const function_extent& of) { return contains(of, line); });
    }));
    into.plain_count +=
        static_cast<int>(std::ranges::count_if(*functions, [&](const function_extent& of) {
          return of.statement_count <= 1 &&
                 std::ranges::none_of(sites, [&](int line) { return contains(of, line); });
        }));
  }
  std::vector<assertion_count> counts;
  for (auto& each : by_folder) counts.push_back(std::move(each.second));
  return counts;
}

assertion_count sum_of(const std::vector<assertion_count>& counts, std::string folder) {
  assertion_count sum{std::move(folder)};
  for (const assertion_count& each : counts) {
    sum.function_count += each.function_count;
    sum.plain_count += each.plain_count;
    sum.long_function_count += each.long_function_count;
    sum.site_count += each.site_count;
  }
  return sum;
}

}  // namespace tidy
