// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tree may have at most, or must have at least: measures that only get better.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rules.hpp"

namespace tidy {

struct size {
  std::string name;
  int value = 0;
};

/// Every measure of the tree, in the order of the table. Classes of at most 25 functions, and those
/// whose bodies lie in at most two files, have no row.
[[nodiscard]] std::vector<size> sizes_of(const std::vector<file>& files);

/// The rows of a table: `VALUE NAME`, lines that begin with # left out.
[[nodiscard]] std::vector<size> read_table(std::string_view text);

/// What of `now` is worse than the table, or better and not in it.
[[nodiscard]] std::vector<finding> compare_sizes(const std::vector<size>& now,
                                                 const std::vector<size>& table);

/// The sources of the library and its adapters that have more than 500 lines.
[[nodiscard]] std::vector<finding> check_lengths(const std::vector<file>& files);

/// The functions that the classes of a file declare, as the name of the class and their number.
[[nodiscard]] std::vector<size> functions_of_classes(std::string_view text);

}  // namespace tidy
