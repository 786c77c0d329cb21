// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// `vmm.stream:arena` - per-stream arenas, from which a stream's threads allocate without the pool's
// lock, and the table of a pool's arenas. Not exported. docs/decisions/0021 has the reasons.
//
// The pool refills an arena with free ranges of its stream. Within them the arena works like a pool
// of one stream: best fit, split, coalesce, a table of live blocks. Outside of them it has a hole.
// The pool can flush the free ranges at any time (:arena_lending).
//
// I1  An arena's regions are live, free, leaving or holes; all except holes came from the pool.
// I2  A closed arena neither allocates nor accepts frees: the pool serves both.
// I3  Free memory of an arena was freed on its stream, and is allocated for work of that stream.
// I4  An arena has its stream from provide() to remove(). Its address is constant until the pool's
//     end, and its place in the table is read without a lock: a thread that found it checks under
//     its lock that it still belongs to the stream.
//
// Thread safety: all of `arena`, which has a lock of its own, the innermost. Of arena_table:
// find(); the rest under the lock of the pool's state. Cost: take and give are those of region_map
// under an uncontended lock. Memory: that of a region_map of one kind and of a live_block_table, as
// touched.
module;
#include "../../base/thread_annotations.h"

export module vmm.stream:arena;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;
import :block_table;
import :geometry;
import :locks;

namespace vmm {

/// The region at an offset of an arena.
enum class arena_place : std::uint8_t {
  nothing,  // no live block begins there and none is around it
  inside,   // it lies inside a live block
  begins,   // a live block begins there
};

/// The counts of an arena, in granules and blocks.
struct arena_numbers {
  std::uint64_t live_granules = 0;
  std::uint64_t free_granules = 0;
  std::uint64_t live_count = 0;
  std::uint64_t taken_count = 0;  // blocks allocated here ever
};

/// A region of an arena other than a hole.
struct arena_part {
  granule_range where{};
  bool is_live = false;
};

/// The tags of an arena's regions that are in no list.
namespace arena_tag {
inline constexpr std::uint32_t hole = 0;
inline constexpr std::uint32_t live = 1;
inline constexpr std::uint32_t leaving = 2;
}  // namespace arena_tag

[[nodiscard]] inline bool is_arena_hole(const region_map& regions, region_id region) noexcept {
  return region != region_id::none && regions.kind(region) == region_kind::unlisted &&
         regions.tag(region) == arena_tag::hole;
}
[[nodiscard]] inline bool is_arena_block(const region_map& regions, region_id region) noexcept {
  return regions.kind(region) == region_kind::unlisted && regions.tag(region) == arena_tag::live;
}

/// Free and live memory of one stream, under a lock of its own.
class alignas(128) arena {
 public:
  /// Over the addresses of a pool's first segment; nothing is lent yet, and it is closed.
  /// Errors: out_of_host_memory.
  [[nodiscard]] static result<std::unique_ptr<arena>> create(address_range where,
                                                             const pool_geometry& sizes) noexcept;
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  // ---- for threads, without the pool's lock ----
  /// Allocates a block; none if the arena is closed, belongs to another stream, or has no fitting
  /// region.
  [[nodiscard]] address take(stream_handle stream, std::uint64_t size_bytes) noexcept;
  /// False if the pool has to free the block, or to return the error.
  [[nodiscard]] bool give(stream_handle stream, address at) noexcept;

