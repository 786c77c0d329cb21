// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A golden file: one line a case, first its name, then figures as name=value. Lines that begin with
// # are comments. Neither names nor values contain blanks or '='; a case's name may be several
// words.
#pragma once
#include <sstream>
#include "../../tools/program/standard.hpp"

namespace golden {

struct figure {
  std::string name;
  std::string value;
};

struct row {
  std::string name;
  std::vector<figure> figures;

  void add(std::string_view of, std::uint64_t value) {
    figures.push_back({std::string(of), std::to_string(value)});
  }
  [[nodiscard]] const std::string* find(std::string_view of) const {
    const auto found = std::ranges::find(figures, of, &figure::name);
    return found == figures.end() ? nullptr : &found->value;
  }
  [[nodiscard]] std::string line() const {
    std::string out = name;
    for (const figure& each : figures) out += " " + each.name + "=" + each.value;
    return out + "\n";
  }
};

using table = std::vector<row>;

[[nodiscard]] inline table parse(std::string_view text) {
  table out;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    row& made = out.emplace_back();
    std::istringstream words{line};
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) {
        made.name += (made.name.empty() ? "" : " ") + word;
      } else {
        made.figures.push_back({word.substr(0, equals), word.substr(equals + 1)});
      }
    }
  }
  return out;
}

[[nodiscard]] inline std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// A call that was never made is left out of a line: it counts as 0.
inline constexpr std::string_view call_prefix = "driver_calls.";

/// One line for each figure of a case that is not as it was. A figure that the golden line does not
/// have is a difference too: ./run golden --update takes it.
[[nodiscard]] inline std::vector<std::string> differences(const row& was, const row& is) {
  std::vector<std::string> out;
  for (const figure& each : was.figures) {
    const std::string* const now = is.find(each.name);
    const bool is_count = each.name.starts_with(call_prefix);
    const std::string value = now != nullptr ? *now : is_count ? "0" : "missing";
    if (value == each.value) continue;
    out.push_back(was.name + ": " + each.name + " was " + each.value + ", is " + value);
  }
  for (const figure& each : is.figures) {
    if (was.find(each.name) != nullptr) continue;
    const bool is_count = each.name.starts_with(call_prefix);
    if (is_count && each.value == "0") continue;
    out.push_back(was.name + ": " + each.name + (is_count ? " was 0, is " : " is new, is ") +
                  each.value);
  }
  return out;
}

/// The same for all cases, and a line for each case that only one of the tables has.
[[nodiscard]] inline std::vector<std::string> differences(const table& was, const table& is) {
  std::vector<std::string> out;
  for (const row& each : was) {
    const auto now = std::ranges::find(is, each.name, &row::name);
    if (now == is.end()) {
      out.push_back(each.name + ": is not run");
      continue;
    }
    for (std::string& one : differences(each, *now)) out.push_back(std::move(one));
  }
  for (const row& each : is) {
    const bool is_known = std::ranges::find(was, each.name, &row::name) != was.end();
    if (!is_known) out.push_back(each.name + ": has no golden line");
  }
  return out;
}

/// FNV-1a over 64 bits: the same on every machine.
class text_hash {
 public:
  void add(std::string_view text) {
    for (const char each : text) {
      value_ ^= static_cast<unsigned char>(each);
      value_ *= 0x100000001b3u;
    }
  }
  [[nodiscard]] std::string text() const {
    char out[24];
    std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(value_));
    return out;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace golden
