// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls that take two integers of one type side by side, so that they can be exchanged by mistake.
#pragma once

#include <vector>

#include "rules.hpp"

namespace tidy {

/// The calls that users of `subject`, an interface unit, can make and that do so: exported
/// functions, and the public members of exported classes. A function in `field_calls` may: the
/// names and orders of its arguments are the field's own.
[[nodiscard]] std::vector<finding> check_integers(const file& subject);

}  // namespace tidy