  // ---- under the lock of the pool's state ----
  void set_stream(stream_handle stream) noexcept;
  /// No live block is left, nothing is free, and it is closed.
  void end_stream() noexcept;
  /// Makes the range, a part of the hole, free here; opens the arena. False without host memory;
  /// then nothing is changed.
  [[nodiscard]] bool lend(granule_range what) noexcept;
  void close() noexcept;
  /// Whether anything was freed here since the last call.
  [[nodiscard]] bool end_frees() noexcept;
  /// A free region becomes a hole; an empty one when nothing is free.
  [[nodiscard]] granule_range take_free() noexcept;
  /// The first granules, at most `most`, of the largest free region leave: they are not allocated
  /// until they stay or go. Empty if the region has less than `least`, or without host memory.
  [[nodiscard]] granule_range begin_leaving(std::uint32_t least, std::uint32_t most) noexcept;
  /// Memory that was being flushed is free here again, or becomes a hole.
  void end_leaving(granule_range what, bool goes) noexcept;
  /// All that is free, where a region has `least` granules or more; else 0.
  [[nodiscard]] std::uint64_t idle_granules(std::uint32_t least) const noexcept;
  /// The live block that begins there becomes a hole; an empty one, and `place`, where none does.
  [[nodiscard]] granule_range take_block(std::uint32_t offset, arena_place& place) noexcept;
  /// The region there.
  [[nodiscard]] arena_place look(std::uint32_t offset) const noexcept;
  /// As give(), also of a closed arena.
  [[nodiscard]] bool keep(address at) noexcept;
  /// Appends where each live block begins. Errors: out_of_host_memory.
  [[nodiscard]] status list_blocks(std::vector<std::uint32_t>& out) const noexcept;
  /// Appends the regions of a range of the arena. Throws std::bad_alloc.
  void list(granule_range within, std::vector<arena_part>& out) const;
  [[nodiscard]] arena_numbers numbers() const noexcept;
  /// Null if I1 holds as far as this object can check, else the broken part. O(regions).
  [[nodiscard]] const char* broken_invariant() const noexcept;
  /// Each region except holes, in address order, under the arena's lock.
  template <class Visitor>
  void for_each_lent(Visitor&& visitor) const noexcept {
    const arena_guard held(lock_);
    for (region_id r = regions_.first(); r != region_id::none; r = regions_.after(r)) {
      if (!is_arena_hole(regions_, r)) visitor(regions_.where(r));
    }
  }

 private:
  static constexpr region_kind free_kind = static_cast<region_kind>(1);
  static constexpr std::uint32_t regions_max = 1u << 22;
  // More free regions than this are flushed to the pool: bounds one flush.
  static constexpr std::uint32_t free_count_max = 4096;

  arena(address_range where, const pool_geometry& sizes, region_map&& regions) noexcept;

  [[nodiscard]] arena_place look_here(std::uint32_t offset) const noexcept
      VMM_REQUIRES(rank::arena);
  [[nodiscard]] bool give_here(address at) noexcept VMM_REQUIRES(rank::arena);
  void make_free(region_id region) noexcept VMM_REQUIRES(rank::arena);
  void make_hole(region_id region) noexcept VMM_REQUIRES(rank::arena);

  mutable arena_lock lock_;
  bool is_open_ VMM_GUARDED_BY(rank::arena) = false;
  bool has_stream_ VMM_GUARDED_BY(rank::arena) = false;
  bool has_freed_ VMM_GUARDED_BY(rank::arena) = false;  // since end_frees(), live again or not
  stream_handle stream_ VMM_GUARDED_BY(rank::arena) = stream_handle::default_stream;
  const address_range where_;
  const pool_geometry sizes_;
  region_map regions_ VMM_GUARDED_BY(rank::arena);
  live_block_table blocks_ VMM_GUARDED_BY(rank::arena){};
  std::uint64_t live_granules_ VMM_GUARDED_BY(rank::arena) = 0;
  std::uint64_t taken_count_ VMM_GUARDED_BY(rank::arena) = 0;
  std::uint64_t leaving_granules_ VMM_GUARDED_BY(rank::arena) = 0;
};

/// The pool's record of an arena. Under the lock of the pool's state.
struct arena_lease {
  std::uint32_t record = ~0u;          // of the arena's stream
  std::uint64_t lent_granules = 0;     // inside the pool's lent regions
  std::uint64_t counted_granules = 0;  // of these, what the pool counts as live: see :arena_lending
};

class arena_table {
 public:
  static constexpr std::uint32_t arenas_max = 64;
  static constexpr std::uint32_t none = ~0u;

  explicit arena_table(address_range where) noexcept : where_(where) {
    check(!where.empty(), "arenas are created before addresses are reserved");
  }
  arena_table(const arena_table&) = delete;
  arena_table& operator=(const arena_table&) = delete;

