// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How benchmarks sum up and tell what they measured. The last include of a file, as must.hpp is.
#ifndef VMM_BENCH_REPORT_HPP
#define VMM_BENCH_REPORT_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "must.hpp"

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

/// A count on a command line: 1 where it is less, or no number.
inline unsigned count_of(const char* value) {
  return static_cast<unsigned>(std::max(1, std::atoi(value)));
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
  std::fputs(tables.c_str(), stdout);
  if (about.path.empty()) return;
  std::ofstream file(about.path, std::ios::binary);
  file << "# " << about.title << "\n\n" << about.head << ".\n\n";
  if (!about.about.empty()) file << about.about << "\n\n";
  file << tables << "\nCommand: `" << about.command << "`.\n";
  if (!file.flush()) stop("cannot write " + about.path);
}

#endif
