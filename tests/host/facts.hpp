// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the host driver compare: codes, resource counts, and this process's open
// descriptors. It imports what it uses, so it is the last include of a file.
#pragma once

#include "../support/test.h"

import vmm.host;

inline constexpr std::uint64_t page = 4096;

template <class T>
vmm::errc code_of(const vmm::result<T>& answer) {
  return answer ? vmm::errc::none : answer.error().code;
}

inline bool operator==(const vmm::host_resource_counts& a, const vmm::host_resource_counts& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

inline vmm::host_driver open(const vmm::host_options& options) {
  return vmm::host_driver::open(options).value();
}

inline std::ptrdiff_t open_descriptors() {
  using entries = std::filesystem::directory_iterator;
  return std::distance(entries("/proc/self/fd"), entries());
}
