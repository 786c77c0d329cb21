// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_state - what the short lock of a pool guards: its owners, and what takes more
// than one of them. Everything but the driver calls. Not exported.
//
// Each part of the state has one owner, with its invariants in its own unit: the segments (regions,
// blocks, what is mapped where), the mappings (records of handles, lists of free ones, the queue of
// stale mappings), the streams (records, phases, how far their work has come), and the captured
// graphs. Here is what joins them:
//
// I1  Live + free + claimed granules inside current mappings = granules of all handles.
// I2  Free memory of a captured graph counts as live in I1 and in its handles.
// I3  Every segment and the mappings have a list for every record of a stream.
// I4  A record of a stream is used again only when nothing is listed under it and no locked block
//     names it.
// I5  What a growth or a trim claims is listed nowhere until it is committed or given back.
// I6  Memory of arenas is live in I1; :lending has the live part of it.
// I7  Between two holds of the lock one free at most is deferred: its block is in no table, its
//     region still a block's, and its point the last that the clock has shown. Only warm_lock's
//     calls see that.
//
// The rest is in classes that own nothing and are created for a call over the state: growth_planner
// (growth), locked_blocks (pins, captured graphs), stream_memory (memory that passes to other
// streams), idle_handles (claims of handles), front_lending, state_report and state_audit.
//
// Thread safety: none of its own; the pool holds its lock around every call and makes no driver
// call inside. Cost: allocate and free are those of region_map, plus O(1) for each handle that the
// block touches.
export module vmm.stream:pool_state;

import vmm.backend;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;
import :captures;
import :front;
import :geometry;
import :mappings;
import :options;
import :segment;
import :statistics;
import :streams;

namespace vmm {

class stream_memory;
class idle_handles;
class state_report;
class state_audit;

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
  [[nodiscard]] inline const capture_table& captures() const noexcept { return captures_; }
  /// What is counted as it happens.
  [[nodiscard]] inline pool_statistics& totals() noexcept { return totals_; }

  // ---- segments ----
  [[nodiscard]] inline std::uint32_t segment_count() const noexcept {
    return static_cast<std::uint32_t>(segments_.size());
  }
  [[nodiscard]] inline segment& segment_at(std::uint32_t number) noexcept {
    check(number < segments_.size(), "no segment has this number");
    return *segments_[number];
  }
  [[nodiscard]] inline const segment& segment_at(std::uint32_t number) const noexcept {
    check(number < segments_.size(), "no segment has this number");
    return *segments_[number];
  }
  [[nodiscard]] inline segment& segment_of(const mapping& m) noexcept {
    return segment_at(m.segment);
  }
  [[nodiscard]] inline const segment& segment_of(const mapping& m) const noexcept {
    return segment_at(m.segment);
  }
  template <class Visitor>
  void for_each_segment(Visitor&& visitor) {
    check((first_segment_ == nullptr) == segments_.empty(),
          "the first segment is not the one seen");
    for (const auto& in : segments_) visitor(*in);
  }
  /// Takes over a range of segment_bytes or less. Errors: out_of_host_memory.
  [[nodiscard]] status add_segment(const extent& where) noexcept;
  [[nodiscard]] address address_of(const mapping& m) const noexcept;
  /// The live block that begins at `at`. Errors: unknown_address, not_allocated, invalid_argument
  /// (inside a block).
  [[nodiscard]] result<segment::found_block> find_block(address at) noexcept;
  /// What free() would give back. Errors: those of a wrong address; in_use where free() would not
  /// end it.
  [[nodiscard]] result<address_range> live_range(address at) noexcept;

