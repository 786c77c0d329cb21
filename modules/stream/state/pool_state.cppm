// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_state - what the short lock of a pool guards: its owners, and what takes more
// than one of them. Everything but the driver calls. Not exported.
//
// Each part of the state has one owner, with its invariants in its own unit: the segments (regions,
// blocks, layout of mappings), the mappings (records of handles, lists of free ones, the queue of
// stale mappings), the streams (records, phases, how far their work has come), and the captured
// graphs. This class joins them:
//
// I1  Live + free + claimed granules inside current mappings = granules of all handles.
// I2  Free memory of a captured graph counts as live in I1 and in its handles.
// I3  Every segment and the mappings have a list for every record of a stream.
// I4  A record of a stream is used again only when nothing is listed under it and no locked block
//     names it.
// I5  Memory claimed by a growth or a trim is in no list until it is committed or returned.
// I6  Memory of arenas is live in I1; :lending has the live part of it.
// I7  Between two holds of the lock one free at most is deferred: its block is in no table, its
//     region still a block's, and its point the last that the clock has shown. With many blocks a
//     few are, in order, with their points; the youngest are in the table still. Only calls under
//     warm_lock find that state.
//
// The rest is in classes that own nothing and are created for a call over the state: growth_planner
// (growth), locked_blocks (pins, captured graphs), own_memory (memory of a request's own record),
// stream_memory (memory that passes to other streams), idle_handles (claims of handles),
// arena_lending, state_report, state_audit and state_end.
//
// Thread safety: none of its own; the pool holds its lock around every call and makes no driver
// call inside. Cost: allocate and free are those of region_map, plus O(1) for each handle that the
// block touches.
export module vmm.stream:pool_state;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :arena;
import :capture_table;
import :event_writer;
import :geometry;
import :mappings;
import :move_budget;
import :options;
import :pool_arenas;
import :segment;
import :segment_list;
import :statistics;
import :stream_table;

namespace vmm {

class stream_memory;
class idle_handles;
class own_memory;
class state_end;
class state_report;
class state_audit;
class frees_among_many;

class alignas(64) pool_state {
 public:
  static constexpr std::uint32_t no_stream = stream_table::no_stream;
  static constexpr std::uint32_t streams_looked_at_max = 64;  // where memory is not short

  explicit pool_state(const pool_setup& how) noexcept : pool_state(pool_geometry(how)) {}
  pool_state(const pool_state&) = delete;
  pool_state& operator=(const pool_state&) = delete;

  /// For warm_lock and table_lock, which take it.
  [[nodiscard]] inline sync::spin_lock& own_lock() const noexcept { return lock_; }

  // ---- owners ----
  [[nodiscard]] inline const pool_geometry& sizes() const noexcept { return sizes_; }
  [[nodiscard]] inline mappings& records() noexcept { return mappings_; }
  [[nodiscard]] inline const mappings& records() const noexcept { return mappings_; }
  [[nodiscard]] inline stream_table& streams() noexcept { return streams_; }
  [[nodiscard]] inline const stream_table& streams() const noexcept { return streams_; }
  [[nodiscard]] inline stream_progress& progress() noexcept { return streams_.progress(); }
  [[nodiscard]] inline capture_table& captures() noexcept { return captures_; }
  /// What moves have cost the driver.
  [[nodiscard]] inline move_budget& moves() noexcept { return moves_; }
  /// Counters updated by each call.
  [[nodiscard]] inline pool_statistics& totals() noexcept { return totals_; }

  // ---- segments ----
  [[nodiscard]] inline segment_list& segments() noexcept { return segments_; }
  [[nodiscard]] inline const segment_list& segments() const noexcept { return segments_; }
  /// Takes over a range of segment_bytes or less. Errors: out_of_host_memory.
  [[nodiscard]] status add_segment(const extent& where) noexcept;
  /// The live block that begins at `at`. Errors: unknown_address, not_allocated, invalid_argument
  /// (inside a block).
  [[nodiscard]] result<segment::found_block> find_block(address at) noexcept;

  // ---- streams ----
  [[nodiscard]] inline stream_point now_for(std::uint32_t stream) const noexcept {
    check(stream < streams_.count(), "no record of a stream has this number");
    return {stream, streams_.progress().clock()};
  }

