// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:book - the pool's account of addresses, memory and streams; everything but the driver
// calls. Not exported.
//
// I1  Every granule of a segment is in one region: live, free for one stream, a hole, stale
//     (mapped, but its memory has moved on), or claimed by a growth that is under way.
// I2  Live + free + claimed granules inside current views = granules of all slabs.
// I3  A free region knows the newest epoch at which a part of it was freed. For its own stream it
//     is free at once; for others when a mark of its stream at that epoch or later has passed, or
//     behind a wait for one on the device.
// I4  Neighbours free for one stream are merged; so are those of another stream that have passed.
// I5  What a growth claims is listed nowhere until commit or abandon.
// I6  Free memory that is kept for a captured graph counts as live in I2 and in its slabs.
// I7  A live block is in its segment's table of starts, or, pinned or given to a captured graph, in
//     its table of held blocks; free() looks there only when the first has no such block.
// I8  A record of a stream is used again only when nothing is listed under it and no held block
//     names it.
//
// What is known of the streams' work is stream_progress's, which the book owns: progress().
//
// Thread safety: none of its own; the pool holds its lock around every call and makes no driver
// call inside. Cost: allocate and free are those of region_map, plus O(1) for each slab that the
// block touches. A plan costs O(1) for each slab and region that it claims, and looks at 64 window
// ends and 64 streams at most.
module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

export module vmm.stream:book;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.timeline;
import vmm.va;
import :options;
import :progress;
import :slabs;
import :start_table;

namespace vmm {

inline constexpr std::uint64_t granule_bytes = 512;

/// What an unlisted region is.
enum class region_state : std::uint32_t { live = 1, stale = 2, claimed = 3 };

/// What a region of a pool is, for people.
export enum class pool_region_kind : std::uint8_t {
  live,    // allocated
  free,    // mapped, free for its stream
  hole,    // nothing mapped
  zombie,  // mapped, but its memory has moved on: to be unmapped
  busy,    // claimed by a growth under way
};

/// One region as a dump shows it; zombies side by side are one. [G8]
export struct pool_region {
  address_range range{};
  pool_region_kind kind = pool_region_kind::hole;
  /// Of free regions: whose. What forgotten streams left shows the default stream.
  stream_handle stream = stream_handle::default_stream;
};

/// Bytes and counts. [G8]
export struct pool_statistics {
  std::uint64_t reserved_bytes = 0;  ///< addresses
  std::uint64_t mapped_bytes = 0;    ///< physical memory, each byte once
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
};

/// What was tried for the last request that memory was too short for, and what held it.
export struct shortage_report {
  std::uint64_t request_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
  errc failure = errc::none;  ///< what the last try to create memory answered
  bool trimmed = false;       ///< cached memory went back to the driver to make room
  bool blocked = false;       ///< the caller was made to wait for the work of a stream
  std::uint64_t live_bytes = 0;
  std::uint64_t reusable_bytes = 0;  ///< free, in stretches too small for the request
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::uint64_t budget_bytes = 0;  ///< 0: none
};

/// A request in the book's units, by a known stream.
struct book_request {
  std::uint32_t count_granules = 0;
  std::uint32_t stream = 0;
};

/// One piece's place in a window.
struct window_place {
  view* where = nullptr;
  slab* of = nullptr;
  region_id region = region_id::none;
};

/// Memory and addresses claimed for one request, from plan() to commit() or abandon().
struct growth_plan {
  book_request request{};
  std::uint32_t segment = 0;
  region_id start = region_id::none;  // free memory of the stream that the window continues
  region_id window = region_id::none;
  std::uint32_t window_granules = 0;
  std::uint32_t create_granules = 0;
  std::uint32_t handle_granules = 0;  // of what is created, largest handle; 0: the policy's
  std::uint64_t moved_granules = 0;
  std::vector<slab*> moved{};
  std::vector<window_place> places{};
  std::vector<stream_point> waits{};
  piece_list pieces{};  // in mapping order
  address at{};

