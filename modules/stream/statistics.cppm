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

/// The kind of a region of a pool.
export enum class pool_region_kind : std::uint8_t {
  live,   // allocated
  free,   // mapped, free for its stream
  hole,   // nothing mapped
  stale,  // mapped, but its memory has moved: to be unmapped
  busy,   // claimed by a growth in progress
};

/// One region as a dump shows it; adjacent stale ones are one.
export struct pool_region {
  address_range range{};
  pool_region_kind kind = pool_region_kind::hole;
  /// Of free regions: their stream; the default stream for those of forgotten streams.
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
  std::uint64_t stale_bytes = 0;
  std::uint64_t live_count = 0;
  std::uint64_t stale_count = 0;
  std::uint64_t pinned_count = 0;   ///< blocks
  std::uint64_t stream_count = 0;   ///< in use and not forgotten
  std::uint64_t slow_count = 0;     ///< requests that needed the driver
  std::uint64_t created_count = 0;  ///< handles created
  std::uint64_t moved_count = 0;    ///< handles moved by remapping
  std::uint64_t moved_bytes = 0;
  std::uint64_t other_stream_count = 0;  ///< requests served by another stream's memory, not moved
  std::uint64_t device_wait_count = 0;   ///< waits of streams, on the device
  std::uint64_t event_count = 0;         ///< events recorded
  std::uint64_t host_wait_count = 0;     ///< waits of callers, since memory was short
  /// Of the reusable bytes, those of device-wide frees whose event has not passed.
  std::uint64_t pending_bytes = 0;
  std::uint64_t arena_count = 0;      ///< streams that have an arena
  std::uint64_t arena_bytes = 0;      ///< of the reusable bytes, those in arenas
  std::uint64_t suspended_bytes = 0;  ///< of the mapped bytes: released until they are resumed
  /// Physical memory created and not released: live, free, and retained unmapped.
  std::uint64_t held_bytes = 0;
  std::uint64_t spilled_bytes = 0;  ///< of these, at options().spill
};

/// The result of stream_pool::preallocate().
export struct preallocate_report {
  std::uint64_t created_bytes = 0;   ///< free memory that is new to the pool
  std::uint64_t moved_bytes = 0;     ///< free memory that was moved
  std::uint64_t unmapped_count = 0;  ///< old mappings of moved memory
  std::uint64_t left_bytes = 0;      ///< requested, less the largest free region that serves it
  /// code none, or why a step failed; if memory is short, memory created before is released
  error failure{};
};

/// The steps tried for the last request that failed for lack of memory, and the memory held then.
export struct shortage_report {
  std::uint64_t request_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
  errc failure = errc::none;  ///< the result of the last attempt to create memory
  bool trimmed = false;       ///< retained memory was released to the driver
  bool waited = false;        ///< the caller waited for the work of a stream
  std::uint64_t live_bytes = 0;
  std::uint64_t reusable_bytes = 0;  ///< free, in regions too small for the request
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t budget_bytes = 0;  ///< 0: none
};

/// stream_pool::dump(). Throws std::bad_alloc.
[[nodiscard]] std::string written(const pool_statistics& now, std::span<const pool_region> regions);

}  // namespace vmm
