// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How benchmarks sum up and tell what they measured. The last include of a file, as must.hpp is.
#ifndef VMM_BENCH_REPORT_HPP
#define VMM_BENCH_REPORT_HPP

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../tools/program/output.hpp"
#include "../tools/program/usage.hpp"

#include "../tools/program/must.hpp"

/// The middle value, the upper of two; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline std::string number(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

/// The words of a command line that say where a page goes and what stands at its head.
struct report_words {
  std::string markdown;
  std::string head;

  /// Whether `word` was one of them.
  bool take(std::string_view word, const char* value) {
    if (word == "--markdown") markdown = value;
    if (word == "--head") head = value;
    return word == "--markdown" || word == "--head";
  }
};

/// Takes each option of a command line with its value, by `take(word, value)`, which returns
/// whether there is such an option; ends the program where one is wrong.
template <class Take>
void read_options(int count, char** words, Take&& take) {
  for (int i = 1; i < count; i += 2) {
    const std::string word = words[i];
    if (i + 1 == count) stop("'" + word + "' is not an option, or has no value: --help lists them");
    if (!take(std::string_view(word), words[i + 1]))
      stop("unknown option '" + word + "': --help lists them");
  }
}

/// A count on a command line; ends the program where it is none.
inline unsigned count_of(const char* value) {
  const std::optional<std::uint64_t> count = vmm::tools::read_count(value, 1);
  if (!count || *count > UINT_MAX)
    stop("a count is a whole number from 1 on; not '" + std::string(value) + "'");
  return static_cast<unsigned>(*count);
}

/// A page of Markdown around tables.
struct page {
  std::string path;  // where it is written; empty: nowhere
  std::string title;
  std::string head;     // when and on what it was measured
  std::string about;    // what the tables show, and how it was measured; may be empty
  std::string command;  // what makes it again
};

/// Prints the tables, and writes the page where it has a path; ends the program where it cannot.
inline void publish(const page& about, const std::string& tables) {
  if (const std::string why = vmm::tools::print(tables); !why.empty()) stop(why);
  if (about.path.empty()) return;
  std::string text = "# " + about.title + "\n\n" + about.head + ".\n\n";
  if (!about.about.empty()) text += about.about + "\n\n";
  text += tables + "\nCommand: `" + about.command + "`.\n";
  vmm::tools::output_file file;
  std::string why = file.open(about.path);
  if (why.empty()) why = file.write(text);
  if (!why.empty()) stop(why);
}

#endif