  /// Keeps the memory of the lists.
  void clear() noexcept;
};

/// How hard a plan tries.
struct growth_effort {
  bool move = true;        ///< slabs may be moved
  bool all_whole = false;  ///< whole slabs are used up before anything is created
  std::uint64_t held_bytes = 0;
};

/// A free region of another stream that was taken out for a request, and what to wait for.
struct foreign_claim {
  std::uint32_t segment = 0;
  region_id region = region_id::none;
  stream_point last_use{};
};

/// Where claim_foreign() looks.
struct foreign_search {
  bool passed_only = false;  ///< only at what unfinished work cannot use
  bool all_streams = false;  ///< at more than streams_looked_at_max others: memory is short
};

class pool_book {
 public:
  struct setup {
    pool_policy rules{};
    std::uint64_t unit_bytes = 0;  // the driver's granularity
    std::uint64_t page_bytes = 0;  // handles are multiples of it
    std::uint64_t segment_bytes = 0;
  };
  explicit pool_book(const setup& how) noexcept;
  pool_book(const pool_book&) = delete;
  pool_book& operator=(const pool_book&) = delete;
  ~pool_book();

  // ---- streams ----
  static constexpr std::uint32_t no_stream = stream_progress::no_stream;
  static constexpr std::uint32_t streams_looked_at_max = 64;  // where memory is not short
  [[nodiscard]] inline stream_progress& progress() noexcept { return progress_; }
  [[nodiscard]] inline std::uint32_t find_stream(stream_handle stream) noexcept {
    return progress_.find(stream);
  }
  /// Errors: out_of_host_memory, in_use (too many streams).
  [[nodiscard]] result<std::uint32_t> add_stream(stream_handle stream) noexcept {
    return add_record(stream, stream_phase::active);
  }
  /// The last point of a stream that is to be forgotten. Where freed blocks that are pinned name
  /// it, that is now: they are free when all the work that it has been given so far has finished.
  [[nodiscard]] stream_point leaving_point(std::uint32_t stream) noexcept;
  /// Makes the record of what forgotten streams leave, which every retired stream needs.
  /// Errors: out_of_host_memory, in_use (no record is left).
  [[nodiscard]] status provide_commons() noexcept;
  /// Gives some of what a retired stream that has passed left to everyone, and its record back when
  /// nothing is left. Cost: O(1) for each of at most 1024 regions, and for each whole slab.
  void clear_retired(std::uint32_t stream) noexcept;

  // ---- allocate and free without the driver ----
  /// True where creating all of it would keep what is held within the policy's headroom.
  [[nodiscard]] bool has_headroom(const book_request& request,
                                  std::uint64_t held_bytes) const noexcept;
  /// Makes one region of neighbours that are free for the stream or have passed, everywhere. O(n).
  void merge_passed(std::uint32_t stream) noexcept;
  /// Granules for a request; 0 when it is larger than any segment.
  [[nodiscard]] inline std::uint32_t granules_for(std::uint64_t size_bytes) const noexcept {
    if (size_bytes - 1 < plain_bytes_max_) [[likely]]
      return static_cast<std::uint32_t>((size_bytes + granule_bytes - 1) / granule_bytes);
    if (!rules_.whole_pages || size_bytes == 0 || size_bytes > segment_bytes_) return 0;
    const std::uint64_t rounded = round_up(size_bytes, page_bytes_);
    return rounded > segment_bytes_ ? 0 : static_cast<std::uint32_t>(rounded / granule_bytes);
  }
  /// From what is free for the stream; no address when nothing fits.
  /// Errors: out_of_host_memory.
  [[nodiscard]] result<address> allocate(const book_request& request) noexcept;
  /// The same, with the error as a flag that is set.
  [[nodiscard]] address place(const book_request& request, bool& starved) noexcept;
  /// Errors: unknown_address, not_allocated, invalid_argument (inside a block).
  [[nodiscard]] status free(address at, std::uint32_t stream) noexcept;
  /// What free() would answer, and nothing is changed.
  [[nodiscard]] status knows(address at) noexcept;
  /// Errors: unknown_address, not_allocated, out_of_host_memory, invalid_argument (2^32 pins, or
  /// inside a block).
  [[nodiscard]] status pin(address at) noexcept;
  /// Live, and pinned or a captured graph's.
  [[nodiscard]] bool is_held(address at) noexcept {
    const result<found_block> found = find_block(at);
    return found && found->is_held;
  }
  /// Errors: unknown_address, not_allocated, invalid_argument (it is not pinned, or the address is
  /// inside a block).
  [[nodiscard]] status unpin(address at) noexcept;

