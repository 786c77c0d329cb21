// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:segment - one reservation of a pool: its regions, the blocks that begin in it, and its
// mappings. Not exported.
//
// I1  Every granule is in one region: live, free for one stream, a hole, stale (mapped, but its
//     memory has moved on), or claimed. Each lies in whole units or in one mapping's memory.
// I2  A region that is live, free or stale is mapped; a hole is not. A stale region is one stale
//     mapping's, and names it.
// I3  A free region records the newest epoch at which a part of it was freed. For its own stream it
//     is free at once; for others when an event of its stream at that epoch or later has passed, or
//     behind a wait for one on the device.
// I4  Neighbours free for one stream are coalesced when one of them is freed, and so are those of
//     another stream that have passed. Two holes are never adjacent.
// I5  A claimed region is listed nowhere, and records the stream for which it was free.
// I6  The link of a live block is the mapping that it begins in; that of a free region the same, or
//     none; other regions have none.
// I7  A live block is in the table of blocks, or, locked (pinned, given to a captured graph, with
//     rights of its own), in that of locked blocks; except those of an arena's range, which are in
//     the arena's.
// I8  An arena's range is live in its handles, whatever its use in the arena, and names the arena.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: those of region_map,
// plus O(1) for each mapping that a region touches. What allocate and free go through is inline.
export module vmm.stream:segment;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :block_table;
import :geometry;
import :mappings;
import :stream_table;

namespace vmm {

inline constexpr error no_block =
    refuse(errc::not_allocated,
           "the address is not the start of a live block: it was freed before, or never allocated");

/// The data beside a locked block: why its memory is not reused when it is freed. Another reason
/// has a bit in write_lock() and lock_of(), its place in locked_blocks' free_for(), unpin() and
/// let_go(), and a caller that ends it, as block_rights::end_freed(). Refused frees are in free()
/// and owner_after_free(); take_between_arenas() leaves requests to the path that ends the reason.
struct block_lock {
  std::uint32_t pins = 0;
  std::uint32_t stream = stream_table::no_stream;  // its record: freed for it, or captured by it
  bool freed = false;                              // waits for its last pin to go
  bool captured = false;
  bool has_own_rights = false;  // freed, it waits until they were taken away
};

/// A contiguous target range, as a request to segment::claim_hole.
struct target_size {
  std::uint32_t lead_granules = 0;  // of the hole, left before it
  std::uint32_t count_granules = 0;
};

class alignas(64) segment {
 public:
  /// A block that is live: where it begins, and in which of the two tables it is.
  struct found_block {
    segment* in = nullptr;
    std::uint32_t offset = 0;
    region_id region = region_id::none;
    bool is_locked = false;
  };

  /// One hole, with the lists of `stream_count` records. Errors: out_of_host_memory.
  [[nodiscard]] static result<std::unique_ptr<segment>> create(const extent& where,
                                                               const pool_geometry& sizes,
                                                               std::uint32_t stream_count) noexcept;
  segment(const segment&) = delete;
  segment& operator=(const segment&) = delete;

