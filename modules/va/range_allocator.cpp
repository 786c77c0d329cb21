// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <utility>

module vmm.va;

import vmm.backend;

namespace vmm {

error range_allocator::refusal(errc why) noexcept {
  switch (why) {
    case errc::invalid_argument:
      return refuse(why,
                    "a request is for one granule or more, at an alignment that is a power of two");
    case errc::out_of_host_memory:
      return refuse(why, "no host memory for one more block record, or max_blocks is reached");
    default: return refuse(why, "no free range is large enough; free some, or add another range");
  }
}

result<range_allocator> range_allocator::create(const range_options& options) noexcept {
  if (options.count_granules == 0 || options.count_granules > max_range_granules) {
    return refuse(errc::invalid_argument, "a range has at least one granule and at most 2^30 - 1");
  }
  range_allocator range;
  const std::uint32_t blocks = options.max_blocks == 0
                                   ? options.count_granules
                                   : std::min(options.max_blocks, options.count_granules);
  result<block_table> table = block_table::reserve(blocks + 1);
  if (!table) return table.error();
  range.table_ = std::move(*table);
  const std::uint64_t bin_bytes = bins::table_bytes(options.count_granules);
  result<reserved_memory> bin_memory = reserved_memory::reserve(bin_bytes);
  if (!bin_memory) return bin_memory.error();
  range.bin_memory_ = std::move(*bin_memory);
  if (!range.bin_memory_.commit(bin_bytes)) return refusal(errc::out_of_host_memory);
  if (options.look_up) {
    result<address_index::owner> index = address_index::create(range.table_.places(), blocks + 1);
    if (!index) return index.error();
    range.index_ = std::move(*index);
    if (!range.index_->commit(2)) return refusal(errc::out_of_host_memory);
  }
  range.start(options);
  return result<range_allocator>(std::move(range));
}

/// One end block over the whole range.
void range_allocator::start(const range_options& options) noexcept {
  state_.holes.attach(table_.holes(), bin_memory_.data(), options.count_granules);
  const std::uint32_t first = table_.new_block();
  table_[0] = {.place = 0, .size = 0, .before = first, .after = first};
  table_[first] = {.place = 0, .size = options.count_granules, .before = 0, .after = 0};
  state_.end = first;
  (void)table_.new_hole(first);
  state_.count_granules = options.count_granules;
  state_.free_granules = options.count_granules;
  state_.origin = options.origin_granules;
  if (index_ != nullptr) index_->insert_first(first);
}

/// Sees that `count` more blocks can be made.
bool range_allocator::provide(std::uint32_t count) noexcept {
  return table_.provide(count) &&
         (index_ == nullptr || index_->commit(table_.used_blocks() + count));
}

/// Leaves `count_left` granules in a live or loose block; the rest becomes a loose one behind it.
inline std::uint32_t range_allocator::cut(std::uint32_t index, std::uint32_t count_left) noexcept {
  const std::uint32_t rest = table_.new_block();
  block_record& left = table_[index];
  table_[rest] = {.place = left.place + count_left,
                  .size = left.size - count_left,
                  .before = index,
                  .after = left.after};
  table_[left.after].before = rest;
  left.after = rest;
  left.size = count_left;
  table_.state(rest) = table_.is_live(index) ? block_state::none : block_state::behind_hole;
  if (index_ != nullptr) index_->insert_after(index, rest);
  return rest;
}

/// The block takes over its right neighbour's granules; the neighbour's record becomes spare. The
/// state of the block behind the two is the caller's.
void range_allocator::absorb_after(std::uint32_t index) noexcept {
  block_record& left = table_[index];
  const std::uint32_t gone = left.after;
  const block_record right = table_[gone];
  if (index_ != nullptr) index_->erase(gone);
  left.size += right.size;
  left.after = right.after;
  table_[right.after].before = index;
  table_.drop_block(gone);
}

/// Makes a free block loose.
inline void range_allocator::withdraw(std::uint32_t block) noexcept {
  const std::uint32_t hole = table_[block].place;
  if (block == state_.end) {
    state_.end = 0;
  } else {
    state_.holes.remove(hole);
  }
  (void)table_.drop_hole(hole);
}

/// The reverse of withdraw.
inline void range_allocator::offer(std::uint32_t block) noexcept {
  const std::uint32_t after = table_[block].after;
  const std::uint32_t hole = table_.new_hole(block);
  if (after == 0) {
    state_.end = block;
  } else {
    state_.holes.insert(hole);
    table_.state(after) = with(table_.state(after), block_state::behind_hole);
  }
}

/// Makes a live block of the first `count` granules of a free one; the rest keeps its hole.
[[gnu::always_inline]] inline result<block_id> range_allocator::carve_front(
    std::uint32_t block, std::uint32_t count) noexcept {
  const std::uint32_t hole = table_[block].place;
  const std::uint32_t offset = table_.hole(hole).offset;
  const bool last = block == state_.end;
  const std::uint32_t left_over = table_[block].size - count;
  if (left_over == 0) {
    withdraw(block);
  } else {
    if (!provide(1)) [[unlikely]]
      return refusal(errc::out_of_host_memory);
    if (!last) state_.holes.remove(hole);
    table_[block].place = offset;
    const std::uint32_t rest = cut(block, count);
    table_.move_hole(hole, rest);
    if (last) {
      state_.end = rest;
    } else {
      state_.holes.insert(hole, left_over);
    }
  }
  if (last) state_.high_water = std::max(state_.high_water, offset + count);
  return hand_out(block, count);
}

/// Makes a live block of any part of a free one; what is left over on either side stays free.
result<block_id> range_allocator::carve(std::uint32_t block, granule_range where) noexcept {
  const std::uint32_t lead = where.offset - table_.offset(block);
  if (lead == 0) return carve_front(block, where.count);
  const std::uint32_t tail = table_[block].size - lead - where.count;
  if (!provide(tail == 0 ? 1 : 2)) [[unlikely]]
    return refusal(errc::out_of_host_memory);
  withdraw(block);
  const std::uint32_t taken = cut(block, lead);
  offer(block);
  if (tail != 0) offer(cut(taken, where.count));
  state_.high_water = std::max(state_.high_water, where.end());
  return hand_out(taken, where.count);
}

/// What allocate() does where no hole has exactly the size.
result<block_id> range_allocator::take(granule_request request) noexcept {
  if (request.alignment_granules != 1) return take_aligned(request);
  const std::uint32_t count = request.count_granules;
  if (count == 0) return refusal(errc::invalid_argument);
  if (count > state_.count_granules) return refusal(errc::out_of_addresses);
  const std::uint32_t hole = state_.holes.find(count);
  const std::uint32_t block = hole != 0 ? table_.hole(hole).block : state_.end;
  if (block == 0 || table_[block].size < count) return refusal(errc::out_of_addresses);
  return carve_front(block, count);
}

result<block_id> range_allocator::take_aligned(granule_request request) noexcept {
  const aligned_fit wanted{request.count_granules, request.alignment_granules, state_.origin};
  if (wanted.count == 0 || !std::has_single_bit(wanted.alignment))
    return refusal(errc::invalid_argument);
  if (wanted.count > state_.count_granules) return refusal(errc::out_of_addresses);
  std::uint32_t hole = state_.holes.find(wanted.count);
  if (hole == 0 || !wanted.fits(table_.hole(hole))) {
    const std::uint64_t sure = std::uint64_t{wanted.count} + wanted.alignment - 1;
    hole = sure <= state_.count_granules ? state_.holes.find(static_cast<std::uint32_t>(sure)) : 0;
    const std::uint32_t end = state_.end == 0 ? 0 : table_[state_.end].place;
    if (hole == 0 && end != 0 && wanted.fits(table_.hole(end))) hole = end;
    if (hole == 0) hole = state_.holes.find_aligned(wanted);
    if (hole == 0) return refusal(errc::out_of_addresses);
  }
  const hole_record& found = table_.hole(hole);
  return carve(found.block, {found.offset + wanted.lead(found.offset), wanted.count});
}

result<block_id> range_allocator::allocate_at(granule_range where) noexcept {
  if (index_ == nullptr)
    return refuse(errc::not_supported, "a place can be asked for only with look_up on");
  const std::uint64_t end = std::uint64_t{where.offset} + where.count;
  if (where.count == 0 || end > state_.count_granules) {
    return refuse(errc::invalid_argument, "the place asked for is empty or not inside the range");
  }
  const std::uint32_t block = index_->find(where.offset);
  if (!is_free(block) || std::uint64_t{table_.offset(block)} + table_[block].size < end) {
    return refuse(errc::overlap, "the place asked for is not wholly free");
  }
  return carve(block, where);
}

/// What free() does where a neighbour is free, at the end of the range, for a block with owner's
/// words, and for what is no live block.
[[gnu::noinline]] void range_allocator::free_and_merge(std::uint32_t index) noexcept {
  check(table_.is_live(index), not_live);
  table_.clear_owner(index);
  table_.state(index) = without(table_.state(index), block_state::live);
  state_.free_granules += table_[index].size;
  state_.live_blocks -= 1;
  const std::uint32_t after = table_[index].after;
  std::uint32_t kept = index;
  if (has(table_.state(index), block_state::behind_hole)) {
    kept = table_[index].before;
    withdraw(kept);
    absorb_after(kept);
  }
  if (is_free(after)) {
    withdraw(after);
    absorb_after(kept);
  }
  offer(kept);
  audit();
}

/// Moves the border between a live block and the free block to its right.
void range_allocator::move_border(std::uint32_t index, std::uint32_t count_granules) noexcept {
  block_record& block = table_[index];
  const std::uint32_t after = block.after;
  withdraw(after);
  block_record& rest = table_[after];
  const std::uint32_t both = block.size + rest.size;
  state_.free_granules -= count_granules - block.size;  // modulo 2^32: the block may become smaller
  if (count_granules == both) {
    absorb_after(index);
    block_state& behind = table_.state(block.after);
    behind = without(behind, block_state::behind_hole);
  } else {
    block.size = count_granules;
    rest.place = block.place + count_granules;
    rest.size = both - count_granules;
    offer(after);
  }
  state_.high_water = std::max(state_.high_water, block.place + count_granules);
}

std::uint32_t range_allocator::growth_limit(block_id block) const noexcept {
  const block_record& record = table_[require_live(block)];
  return record.size + (is_free(record.after) ? table_[record.after].size : 0);
}

status range_allocator::grow(block_id block, std::uint32_t count_granules) noexcept {
  const std::uint32_t size = table_[require_live(block)].size;
  if (count_granules < size)
    return refuse(errc::invalid_argument, "grow() takes a size that is not below the block's");
  if (count_granules == size) return {};
  if (count_granules > growth_limit(block)) {
    return refuse(errc::out_of_addresses,
                  "too little is free to the right of the block; move it instead");
  }
  move_border(static_cast<std::uint32_t>(block), count_granules);
  audit();
  return {};
}

status range_allocator::shrink(block_id block, std::uint32_t count_granules) noexcept {
  const std::uint32_t index = require_live(block);
  const block_record& record = table_[index];
  if (count_granules == 0 || count_granules > record.size) {
    return refuse(errc::invalid_argument,
                  "shrink() takes a size from one granule to the block's own");
  }
  if (count_granules == record.size) return {};
  if (is_free(record.after)) {
    move_border(index, count_granules);
  } else {
    if (!provide(1)) return refusal(errc::out_of_host_memory);
    state_.free_granules += record.size - count_granules;
    offer(cut(index, count_granules));
  }
  audit();
  return {};
}

result<block_id> range_allocator::split(block_id block, std::uint32_t count_left) noexcept {
  const std::uint32_t index = require_live(block);
  if (count_left == 0 || count_left >= table_[index].size) {
    return refuse(errc::invalid_argument, "split() leaves at least one granule on either side");
  }
  if (!provide(1)) return refusal(errc::out_of_host_memory);
  const std::uint32_t rest = cut(index, count_left);
  table_.state(rest) = block_state::live;
  state_.live_blocks += 1;
  audit();
  return static_cast<block_id>(rest);
}

void range_allocator::join(block_id left, block_id right) noexcept {
  const std::uint32_t index = require_live(left);
  check(require_live(right) == table_[index].after,
        "join() takes two neighbours, the left one first");
  table_.clear_owner(static_cast<std::uint32_t>(right));
  absorb_after(index);
  state_.live_blocks -= 1;
  audit();
}

result<block_id> range_allocator::find(std::uint32_t offset) const noexcept {
  if (index_ == nullptr)
    return refuse(errc::not_supported, "blocks can be looked up only with look_up on");
  if (offset >= state_.count_granules) return refuse(errc::unknown_address, "not inside the range");
  const std::uint32_t found = index_->find(offset);
  if (!table_.is_live(found)) return refuse(errc::not_allocated, "inside the range, but free");
  return static_cast<block_id>(found);
}

std::uint32_t range_allocator::largest_free() const noexcept {
  const std::uint32_t end = state_.end == 0 ? 0 : table_[state_.end].size;
  return std::max(end, state_.holes.largest());
}

range_statistics range_allocator::statistics() const noexcept {
  range_statistics all;
  all.count_granules = state_.count_granules;
  all.free_granules = state_.free_granules;
  all.live_granules = state_.count_granules - state_.free_granules;
  all.largest_free_granules = largest_free();
  all.high_water_granules = state_.high_water;
  all.live_blocks = state_.live_blocks;
  all.free_blocks = table_.used_blocks() - 1 - table_.spare_blocks() - state_.live_blocks;
  return all;
}

void range_allocator::audit_now() noexcept {
  state_.unaudited = 0;
  const status valid = validate();
  if (!valid) fail_check(valid.error().detail, std::source_location::current());
}

/// What is wrong with one block, given the block before it and where it has to begin.
const char* range_allocator::broken_block(std::uint32_t index, std::uint32_t before,
                                          std::uint32_t offset) const noexcept {
  if (index >= table_.used_blocks()) return "a neighbour link leads outside the records";
  const block_record& record = table_[index];
  if (record.before != before) return "neighbour links disagree";
  if (table_.offset(index) != offset || record.size == 0) return "blocks do not tile the range";
  if (is_free(index) && is_free(before)) return "two free blocks are neighbours";
  if (has(table_.state(index), block_state::behind_hole) != is_free(before))
    return "a block's state is wrong about the block before it";
  return nullptr;
}

const char* range_allocator::broken_chain(std::uint32_t& block_count,
                                          std::uint32_t& free_count) const noexcept {
  std::uint32_t offset = 0;
  std::uint32_t before = 0;
  std::uint32_t free_granules = 0;
  for (std::uint32_t index = table_[0].after; index != 0; index = table_[index].after) {
    if (const char* broken = broken_block(index, before, offset); broken != nullptr) return broken;
    offset += table_[index].size;
    before = index;
    free_count += is_free(index) ? 1 : 0;
    free_granules += is_free(index) ? table_[index].size : 0;
    ++block_count;
    if (block_count >= table_.used_blocks()) return "neighbour links form a circle";
  }
  if (offset != state_.count_granules || table_[0].before != before)
    return "blocks do not fill the range";
  if (block_count - free_count != state_.live_blocks) return "the count of live blocks is wrong";
  if (free_granules != state_.free_granules) return "the count of free granules is wrong";
  if (state_.end != (is_free(before) ? before : 0))
    return "the end block is not the free last block";
  return nullptr;
}

status range_allocator::validate() const noexcept {
  std::uint32_t block_count = 0;
  std::uint32_t free_count = 0;
  const char* broken = broken_chain(block_count, free_count);
  if (broken == nullptr) broken = table_.broken_invariant(free_count);
  if (broken == nullptr)
    broken = state_.holes.broken_invariant(free_count - (state_.end != 0 ? 1 : 0));
  if (broken == nullptr && index_ != nullptr) broken = index_->broken_invariant(block_count);
  if (broken == nullptr && 1 + block_count + table_.spare_blocks() != table_.used_blocks())
    broken = "a record is neither a block nor spare";
  if (broken != nullptr) return refuse(errc::internal, broken);
  return {};
}

}  // namespace vmm