  // ---- captured graphs ----
  /// The record of what a stream of a capture may take. Errors: out_of_host_memory,
  /// in_use (too many).
  [[nodiscard]] result<std::uint32_t> enter_capture(std::uint64_t id,
                                                    stream_handle stream) noexcept;
  /// From what such a record has; no address when nothing fits. Errors: out_of_host_memory.
  [[nodiscard]] result<address> allocate_kept(const book_request& request) noexcept;
  [[nodiscard]] inline bool knows_capture(std::uint64_t id) const noexcept {
    return find_capture(id) != nullptr;
  }
  /// The block, just allocated for such a record, is the graph's until release_capture(). Errors:
  /// out_of_host_memory; the block is free for the record.
  [[nodiscard]] status give_to_capture(address at, std::uint32_t record) noexcept;
  /// What a captured stream frees: the capture's own goes to the record, any other is kept for the
  /// graph. Errors: unknown_address, not_allocated, not_permitted (another capture's).
  [[nodiscard]] status free_in_capture(address at, std::uint32_t record) noexcept;
  /// What a graph keeps becomes free for `to`, some of it: true when that was the last, and the
  /// graph is forgotten; its live blocks are as any others then. Cost: O(1) for each of at most
  /// 1024 regions, and at the last the held blocks.
  [[nodiscard]] bool release_capture(std::uint64_t id, const stream_point& to) noexcept;
  [[nodiscard]] inline bool wants_reaping() const noexcept {
    return rules_.unmap_early && stale_.count() != 0;
  }
  /// How many zombies to unmap before there may be more: those beyond the policy's count.
  [[nodiscard]] inline std::size_t surplus_zombies() const noexcept {
    const std::uint64_t count = stale_.count();
    return count > rules_.zombie_count_max ? count - rules_.zombie_count_max : 0;
  }

  // ---- other streams' free memory ----
  /// The streams whose best region for `count` is there, with the point to ask for; at most as many
  /// as fit into `out`.
  [[nodiscard]] std::size_t foreign_candidates(const book_request& request,
                                               std::span<stream_point> out) const noexcept;
  /// Takes the smallest region that fits from another stream; with `passed_only` one whose work has
  /// finished. The claim has no region when there is none. Errors: out_of_host_memory.
  [[nodiscard]] result<foreign_claim> claim_foreign(const book_request& request,
                                                    const foreign_search& how) noexcept;
  /// Makes the claim the request's block. Errors: out_of_host_memory; the claim is given back.
  [[nodiscard]] result<address> settle_foreign(const foreign_claim& claim) noexcept;
  void return_foreign(const foreign_claim& claim) noexcept;

  // ---- growth ----
  /// Takes over a range of segment_bytes or less. Errors: out_of_host_memory.
  [[nodiscard]] status add_segment(const extent& where) noexcept;
  /// Claims memory to move, and addresses for it and for what is to be created.
  /// Errors: out_of_addresses (no hole takes it), out_of_host_memory; nothing is claimed.
  [[nodiscard]] status plan(const book_request& request, const growth_effort& effort,
                            growth_plan& out) noexcept;
  /// After the new pieces are there: names them all in order, and makes their records.
  /// Errors: out_of_host_memory; the plan is as before.
  [[nodiscard]] status prepare(growth_plan& plan, const piece_list& fresh) noexcept;
  /// The window is mapped. Gives the request its block. Errors: out_of_host_memory; the memory is
  /// free for the stream then.
  [[nodiscard]] result<address> commit(growth_plan& plan) noexcept;
  /// Gives back what was claimed. The first `standing_count` pieces are still mapped in the window:
  /// these places become zombies.
  void abandon(growth_plan& plan, std::size_t standing_count) noexcept;
  /// The window is mapped and nobody asked for a block: all of it is free for the stream.
  void commit_free(growth_plan& plan) noexcept;

  // ---- giving back ----
  /// The zombie that was made first; null when there is none. It stays in the queue.
  [[nodiscard]] inline view* oldest_zombie() const noexcept { return stale_.first(); }
  /// Its mapping is undone, or was not: it goes to the end of the queue.
  void zombie_unmapped(view& gone) noexcept;
  void zombie_stays(view& kept) noexcept;
  [[nodiscard]] inline std::uint64_t zombie_count() const noexcept { return stale_.count(); }
  [[nodiscard]] address address_of(const view& v) const noexcept;