  // ---- allocate and free without the driver ----
  [[nodiscard]] inline std::uint32_t granules_for(std::uint64_t size_bytes) const noexcept {
    if ((size_bytes - 1) / granule_bytes < plain_granules_max_) [[likely]]
      return granules_around(size_bytes);
    return sizes_.granules_for(size_bytes);
  }
  /// From free memory of the request's stream; no address if no region fits. The only error,
  /// out_of_host_memory, sets a flag. Not for a captured graph's record.
  [[nodiscard]] address try_allocate(const stream_request& request, bool& starved) noexcept;
  /// Errors: unknown_address, not_allocated, invalid_argument (inside a block).
  [[nodiscard]] status free(address at, std::uint32_t stream) noexcept;
  /// The same, and the next call completes it: the record of a randomly freed block is not in a
  /// cache, and is prefetched meanwhile.
  [[nodiscard]] inline status free_deferring(address at, std::uint32_t stream) noexcept;
  /// Does what free_deferring() has left, before a table is seen.
  inline void finish_deferred_free() noexcept {
    if (deferred_ != region_id::none) finish_free();
    debug_check([this] { return deferred_ == region_id::none; }, "a free is still deferred");
  }
  /// Whether a request takes the slow path in any case: stale mappings are unmapped first, memory
  /// is suspended, or a stream is to get an arena.
  [[nodiscard]] inline bool needs_slow_path() const noexcept {
    debug_check([&] { return mappings_.stale_count() != 0 || !mappings_.has_listed_stale(); },
                "an empty queue has a first entry");
    return needs_slow_check_ && (suspension_ != suspension_phase::running ||
                                 mappings_.stale_count() != 0 || arenas_.is_wanted());
  }

  // ---- arenas ----
  [[nodiscard]] inline pool_arenas& arenas() noexcept { return arenas_; }
  [[nodiscard]] inline const pool_arenas& arenas() const noexcept { return arenas_; }
  /// A thread has waited for the lock, and has it now.
  void note_wait() noexcept {
    if (arenas_.count_wait()) update_slow_check();
  }
  /// An arena was wanted and tried, with this outcome.
  void end_want(bool made) noexcept {
    arenas_.end_want(made);
    update_slow_check();
  }

  // ---- suspension ----
  [[nodiscard]] suspension_phase suspension() const noexcept { return suspension_; }
  /// Nothing is handed out while the phase is another than running.
  void set_suspension(suspension_phase phase) noexcept {
    suspension_ = phase;
    update_slow_check();
  }

  // ---- reports ----
  void set_last_shortage(const shortage_report& report) noexcept { shortage_ = report; }
  /// Writes events to a history, where one is recorded.
  [[nodiscard]] inline event_writer& events() noexcept { return events_; }

 private:
  // Views, made for a call.
  friend class stream_memory;
  friend class idle_handles;
  friend class own_memory;
  friend class state_end;
  friend class frees_among_many;
  friend class state_report;
  friend class state_audit;

  inline void update_slow_check() noexcept {
    needs_slow_check_ = sizes_.policy.eager_unmap || suspension_ != suspension_phase::running ||
                        arenas_.is_wanted();
  }
  void finish_free() noexcept;

  struct deferred_free {
    std::uint32_t offset = 0;
    region_id block = region_id::none;  // once it has been looked up
    stream_point at{};
  };
  static constexpr std::uint32_t frees_deferred_max = 16;
  static constexpr auto several_deferred =
      static_cast<region_id>(~0u);  // no region has this number

  // A free pays for visiting so many regions.
  static constexpr std::uint64_t regions_reclaimed_max = 256;
  static constexpr std::uint32_t regions_moved_max = 1024;

  explicit pool_state(const pool_geometry& sizes) noexcept
      : plain_granules_max_(static_cast<std::uint32_t>(sizes.plain_bytes_max / granule_bytes)),
        mappings_(sizes),
        sizes_(sizes) {
    set_suspension(suspension_phase::running);
    debug_check([this] { return is_on_two_lines(); },
                "the members that each call reads are scattered");
  }
  // Whether what each allocation and free reads and writes here is on two cache lines.
  [[nodiscard]] bool is_on_two_lines() const noexcept;
  [[nodiscard]] segment* segment_around(address at) noexcept;

