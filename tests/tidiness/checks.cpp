// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "tokens.hpp"

namespace tidy {
namespace {

bool is_library(std::string_view path) {
  const bool inside = path.starts_with("modules/") || path.starts_with("backends/") ||
                      path.starts_with("adapters/c/src/") || path.starts_with("adapters/preload/");
  return inside && (path.ends_with(".cpp") || path.ends_with(".cppm") || path.ends_with(".hpp") ||
                    path.ends_with(".h"));
}

// ---- invariants --------------------------------------------------------------------------------

std::string unit_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

// The number after an I, or 0. `text` is left behind it.
int take_number(std::string_view& text) {
  if (!text.starts_with('I')) return 0;
  int number = 0;
  for (text.remove_prefix(1); !text.empty() && text.front() >= '0' && text.front() <= '9';
       text.remove_prefix(1)) {
    number = number * 10 + (text.front() - '0');
  }
  return number;
}

template <class Line>
void each_line(std::string_view text, Line line) {
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    line(text.substr(0, end), ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// What a text that begins with "I3: " or "STEM I3: " names, as a unit and a number.
std::optional<std::pair<std::string, int>> name_in(const std::string& path, std::string_view said) {
  std::size_t stem = 0;
  while (stem < said.size() &&
         (std::islower(static_cast<unsigned char>(said[stem])) != 0 || said[stem] == '_'))
    ++stem;
  std::string_view rest = said.substr(stem);
  if (stem != 0 && !rest.starts_with(" I")) return std::nullopt;
  rest.remove_prefix(stem == 0 ? 0 : 1);
  const int number = take_number(rest);
  if (number == 0 || !rest.starts_with(": ")) return std::nullopt;
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  return std::pair{stem == 0 ? unit_of(path) : folder + std::string{said.substr(0, stem)}, number};
}

}  // namespace

invariant_report read_invariants(const std::vector<file>& files) {
  invariant_report report;
  for (const file& each : files) {
    if (!is_library(each.path)) continue;
    each_line(each.text, [&](std::string_view line, int number) {
      if (!line.starts_with("// I")) return;
      line.remove_prefix(3);
      const int named = take_number(line);
      if (named != 0 && line.starts_with("  "))
        report.all.push_back({unit_of(each.path), named, number});
    });
  }
  const auto name = [&](const file& in, std::string_view said, int line) {
    const auto named = name_in(in.path, said);
    if (!named) return;
    bool is_there = false;
    for (invariant& known : report.all) {
      if (known.unit != named->first || known.number != named->second) continue;
      known.is_named = is_there = true;
    }
    if (is_there) return;
    report.unknown.push_back({in.path, line, "invariant",
                              "no head of " + named->first + " has I" +
                                  std::to_string(named->second) +
                                  ": other files say \"STEM I1: \" for STEM of their folder"});
  };
  for (const file& each : files) {
    if (!is_library(each.path)) continue;
    each_line(each.text, [&](std::string_view line, int number) {
      const std::size_t comment = line.find("//");
      for (std::size_t at = line.find('"'); at < comment; at = line.find('"', at + 1))
        name(each, line.substr(at + 1), number);
    });
  }
  return report;
}

// ---- redundancy --------------------------------------------------------------------------------

namespace {

constexpr int lines_looked_back = 10;

using words = std::vector<std::string_view>;

class scan {
 public:
  explicit scan(const file& subject) : path_(subject.path), text_(read_source(subject.text)) {}

  std::vector<finding> redundant() {
    for (std::size_t at = 1; at < tokens().size(); ++at) {
      if (!is_check(at)) continue;
      const words condition = condition_at(at + 1);
      if (condition.empty() || condition.front() == "[") continue;  // a lambda
      if (const char* why = guaranteed_by(at, condition))
        found_.push_back({path_, tokens()[at].line, "redundant", why});
    }
    return std::move(found_);
  }

  int double_checks() {
    int count = 0;
    for (std::size_t at = 1; at < tokens().size(); ++at) {
      if (!is_check(at)) continue;
      const words condition = condition_at(at + 1);
      if (!condition.empty() && condition.front() != "[" && parts_of(condition, "&&").size() > 1)
        ++count;
    }
    return count;
  }

 private:
  [[nodiscard]] const std::vector<token>& tokens() const { return text_.tokens; }
  [[nodiscard]] std::string_view text(std::size_t at) const {
    return at < tokens().size() ? tokens()[at].text : std::string_view{};
  }

  [[nodiscard]] bool is_check(std::size_t at) const {
    if (text(at) != "check" && text(at) != "debug_check") return false;
    const std::string_view before = text(at - 1);
    return text(at + 1) == "(" && (before == ";" || before == "{" || before == "}");
  }

  // What stands in the parentheses at `open`, up to the first comma outside of all others.
  [[nodiscard]] words condition_at(std::size_t open) const {
    words found;
    int depth = 0;
    for (std::size_t at = open; at < tokens().size(); ++at) {
      const std::string_view now = text(at);
      if (now == "(" || now == "{" || now == "[") ++depth;
      if (now == ")" || now == "}" || now == "]") --depth;
      if (depth == 0 || (depth == 1 && now == ",")) break;
      if (at != open) found.push_back(now);
    }
    return found;
  }

  // Cut where `sign` stands outside of parentheses.
  [[nodiscard]] static std::vector<words> parts_of(const words& whole, std::string_view sign) {
    std::vector<words> parts(1);
    int depth = 0;
    for (const std::string_view each : whole) {
      if (each == "(" || each == "{" || each == "[") ++depth;
      if (each == ")" || each == "}" || each == "]") --depth;
      if (depth == 0 && each == sign) {
        parts.emplace_back();
      } else {
        parts.back().push_back(each);
      }
    }
    return parts;
  }

  // Of one comparison, or of a value without any; empty for the rest.
  [[nodiscard]] static words opposite(const words& of) {
    if (of.empty() || parts_of(of, "&&").size() > 1 || parts_of(of, "||").size() > 1) return {};
    constexpr std::array<std::pair<std::string_view, std::string_view>, 2> equalities{
        {{"=", "!"}, {"!", "="}}};
    for (std::size_t at = 1; at + 1 < of.size(); ++at) {
      if (of[at + 1] != "=") continue;
      for (const auto& [sign, other] : equalities) {
        if (of[at] != sign) continue;
        words made = of;
        made[at] = other;
        return made;
      }
    }
    if (std::ranges::any_of(of, [](auto each) { return each == "<" || each == ">"; })) return {};
    words made = of;
    if (of.front() == "!") {
      made.erase(made.begin());
    } else {
      made.insert(made.begin(), "!");
    }
    return made;
  }

  // Whether what `condition` is of may have changed between two places.
  [[nodiscard]] bool may_change(const words& condition, std::size_t from, std::size_t to) const {
    for (const std::string_view each : condition) {
      if (!is_word(each) || each == "nullptr") continue;
      if (each.ends_with('_')) return true;  // any call may
      for (std::size_t at = from; at < to; ++at) {
        if (text(at) != each) continue;
        const std::string_view next = text(at + 1), before = text(at - 1);
        const bool is_compared = text(at + 2) == "=" || before == "!" || before == "<";
        if (next == "." || next == "->" || next == "[" || before == "&" || before == "+" ||
            before == "(" || before == "," || (next == "=" && !is_compared))
          return true;
      }
    }
    return false;
  }

  [[nodiscard]] const char* guaranteed_by(std::size_t at, const words& condition) const {
    if (is_condition_of_loop(at, condition)) return "the condition of the loop says it";
    if (was_just_assigned(at, condition)) return "the assignment before it says it";
    int depth = 0;
    for (std::size_t back = at; back-- > 1;) {
      if (tokens()[at].line - tokens()[back].line > lines_looked_back) return nullptr;
      if (text(back) == "}") ++depth;
      if (text(back) == "{" && --depth < 0) return nullptr;
      if (text(back) != "if" || depth != 0 || text(back + 1) != "(") continue;
      const words tested = condition_at(back + 1);
      const std::size_t behind = back + 2 + tested.size() + 1;
      if (text(behind) != "return" && !(text(behind) == "{" && text(behind + 1) == "return"))
        continue;
      std::size_t end = behind;
      while (end < at && text(end) != ";") ++end;
      for (const words& part : parts_of(tested, "||")) {
        if (opposite(part) == condition && !may_change(condition, end, at))
          return "an if that returns says it";
      }
    }
    return nullptr;
  }

  [[nodiscard]] bool is_condition_of_loop(std::size_t at, const words& condition) const {
    if (text(at - 1) != "{" || text(at - 2) != ")") return false;
    std::size_t open = at - 2;
    for (int depth = 0; open > 1; --open) {
      if (text(open) == ")") ++depth;
      if (text(open) == "(" && --depth == 0) break;
    }
    if (text(open - 1) == "while") return condition_at(open) == condition;
    if (text(open - 1) != "for") return false;
    const std::vector<words> parts = parts_of(condition_at(open), ";");
    return parts.size() == 3 && parts[1] == condition;
  }

  // x = y; check(x == y)
  [[nodiscard]] bool was_just_assigned(std::size_t at, const words& condition) const {
    words said = condition;
    const auto equals = std::ranges::find(said, "=");
    if (text(at - 1) != ";" || equals == said.end() || equals == said.begin()) return false;
    if (*(equals - 1) == "!" || *(equals - 1) == "<" || *(equals - 1) == ">") return false;
    said.erase(equals);
    if (said.size() + 1 > at) return false;
    const std::size_t first = at - 1 - said.size();
    for (std::size_t i = 0; i < said.size(); ++i)
      if (text(first + i) != said[i]) return false;
    const std::string_view before = text(first - 1);
    return before == ";" || before == "{" || before == "}" || is_word(before);
  }

  std::string path_;
  source text_;
  std::vector<finding> found_;
};

}  // namespace

std::vector<finding> check_redundancy(const file& subject) {
  return is_library(subject.path) ? scan{subject}.redundant() : std::vector<finding>{};
}

int count_double_checks(const file& subject) {
  return is_library(subject.path) ? scan{subject}.double_checks() : 0;
}

}  // namespace tidy