  /// Begins a walk over the whole slabs, each stream's largest first, that ends when it has claimed
  /// `size_bytes` or has looked at as many as there are now. One walk at a time, under the lock of
  /// growth.
  void begin_walk(std::uint64_t size_bytes) noexcept;
  /// Goes on with the walk, past `looks_max` slabs at most, and claims those whose memory and
  /// addresses nothing uses any more. False when the walk has ended. Where the next one ceased to
  /// be whole between two calls, the rest of its stream is left out. Errors: out_of_host_memory;
  /// what is claimed is in `out`.
  [[nodiscard]] result<bool> claim_idle(std::size_t looks_max, std::vector<slab*>& out) noexcept;
  /// All its views are unmapped: its addresses are a hole, and its record is gone.
  [[nodiscard]] piece& slab_unmapped(slab& gone) noexcept;
  void slab_stays(slab& kept) noexcept;
  /// Everything is free and has passed: the pool is going away.
  void surrender() noexcept;

  // ---- looking ----
  [[nodiscard]] pool_statistics statistics() const noexcept;
  inline void count_wait() noexcept { ++numbers_.wait_count; }
  inline void count_mark() noexcept { ++numbers_.mark_count; }
  inline void count_blocked() noexcept { ++numbers_.blocked_count; }
  /// Fills in what the book has of the report, and keeps it.
  void write_shortage(const book_request& request, shortage_report report) noexcept;
  [[nodiscard]] const shortage_report& last_shortage() const noexcept { return shortage_; }
  [[nodiscard]] std::uint64_t live_count() const noexcept;
  [[nodiscard]] std::uint64_t largest_free_bytes() const noexcept;
  /// Appends all regions in address order. Errors: out_of_host_memory.
  [[nodiscard]] status list_regions(std::vector<pool_region>& out) const;
  [[nodiscard]] status validate() const noexcept;
  [[nodiscard]] inline std::size_t segment_count() const noexcept { return segments_.size(); }
  [[nodiscard]] inline const extent& segment_extent(std::size_t index) const noexcept {
    return segments_[index]->where;
  }
  [[nodiscard]] inline std::uint64_t segment_bytes() const noexcept { return segment_bytes_; }
  [[nodiscard]] inline std::uint64_t page_bytes() const noexcept { return page_bytes_; }

 private:
  struct free_memory {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  struct segment {
    extent where{};
    region_map regions;
    start_table starts{};
    start_table held{};                               // pinned, or given to a captured graph
    std::unique_ptr<view* [], free_memory> pages {};  // by unit: the view that is mapped there
    std::uint32_t page_count = 0;
  };
  static constexpr region_kind hole_kind = static_cast<region_kind>(1);
  static constexpr std::uint32_t first_stream_kind = 2;
  // What lies under the record of a stream.
  struct stream_memory {
    slab_bins whole{};
    std::uint64_t held_count = 0;  // blocks held that name this record
    std::uint32_t keeper = 0;      // of a capture: the record of what nobody may take
  };
  static constexpr std::uint32_t regions_moved_max = 1024;
  struct capture_entry {
    std::uint64_t id = 0;
    std::uint32_t keeper = no_stream;
    std::vector<std::uint32_t> records{};  // the keeper, and one for each stream
  };

  [[nodiscard]] static inline region_kind kind_of(std::uint32_t stream) noexcept {
    return static_cast<region_kind>(first_stream_kind + stream);
  }
  [[nodiscard]] static inline std::uint32_t stream_of(region_kind kind) noexcept {
    return static_cast<std::uint32_t>(kind) - first_stream_kind;
  }
  [[nodiscard]] static inline bool is_free_kind(region_kind kind) noexcept {
    return static_cast<std::uint32_t>(kind) >= first_stream_kind;
  }
  // A claimed region remembers whose it was.
  [[nodiscard]] static inline std::uint32_t claim_tag(std::uint32_t stream) noexcept {
    return static_cast<std::uint32_t>(region_state::claimed) | stream << 8;
  }
  [[nodiscard]] static inline region_state state_of(std::uint32_t tag) noexcept {
    return static_cast<region_state>(tag & 0xFF);
  }

