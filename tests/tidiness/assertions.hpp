// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How many assertions the library has for each of its functions.
#pragma once

#include <string>
#include <vector>

#include "rules.hpp"

namespace tidy {

/// The functions with a body and the calls of check, debug_check and paranoid_check in one folder.
///
/// A function whose body is one statement, or none, and asserts nothing is `plain`: it forwards to
/// another one, whose preconditions are its own, or names a value. So are defaulted functions,
/// which have no body, and the refusals of a driver that was not built.
struct assertion_count {
  std::string folder;
  int function_count = 0;
  int plain_count = 0;          ///< of these
  int long_function_count = 0;  ///< of more than five lines
  int site_count = 0;

  /// Assertions for each function; 0 where there is no function.
  [[nodiscard]] double ratio() const noexcept {
    return function_count == 0 ? 0.0 : static_cast<double>(site_count) / function_count;
  }
  /// Assertions for each function that is not plain; 0 where there is none.
  [[nodiscard]] double ratio_of_others() const noexcept {
    const int others = function_count - plain_count;
    return others == 0 ? 0.0 : static_cast<double>(site_count) / others;
  }
};

/// One count for each folder below modules/ and backends/ among `files`, by name. A lambda is a
/// part of the function around it. A file whose braces do not pair counts as having no function:
/// check_file() reports it.
[[nodiscard]] std::vector<assertion_count> count_assertions(const std::vector<file>& files);

/// The sum, named `folder`.
[[nodiscard]] assertion_count sum_of(const std::vector<assertion_count>& counts,
                                     std::string folder);

}  // namespace tidy
