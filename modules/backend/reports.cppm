// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:reports - reports of allocators: their blocks, the result of a trim, and leaks. A
// user of an allocator imports these and not the parts that fill them in.
//
// Thread safety: values only. Cost: no allocation but the list of handles in range_info.
export module vmm.backend:reports;

import :result;
import :types;
import vmm.std;

namespace vmm {

/// The three sizes of an allocation, which are never mixed.
export struct range_sizes {
  std::uint64_t user_bytes = 0;      ///< the requested size
  std::uint64_t mapped_bytes = 0;    ///< bytes with physical memory
  std::uint64_t reserved_bytes = 0;  ///< address space, with addresses for growth
};

/// One allocation, with its handles in address order, which are `none` while its memory is
/// suspended.
export struct range_info {
  address base{};
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  std::vector<physical_handle> handles;
};

/// The memory that trim() released, and the reason why more is retained.
export struct trim_report {
  std::uint64_t released_count = 0;
  std::uint64_t released_bytes = 0;
  std::uint64_t still_mapped_bytes = 0;  ///< free, but kept: unfinished work may use it
  error failure{};  ///< code none, or why a release failed: that handle stays retained
};

/// The live blocks of a pool or manager at its end, which frees them.
export struct live_blocks {
  const char* owner = "";  ///< "stream pool" or "manager"
  std::uint64_t count = 0;
  std::uint64_t size_bytes = 0;
};

/// Writes one line about them to stderr, for the first leak_report_count_max reports of a process.
export void print_live_blocks(void* context, const live_blocks& left) noexcept;
/// The maximum number of reports of a process that print_live_blocks() writes.
export inline constexpr std::uint32_t leak_report_count_max = 8;

/// Called by the destructor of a pool or manager with live blocks, before they are freed. Requires:
/// it does not call that pool or manager, and throws nothing. No hook: no report.
export struct leak_report {
  void (*hook)(void* context, const live_blocks& left) noexcept = print_live_blocks;
  void* context = nullptr;
};

}  // namespace vmm