  // What is written beside a block that is held.
  struct hold_note {
    std::uint32_t pins = 0;
    std::uint32_t stream = no_stream;  // whose record it names: freed for it, or captured by it
    bool freed = false;                // waits for its last pin to go
    bool captured = false;
  };
  static constexpr std::uint32_t freed_bit = 1u << 8;
  static constexpr std::uint32_t captured_bit = 1u << 9;
  struct found_block {
    segment* in = nullptr;
    std::uint32_t offset = 0;
    region_id region = region_id::none;
    bool is_held = false;
  };
  [[nodiscard]] static hold_note hold_of(const segment& in, region_id block) noexcept;
  void write_hold(segment& in, region_id block, const hold_note& note) noexcept;
  /// The live block that begins at `at`. Errors: unknown_address, not_allocated.
  [[nodiscard]] result<found_block> find_block(address at) noexcept;
  [[nodiscard]] status free_held(segment& in, std::uint64_t offset_bytes,
                                 std::uint32_t stream) noexcept;
  // An unlisted live region that is in neither table becomes free for the stream.
  void settle_free(segment& in, region_id block, std::uint32_t stream) noexcept;

  // Free or live: the region that the address lies in decides what is wrong with it.
  [[nodiscard]] static error no_block_at(const segment& in, std::uint64_t offset_bytes) noexcept;

  [[nodiscard]] const capture_entry* find_capture(std::uint64_t id) const noexcept;
  // Where the capture stands in the list, added if need be.
  [[nodiscard]] result<std::size_t> provide_capture(std::uint64_t id,
                                                    stream_handle stream) noexcept;
  // Whose the block is when it is freed in, or outside of, a capture.
  [[nodiscard]] result<std::uint32_t> heir_of(const found_block& block,
                                              std::uint32_t record) const noexcept;
  void end_hold(hold_note& note) noexcept;
  void release_range(segment& in, granule_range what, std::uint32_t stream) noexcept;
  void keep_free(segment& in, region_id region, const stream_point& since) noexcept;
  void forget_captured(const capture_entry& gone, std::uint32_t heir) noexcept;

  [[nodiscard]] inline std::uint32_t stream_count() const noexcept { return progress_.count(); }
  [[nodiscard]] inline stream_phase phase_of(std::uint32_t stream) const noexcept {
    return progress_.phase_of(stream);
  }
  [[nodiscard]] inline bool passed(const stream_point& point) const noexcept {
    return progress_.passed(point);
  }
  [[nodiscard]] result<std::uint32_t> add_record(stream_handle stream, stream_phase phase) noexcept;
  [[nodiscard]] bool move_free(std::uint32_t from, const stream_point& to) noexcept;
  void recycle(std::uint32_t stream) noexcept;
  // Another stream to look at, the commons first; the stream itself when there is none.
  [[nodiscard]] std::uint32_t other_stream(std::uint32_t stream, std::uint32_t step) const noexcept;

  [[nodiscard]] segment* segment_around(address at) noexcept;
  [[nodiscard]] inline address address_in(const segment& in, std::uint32_t offset) const noexcept {
    return in.where.range.base + offset * granule_bytes;
  }
  [[nodiscard]] region_id pick(const segment& in, const book_request& request) const noexcept;
  view* hold(segment& in, granule_range what) noexcept;
  void hold_views(segment& in, granule_range what) noexcept;
  void release(segment& in, region_id block, std::uint32_t stream) noexcept;
  void enter_whole(slab& s, std::uint32_t stream) noexcept;
  void leave_whole(slab& s) noexcept;
  [[nodiscard]] address make_live(segment& in, region_id region) noexcept;
  void make_free(segment& in, region_id region, const stream_point& since) noexcept;
  void merge_free(segment& in, region_id region, const stream_point& since) noexcept;
  void make_hole(segment& in, region_id region) noexcept;
  [[nodiscard]] bool absorbs(const segment& in, region_id neighbour,
                             std::uint32_t stream) const noexcept;

