// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the library does when an invariant of its own does not hold. The program is not the
// library's, so it goes on: one line on stderr, and from then on its allocations are the driver's.
// Frees of live blocks still go to the allocator that the block came from.
#pragma once

#include <atomic>

namespace vmm::preload::managed {

inline constinit std::atomic<bool> has_violation = false;

/// Reports the invariant, the first time.
void violated(const char* invariant) noexcept;

}  // namespace vmm::preload::managed
