// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_MODE=cache: physical memory that the program releases is kept and answers its next request of
// the same size and kind, as under the expandable segments of PyTorch, which never keep a handle.
//
// I1  A kept handle was made here, is mapped nowhere, and nobody else can have it: one that was
//     exported, retained or bound to a multicast object is never kept.
// I2  No more than the limit is kept. All of it is given back when the driver is out of memory.
//
// With VMM_TOP=1 vmm-top shows what the program has of it and what is kept.
//
// Thread safety: all of it, one lock, not held over a call of the driver.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"

namespace vmm::preload::cache {

struct counts {
  std::uint64_t reused_count = 0;
  std::uint64_t kept_count = 0;
  std::uint64_t kept_bytes = 0;
};
[[nodiscard]] counts figures() noexcept;

struct request {
  std::size_t size = 0;
  memory_properties like{};
  flag_set flags = 0;
};

/// A kept handle for the request, or 0.
[[nodiscard]] physical_id take(const request& wanted) noexcept;
/// The driver made it.
void note_created(physical_id handle, const request& wanted) noexcept;
/// Whether the handle is kept instead of being released. If not, it is no longer known here.
[[nodiscard]] bool keep(physical_id handle) noexcept;

void note_mapped(device_pointer at, std::size_t size, physical_id handle) noexcept;
void note_unmapped(device_pointer at, std::size_t size) noexcept;

/// Somebody else may have it from now on.
void never_keep(physical_id handle) noexcept;
void never_keep_range(device_pointer at, std::size_t size) noexcept;

/// Releases what is kept; the bytes.
std::uint64_t give_back() noexcept;
/// Of the kept memory, what lies on a device.
[[nodiscard]] std::uint64_t kept_on(int device) noexcept;

}  // namespace vmm::preload::cache