  [[nodiscard]] std::uint64_t headroom(const book_request& request,
                                       std::uint64_t held_bytes) const noexcept;
  [[nodiscard]] std::uint32_t rounded_to_pages(std::uint64_t granules) const noexcept;
  [[nodiscard]] bool may_move(const book_request& request,
                              const growth_effort& effort) const noexcept;
  void choose_start(growth_plan& plan) noexcept;
  void choose_start_at_hole(growth_plan& plan) noexcept;
  [[nodiscard]] status gather(const growth_effort& effort, growth_plan& plan) noexcept;
  [[nodiscard]] std::uint32_t create_size(std::uint32_t rest_granules, std::uint64_t room_granules,
                                          std::uint64_t held_bytes) const noexcept;
  [[nodiscard]] bool may_spend() const noexcept;
  [[nodiscard]] slab* choose_slab(std::uint32_t stream, std::uint32_t rest_granules,
                                  std::uint32_t streams_max) noexcept;
  [[nodiscard]] bool overshoots(const slab& next, const growth_plan& plan) const noexcept;
  [[nodiscard]] status claim_region_of(slab& first, growth_plan& plan) noexcept;
  [[nodiscard]] status claim_slab(slab& s, growth_plan& plan) noexcept;
  [[nodiscard]] status cut_out(segment& in, granule_range what) noexcept;
  void add_wait(growth_plan& plan, const stream_point& point) noexcept;
  [[nodiscard]] status detach_regions(slab& s) noexcept;
  void attach_regions(slab& s) noexcept;
  void claim_start(growth_plan& plan) noexcept;
  void reenter_start(growth_plan& plan) noexcept;
  template <class Visitor>
  void for_each_slab(segment& in, granule_range what, Visitor&& visitor) noexcept;
  [[nodiscard]] bool claim_window(growth_plan& plan) noexcept;
  [[nodiscard]] bool claim_window_anywhere(growth_plan& plan) noexcept;
  [[nodiscard]] bool take_hole(region_id hole, std::uint32_t lead_granules,
                               growth_plan& plan) noexcept;
  void reset_slab(slab& fresh, piece& memory) noexcept;
  void reset_view(view& fresh, slab& of, const growth_plan& plan) noexcept;
  void drop_places(growth_plan& plan, std::size_t from) noexcept;
  [[nodiscard]] region_id build_window(growth_plan& plan) noexcept;
  void make_stale(view& v, region_id region, const stream_point& last_use) noexcept;
  void forget_stale(view& gone) noexcept;
  void retire_view(view& old, const stream_point& last_use) noexcept;
  [[nodiscard]] bool is_idle(const slab& s) const noexcept;
  void map_view(view& v) noexcept;
  void unmap_view(view& v) noexcept;
  void set_end(view& v, bool is_end) noexcept;
  [[nodiscard]] view* view_at(const segment& in, std::uint32_t unit) const noexcept;

  struct tally {
    std::uint64_t live = 0;
    std::uint64_t owned = 0;
    std::uint64_t slab_granules = 0;
    std::uint64_t zombies = 0;
    std::uint64_t pinned = 0;
    std::uint64_t started = 0;  // blocks of one segment in either of its tables
    std::uint64_t held = 0;
  };
  [[nodiscard]] const char* broken_region(const segment& in, region_id region,
                                          tally& sums) const noexcept;
  [[nodiscard]] const char* broken_views(const segment& in, tally& sums) const noexcept;
  [[nodiscard]] const char* broken_tables(const segment& in, tally& sums) const noexcept;
  [[nodiscard]] const char* broken_slab(const segment& in, const view& v) const noexcept;

  pool_policy rules_;
  std::uint64_t unit_bytes_;
  std::uint64_t page_bytes_;
  std::uint64_t segment_bytes_;
  std::uint64_t plain_bytes_max_;  // requests up to here take what they ask for
  std::uint32_t unit_granules_;
  std::uint32_t unit_shift_;
  std::uint32_t page_granules_;
  std::uint32_t lowest_granules_;  // smallest request of the lowest-fit rule; max: never
  address_range first_range_{};    // of the first segment, which most pools need alone
  segment* first_segment_ = nullptr;
  std::vector<std::unique_ptr<segment>> segments_;
  stream_progress progress_;
  std::vector<std::unique_ptr<stream_memory>> memory_of_;  // by record; one more at times
  std::uint32_t commons_ = no_stream;                      // the record of what is everyone's
  std::vector<capture_entry> captures_;
  std::uint64_t live_granules_ = 0;
  std::uint64_t peak_live_granules_ = 0;
  std::uint64_t slab_granules_ = 0;
  std::uint64_t slab_count_ = 0;
  object_pool<slab> slabs_;
  object_pool<view> views_;
  view_list<&view::in_queue> stale_;
  view_list<&view::in_ends> ends_;
  pool_statistics numbers_;
  struct slab_walk {
    slab* next = nullptr;  // null: the next stream has not been begun
    std::size_t streams_begun = 0;
    std::uint64_t bytes_left = 0;
    std::uint64_t looks_left = 0;
  };
  slab_walk walk_;
  shortage_report shortage_;
};

}  // namespace vmm