  // ---- looking ----
  [[nodiscard]] inline const extent& where() const noexcept { return where_; }
  [[nodiscard]] inline address base() const noexcept { return base_; }
  [[nodiscard]] inline address address_of(std::uint32_t offset) const noexcept {
    debug_check([&] { return offset < regions_.count_granules(); }, "an offset leaves its segment");
    return base_ + offset * granule_bytes;
  }
  [[nodiscard]] inline const region_map& regions() const noexcept { return regions_; }
  [[nodiscard]] inline granule_range range(region_id region) const noexcept {
    return regions_.where(region);
  }
  [[nodiscard]] inline region_kind kind(region_id region) const noexcept {
    return regions_.kind(region);
  }
  /// Of a free region: when the last part of it was freed.
  [[nodiscard]] inline stream_point freed_at(region_id region) const noexcept {
    check(is_free_kind(kind(region)), "the free time of memory that is not free is read");
    return {stream_of(regions_.kind(region)), regions_.word(region)};
  }
  /// The same of a claimed one.
  [[nodiscard]] inline stream_point claimed_at(region_id region) const noexcept {
    check(is_claimed(region), "the claim of unclaimed memory is read");
    return {regions_.tag(region) >> 8, regions_.word(region)};
  }
  /// The mapping of a granule; null in a hole.
  [[nodiscard]] inline mapping* mapping_at(std::uint32_t offset) const noexcept {
    debug_check([&] { return offset >> unit_shift_ < unit_count_; },
                "an offset leaves its segment");
    return units_[offset >> unit_shift_];
  }
  /// The region that a granule lies in, which is the first of its unit.
  [[nodiscard]] inline region_id region_at_unit(std::uint32_t offset) const noexcept {
    check(offset >> unit_shift_ < unit_count_, "an offset leaves its segment");
    check((offset & ((1u << unit_shift_) - 1)) == 0, "a region is looked for inside a unit");
    return regions_.find(offset);
  }
  [[nodiscard]] inline std::uint64_t block_count() const noexcept {
    return std::uint64_t{blocks_.count()} + locked_.count();
  }
  /// Whether `test` is true of every region of a mapping, in address order, up to the first false.
  /// `test` may join the region to its neighbours on either side, but not to the next one inside.
  template <class Test>
  bool all_regions(const mapping& m, Test&& test) const noexcept {
    region_id region = region_at_unit(m.offset);
    check(mapping_at(m.offset) == &m, "a mapping's address is not the one in its record");
    for (bool more = region != region_id::none && range(region).offset < m.end(); more;) {
      const region_id next = regions_.after(region);
      more = next != region_id::none && range(next).offset < m.end();
      if (!test(region)) return false;
      region = next;
    }
    return true;
  }
  template <class Visitor>
  void for_each_region(const mapping& m, Visitor&& visitor) const noexcept {
    (void)all_regions(m, [&](region_id region) {
      visitor(region);
      return true;
    });
  }
  /// The handles whose current mappings the range touches, in address order. All of it is mapped.
  template <class Visitor>
  void for_each_handle(granule_range what, Visitor&& visitor) const noexcept {
    for (std::uint32_t at = what.offset; at < what.end();) {
      const mapping& m = *mapping_at(at);
      check(m.offset <= at && at < m.end(), "a mapping's address is not the one in the table");
      at = m.end();
      if (m.of != nullptr && m.of->current == &m) visitor(*m.of);
    }
  }

