// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:reports - reports of allocators: their blocks, the result of a trim, and leaks. They
// are below the parts that fill them in, so that a user of an allocator does not import those
// parts.
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
  std::uint64_t mapped_bytes = 0;    ///< what has physical memory behind it
  std::uint64_t reserved_bytes = 0;  ///< what address space it takes, with its room to grow
};

/// What is known of one allocation, with its handles in address order: `none` while its memory is
/// suspended.
export struct range_info {
  address base{};
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  std::vector<physical_handle> handles;
};

/// What trim() gave back, and what kept it from giving more.
export struct trim_report {
  std::uint64_t released_count = 0;
  std::uint64_t released_bytes = 0;
  std::uint64_t still_mapped_bytes = 0;  ///< free, but kept: unfinished work may use it
  error failure{};  ///< code none, or why a release failed: that piece stays cached
};

/// Blocks that were not freed when their pool or manager went away. It gives them back itself.
export struct live_blocks {
  const char* owner = "";  ///< "stream pool" or "manager"
  std::uint64_t count = 0;
  std::uint64_t size_bytes = 0;
};

/// Writes one line about them to stderr, for the first live_report_count_max reports of a process:
/// a program that does it in a loop stays readable.
export void print_live_blocks(void* context, const live_blocks& left) noexcept;
/// How many reports of a process print_live_blocks() writes.
export inline constexpr std::uint32_t live_report_count_max = 8;

/// Called by the destructor of a pool or manager that has live blocks, before they are given back.
/// It may not call that pool or manager, and throws nothing. No hook: nothing is said.
export struct live_report {
  void (*hook)(void* context, const live_blocks& left) noexcept = print_live_blocks;
  void* context = nullptr;
};

}  // namespace vmm
