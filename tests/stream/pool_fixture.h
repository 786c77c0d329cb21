// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stream pool on the fake driver, whose resource counts and list of misuses must be empty after
// every test. To be included after the standard headers and before `import`; it declares what
// needs no module.
#pragma once

#include <cstdint>

namespace sizes {
inline constexpr std::uint64_t KiB = std::uint64_t{1} << 10;
inline constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t GiB = std::uint64_t{1} << 30;
}  // namespace sizes
