// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The words of a C++ source text: enough of a lexer to read declarations, imports and braces, and
// no more.
#pragma once

#include <string_view>
#include <vector>

namespace tidy {

/// What every string and character literal reads as.
inline constexpr std::string_view literal = "\"\"";

/// A word, number, literal or sign. Comments are left out.
struct token {
  std::string_view text;
  int line = 0;
};

/// One preprocessor line, continuations included, from the sign # on.
struct directive {
  std::string_view text;
  int line = 0;
};

struct source {
  std::vector<token> tokens;
  std::vector<directive> directives;
};

/// Views into `text`, which must outlive the answer. O(size of the text).
[[nodiscard]] source read_source(std::string_view text);

[[nodiscard]] bool is_word(std::string_view token);

}  // namespace tidy
