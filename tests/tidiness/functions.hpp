// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Where functions begin and end, found from braces and the tokens before them.
#pragma once

#include <optional>
#include <vector>

#include "tokens.hpp"

namespace tidy {

struct function_extent {
  int first_line = 0;  ///< of the declaration
  int last_line = 0;   ///< of the closing brace
};

/// The functions of a source with a body, outermost only (a lambda counts as part of its function).
/// nullopt if the braces do not balance, so that the file cannot be judged.
[[nodiscard]] std::optional<std::vector<function_extent>> functions_of(const source& text);

}  // namespace tidy
