// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks share: clocks, sums of what was measured, and their reports. The last include of
// a file, as must.hpp is.
#pragma once

#include <ctime>

#include "../tools/program/output.hpp"

#include "../tools/program/options.hpp"

#include "../tools/program/must.hpp"

/// Processor time of this thread: what others do to the machine shows in caches only.
inline double cpu_ns() {
  std::timespec now{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) stop("a thread's clock cannot be read");
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// Microseconds of the steady clock.
template <class Work>
double time_us(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  return taken.count();
}

/// The middle value, the upper of two; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Of each value the other's of the same turn.
inline std::vector<double> ratios_of(const std::vector<double>& one,
                                     const std::vector<double>& other) {
  std::vector<double> ratios(std::min(one.size(), other.size()));
  std::transform(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(ratios.size()),
                 other.begin(), ratios.begin(), std::divides<>());
  return ratios;
}

inline std::string number(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

/// "1.02 (0.98 to 1.10)": the median, the lowest and the highest.
inline std::string with_spread(const std::vector<double>& values, int digits) {
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  return number(median(values), digits) + " (" + number(*lowest, digits) + " to " +
         number(*highest, digits) + ")";
}

/// Rows with the same columns, as a table in Markdown, and as JSON of the columns with a key.
class table {
 public:
  table& row() {
    rows_.emplace_back();
    return *this;
  }
  table& text(const std::string& title, const std::string& value, const std::string& key = "") {
    return add({title, false, value, key, '"' + value + '"'});
  }
  table& figure(const std::string& title, double value, int digits, const std::string& key = "") {
    if (!std::isfinite(value)) return add({title, true, "-", key, "null"});  // as JSON has it
    return add({title, true, number(value, digits), key, number(value, digits + 2)});
  }
  table& count(const std::string& title, std::uint64_t value, const std::string& key = "") {
    return add({title, true, std::to_string(value), key, std::to_string(value)});
  }

  [[nodiscard]] std::string markdown() const {
    if (rows_.empty()) return "";
    std::string head = "|";
    std::string line = "|";
    for (const cell& each : rows_.front()) {
      head += " " + each.title + " |";
      line += each.is_figure ? " ---: |" : " --- |";
    }
    std::string text = head + "\n" + line + "\n";
    for (const std::vector<cell>& row : rows_) {
      text += "|";
      for (const cell& each : row) text += " " + each.shown + " |";
      text += "\n";
    }
    return text;
  }
  [[nodiscard]] std::string json() const {
    std::string text = "[";
    for (const std::vector<cell>& row : rows_) {
      text += text.size() == 1 ? "{" : ", {";
      const char* between = "";
      for (const cell& each : row) {
        if (each.key.empty()) continue;
        text += between + ('"' + each.key) + "\": " + each.json;
        between = ", ";
      }
      text += "}";
    }
    return text + "]";
  }
  /// Those of the last row, each behind `between`.
  [[nodiscard]] std::string cells(const char* between) const {
    std::string text;
    for (const cell& each : rows_.back()) text += between + each.shown;
    return text;
  }
  [[nodiscard]] std::string shown(bool as_json) const { return as_json ? json() : markdown(); }

 private:
  struct cell {
    std::string title;
    bool is_figure;
    std::string shown;
    std::string key;
    std::string json;
  };
  table& add(cell made) {
    rows_.back().push_back(std::move(made));
    return *this;
  }
  std::vector<std::vector<cell>> rows_;
};

/// A page of Markdown around tables.
struct page {
  std::string path;  // where it is written; empty: nowhere
  std::string title;
  std::string head;     // when and on what it was measured
  std::string about;    // what the tables show, and how it was measured; may be empty
  std::string command;  // what makes it again
};

/// Prints what was measured; ends the program where it cannot.
inline void print(const std::string& text) {
  if (const std::string why = vmm::tools::print(text); !why.empty()) stop(why);
}

inline void write_file(const std::string& path, const std::string& text) {
  vmm::tools::output_file file;
  std::string why = file.open(path);
  if (why.empty()) why = file.write(text);
  if (!why.empty()) stop(why);
}

/// Prints the tables, and writes the page where it has a path.
inline void publish(const page& about, const std::string& tables) {
  print(tables);
  if (about.path.empty()) return;
  std::string text = "# " + about.title + "\n\n" + about.head + ".\n\n";
  if (!about.about.empty()) text += about.about + "\n\n";
  write_file(about.path, text + tables + "\nCommand: `" + about.command + "`.\n");
}
