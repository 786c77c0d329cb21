// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:statistics - reports of a manager, as values.
//
// The counts are made in manager_counts (:base), and read in manager_report (:report).
//
// Thread safety: values only. Cost: none.
export module vmm.manager:statistics;

import vmm.backend;
import vmm.std;

namespace vmm {

/// Figures of a manager, in bytes unless the name has another unit.
export struct manager_statistics {
  std::uint64_t live_count = 0;
  std::uint64_t user_bytes = 0;  ///< as requested, of live allocations
  std::uint64_t mapped_bytes =
      0;  ///< behind live allocations; an aliased handle counts at each address
  std::uint64_t held_bytes = 0;  ///< physical memory created and not released
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t spilled_bytes = 0;   ///< of the footprint, at options().spill
  std::uint64_t retained_bytes = 0;  ///< held, unmapped or waiting to be, free for any request
  /// Held and still mapped, free for requests of its size
  std::uint64_t retained_mapped_bytes = 0;
  std::uint64_t retired_bytes = 0;     ///< address space that waits for unfinished work
  std::uint64_t reserved_bytes = 0;    ///< address space reserved
  std::uint64_t space_live_bytes = 0;  ///< address space handed out
  std::uint64_t space_high_water_bytes = 0;
  std::uint64_t created_count = 0;  ///< handles created
  std::uint64_t reused_handle_count = 0;
  std::uint64_t reused_range_count = 0;   ///< requests served by a retained range of their size
  std::uint64_t grown_reuse_count = 0;    ///< requests served by one that was grown
  std::uint64_t unbound_range_count = 0;  ///< ranges dissolved
  std::uint64_t remapped_copy_count = 0;
  std::uint64_t real_copy_count = 0;
  std::uint64_t recovery_count = 0;       ///< times that retained memory was released: shortages
  std::uint64_t refused_unmap_count = 0;  ///< unmaps of unused ranges that the driver refused
  std::uint64_t suspended_bytes =
      0;  ///< of the mapped bytes: released to the driver until they are resumed
};

/// An extent of the address space.
export enum class extent_kind : std::uint8_t { live, retained, retired, hole };
/// An extent with the memory behind it.
export struct extent_info {
  address_range where{};
  std::uint64_t mapped_bytes = 0;
  extent_kind kind = extent_kind::hole;
};

}  // namespace vmm
