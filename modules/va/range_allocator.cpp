// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.va;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

error range_allocator::refusal(errc why) noexcept {
  switch (why) {
    case errc::invalid_argument: return refuse(why, "a request is for one granule or more");
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
  result<block_records> table = block_records::reserve(blocks + 1);
  if (!table) return table.error();
  range.table_ = std::move(*table);
  const std::uint64_t bin_bytes = bins::table_bytes(options.count_granules);
  result<reserved_memory> bin_memory =
      reserved_memory::make(bin_bytes, refusal(errc::out_of_host_memory).detail);
  if (!bin_memory) return bin_memory.error();
  range.bin_memory_ = std::move(*bin_memory);
  range.start(options);
  check(range.state_.free_granules == options.count_granules && range.state_.live_blocks == 0,
        "a range does not begin free");
  check(range.state_.high_water == 0, "a range begins in use");
  return result<range_allocator>(std::move(range));
}

/// One end block over the whole range.
void range_allocator::start(const range_options& options) noexcept {
  state_.holes.attach(table_.holes(), bin_memory_.data(), options.count_granules);
  check(table_.used_blocks() == 1, "a range is started twice");
  const std::uint32_t first = table_.new_block();
  table_[0] = {.place = 0, .size = 0, .before = first, .after = first};
  table_[first] = {.place = 0, .size = options.count_granules, .before = 0, .after = 0};
  state_.end = first;
  (void)table_.new_hole(first);
  state_.count_granules = options.count_granules;
  state_.free_granules = options.count_granules;
  state_.origin = options.origin_granules;
  check(is_free(first), "a range does not begin with a free block");
}

/// Leaves `count_left` granules in a live or loose block; the rest becomes a loose one behind it.
inline std::uint32_t range_allocator::cut(std::uint32_t index, std::uint32_t count_left) noexcept {
  const std::uint32_t rest = table_.new_block();
  block_record& left = table_[index];
  check(count_left != 0 && count_left < left.size, "a block is cut outside of itself");
  table_[rest] = {.place = left.place + count_left,
                  .size = left.size - count_left,
                  .before = index,
                  .after = left.after};
  debug_check([&] { return table_[left.after].before == index; }, "neighbour links disagree");
  table_[left.after].before = rest;
  left.after = rest;
  left.size = count_left;
  table_.state(rest) = table_.is_live(index) ? block_state::none : block_state::behind_hole;
  return rest;
}

/// The block takes over its right neighbour's granules; the neighbour's record becomes spare. The
/// state of the block behind the two is the caller's.
void range_allocator::absorb_after(std::uint32_t index) noexcept {
  block_record& left = table_[index];
  const std::uint32_t gone = left.after;
  check(gone != 0 && gone != index, "the last block absorbs what is behind it");
  const block_record right = table_[gone];
  debug_check([&] { return right.before == index; }, "neighbour links disagree");
  debug_check([&] { return left.size + right.size <= state_.count_granules; }, "past the range");
  left.size += right.size;
  left.after = right.after;
  table_[right.after].before = index;
  table_.drop_block(gone);
}

/// Makes a free block loose.
inline void range_allocator::withdraw(std::uint32_t block) noexcept {
  debug_check([&] { return is_free(block); }, "a block that is not free is removed from the bins");
  const std::uint32_t hole = table_[block].place;
  debug_check([&] { return table_.hole(hole).block == block; }, "a hole is not its block's");
  if (block == state_.end) {
    state_.end = 0;
  } else {
    state_.holes.remove(hole);
  }
  (void)table_.drop_hole(hole);
  debug_check([&] { return table_[block].place + table_[block].size <= state_.count_granules; },
              "a block that is withdrawn leaves its range");
}

/// The reverse of withdraw.
inline void range_allocator::offer(std::uint32_t block) noexcept {
  const std::uint32_t after = table_[block].after;
  debug_check([&] { return block != state_.end; }, "the end block is offered twice");
  debug_check([&] { return !table_.is_live(block); }, "a live block is offered");
  const std::uint32_t hole = table_.new_hole(block);
  if (after == 0) {
    state_.end = block;
  } else {
    state_.holes.insert(hole);
    table_.state(after) = with(table_.state(after), block_state::behind_hole);
  }
  debug_check([&] { return is_free(block) && table_.hole(hole).block == block; },
              "I6: a block is offered and cannot be found");
}

/// Makes a live block of the first `count` granules of a free one; the rest keeps its hole.
[[gnu::always_inline]] inline result<block_id> range_allocator::split_head(
    std::uint32_t block, std::uint32_t count) noexcept {
  debug_check([&] { return is_free(block) && table_[block].size >= count; }, "too small a block");
  const std::uint32_t hole = table_[block].place;
  const std::uint32_t offset = table_.hole(hole).offset;
  const bool last = block == state_.end;
  const std::uint32_t left_over = table_[block].size - count;
  if (left_over == 0) {
    withdraw(block);
  } else {
    if (!table_.provide(1)) [[unlikely]]
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
  debug_check([this] { return state_.high_water <= state_.count_granules; }, "past the range");
  return hand_out(block, count);
}

/// Makes a live block of any part of a free one; the rest on either side stays free.
result<block_id> range_allocator::split_out(std::uint32_t block, granule_range where) noexcept {
  const std::uint32_t lead = where.offset - table_.offset(block);
  check(where.offset >= table_.offset(block) && table_[block].size - lead >= where.count,
        "a block is cut outside of itself");
  if (lead == 0) return split_head(block, where.count);
  const std::uint32_t tail = table_[block].size - lead - where.count;
  if (!table_.provide(tail == 0 ? 1 : 2)) [[unlikely]]
    return refusal(errc::out_of_host_memory);
  withdraw(block);
  const std::uint32_t taken = cut(block, lead);
  check(table_[taken].place == where.offset, "a block is cut in the wrong place");
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
  check(hole == 0 || table_[block].size >= count, "a hole is found that is too small");
  if (block == 0 || table_[block].size < count) return refusal(errc::out_of_addresses);
  debug_check([&] { return is_free(block); }, "a hole's block is live");
  return split_head(block, count);
}

result<block_id> range_allocator::take_aligned(granule_request request) noexcept {
  const aligned_fit wanted{request.count_granules, request.alignment_granules, state_.origin};
  if (wanted.count == 0) return refusal(errc::invalid_argument);
  if (!std::has_single_bit(wanted.alignment))
    return refuse_number(wanted.alignment, "an alignment in granules is a power of two",
                         errc::invalid_argument);
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
  debug_check([&] { return wanted.fits(found); }, "a hole is found that the request does not fit");
  return split_out(found.block, {found.offset + wanted.lead(found.offset), wanted.count});
}

/// free() beside a free neighbour, at the end of the range, and for an id that is not a live block.
[[gnu::noinline]] void range_allocator::free_and_merge(std::uint32_t index) noexcept {
  check(table_.is_live(index), not_live);
  table_.state(index) = without(table_.state(index), block_state::live);
  check(state_.live_blocks != 0, "a block is freed when none is live");
  state_.free_granules += table_[index].size;
  state_.live_blocks -= 1;
  check(state_.free_granules <= state_.count_granules, too_much_free);
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
  debug_check([&] { return !is_free(table_[kept].before) && !is_free(table_[kept].after); },
              "I2: two free blocks are neighbours");
  audit();
}

/// Moves the border between a live block and the free block to its right.
void range_allocator::move_border(std::uint32_t index, std::uint32_t count_granules) noexcept {
  block_record& block = table_[index];
  const std::uint32_t after = block.after;
  check(is_free(after) && count_granules != 0, "a border is moved into a live block");
  withdraw(after);
  block_record& rest = table_[after];
  const std::uint32_t both = block.size + rest.size;
  check(count_granules <= both, "a border is moved out of the two blocks");
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
  check(state_.high_water <= state_.count_granules && state_.free_granules <= state_.count_granules,
        "a border is moved out of the range");
}

std::uint32_t range_allocator::growth_limit(block_id block) const noexcept {
  const block_record& record = table_[require_live(block)];
  const std::uint32_t limit = record.size + (is_free(record.after) ? table_[record.after].size : 0);
  debug_check([&] { return record.place + limit <= state_.count_granules; }, "past the range");
  return limit;
}

status range_allocator::grow(block_id block, std::uint32_t count_granules) noexcept {
  const std::uint32_t size = table_[require_live(block)].size;
  if (count_granules < size)
    return refuse(errc::invalid_argument, "grow() takes a size that is not below the block's");
  if (count_granules == size) return {};
  if (count_granules > growth_limit(block)) {
    return refuse(errc::out_of_addresses, "too little is free behind the block: move it instead");
  }
  move_border(static_cast<std::uint32_t>(block), count_granules);
  check(where(block).count == count_granules, "a block has not grown to its size");
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
    if (!table_.provide(1)) return refusal(errc::out_of_host_memory);
    state_.free_granules += record.size - count_granules;
    check(state_.free_granules <= state_.count_granules, too_much_free);
    offer(cut(index, count_granules));
  }
  check(where(block).count == count_granules, "a block has not shrunk to its size");
  audit();
  return {};
}

result<block_id> range_allocator::split(block_id block, std::uint32_t count_left) noexcept {
  const std::uint32_t index = require_live(block);
  if (count_left == 0 || count_left >= table_[index].size) {
    return refuse(errc::invalid_argument, "split() leaves at least one granule on either side");
  }
  if (!table_.provide(1)) return refusal(errc::out_of_host_memory);
  const std::uint32_t rest = cut(index, count_left);
  check(rest != index && table_[rest].size != 0, "a block is split into itself, or nothing");
  table_.state(rest) = block_state::live;
  state_.live_blocks += 1;
  check(state_.live_blocks < table_.used_blocks(), "more blocks are live than exist");
  check(where(block).end() == where(static_cast<block_id>(rest)).offset,
        "the parts of a block are not adjacent");
  audit();
  return static_cast<block_id>(rest);
}

std::uint32_t range_allocator::largest_free() const noexcept {
  const std::uint32_t end = state_.end == 0 ? 0 : table_[state_.end].size;
  const std::uint32_t largest = std::max(end, state_.holes.largest());
  debug_check([&] { return largest <= state_.free_granules; },
              "the largest hole is not the largest");
  return largest;
}

range_statistics range_allocator::statistics() const noexcept {
  range_statistics all;
  all.count_granules = state_.count_granules;
  all.free_granules = state_.free_granules;
  all.live_granules = state_.count_granules - state_.free_granules;
  all.largest_free_granules = largest_free();
  all.high_water_granules = state_.high_water;
  all.live_blocks = state_.live_blocks;
  check(all.free_granules <= all.count_granules, too_much_free);
  check(table_.used_blocks() > table_.spare_blocks() + state_.live_blocks,
        "more blocks are live than exist");
  check((all.live_blocks == 0) == (all.live_granules == 0),
        "a block is empty, or granules have none");
  all.free_blocks = table_.used_blocks() - 1 - table_.spare_blocks() - state_.live_blocks;
  return all;
}

void range_allocator::audit_now() noexcept {
  state_.unaudited = 0;
  const status valid = validate();
  if (!valid) fail_check(valid.error().detail, std::source_location::current());
}

/// The broken invariant of one block, given the block before it and its expected begin.
const char* range_allocator::broken_block(std::uint32_t index, std::uint32_t before,
                                          std::uint32_t offset) const noexcept {
  if (index >= table_.used_blocks()) return "a neighbour link leads outside the records";
  const block_record& record = table_[index];
  if (record.before != before) return "neighbour links disagree";
  if (table_.offset(index) != offset || record.size == 0) return "I1: blocks do not tile the range";
  if (is_free(index) && is_free(before)) return "I2: two free blocks are neighbours";
  if (has(table_.state(index), block_state::behind_hole) != is_free(before))
    return "I5: a block's state is wrong about the block before it";
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
    if (block_count >= table_.used_blocks()) return "neighbour links are circular";
  }
  if (offset != state_.count_granules || table_[0].before != before)
    return "I1: blocks do not fill the range";
  if (block_count - free_count != state_.live_blocks) return "the count of live blocks is wrong";
  if (free_granules != state_.free_granules) return "the count of free granules is wrong";
  if (state_.end != (is_free(before) ? before : 0))
    return "I3: the end block is not the free last block";
  return nullptr;
}

status range_allocator::validate() const noexcept {
  std::uint32_t block_count = 0;
  std::uint32_t free_count = 0;
  const char* broken = broken_chain(block_count, free_count);
  if (broken == nullptr) broken = table_.broken_invariant(free_count);
  if (broken == nullptr)
    broken = state_.holes.broken_invariant(free_count - (state_.end != 0 ? 1 : 0));
  if (broken == nullptr && 1 + block_count + table_.spare_blocks() != table_.used_blocks())
    broken = "I4: a record is neither a block nor spare";
  if (broken != nullptr) return refuse(errc::internal, broken);
  return {};
}

}  // namespace vmm
