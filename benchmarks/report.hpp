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
#include <string>
#include <vector>

#include "../tools/program/output.hpp"

#include "../tools/program/options.hpp"

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
