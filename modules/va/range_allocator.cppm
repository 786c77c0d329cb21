// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:range_allocator - hands out runs of granules from [0, count_granules). The user defines
// the granule. A request is refused only if no hole fits, or a record cannot be allocated.
//
// I1  Blocks, live and free, tile the range in the order of their neighbour links; none is empty.
// I2  No two neighbours are free: free blocks coalesce at once.
// I3  Every free block is in the bins, except the end block: the last block, when it is free. It is
//     cut only when nothing else fits, so that use stays low in the range.
// I4  A record is a block or spare; a block_id is a record's index. Record 0, never live and never
//     free, is the neighbour of both ends.
// I5  A block's state has a bit for whether the block before it is free: most frees need not find
//     that block.
// I6  Between calls every free block has its hole. Within a call a block that is neither live nor
//     offered is loose, and its place is its offset.
//
// Elsewhere: bytes and addresses (address_space), from address to block (vmm.tracker). Thread
// safety: none, the caller has the lock.
//
// Cost: allocate, free, grow, shrink and split touch a few cache lines and, for sizes above
// 255 granules, one path of a trie (23 records at most); no heap allocation. A request with an
// alignment above one granule may visit every hole of about that size before it is refused. Memory:
// 17 bytes a block, 32 more for a free one.
export module vmm.va:range_allocator;

import vmm.backend;
import vmm.base;
import vmm.std;
import :block_records;
import :host_memory;
import :records;
import :size_bins;

namespace vmm {

/// The largest range, in granules: 2 PiB of 2 MiB granules, 512 GiB of 512-byte ones.
export inline constexpr std::uint32_t max_range_granules = size_mask;

/// A block, from the call that returns it until it is freed. Numbers are reused: a stale id is
/// detected only while its number is not in use.
export enum class block_id : std::uint32_t { none = 0 };

/// Granules [offset, offset + count).
export struct granule_range {
  std::uint32_t offset = 0;
  std::uint32_t count = 0;

  /// One past the last granule.
  [[nodiscard]] constexpr std::uint32_t end() const noexcept { return offset + count; }
  friend constexpr bool operator==(granule_range a, granule_range b) noexcept {
    return a.offset == b.offset && a.count == b.count;
  }
};

/// The size and place of a range, and its maximum number of blocks.
export struct range_options {
  std::uint32_t count_granules = 0;
  std::uint32_t origin_granules = 0;  ///< the position of offset 0 for a request with an alignment
  std::uint32_t max_blocks = 0;  ///< most blocks at a time, live and free; 0: one for each granule
};

/// A request for granules. The place's offset plus origin_granules is a multiple of the alignment,
/// a power of two.
export struct granule_request {
  std::uint32_t count_granules = 1;
  std::uint32_t alignment_granules = 1;
};

/// One block as visit() and describe() show it. Only a live block's id may be used in other calls.
export struct block_info {
  block_id id = block_id::none;
  granule_range where{};
  bool live = false;
};

/// Granules and blocks of one range.
export struct range_statistics {
  std::uint32_t count_granules = 0;
  std::uint32_t live_granules = 0;
  std::uint32_t free_granules = 0;
  std::uint32_t largest_free_granules = 0;
  std::uint32_t high_water_granules = 0;  ///< the highest end that a live block ever had
  std::uint32_t live_blocks = 0;
  std::uint32_t free_blocks = 0;
};

/// Best fit over intrusive lists and tries behind a bitmap. Movable; a moved-from object
/// may only be destroyed or assigned to.
///
/// Every call: Requires: ids name live blocks of this object, else the process ends; one thread at
/// a time. Errors: a failed call changes nothing. Cost: a few cache lines unless stated otherwise
/// (see the head of this file).
export class range_allocator {
 public:
  /// Errors: invalid_argument (no granules, or more than max_range_granules), out_of_host_memory.
  [[nodiscard]] static result<range_allocator> create(const range_options& options) noexcept;

  range_allocator(range_allocator&& other) noexcept
      : table_(std::move(other.table_)),
        bin_memory_(std::move(other.bin_memory_)),
        state_(std::exchange(other.state_, {})) {
    check(state_.free_granules <= state_.count_granules, too_much_free);
  }
  inline range_allocator& operator=(range_allocator&& other) noexcept {
    table_ = std::move(other.table_);
    bin_memory_ = std::move(other.bin_memory_);
    state_ = std::exchange(other.state_, {});
    check(state_.free_granules <= state_.count_granules, too_much_free);
    return *this;
  }
  range_allocator(const range_allocator&) = delete;
  range_allocator& operator=(const range_allocator&) = delete;
  ~range_allocator() = default;

