// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// For the validators of tables that are mostly zero: in steps of 1024 words, each one a memcmp,
// which a sanitizer checks once and not word by word. Private to vmm.va.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace vmm {

/// Whether one of `count` words is not 0.
[[nodiscard]] inline bool any_nonzero(const std::uint32_t* words, std::size_t count) noexcept {
  static constexpr std::uint32_t zeros[1024] = {};
  while (count > 0) {
    const std::size_t step = std::min(count, std::size(zeros));
    if (std::memcmp(words, zeros, step * sizeof(std::uint32_t)) != 0) return true;
    words += step;
    count -= step;
  }
  return false;
}

}  // namespace vmm