  // ---- allocate and free ----
  /// A free region of the request's stream that fits it, or none.
  [[nodiscard]] inline region_id find_free(const stream_request& request) const noexcept {
    const region_kind own = kind_of(request.stream);
    debug_check([&] { return request.count_granules != 0; }, "no granule is looked for");
    const region_id found = regions_.is_large(request.count_granules)
                                ? regions_.lowest_region(own, request.count_granules)
                                : regions_.best_fit(own, request.count_granules);
    debug_check([&] { return found == region_id::none || kind(found) == own; },
                "a found region is another stream's");
    return found;
  }
  /// The same for a request that may be aligned: a region as long as the block that happens to lie
  /// right, else one that takes the block wherever it begins.
  [[nodiscard]] region_id find_for(const stream_request& request) const noexcept;
  /// Where the block of a request lies in free memory from `offset` on.
  [[nodiscard]] granule_range place_in(std::uint32_t offset,
                                       const stream_request& request) const noexcept;
  /// The first granules of a free region are a free region of their own. After provide().
  void cut_lead(region_id found, std::uint32_t count) noexcept;
  /// Room for one more cut and one more block; false when the host has no memory.
  [[nodiscard]] inline bool provide_block() noexcept {
    return regions_.provide(1) && provide_entry();
  }
  /// Room for one more block; false when the host has no memory.
  [[nodiscard]] inline bool provide_entry() noexcept {
    return blocks_.reserve(regions_.count_granules());
  }
  /// The first granules of a free region, unlisted; the rest of it stays free. After
  /// provide_block().
  [[nodiscard]] inline region_id take_free(region_id found, std::uint32_t count) noexcept {
    debug_check([&] { return is_free_kind(kind(found)) && range(found).count >= count; },
                "more is taken than is free");
    if (regions_.link(found) == nullptr) [[unlikely]]
      regions_.set_link(found, mapping_at(range(found).offset));
    if (regions_.where(found).count > count) {
      const region_id lead = regions_.take_head(found, count);
      pass_link_on(lead, found);
      return lead;
    }
    regions_.unlist(found);
    debug_check([&] { return range(found).count == count; }, "a block is larger than requested");
    return found;
  }
  /// The rest of a mapped region behind its first part begins in the same mapping, or in one behind
  /// it.
  inline void pass_link_on(region_id lead, region_id rest) noexcept {
    auto* known = static_cast<mapping*>(regions_.link(lead));
    debug_check([&] { return regions_.after(lead) == rest; }, "a rest is not behind its block");
    if (known == nullptr) return;
    const std::uint32_t offset = regions_.where(rest).offset;
    while (known->end() < offset) known = known->right;
    if (known->end() == offset) known = known->right;  // which is not read yet
    debug_check([&] { return known == mapping_at(offset); }, "a rest begins in another mapping");
    regions_.set_link(rest, known);
  }
  /// An unlisted region becomes a block; its link is the mapping that it begins in. After
  /// provide_block().
  inline address make_live(region_id region, mappings& records) noexcept;
  /// Takes the block that begins there out of its table; none if no unlocked block begins there.
  [[nodiscard]] inline region_id take_block(std::uint32_t offset) noexcept {
    debug_check(
        [&] {
          return locked_.count() == 0 || locked_.find(offset) == region_id::none ||
                 blocks_.find(offset) == region_id::none;
        },
        "I7: a block is in both tables");
    return blocks_.take(offset);
  }
  [[nodiscard]] bool begin_taking(std::uint32_t offset) noexcept {
    return blocks_.begin_taking(offset);
  }
  /// Prefetches the data of take_block() and make_live().
  inline void fetch_ahead(std::uint32_t offset) const noexcept {
    debug_check([&] { return offset < regions_.count_granules(); }, "an offset leaves its segment");
    blocks_.fetch_ahead(offset);
  }
  /// The block's granules are live no more. `at` is for handles that become free: whose, and the
  /// time.
  inline void release_live(region_id block, const stream_point& at, mappings& records) noexcept;
  /// An unlisted region becomes free since then, and is coalesced with what the stream may take.
  inline void make_free(region_id region, const stream_point& since,
                        const stream_table& streams) noexcept;

  // ---- memory that is kept for captured graphs ----
  /// As make_free(); where the stream is a captured graph's, the region counts as live in its
  /// handles, so that nothing moves or unmaps them.
  void keep_free(region_id region, const stream_point& since, mappings& records,
                 const stream_table& streams) noexcept;
  /// A range that is in no block, and begins in `first`, counts as live, and as live no more.
  inline void count_live(granule_range what, mapping& first, mappings& records) noexcept;
  void release_range(granule_range what, const stream_point& at, mappings& records) noexcept;

