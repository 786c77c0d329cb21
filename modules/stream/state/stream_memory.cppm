// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:stream_memory - under which stream's record memory is free, and how it passes to other
// streams: records that are added and go, batches of frees after all work, finished memory that is
// reclaimed, memory that is claimed from another stream. Not exported.
//
// Owns nothing: it is made for a call, over the pool's state. The records' own invariants are
// stream_table's.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: at each call.
export module vmm.stream:stream_memory;

import vmm.backend;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :geometry;
import :pool_state;
import :segment;
import :stream_table;

namespace vmm {

/// A free region of another stream that was taken out for a request, and what to wait for.
struct other_stream_claim {
  std::uint32_t segment = 0;
  region_id region = region_id::none;
  stream_point last_use{};
};

/// The memory that claim_from_other() searches.
struct other_stream_search {
  bool passed_only = false;  ///< only at what unfinished work cannot use
  bool all_streams = false;  ///< at more than streams_looked_at_max others: memory is short
};

/// A walk over all regions in parts, between which the lock is released and anything may change:
/// its position, and the number of regions visited.
struct region_walk {
  std::uint32_t segment = 0;
  std::uint32_t granule = 0;
  std::uint32_t looks_max = 1024;  ///< of one part
  std::uint64_t seen_count = 0;
};

class stream_memory {
 public:
  explicit stream_memory(pool_state& state) noexcept : state_(state) {}

  /// Errors: out_of_host_memory, in_use (too many streams).
  [[nodiscard]] result<std::uint32_t> add_stream(stream_handle stream) noexcept {
    return add_record(stream, stream_phase::active);
  }
  /// The stream's record, which is added with `identity` where the stream has none.
  [[nodiscard]] result<std::uint32_t> enter(stream_handle stream, std::uint64_t identity) noexcept;
  [[nodiscard]] result<std::uint32_t> add_record(stream_handle stream, stream_phase phase) noexcept;
  /// Makes the record of what forgotten streams leave, which every retired stream needs.
  /// Errors: out_of_host_memory, in_use (no record is left).
  [[nodiscard]] status provide_shared() noexcept;
  /// Gives some of what a retired stream that has passed left to everyone, and its record back when
  /// nothing is left. Cost: O(1) for each of at most 1024 regions, and for each free handle.
  void clear_retired(std::uint32_t stream) noexcept;
  /// Lists free regions of one record under another, as many as a short hold of the lock allows;
  /// true when none is left, and its free handles are the other's.
  [[nodiscard]] bool move_free(std::uint32_t from, const stream_point& to) noexcept;
  /// Nothing is listed under the record and no block names it: it goes to the next stream.
  void recycle(std::uint32_t stream) noexcept;
  /// The record to free under after everything. Errors: out_of_host_memory, in_use (no record is
  /// left).
  [[nodiscard]] result<std::uint32_t> provide_batch(bool known_only) noexcept;
  /// Later device-wide frees wait for another event than earlier ones. Errors: as provide_batch();
  /// nothing is changed. Cost: O(locked blocks) where any waits for its pins.
  [[nodiscard]] status close_batch() noexcept;
  /// Continues the walk, past looks_max regions at most, and coalesces neighbours that are free for
  /// the stream or have passed. False when the walk has ended.
  [[nodiscard]] bool coalesce_finished(std::uint32_t stream, region_walk& walk) noexcept {
    return give_finished(stream, taking::joined, walk);
  }
  /// The last points of other streams whose free memory may serve the stream once the points have
  /// passed; at most as many as fit into `out`. None if the last search was too recent for its
  /// cost, or with arenas, whose threads would wait for it. O(records).
  [[nodiscard]] std::size_t others_to_reclaim(std::uint32_t stream,
                                              std::span<stream_point> out) const noexcept;
  /// Continues the walk, as coalesce_finished(): memory that other streams have finished with
  /// becomes the stream's.
  [[nodiscard]] bool reclaim_finished(std::uint32_t stream, region_walk& walk) noexcept;
  /// Whether a request that is not served at once has nothing else to do than to find memory.
  [[nodiscard]] bool has_nothing_to_tidy() const noexcept;
  /// The streams whose best region for the request is there, with the point to query; at most as
  /// many as fit into `out`.
  [[nodiscard]] std::size_t other_stream_candidates(const stream_request& request,
                                                    std::span<stream_point> out) const noexcept;
  /// Takes the smallest region that fits from another stream; with `passed_only` one whose work has
  /// finished. The claim has no region if no region fits. Errors: out_of_host_memory.
  [[nodiscard]] result<other_stream_claim> claim_from_other(
      const stream_request& request, const other_stream_search& how) noexcept;
  /// Makes the claim the request's block. Errors: out_of_host_memory; the claim is returned.
  [[nodiscard]] result<address> finish_claim(const other_stream_claim& claim) noexcept;
  void return_claim(const other_stream_claim& claim) noexcept;

 private:
  // The part of finished memory for the stream: neighbours that make one region, or all.
  enum class taking : std::uint8_t { joined, all };
  [[nodiscard]] bool give_finished(std::uint32_t stream, taking which, region_walk& walk) noexcept;
  [[nodiscard]] static region_id region_from(const segment& in, std::uint32_t granule) noexcept;

  pool_state& state_;
};

}  // namespace vmm
