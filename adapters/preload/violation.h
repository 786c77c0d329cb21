// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The reaction to a broken invariant of the library. The program continues: one line on stderr, and
// later allocations go to the driver. Frees of live blocks still go to the allocator that the block
// came from.
#pragma once

#include <atomic>

namespace vmm::preload::managed {

inline constinit std::atomic<bool> has_violation = false;

/// Reports the invariant, the first time.
void violated(const char* invariant) noexcept;

}  // namespace vmm::preload::managed
