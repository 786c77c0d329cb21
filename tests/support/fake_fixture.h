// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A manager on the fake driver whose resource counts must be zero, and whose list of misuses too,
// after every test.
// To be included after the standard headers and before `import`; it declares what needs no module.
#pragma once

#include <cstdint>

namespace sizes {
inline constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t GiB = std::uint64_t{1} << 30;
}  // namespace sizes
