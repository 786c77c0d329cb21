// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:statistics - reports of a pool, as values.
//
// Thread safety: values only. Cost: none.
export module vmm.stream:statistics;

import vmm.backend;
import vmm.std;

namespace vmm {

/// What a region of a pool is, for people.
export enum class pool_region_kind : std::uint8_t {
  live,    // allocated
  free,    // mapped, free for its stream
  hole,    // nothing mapped
  zombie,  // mapped, but its memory has moved on: to be unmapped
  busy,    // claimed by a growth under way
};

/// One region as a dump shows it; adjacent stale ones are one.
export struct pool_region {
  address_range range{};
  pool_region_kind kind = pool_region_kind::hole;
  /// Of free regions: whose. What forgotten streams left shows the default stream.
  stream_handle stream = stream_handle::default_stream;
};

/// Bytes and counts.
export struct pool_statistics {
  std::uint64_t reserved_bytes = 0;  ///< addresses
  std::uint64_t mapped_bytes = 0;    ///< physical memory, each byte once; includes suspended memory
  std::uint64_t live_bytes = 0;      ///< requests, rounded up to 512 each (or pages: whole_pages)
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_mapped_bytes = 0;
  std::uint64_t reusable_bytes = 0;
  std::uint64_t captured_bytes = 0;  ///< free, and kept for captured graphs
  std::uint64_t hole_bytes = 0;
  std::uint64_t zombie_bytes = 0;
  std::uint64_t live_count = 0;
  std::uint64_t zombie_count = 0;
  std::uint64_t pinned_count = 0;  ///< blocks
  std::uint64_t stream_count = 0;  ///< in use and not forgotten
  std::uint64_t grown_count = 0;   ///< requests that needed the driver
  std::uint64_t made_count = 0;    ///< handles created
  std::uint64_t moved_count = 0;   ///< handles moved by remapping
  std::uint64_t moved_bytes = 0;
  std::uint64_t foreign_count = 0;  ///< requests met by another stream's memory as it lay
  std::uint64_t wait_count = 0;     ///< times a stream was made to wait, on the device
  std::uint64_t mark_count = 0;     ///< events recorded
  std::uint64_t blocked_count = 0;  ///< times a caller was made to wait: memory was short
  /// Of the reusable bytes, those that were freed after everything and are not everyone's yet.
  std::uint64_t after_all_bytes = 0;
  std::uint64_t front_count = 0;      ///< streams that have one (front_rule)
  std::uint64_t front_bytes = 0;      ///< of the reusable bytes, those in arenas
  std::uint64_t suspended_bytes = 0;  ///< of the mapped bytes: released until they are resumed
  /// Physical memory that the driver has given and not got back: live, free, and retained unmapped.
  std::uint64_t held_bytes = 0;
  std::uint64_t spilled_bytes = 0;  ///< of these, at options().spill
};

/// What stream_pool::prepare() has done.
export struct prepare_report {
  std::uint64_t created_bytes = 0;   ///< free memory that is new to the pool
  std::uint64_t moved_bytes = 0;     ///< free memory that was moved
  std::uint64_t unmapped_count = 0;  ///< old mappings of moved memory
  std::uint64_t left_bytes = 0;  ///< the request has more than the largest free region that serves
  /// code none, or why a step failed; if memory is short, what earlier steps created goes back
  error failure{};
};

/// The steps tried for the last request that failed for lack of memory, and the memory held then.
export struct shortage_report {
  std::uint64_t request_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
  errc failure = errc::none;  ///< the result of the last attempt to create memory
  bool trimmed = false;       ///< cached memory went back to the driver to make room
  bool blocked = false;       ///< the caller was made to wait for the work of a stream
  std::uint64_t live_bytes = 0;
  std::uint64_t reusable_bytes = 0;  ///< free, in stretches too small for the request
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t budget_bytes = 0;  ///< 0: none
};

/// stream_pool::dump(). Throws std::bad_alloc.
[[nodiscard]] std::string written(const pool_statistics& now, std::span<const pool_region> regions);

}  // namespace vmm
