// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Public calls say what they require and do.
#pragma once

#include <vector>

#include "rules.hpp"

namespace tidy {

/// The exported functions of an interface unit of the library, and the public ones of its exported
/// classes, that no comment stands before. Declarations without an empty line between them share
/// the comment before the first. Special members and operators need none, nor does what is deleted
/// or defaulted.
[[nodiscard]] std::vector<finding> check_comments(const file& subject);

}  // namespace tidy