  // ---- locked blocks ----
  /// The live block that begins there. Errors: not_allocated, invalid_argument (inside a block).
  [[nodiscard]] result<found_block> find_block(std::uint64_t offset_bytes) noexcept;
  /// Free or live: the region of the address decides the error.
  [[nodiscard]] error no_block_at(std::uint64_t offset_bytes) const noexcept;
  [[nodiscard]] block_lock lock_of(region_id block) const noexcept;
  void write_lock(region_id block, const block_lock& lock) noexcept;
  /// Moves the block to the other table; false when the host has no memory.
  [[nodiscard]] bool lock_block(const found_block& block) noexcept;
  [[nodiscard]] bool unlock_block(const found_block& block) noexcept;
  /// Takes the block out of its table: it is about to be free.
  void forget_block(const found_block& block) noexcept;
  /// Each locked block; the visitor changes no table.
  template <class Visitor>
  void for_each_locked(Visitor&& visitor) const {
    locked_.each(visitor);
  }

  // ---- memory of arenas ----
  [[nodiscard]] inline bool is_lent(region_id region) const noexcept {
    return region != region_id::none && kind(region) == region_kind::unlisted &&
           state_of(regions_.tag(region)) == region_state::lent;
  }
  /// Of an arena's range: the number of the arena.
  [[nodiscard]] inline std::uint32_t lent_to(region_id region) const noexcept {
    check(is_lent(region), "memory outside of arenas has no arena");
    return regions_.tag(region) >> 8;
  }
  /// Moves the first granules of a free region to an arena, coalesced with the arena's ranges
  /// beside them. After provide(1).
  void lend(region_id found, std::uint32_t count, std::uint32_t number, mappings& records) noexcept;
  /// Moves an arena's range to another arena, coalesced with that arena's ranges beside it.
  void pass_lent(region_id region, std::uint32_t number) noexcept;
  /// The range, of one arena, as a region of its own. After provide(2).
  [[nodiscard]] region_id cut_lent(granule_range what) noexcept;
  /// A lent region is free since then.
  void free_lent(region_id region, const stream_point& since, mappings& records,
                 const stream_table& streams) noexcept;
  /// A lent region is a block. After provide_entry().
  void make_lent_live(region_id region) noexcept;

  // ---- claims ----
  /// Ensures that the next `count` cuts need no memory; false if memory is exhausted.
  [[nodiscard]] inline bool provide(std::uint32_t count) noexcept {
    return regions_.provide(count);
  }
  /// A free region is listed no more, and remembers whose it was.
  void claim_free(region_id region) noexcept;
  /// The same of the first granules of a free region; the rest stays free. After provide().
  void claim_head(region_id region, std::uint32_t count) noexcept;
  /// A claimed region is free again as it was.
  void return_claim(region_id region, const stream_table& streams) noexcept;
  /// Makes the borders of a range borders of regions. All of it is free or claimed.
  /// Errors: out_of_host_memory.
  [[nodiscard]] status cut_at_borders(granule_range what) noexcept;
  /// Claims a part of a hole for a stream; none where it is too small or the host has no memory.
  [[nodiscard]] region_id claim_hole(region_id hole, const target_size& size,
                                     std::uint32_t stream) noexcept;
  /// The rest of a claimed region behind its first granules. After provide().
  [[nodiscard]] region_id cut_claimed(region_id region, std::uint32_t count_left) noexcept;
  void join_claimed(region_id left, region_id right) noexcept;
  /// The known state of a claimed region: from then on it is that stream's.
  void set_claim(region_id region, const stream_point& since) noexcept;

  // ---- mappings ----
  void map(mapping& m, mappings& records) noexcept;
  void unmap(mapping& m, mappings& records) noexcept;
  /// One unlisted region of all that lies in a mapping, which is claimed, or stale.
  region_id join_regions(const mapping& m) noexcept;
  void make_stale(region_id region, mapping& m) noexcept;
  void make_hole(region_id region) noexcept;

  /// One more record that memory may be free under. Errors: out_of_host_memory.
  [[nodiscard]] status provide_streams(std::uint32_t count) noexcept;

  [[nodiscard]] inline const live_block_table& blocks() const noexcept { return blocks_; }
  [[nodiscard]] inline const live_block_table& locked_blocks() const noexcept { return locked_; }
  [[nodiscard]] inline std::uint32_t unit_count() const noexcept { return unit_count_; }
  [[nodiscard]] inline mapping* const* units() const noexcept { return units_.get(); }

