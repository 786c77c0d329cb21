// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A recording of allocations and frees in the format of traces/README.md, a file for each device.
//
// Thread safety: all of it, one lock. Cost: a line of some 20 bytes in a buffer; a write for each
// 64 KiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmm::preload::trace {

/// Writes 'a' with a new number, which is 0 if nothing was written.
[[nodiscard]] std::uint64_t add(std::size_t slot, std::uint64_t size_bytes,
                                std::uint64_t stream_key) noexcept;
void remove(std::size_t slot, std::uint64_t number) noexcept;

/// Whether events were left out: a limit of the format, or a file that cannot be written.
[[nodiscard]] bool is_incomplete() noexcept;

/// For the end of the process: writes every later line at once.
void finish() noexcept;

void before_fork() noexcept;
void after_fork(bool is_child) noexcept;

}  // namespace vmm::preload::trace
