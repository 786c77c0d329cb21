// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_MODE=cache: physical memory that the program releases is retained and serves its next request
// of the same size and kind, for programs that never retain a handle, such as PyTorch's expandable
// segments.
//
// I1  A retained handle was created here, is mapped nowhere, and has no other owner: one that was
//     exported, retained by address or bound to a multicast object is never kept.
// I2  At most the limit is retained. All of it is released when the driver is out of memory.
//
// With VMM_TOP=1 vmm-top shows the program's handles and the retained ones.
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
/// Records a handle that the driver created.
void note_created(physical_id handle, const request& wanted) noexcept;
/// Whether the handle is kept instead of being released. If not, its record is removed.
[[nodiscard]] bool keep(physical_id handle) noexcept;

void note_mapped(device_pointer at, std::size_t size, physical_id handle) noexcept;
void note_unmapped(device_pointer at, std::size_t size) noexcept;

/// Records that it may have other owners.
void never_keep(physical_id handle) noexcept;
void never_keep_range(device_pointer at, std::size_t size) noexcept;

/// Releases retained handles, and returns their bytes.
std::uint64_t release_kept() noexcept;
/// The retained memory on a device.
[[nodiscard]] std::uint64_t kept_on(int device) noexcept;

}  // namespace vmm::preload::cache