 private:
  friend class segment_audit;

  struct free_memory {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  using unit_table = std::unique_ptr<mapping*[], free_memory>;
  // Few regions are the first of so many units, which a search from there on passes at most.
  static constexpr std::uint32_t page_units = 8;
  static constexpr std::uint32_t freed_bit = 1u << 8;
  static constexpr std::uint32_t captured_bit = 1u << 9;
  static constexpr std::uint32_t own_rights_bit = 1u << 10;

  segment(const extent& where, const pool_geometry& sizes, region_map&& regions,
          unit_table&& units) noexcept;

  [[nodiscard]] static inline std::uint32_t tag_of(region_state state) noexcept {
    return static_cast<std::uint32_t>(state);
  }
  [[nodiscard]] static inline std::uint32_t claim_tag(std::uint32_t stream) noexcept {
    debug_check([&] { return stream < region_map::max_kinds; }, "no record has this number");
    return tag_of(region_state::claimed) | stream << 8;
  }
  [[nodiscard]] inline bool is_claimed(region_id region) const noexcept {
    return kind(region) == region_kind::unlisted &&
           state_of(regions_.tag(region)) == region_state::claimed;
  }
  /// Whether a neighbour is coalesced with memory freed for the stream: its own free memory, and
  /// memory that other streams have finished with.
  [[nodiscard]] inline bool absorbs(region_id neighbour, std::uint32_t stream,
                                    const stream_table& streams) const noexcept {
    const region_kind kind = regions_.kind(neighbour);
    debug_check([&] { return neighbour != region_id::none || !is_free_kind(kind); },
                "the end of a segment is free");
    if (kind == kind_of(stream)) return true;
    return is_free_kind(kind) && streams.passed({stream_of(kind), regions_.word(neighbour)}) &&
           streams.joins_others(stream);
  }
  [[nodiscard]] inline mapping& mapping_under(region_id region) const noexcept;
  // A region of which only the claiming stream is known.
  void note_claim(region_id region, std::uint64_t epoch, std::uint32_t stream) noexcept;
  // `first` is where the range begins.
  void count_live_in_each(granule_range what, mapping& first, mappings& records) noexcept;
  void release_in_each(granule_range what, mapping& first, const stream_point& at,
                       mappings& records) noexcept;
  void coalesce(region_id region, const stream_point& since, const stream_table& streams) noexcept;
  inline void audit() noexcept;

  // One cache line, to the map's table of first regions: what most calls need of a segment.
  live_block_table blocks_{};
  address base_;
  region_map regions_;
  extent where_;
  unit_table units_;  // by unit: the mapping that lies there
  std::uint32_t unit_shift_;
  std::uint32_t unit_count_;
  live_block_table locked_{};
  std::uint32_t unaudited_ = 0;  // changes since the last full validation
  std::uint32_t audit_cost_ = 64;
};

/// The invariants of a segment. Owns nothing: it is made for a call.
class segment_audit {
 public:
  explicit segment_audit(const segment& of) noexcept : of_(of) {}

  /// Null if I2 and I4 hold for a region, else the broken part.
  [[nodiscard]] const char* broken_region(region_id region) const noexcept;
  /// Null if the tables' own invariants hold, else the broken part. O(blocks).
  [[nodiscard]] const char* broken_tables() const noexcept;
  /// Checks every region, and the tables. Returns the changes after which to do it again.
  [[nodiscard]] std::uint32_t check_all() const noexcept;