  /// Takes the smallest hole that fits, at its low end; the end block only if none does. Errors:
  /// invalid_argument (no granules, or an alignment that is not a power of two), out_of_addresses
  /// (nothing is large enough), out_of_host_memory (no memory for one more record, or max_blocks
  /// reached).
  [[nodiscard]] inline result<block_id> allocate(granule_request request) noexcept {
    const std::uint32_t count = request.count_granules;
    if (request.alignment_granules == 1 && count < bins::exact_bins) [[likely]] {
      const std::uint32_t hole = state_.holes.pop_exact(count);
      if (hole != 0) [[likely]]
        return hand_out(table_.drop_hole(hole), count);
    }
    return take(request);
  }

  /// Frees the block; it coalesces with free neighbours. Cannot fail.
  inline void free(block_id block) noexcept {
    // Few instructions: with many blocks the record is not in the cache, and a processor that gets
    // far ahead fetches those of the next frees meanwhile.
    const auto index = static_cast<std::uint32_t>(block);
    check(index < table_.used_blocks(), "not a block of this allocator");
    if (table_.state(index) != block_state::live) [[unlikely]]
      return free_and_merge(index);
    const std::uint32_t after = table_[index].after;
    const block_state next = table_.state(after);
    if (!has(next, block_state::live)) [[unlikely]]
      return free_and_merge(index);
    const std::uint32_t count = table_[index].size;
    table_.state(index) = block_state::none;
    table_.state(after) = with(next, block_state::behind_hole);
    debug_check([this] { return state_.live_blocks != 0; }, "a block is freed when none is live");
    state_.free_granules += count;
    state_.live_blocks -= 1;
    debug_check([this] { return state_.free_granules <= state_.count_granules; }, too_much_free);
    state_.holes.insert(table_.new_hole(index), count);
    audit();
  }

  /// Makes the block `count_granules` long by taking from the free block to its right. Needs no
  /// memory. Errors: invalid_argument (less than now), out_of_addresses (too little is free there;
  /// see growth_limit).
  [[nodiscard]] status grow(block_id block, std::uint32_t count_granules) noexcept;

  /// Makes the block `count_granules` long and frees its tail.
  /// Errors: invalid_argument (none, or more than now), out_of_host_memory.
  [[nodiscard]] status shrink(block_id block, std::uint32_t count_granules) noexcept;

  /// Cuts a live block in two: `block` keeps the first `count_left` granules, the returned block is
  /// the rest. Errors: invalid_argument (either part would be empty), out_of_host_memory.
  [[nodiscard]] result<block_id> split(block_id block, std::uint32_t count_left) noexcept;

  /// The granules that grow() could give the block.
  [[nodiscard]] std::uint32_t growth_limit(block_id block) const noexcept;

  /// The place of a live block.
  [[nodiscard]] inline granule_range where(block_id block) const noexcept {
    const block_record& record = table_[require_live(block)];
    debug_check([&] { return record.place + record.size <= state_.count_granules; },
                "a block lies outside of its range");
    return {record.place, record.size};
  }

  /// Constant cost except for the largest hole, which may be a trie's depth away.
  [[nodiscard]] range_statistics statistics() const noexcept;
  [[nodiscard]] std::uint32_t largest_free() const noexcept;
  [[nodiscard]] inline std::uint32_t count_granules() const noexcept {
    return state_.count_granules;
  }
  [[nodiscard]] inline std::uint32_t free_granules() const noexcept {
    debug_check([this] { return state_.free_granules <= state_.count_granules; }, too_much_free);
    return state_.free_granules;
  }
  [[nodiscard]] inline std::uint32_t live_blocks() const noexcept {
    debug_check(
        [this] {
          return (state_.live_blocks == 0) == (state_.free_granules == state_.count_granules);
        },
        "a block is empty, or granules are in none");
    return state_.live_blocks;
  }
  [[nodiscard]] inline std::uint32_t high_water_granules() const noexcept {
    debug_check([this] { return state_.high_water <= state_.count_granules; }, "past the range");
    return state_.high_water;
  }