  // One cache line, with the first fields of mappings_.
  mutable sync::spin_lock lock_;
  bool needs_slow_check_ = false;  // whether a request may have to take the slow path
  suspension_phase suspension_ = suspension_phase::running;
  std::uint16_t deferred_for_ = 0;        // the stream of the block whose free is deferred
  region_id deferred_ = region_id::none;  // it, in the first segment, or several_deferred [I7]
  std::uint32_t plain_granules_max_;      // as sizes_ has it in bytes, where a part is as a whole
  address_range first_range_{};           // of the first segment, which most pools need alone
  mappings mappings_;
  // Another: with the clock, the stream found last and the count of streams.
  alignas(64) segment* first_segment_ = nullptr;
  event_writer events_;
  stream_table streams_;
  pool_geometry sizes_;
  segment_list segments_;
  capture_table captures_;
  pool_statistics totals_;
  shortage_report shortage_;
  move_budget moves_;
  std::uint64_t reclaimed_at_ = 0;                // by the clock of frees
  std::uint64_t reclaimed_count_ = 0;             // regions visited then
  deferred_free frees_[frees_deferred_max] = {};  // several, from oldest_free_ on [I7]
  std::uint32_t oldest_free_ = 0;
  std::uint32_t free_count_ = 0;
  pool_arenas arenas_;
};

/// All live granules: those counted, and those of open arenas. O(arenas).
[[nodiscard]] inline std::uint64_t live_granules_of(const pool_state& state) noexcept {
  const std::uint64_t live =
      state.records().live_granules() + state.arenas().uncounted_live_granules();
  check(live <= state.records().handle_granules(), "I1: more is live than exists");
  return live;
}

/// Allocations and frees so far: each free had its allocation.
[[nodiscard]] inline std::uint64_t event_count_of(const pool_state& state) noexcept {
  return 2 * state.streams().progress().clock();
}

/// Frees where the table of blocks is large: a free reads a bit, its entry comes during the next
/// few frees, then its record, then those of its free neighbours, before it is finished. A view,
/// made for a call.
class frees_among_many {
 public:
  explicit frees_among_many(pool_state& state) noexcept : state_(state) {}
  /// As pool_state::free_deferring(), in the first segment.
  [[nodiscard]] status free(address at, std::uint32_t stream) noexcept;
  void finish_oldest() noexcept;

 private:
  // The free that is this many frees old.
  [[nodiscard]] pool_state::deferred_free& deferred(std::uint32_t age) const noexcept;
  void look_up(pool_state::deferred_free& free) noexcept;

  pool_state& state_;
};

inline status pool_state::free_deferring(address at, std::uint32_t stream) noexcept {
  static_assert(stream_progress::max_records <= std::numeric_limits<std::uint16_t>::max());
  const std::uint64_t offset_bytes = at.value - first_range_.base.value;
  const bool is_plain = offset_bytes < first_range_.size_bytes &&
                        offset_bytes % granule_bytes == 0 && !events_.is_on();
  if (!is_plain) [[unlikely]] {
    finish_deferred_free();
    return free(at, stream);
  }
  debug_check([this] { return first_segment_ != nullptr; }, "addresses lie in no segment");
  segment& in = *first_segment_;
  const std::uint32_t offset = granules_in(offset_bytes);
  in.fetch_ahead(offset);
  if (in.blocks().is_large()) [[unlikely]]
    return frees_among_many(*this).free(at, stream);
  finish_deferred_free();
  const region_id block = in.take_block(offset);
  if (block == region_id::none) [[unlikely]]
    return free(at, stream);
  in.regions().fetch_ahead(block);
  debug_check([&] { return in.address_of(in.range(block).offset) == at; },
              "a block does not begin where it is found");
  (void)streams_.progress().advance(stream);
  deferred_ = block;
  deferred_for_ = static_cast<std::uint16_t>(stream);
  return {};
}

// The clock has not advanced since free_deferring(), because the lock was held throughout.
void pool_state::finish_free() noexcept {
  debug_check([this] { return deferred_ != region_id::none; }, "no free is deferred");
  const region_id block = std::exchange(deferred_, region_id::none);
  if (block == several_deferred) [[unlikely]] {
    while (free_count_ != 0) frees_among_many(*this).finish_oldest();
    return;
  }
  const stream_point freed{deferred_for_, streams_.progress().clock()};
  debug_check([&] { return streams_.progress().last_epoch(freed.stream) == freed.epoch; },
              "something was freed since a free was deferred");
  first_segment_->release_live(block, freed, mappings_);
  first_segment_->make_free(block, freed, streams_);
}

}  // namespace vmm
