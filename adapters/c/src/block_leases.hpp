// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Counters in shared memory that other processes of the user count down, such as PyTorch's of the
// tensors in its queues. A counter of a process that was killed is set to 0 here, so that its block
// is not held until this process ends. The counting process has a connection to this one's server
// (modules/share/ipc_server.hpp), which a killed process and its children close.
//
// Threads: all of it. A forked child has lists of its own, which are empty.
#pragma once

#include <cstdint>

#include "vmm_allocator.h"

namespace vmm_c {

/// Of the server's thread: whether a counter is above 0, and its end.
[[nodiscard]] bool is_held(std::uint64_t counter) noexcept;
void take_back(std::uint64_t counter) noexcept;

}  // namespace vmm_c
