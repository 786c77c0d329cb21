// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Assertions state what nothing else guarantees, and name the invariants of the heads of files.
#pragma once

#include <string>
#include <vector>

#include "rules.hpp"

namespace tidy {

/// An invariant of a file's head: a line `// I3  A cached piece has no holder.`
struct invariant {
  std::string unit;  ///< the path without what stands behind the last point
  int number = 0;
  int line = 0;
  bool is_named = false;  ///< by a text that begins with "I3: ", or with "STEM I3: " in other files
};

struct invariant_report {
  std::vector<invariant> all;
  std::vector<finding> unknown;  ///< texts that name an invariant which no head has
};

/// The invariants of the library, and the texts of its checks and validators that name them.
[[nodiscard]] invariant_report read_invariants(const std::vector<file>& files);

/// Checks whose condition the lines before them guarantee: an `if` that returns, the condition of
/// the loop around them, or an assignment.
[[nodiscard]] std::vector<finding> check_redundancy(const file& subject);

/// Checks of two conditions at once.
[[nodiscard]] int count_double_checks(const file& subject);

}  // namespace tidy