  /// Calls `visitor(block_info)` for every block, live and free, in address order. The visitor
  /// changes nothing here.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    if (state_.count_granules == 0) return;
    for (std::uint32_t index = table_[0].after; index != 0; index = table_[index].after) {
      debug_check([&] { return table_[index].size != 0; }, "a block is empty");
      visitor(block_info{static_cast<block_id>(index),
                         {table_.offset(index), table_[index].size},
                         table_.is_live(index)});
    }
  }

  /// Checks I1 to I5 and every invariant of the parts, over the whole structure.
  /// Errors: internal, with the first invariant found broken as its detail.
  [[nodiscard]] status validate() const noexcept;

 private:
  using bins = size_bins<hole_record>;
  struct state {
    bins holes{};
    std::uint32_t end = 0;  // the end block, 0 when the last block is live
    std::uint32_t free_granules = 0;
    std::uint32_t live_blocks = 0;
    std::uint32_t high_water = 0;
    std::uint32_t count_granules = 0;
    std::uint32_t origin = 0;
    std::uint32_t unaudited = 0;  // operations since the last whole validation
  };

  static constexpr const char* not_live = "not a live block: freed before, or never allocated";

  static constexpr const char* too_much_free = "more is free than exists";

  range_allocator() = default;

  [[nodiscard]] inline std::uint32_t require_live(block_id block) const noexcept {
    const auto index = static_cast<std::uint32_t>(block);
    check(index < table_.used_blocks(), "not a block of this allocator");
    check(table_.is_live(index), not_live);
    return index;
  }

  [[nodiscard]] inline bool is_free(std::uint32_t index) const noexcept {
    debug_check([&] { return index < table_.used_blocks(); }, "a neighbour is not a record");
    return index != 0 && !table_.is_live(index);
  }

  /// Makes a live block of a loose one of `count` granules. Does not touch the high-water mark: a
  /// hole from the bins has a live block above it.
  inline block_id hand_out(std::uint32_t index, std::uint32_t count) noexcept {
    debug_check([&] { return index != 0 && !table_.is_live(index); },
                "a block is handed out twice");
    debug_check([&] { return table_[index].size == count; }, "a block has another size");
    debug_check([&] { return state_.free_granules >= count; }, "more is handed out than is free");
    block_state& own = table_.state(index);
    own = with(own, block_state::live);
    block_state& after = table_.state(table_[index].after);
    after = without(after, block_state::behind_hole);
    state_.free_granules -= count;
    state_.live_blocks += 1;
    audit();
    return static_cast<block_id>(index);
  }

  /// Validates the whole structure once for every so many operations as there are blocks, so that a
  /// test's cost stays proportional to its operations.
  inline void audit() noexcept {
    if constexpr (check_level >= 3) {
      state_.unaudited += 1;
      if (state_.unaudited >= std::max(64u, table_.used_blocks() - table_.spare_blocks()))
        audit_now();
    }
  }

  void start(const range_options& options) noexcept;
  [[nodiscard]] result<block_id> take(granule_request request) noexcept;
  [[nodiscard]] result<block_id> take_aligned(granule_request request) noexcept;
  [[nodiscard]] result<block_id> split_head(std::uint32_t block, std::uint32_t count) noexcept;
  [[nodiscard]] result<block_id> split_out(std::uint32_t block, granule_range where) noexcept;
  [[nodiscard]] std::uint32_t cut(std::uint32_t index, std::uint32_t count_left) noexcept;
  void free_and_merge(std::uint32_t index) noexcept;
  void absorb_after(std::uint32_t index) noexcept;
  void withdraw(std::uint32_t block) noexcept;
  void offer(std::uint32_t block) noexcept;
  void move_border(std::uint32_t index, std::uint32_t count_granules) noexcept;
  void audit_now() noexcept;
  [[nodiscard]] const char* broken_block(std::uint32_t index, std::uint32_t before,
                                         std::uint32_t offset) const noexcept;
  [[nodiscard]] const char* broken_chain(std::uint32_t& block_count,
                                         std::uint32_t& free_count) const noexcept;
  [[nodiscard]] static error refusal(errc why) noexcept;

  block_records table_{};
  reserved_memory bin_memory_{};
  state state_{};
};

}  // namespace vmm
