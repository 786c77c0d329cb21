// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The words that identifiers of the library do not use, because the field has another one.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "rules.hpp"

namespace tidy {

/// One word, or several joined by _, and what to say instead. An identifier is refused when the
/// parts of the word stand in it side by side, the last one with or without an s.
struct banned_word {
  std::string_view word;
  std::string_view instead;
  /// Identifiers that may have it: names of the standard, of a driver, or of a source.
  std::vector<std::string_view> allowed;
};

/// A word that still stands in a folder. The list only shrinks.
struct exemption {
  std::string_view folder;
  std::string_view word;
};

struct word_rules {
  std::span<const banned_word> words;
  std::span<const exemption> exemptions;
};

/// The library's (word_table.cpp).
[[nodiscard]] word_rules house_words();

/// The identifiers and the name of `subject`, a file of modules/ or backends/, against `rules`.
[[nodiscard]] std::vector<finding> check_words(const file& subject, const word_rules& rules);

/// Exemptions that no file among `files` needs any more.
[[nodiscard]] std::vector<finding> check_exemptions(const std::vector<file>& files,
                                                    const word_rules& rules);

}  // namespace tidy
