// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "functions.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace tidy {
namespace {

enum class brace { scope, function, value };

// The tokens since the last statement ended, by which a brace is classified.
struct statement {
  int first_line = 0;
  bool empty = true;
  bool has_type_word = false;     // namespace, class, struct, union or enum
  bool has_parameters = false;    // a closing parenthesis outside every other
  bool has_initializers = false;  // a colon after the parameters: a constructor's member list
  bool has_equals = false;        // a value follows, unless parameters came first
  bool in_operator = false;       // after the word operator, before its parameters
  int angles = 0;                 // open brackets of template parameters and arguments
};

constexpr std::array<std::string_view, 5> type_words{"namespace", "class", "struct", "union",
                                                     "enum"};

class walker {
 public:
  std::optional<std::vector<function_extent>> walk(const std::vector<token>& tokens) {
    for (const token& next : tokens) {
      if (!take(next)) return std::nullopt;
      previous_ = next.text;
    }
    if (!open_.empty() || parentheses_ != 0) return std::nullopt;
    return std::move(found_);
  }

 private:
  bool take(const token& next) {
    if (inside_function_ > 0) return take_in_function(next);
    if (next.text == "{" && parentheses_ == 0) return open(next);
    if (next.text == "}" && parentheses_ == 0) return close(next);
    if (next.text == ";" && parentheses_ == 0) {
      now_ = {};
      return true;
    }
    note(next);
    return parentheses_ >= 0;
  }

  void note(const token& next) {
    if (now_.empty) now_ = {.first_line = next.line, .empty = false};
    if (next.text == "(") ++parentheses_;
    if (next.text == ")" && --parentheses_ == 0) now_.has_parameters = true;
    if (parentheses_ != 0) return;
    // What stands between the word operator and its parameters is a name.
    if (next.text == "operator") now_.in_operator = true;
    if (next.text == ")") now_.in_operator = false;
    if (now_.in_operator) return;
    if (next.text == "=" && !now_.has_parameters) now_.has_equals = true;
    if (next.text == ":" && now_.has_parameters) now_.has_initializers = true;
    // A template's parameters may say class without declaring one.
    if (next.text == "<") ++now_.angles;
    if (next.text == ">" && now_.angles > 0) --now_.angles;
    if (now_.angles == 0 && std::ranges::find(type_words, next.text) != type_words.end()) {
      now_.has_type_word = true;
    }
  }

  bool open(const token& next) {
    if (now_.empty) now_ = {.first_line = next.line, .empty = false};
    brace kind = brace::value;
    if (now_.has_type_word || previous_ == literal) {  // extern "C" {
      kind = brace::scope;
    } else if (now_.has_parameters && !now_.has_equals) {
      const bool member_value = now_.has_initializers && (is_word(previous_) || previous_ == ">");
      kind = member_value ? brace::value : brace::function;
    }
    if (kind == brace::function) inside_function_ = 1;
    open_.push_back({kind, now_});
    if (kind == brace::scope) now_ = {};
    return true;
  }

  bool close(const token&) {
    if (open_.empty() || open_.back().kind == brace::function) return false;
    const bool value = open_.back().kind == brace::value;
    now_ = value ? open_.back().before : statement{};
    open_.pop_back();
    return true;
  }

  bool take_in_function(const token& next) {
    if (next.text == "{") ++inside_function_;
    if (next.text == "}" && --inside_function_ == 0) {
      found_.push_back({open_.back().before.first_line, next.line});
      open_.pop_back();
      now_ = {};
    }
    return true;
  }

  struct open_brace {
    brace kind;
    statement before;
  };

  std::vector<open_brace> open_;
  std::vector<function_extent> found_;
  statement now_;
  std::string_view previous_;
  int parentheses_ = 0;
  int inside_function_ = 0;
};

}  // namespace

std::optional<std::vector<function_extent>> functions_of(const source& text) {
  return walker{}.walk(text.tokens);
}

}  // namespace tidy