  // ---- streams ----
  [[nodiscard]] inline std::uint32_t find_stream(stream_handle stream) noexcept {
    return streams_.find(stream);
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
  /// The same for a request that is aligned.
  [[nodiscard]] address try_allocate_aligned(const stream_request& request, bool& starved) noexcept;
  /// The same for any request and record. Errors: out_of_host_memory.
  [[nodiscard]] result<address> allocate_own(const stream_request& request) noexcept;
  /// Errors: unknown_address, not_allocated, invalid_argument (inside a block).
  [[nodiscard]] status free(address at, std::uint32_t stream) noexcept;
  /// The same, and the next call does what is left to do: the record of a block that was freed at
  /// random is in no cache, and comes meanwhile.
  [[nodiscard]] inline status free_deferring(address at, std::uint32_t stream) noexcept;
  /// Does what free_deferring() has left, before a table is seen.
  inline void finish_deferred_free() noexcept {
    if (deferred_ != region_id::none) finish_free();
    debug_check([this] { return deferred_ == region_id::none; }, "a free is still deferred");
  }
  /// An unlisted live region that is in no table becomes free for the stream.
  void settle_free(segment& in, region_id block, std::uint32_t stream) noexcept;
  /// The same of one that was freed then.
  void settle_free_since(segment& in, region_id block, const stream_point& freed) noexcept;
  /// Whether a request takes the slow path in any case: stale mappings are unmapped first, memory
  /// is suspended, or a stream is to get an arena.
  [[nodiscard]] inline bool wants_slow_path() const noexcept {
    debug_check([&] { return mappings_.stale_count() != 0 || !mappings_.has_listed_stale(); },
                "a queue that is empty has a first");
    return looks_closer_ && (suspension_ != suspension_phase::running ||
                             mappings_.stale_count() != 0 || wants_front_);
  }

  /// Whether a request that is not served at once has nothing else to do than to find memory.
  [[nodiscard]] bool has_nothing_to_tidy() noexcept;

  // ---- arenas: lending.cppm ----
  /// Null without arenas.
  [[nodiscard]] inline front_set* fronts() noexcept { return fronts_.get(); }
  [[nodiscard]] inline const front_set* fronts() const noexcept { return fronts_.get(); }
  /// From now on contention for the lock is counted, and causes arenas.
  void permit_fronts() noexcept { may_have_fronts_ = !sizes_.rules.unmap_early; }
  /// A thread has waited for the lock, and has it now.
  void note_wait() noexcept;
  /// Whether the next stream that allocates is to get an arena.
  [[nodiscard]] bool wants_front() const noexcept { return wants_front_; }
  /// That was tried, with this outcome.
  void end_want(bool made) noexcept;
  /// Gives the stream an arena, if the table has a place. Errors: out_of_host_memory.
  [[nodiscard]] status add_front(stream_handle stream, std::uint32_t record,
                                 std::unique_ptr<front> made) noexcept;
  [[nodiscard]] inline bool may_lend() const noexcept {
    return !lending_paused_ && suspension_ == suspension_phase::running &&
           !(has_history && recorder_ != nullptr);
  }
  /// False where it is paused already.
  [[nodiscard]] bool pause_lending() noexcept { return !std::exchange(lending_paused_, true); }
  void end_pause() noexcept {
    check(lending_paused_, "a pause ends that was not begun");
    lending_paused_ = false;
  }
  /// In all arenas, live and free.
  [[nodiscard]] std::uint64_t lent_granules() const noexcept;
  /// All live granules: those counted, and those of open arenas. O(arenas).
  [[nodiscard]] std::uint64_t live_granules() const noexcept;

  // ---- suspension ----
  [[nodiscard]] suspension_phase suspension() const noexcept { return suspension_; }
  /// Nothing is handed out while the phase is another than running.
  void set_suspension(suspension_phase phase) noexcept {
    suspension_ = phase;
    look_closer();
  }

  // ---- giving back ----
  /// Everything is free and has passed: the pool is going away.
  void release_all() noexcept;

  // ---- looking ----
  [[nodiscard]] const shortage_report& last_shortage() const noexcept { return shortage_; }
  void set_last_shortage(const shortage_report& report) noexcept { shortage_ = report; }
  /// Where block events go from now on; null: nowhere.
  void set_recorder(history_ring* recorder) noexcept { recorder_ = recorder; }
  /// Writes a block's event, where there is a recorder.
  inline void note_block(history_kind kind, const segment& in, region_id block,
                         std::uint32_t stream) noexcept {
    if (has_history && recorder_ != nullptr) [[unlikely]]
      note_block_now(kind, in, block, stream);
  }
  /// The same, with the bytes that were requested.
  inline void note_block(history_kind kind, address_range block, std::uint64_t asked_bytes,
                         stream_handle stream) noexcept {
    if (has_history && recorder_ != nullptr) [[unlikely]]
      recorder_->note_block(kind, block, asked_bytes, stream);
  }
  /// Writes an event that is not a block's, where there is a recorder.
  inline void note(const history_note& what) noexcept {
    if (has_history && recorder_ != nullptr) recorder_->note(what);
  }

 private:
  // Views, made for a call.
  friend class stream_memory;
  friend class idle_handles;
  friend class state_report;
  friend class state_audit;

  inline void look_closer() noexcept {
    looks_closer_ =
        sizes_.rules.unmap_early || suspension_ != suspension_phase::running || wants_front_;
  }
  void release_fronts() noexcept;
  void finish_free() noexcept;
  void note_block_now(history_kind kind, const segment& in, region_id block,
                      std::uint32_t stream) noexcept;

  // A free pays for a look at so many regions.
  static constexpr std::uint64_t regions_gathered_max = 256;
  static constexpr std::uint32_t regions_moved_max = 1024;

  explicit pool_state(const pool_geometry& sizes) noexcept
      : plain_granules_max_(static_cast<std::uint32_t>(sizes.plain_bytes_max / granule_bytes)),
        mappings_(sizes),
        sizes_(sizes) {
    set_suspension(suspension_phase::running);
    debug_check([this] { return is_on_two_lines(); }, "what each call reads is scattered");
  }
  // Whether what each allocation and free reads and writes here is on two cache lines.
  [[nodiscard]] bool is_on_two_lines() const noexcept;
  [[nodiscard]] segment* segment_around(address at) noexcept;
  [[nodiscard]] inline stream_point now_for(std::uint32_t stream) const noexcept {
    check(stream < streams_.count(), "no record of a stream has this number");
    return {stream, streams_.progress().clock()};
  }
  [[nodiscard]] result<address> allocate(const stream_request& request) noexcept;
  [[nodiscard]] result<address> allocate_kept(const stream_request& request) noexcept;
  void release_graphs_memory() noexcept;
  void release_blocks() noexcept;

  // One cache line: up to the counts with which mappings_ begins.
  mutable sync::spin_lock lock_;
  bool looks_closer_ = false;  // whether a request may have to take the slow path
  suspension_phase suspension_ = suspension_phase::running;
  std::uint16_t deferred_for_ = 0;        // the stream of the block whose free is deferred
  region_id deferred_ = region_id::none;  // it, in the first segment [I7]
  std::uint32_t plain_granules_max_;      // as sizes_ has it in bytes, where a part is as a whole
  address_range first_range_{};           // of the first segment, which most pools need alone
  segment* first_segment_ = nullptr;
  history_ring* recorder_ = nullptr;
  mappings mappings_;
  // Another: the clock, and the stream found last.
  alignas(64) stream_table streams_;
  pool_geometry sizes_;
  std::vector<std::unique_ptr<segment>> segments_;
  capture_table captures_;
  pool_statistics totals_;
  shortage_report shortage_;
  std::uint64_t gathered_at_ = 0;     // by the clock of frees
  std::uint64_t gathered_count_ = 0;  // regions that were looked at then
  bool wants_front_ = false;
  bool may_have_fronts_ = false;
  bool lending_paused_ = false;
  std::uint32_t wait_count_ = 0;     // times a thread waited for the lock, since the last arena
  std::uint32_t waits_wanted_ = 32;  // so many cause an arena
  std::unique_ptr<front_set> fronts_;
};

inline status pool_state::free_deferring(address at, std::uint32_t stream) noexcept {
  static_assert(stream_progress::max_records <= std::numeric_limits<std::uint16_t>::max());
  const std::uint64_t offset_bytes = at.value - first_range_.base.value;
  const bool is_plain = offset_bytes < first_range_.size_bytes &&
                        offset_bytes % granule_bytes == 0 && !(has_history && recorder_ != nullptr);
  if (!is_plain) [[unlikely]] {
    finish_deferred_free();
    return free(at, stream);
  }
  debug_check([this] { return first_segment_ != nullptr; }, "addresses lie in no segment");
  segment& in = *first_segment_;
  const std::uint32_t offset = granules_in(offset_bytes);
  in.fetch_ahead(offset);
  finish_deferred_free();
  const region_id block = in.take_block(offset);
  if (block == region_id::none) [[unlikely]]
    return free(at, stream);
  in.fetch_ahead(block);
  debug_check([&] { return in.address_of(in.range(block).offset) == at; },
              "a block does not begin where it is found");
  (void)streams_.progress().advance(stream);
  deferred_ = block;
  deferred_for_ = static_cast<std::uint16_t>(stream);
  return {};
}

}  // namespace vmm