  /// The arena of a stream, or null. Reads one cache line that is seldom written.
  [[nodiscard]] inline arena* find(stream_handle stream) const noexcept {
    const std::uint32_t number = number_of(stream);
    debug_check([&] { return number == none || arenas_[number] != nullptr; },
                "a taken place has no arena");
    return number == none ? nullptr : arenas_[number].get();
  }

  // ---- under the lock of the pool's state ----
  [[nodiscard]] inline std::uint32_t number_of(stream_handle stream) const noexcept {
    const std::uint32_t home = slot_of(stream);
    const std::uint64_t key = key_of(stream);
    if (key == never_used || key == used_before) [[unlikely]]
      return none;
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      const std::uint64_t seen = buckets_[home].keys[slot].load(std::memory_order_acquire);
      if (seen == key) return home * slots + slot;
      if (seen == never_used) break;
    }
    return none;
  }
  /// Whether the table has a place for the stream, which has no arena yet.
  [[nodiscard]] bool takes(stream_handle stream) const noexcept;
  /// After takes(). `made` is used if the place has no arena yet.
  void add(stream_handle stream, std::uint32_t record, std::unique_ptr<arena> made) noexcept;
  /// Requires: the arena has no memory.
  void remove(stream_handle stream) noexcept;
  [[nodiscard]] inline arena& at(std::uint32_t number) const noexcept {
    check(number < arenas_max && arenas_[number] != nullptr, "no arena has this number");
    return *arenas_[number];
  }
  [[nodiscard]] inline arena_lease& lease_of(std::uint32_t number) noexcept {
    check(number < arenas_max && arenas_[number] != nullptr, "no arena has this number");
    return leases_[number];
  }
  /// The number and the arena of each stream with one, beginning at another one each time, until
  /// `visitor` returns false.
  template <class Visitor>
  void for_some(Visitor&& visitor) {
    check(turn_ < arenas_max, "no arena is the first");
    const std::uint32_t first = turn_;
    for (std::uint32_t step = 0; step < arenas_max; ++step) {
      const std::uint32_t number = (first + step) % arenas_max;
      if (arenas_[number] == nullptr || leases_[number].record == none) continue;
      turn_ = (number + 1) % arenas_max;
      if (!visitor(number, *arenas_[number])) return;
    }
  }
  /// The number and the arena of each stream with one.
  template <class Visitor>
  void for_each(Visitor&& visitor) const {
    for (std::uint32_t number = 0; number < arenas_max; ++number) {
      if (arenas_[number] != nullptr && leases_[number].record != none)
        visitor(number, *arenas_[number]);
    }
  }
  [[nodiscard]] const arena_lease& lease_of(std::uint32_t number) const noexcept {
    check(number < arenas_max, "no arena has this number");
    return leases_[number];
  }

 private:
  static constexpr std::uint32_t slots = 8;
  static constexpr std::uint32_t bucket_count = arenas_max / slots;
  static constexpr std::uint64_t never_used = 0;
  static constexpr std::uint64_t used_before = ~std::uint64_t{0};
  struct alignas(64) bucket {
    std::array<sync::atomic<std::uint64_t>, slots> keys{};
  };

  [[nodiscard]] static inline std::uint64_t key_of(stream_handle stream) noexcept {
    return static_cast<std::uint64_t>(stream) + 1;
  }
  [[nodiscard]] static inline std::uint32_t slot_of(stream_handle stream) noexcept {
    static_assert(std::has_single_bit(bucket_count));
    const std::uint64_t mixed = static_cast<std::uint64_t>(stream) * 0x9E3779B97F4A7C15u;
    return static_cast<std::uint32_t>(mixed >> 32) % bucket_count;
  }
  [[nodiscard]] std::uint32_t place_for(stream_handle stream) const noexcept;

  std::array<bucket, bucket_count> buckets_{};
  std::array<std::unique_ptr<arena>, arenas_max> arenas_{};
  alignas(64) std::array<arena_lease, arenas_max> leases_{};
  std::uint32_t turn_ = 0;
  const address_range where_;
};

}  // namespace vmm
