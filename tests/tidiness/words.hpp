// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The words that the tree does not use, because the field has others: tests/tidiness/words.csv. A
// word that still stands somewhere has a count there, which may fall and may not rise.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rules.hpp"

namespace tidy {

/// Where words are counted, each by itself: modules/ and backends/; the sources of
/// adapters/; the rest of the tree.
inline constexpr std::size_t area_count = 3;
using area_counts = std::array<std::size_t, area_count>;

/// A line of the file.
struct banned_word {
  /// Of names: a part of an identifier or of a file's name, or several parts joined by _; an s may
  /// follow. Of prose: one or more words of a comment, a literal or a page, outside of code.
  std::string word;
  std::string instead;
  bool is_prose = false;
  std::vector<std::string> allowed;  ///< identifiers of the standard, a driver or a source
  area_counts limits{};              ///< different identifiers, or places in prose
  int line = 0;
};

struct word_list {
  std::string path;
  std::vector<banned_word> words;
  std::vector<finding> mistakes;  ///< lines that cannot be read
};

[[nodiscard]] word_list read_words(const file& list);

/// The words of `list` that stand in `files` more often than it says, with their places; and a
/// sentence for each that it could lower.
struct word_report {
  std::vector<finding> found;
  std::vector<std::string> fewer;
};

[[nodiscard]] word_report check_words(const std::vector<file>& files, const word_list& list);

/// The comments and literals of a source, or the text of a page without its code. Each word is
/// where it is in the file.
[[nodiscard]] std::string prose_of(const file& subject);

}  // namespace tidy