 private:
  const segment& of_;
};

// At the highest level of checks: everything once for as many changes as there are regions, to keep
// a test's cost proportional to its calls.
inline void segment::audit() noexcept {
  if constexpr (check_level >= 3) {
    if (++unaudited_ < audit_cost_) return;
    unaudited_ = 0;
    audit_cost_ = segment_audit(*this).check_all();
  }
}

// Most ranges lie in one mapping, whose handle is not free before and after.
inline void segment::count_live(granule_range what, mapping& first, mappings& records) noexcept {
  records.count_live(what.count);
  debug_check([&] { return &first == mapping_at(what.offset) && !first.is_stale(); },
              "memory that is unmapped or stale is allocated");
  debug_check([&] { return what.offset >= first.offset && what.offset < first.end(); },
              "a range does not begin in its mapping");
  const std::uint32_t room = first.end() - what.offset;
  if (what.count > room || first.live_granules == 0) {
    count_live_in_each(what, first, records);
  } else {
    first.live_granules += what.count;
  }
}

// A region that was free has its mapping as a rule.
inline mapping& segment::mapping_under(region_id region) const noexcept {
  auto* const known = static_cast<mapping*>(regions_.link(region));
  debug_check([&] { return known == nullptr || known == mapping_at(range(region).offset); },
              "a region lacks the link to its start");
  if (known != nullptr) [[likely]]
    return *known;
  return *mapping_at(range(region).offset);
}

inline address segment::make_live(region_id region, mappings& records) noexcept {
  const granule_range where = regions_.where(region);
  debug_check([&] { return kind(region) == region_kind::unlisted; },
              "a listed free region is handed out");
  regions_.set_note(region, {0, tag_of(region_state::live)});
  mapping& first = mapping_under(region);
  count_live(where, first, records);
  regions_.set_link(region, &first);
  blocks_.insert(where.offset, region);
  debug_check([&] { return segment_audit(*this).broken_region(region) == nullptr; },
              "a new block's region is broken");
  debug_check([&] { return blocks_.find(where.offset) == region; }, "a new block is not found");
  return address_of(where.offset);
}

inline void segment::release_live(region_id block, const stream_point& at,
                                  mappings& records) noexcept {
  const granule_range what = regions_.where(block);
  mapping& first = *static_cast<mapping*>(regions_.link(block));
  debug_check([&] { return &first == mapping_at(what.offset); },
              "a block lacks the link to its start");
  const std::uint32_t room = first.end() - what.offset;
  records.subtract_live(what.count);
  if (what.count > room || first.live_granules == what.count)
    return release_in_each(what, first, at, records);
  debug_check([&] { return first.live_granules > what.count; },
              "more of a mapping is freed than is live");
  debug_check([&] { return !first.is_stale(); }, "stale memory is freed");
  first.live_granules -= what.count;
}

inline void segment::make_free(region_id region, const stream_point& since,
                               const stream_table& streams) noexcept {
  debug_check([&] { return kind(region) == region_kind::unlisted; }, "a free region is freed");
  debug_check([&] { return since.stream < streams.count(); }, "memory is freed for no record");
  const region_kind own = kind_of(since.stream);
  const region_id left = regions_.before(region);
  const region_id right = regions_.after(region);
  if (streams.count() > 1 &&
      (absorbs(left, since.stream, streams) || absorbs(right, since.stream, streams)))
    return coalesce(region, since, streams);
  std::uint64_t epoch = since.epoch;
  region_id kept = region;
  if (regions_.kind(left) == own) {
    epoch = std::max(epoch, regions_.word(left));
    if (regions_.kind(right) == own) {
      epoch = std::max(epoch, regions_.word(right));
      regions_.unlist(right);
      regions_.join(region, right);
    }
    regions_.absorb_right(left);
    kept = left;
  } else if (regions_.kind(right) == own) {
    epoch = std::max(epoch, regions_.word(right));
    regions_.absorb_left(right);
    kept = right;
  } else {
    regions_.list(region, own);
  }
  regions_.set_note(kept, {epoch, 0});
  debug_check([&] { return segment_audit(*this).broken_region(kept) == nullptr; },
              "a free region is broken");
  audit();
}

}  // namespace vmm
