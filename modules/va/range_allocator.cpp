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
  const std::uint64_t table =
      round_up(size_bins::table_bytes(options.count_granules), 2 * sizeof(range_node));
  range.state_.limit = blocks + 1;
  result<reserved_memory> memory =
      reserved_memory::reserve(table + range.state_.limit * sizeof(range_node));
  if (!memory) return memory.error();
  range.memory_ = std::move(*memory);
  range.state_.nodes = reinterpret_cast<range_node*>(range.memory_.data() + table);
  result<record_bits> live = record_bits::reserve(range.state_.limit);
  if (!live) return live.error();
  range.live_ = std::move(*live);
  if (options.look_up) {
    result<address_index::owner> index =
        address_index::create(range.state_.nodes, range.state_.limit);
    if (!index) return index.error();
    range.index_ = std::move(*index);
  }
  if (!range.commit_records(2)) return refusal(errc::out_of_host_memory);
  range.start(options);
  return result<range_allocator>(std::move(range));
}

/// One end block over the whole range.
void range_allocator::start(const range_options& options) noexcept {
  state_.bins.attach(state_.nodes, memory_.data(), options.count_granules);
  range_node* const ends = state_.nodes;
  *ends = range_node{0, 0, 1, 1, {free_links{}}};
  ends[1] = range_node{0, options.count_granules, 0, 0, {free_links{}}};
  state_.end = 1;
  state_.used = 2;
  state_.count_granules = options.count_granules;
  state_.free_granules = options.count_granules;
  state_.origin = options.origin_granules;
  if (index_ != nullptr) index_->insert_first(1);
}

bool range_allocator::provide_records(std::uint32_t count) noexcept {
  const std::uint32_t at_hand = state_.spare_count + (state_.committed - state_.used);
  return at_hand >= count || commit_records(state_.used + (count - state_.spare_count));
}

/// Memory for the first `count` records.
bool range_allocator::commit_records(std::uint32_t count) noexcept {
  if (count > state_.limit) return false;
  const auto table =
      static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(state_.nodes) - memory_.data());
  if (!memory_.commit(table + std::uint64_t{count} * sizeof(range_node))) return false;
  const std::uint64_t room = (memory_.committed_bytes() - table) / sizeof(range_node);
  const auto committed = static_cast<std::uint32_t>(std::min<std::uint64_t>(room, state_.limit));
  if (!live_.commit(committed)) return false;
  if (index_ != nullptr && !index_->commit(committed)) return false;
  state_.committed = committed;
  return true;
}

/// Leaves `count_left` granules in the block; the rest becomes a new free block to its right that
/// nobody offers yet.
inline std::uint32_t range_allocator::cut(std::uint32_t index, std::uint32_t count_left) noexcept {
  std::uint32_t rest = state_.spare;
  if (rest != 0) {
    state_.spare = state_.nodes[rest].after;
    --state_.spare_count;
  } else {
    rest = state_.used++;
  }
  range_node& left = state_.nodes[index];
  range_node& right = state_.nodes[rest];
  right.offset = left.offset + count_left;
  right.size_word = left.size() - count_left;
  right.before = index;
  right.after = left.after;
  state_.nodes[left.after].before = rest;
  left.after = rest;
  left.size_word -= right.size_word;
  if (index_ != nullptr) index_->insert_after(index, rest);
  return rest;
}

/// The block takes over its right neighbour's granules; the neighbour's record becomes spare.
void range_allocator::absorb_after(std::uint32_t index) noexcept {
  range_node& left = state_.nodes[index];
  const std::uint32_t gone = left.after;
  range_node& right = state_.nodes[gone];
  if (index_ != nullptr) index_->erase(gone);
  left.size_word += right.size();
  left.after = right.after;
  state_.nodes[right.after].before = index;
  right.size_word = 0;
  right.after = state_.spare;
  state_.spare = gone;
  ++state_.spare_count;
}

/// Takes a free block out of the bins, or out of its place as the end block.
inline void range_allocator::withdraw(std::uint32_t hole) noexcept {
  if (hole == state_.end) {
    state_.end = 0;
  } else {
    state_.bins.remove(hole);
  }
}

/// The reverse of withdraw.
inline void range_allocator::offer(std::uint32_t hole) noexcept {
  if (state_.nodes[hole].after == 0) {
    state_.end = hole;
  } else {
    state_.bins.insert(hole);
  }
}

/// Makes a live block of a free one of `count` granules that nobody offers any more. Does not touch
/// the high-water mark: a hole from the bins has a live block above it.
inline range_allocator::outcome range_allocator::hand_out(std::uint32_t index,
                                                          std::uint32_t count) noexcept {
  range_node& block = state_.nodes[index];
  std::construct_at(&block.owner);
  live_.set(index);
  state_.free_granules -= count;
  state_.live_blocks += 1;
  audit();
  return {static_cast<block_id>(index), errc::none};
}

/// Makes a live block of part of a free one; what is left over on either side stays free.
inline range_allocator::outcome range_allocator::carve(std::uint32_t hole,
                                                       granule_range where) noexcept {
  const range_node& node = state_.nodes[hole];
  const std::uint32_t lead = where.offset - node.offset;
  const std::uint32_t tail = node.size() - lead - where.count;
  const std::uint32_t pieces = (lead != 0 ? 1u : 0u) + (tail != 0 ? 1u : 0u);
  if (pieces != 0 && !provide_records(pieces)) [[unlikely]]
    return {block_id::none, errc::out_of_host_memory};
  withdraw(hole);
  state_.high_water = std::max(state_.high_water, where.end());
  std::uint32_t block = hole;
  if (lead != 0) {
    block = cut(hole, lead);
    offer(hole);
  }
  if (tail != 0) offer(cut(block, where.count));
  return hand_out(block, where.count);
}

range_allocator::outcome range_allocator::take(granule_request request) noexcept {
  if (request.alignment_granules != 1) [[unlikely]]
    return take_aligned(request);
  const std::uint32_t count = request.count_granules;
  if (count - 1 >= state_.count_granules) [[unlikely]] {
    return {block_id::none, count == 0 ? errc::invalid_argument : errc::out_of_addresses};
  }
  if (count < size_bins::exact_bins) {
    const std::uint32_t hole = state_.bins.pop_exact(count);
    if (hole != 0) return hand_out(hole, count);
  }
  return take_any(count);
}

/// What take() does where no hole has exactly the size.
range_allocator::outcome range_allocator::take_any(std::uint32_t count) noexcept {
  std::uint32_t hole = state_.bins.find(count);
  if (hole == 0) {
    hole = state_.end;
    if (hole == 0 || state_.nodes[hole].size() < count)
      return {block_id::none, errc::out_of_addresses};
  }
  return carve(hole, {state_.nodes[hole].offset, count});
}

range_allocator::outcome range_allocator::take_aligned(granule_request request) noexcept {
  const aligned_fit wanted{request.count_granules, request.alignment_granules, state_.origin};
  if (wanted.count == 0 || !std::has_single_bit(wanted.alignment))
    return {block_id::none, errc::invalid_argument};
  if (wanted.count > state_.count_granules) return {block_id::none, errc::out_of_addresses};
  std::uint32_t hole = state_.bins.find(wanted.count);
  if (hole == 0 || !wanted.fits(state_.nodes[hole])) {
    const std::uint64_t sure = std::uint64_t{wanted.count} + wanted.alignment - 1;
    hole = sure <= state_.count_granules ? state_.bins.find(static_cast<std::uint32_t>(sure)) : 0;
    if (hole == 0 && state_.end != 0 && wanted.fits(state_.nodes[state_.end])) hole = state_.end;
    if (hole == 0) hole = state_.bins.find_aligned(wanted);
    if (hole == 0) return {block_id::none, errc::out_of_addresses};
  }
  const std::uint32_t offset = state_.nodes[hole].offset;
  return carve(hole, {offset + wanted.lead(offset), wanted.count});
}

result<block_id> range_allocator::allocate_at(granule_range where) noexcept {
  if (index_ == nullptr)
    return refuse(errc::not_supported, "a place can be asked for only with look_up on");
  const std::uint64_t end = std::uint64_t{where.offset} + where.count;
  if (where.count == 0 || end > state_.count_granules) {
    return refuse(errc::invalid_argument, "the place asked for is empty or not inside the range");
  }
  const std::uint32_t hole = index_->find(where.offset);
  const range_node& node = state_.nodes[hole];
  if (!is_free(hole) || std::uint64_t{node.offset} + node.size() < end) {
    return refuse(errc::overlap, "the place asked for is not wholly free");
  }
  const outcome taken = carve(hole, where);
  if (taken.id == block_id::none) return refusal(taken.why);
  return taken.id;
}

void range_allocator::free(block_id block) noexcept {
  const auto index = static_cast<std::uint32_t>(block);
  check(index < state_.used, "not a block of this allocator");
  check(live_.clear(index), not_live);
  const range_node freed = state_.nodes[index];
  state_.free_granules += freed.size();
  state_.live_blocks -= 1;
  if (live_.test(freed.before) && live_.test(freed.after)) [[likely]] {
    state_.bins.insert(index, freed.size());
    audit();
  } else {
    merge(index);
  }
}

/// Offers a free block together with its free neighbours, or as the end block.
[[gnu::noinline]] void range_allocator::merge(std::uint32_t index) noexcept {
  const std::uint32_t before = state_.nodes[index].before;
  const std::uint32_t after = state_.nodes[index].after;
  std::uint32_t kept = index;
  if (is_free(before)) {
    state_.bins.remove(before);
    absorb_after(before);
    kept = before;
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
  range_node& block = state_.nodes[index];
  const std::uint32_t after = block.after;
  range_node& hole = state_.nodes[after];
  const std::uint32_t both = block.size() + hole.size();
  withdraw(after);
  state_.free_granules -=
      count_granules - block.size();  // modulo 2^32: the block may become smaller
  if (count_granules == both) {
    absorb_after(index);
  } else {
    block.size_word = count_granules;
    hole.offset = block.offset + count_granules;
    hole.size_word = both - count_granules;
    offer(after);
  }
  state_.high_water = std::max(state_.high_water, block.offset + count_granules);
}

std::uint32_t range_allocator::growth_limit(block_id block) const noexcept {
  const range_node& node = state_.nodes[require_live(block)];
  const range_node& after = state_.nodes[node.after];
  return node.size() + (is_free(node.after) ? after.size() : 0);
}

status range_allocator::grow(block_id block, std::uint32_t count_granules) noexcept {
  const std::uint32_t index = require_live(block);
  const std::uint32_t size = state_.nodes[index].size();
  if (count_granules < size)
    return refuse(errc::invalid_argument, "grow() takes a size that is not below the block's");
  if (count_granules == size) return {};
  if (count_granules > growth_limit(block)) {
    return refuse(errc::out_of_addresses,
                  "too little is free to the right of the block; move it instead");
  }
  move_border(index, count_granules);
  audit();
  return {};
}

status range_allocator::shrink(block_id block, std::uint32_t count_granules) noexcept {
  const std::uint32_t index = require_live(block);
  const range_node& node = state_.nodes[index];
  if (count_granules == 0 || count_granules > node.size()) {
    return refuse(errc::invalid_argument,
                  "shrink() takes a size from one granule to the block's own");
  }
  if (count_granules == node.size()) return {};
  if (is_free(node.after)) {
    move_border(index, count_granules);
  } else {
    if (!provide_records(1)) return refusal(errc::out_of_host_memory);
    state_.free_granules += node.size() - count_granules;
    offer(cut(index, count_granules));
  }
  audit();
  return {};
}

result<block_id> range_allocator::split(block_id block, std::uint32_t count_left) noexcept {
  const std::uint32_t index = require_live(block);
  if (count_left == 0 || count_left >= state_.nodes[index].size()) {
    return refuse(errc::invalid_argument, "split() leaves at least one granule on either side");
  }
  if (!provide_records(1)) return refusal(errc::out_of_host_memory);
  const std::uint32_t rest = cut(index, count_left);
  range_node& right = state_.nodes[rest];
  live_.set(rest);
  std::construct_at(&right.owner);
  state_.live_blocks += 1;
  audit();
  return static_cast<block_id>(rest);
}

void range_allocator::join(block_id left, block_id right) noexcept {
  const std::uint32_t index = require_live(left);
  check(require_live(right) == state_.nodes[index].after,
        "join() takes two neighbours, the left one first");
  (void)live_.clear(static_cast<std::uint32_t>(right));
  absorb_after(index);
  state_.live_blocks -= 1;
  audit();
}

result<block_id> range_allocator::find(std::uint32_t offset) const noexcept {
  if (index_ == nullptr)
    return refuse(errc::not_supported, "blocks can be looked up only with look_up on");
  if (offset >= state_.count_granules) return refuse(errc::unknown_address, "not inside the range");
  const std::uint32_t found = index_->find(offset);
  if (!live_.test(found)) return refuse(errc::not_allocated, "inside the range, but free");
  return static_cast<block_id>(found);
}

std::uint32_t range_allocator::largest_free() const noexcept {
  const std::uint32_t end = state_.end == 0 ? 0 : state_.nodes[state_.end].size();
  return std::max(end, state_.bins.largest());
}

range_statistics range_allocator::statistics() const noexcept {
  range_statistics all;
  all.count_granules = state_.count_granules;
  all.free_granules = state_.free_granules;
  all.live_granules = state_.count_granules - state_.free_granules;
  all.largest_free_granules = largest_free();
  all.high_water_granules = state_.high_water;
  all.live_blocks = state_.live_blocks;
  all.free_blocks = state_.used - 1 - state_.spare_count - state_.live_blocks;
  return all;
}

/// Validates the whole structure once for every so many operations as there are blocks, so that a
/// test's cost stays proportional to its operations.
inline void range_allocator::audit() noexcept {
  if constexpr (check_level >= 3) {
    state_.unaudited += 1;
    if (state_.unaudited < std::max(64u, state_.used - state_.spare_count)) return;
    state_.unaudited = 0;
    const status valid = validate();
    if (!valid) fail_check(valid.error().detail, std::source_location::current());
  }
}

const char* range_allocator::broken_chain(std::uint32_t& block_count,
                                          std::uint32_t& free_count) const noexcept {
  std::uint32_t offset = 0;
  std::uint32_t before = 0;
  std::uint32_t live_count = 0;
  std::uint32_t free_granules = 0;
  for (std::uint32_t index = state_.nodes[0].after; index != 0; index = state_.nodes[index].after) {
    const range_node& node = state_.nodes[index];
    if (index >= state_.used) return "a neighbour link leads outside the records";
    if (node.before != before) return "neighbour links disagree";
    if (node.offset != offset || node.size() == 0) return "blocks do not tile the range";
    if (is_free(index) && is_free(before)) return "two free blocks are neighbours";
    offset += node.size();
    before = index;
    live_count += live_.test(index) ? 1 : 0;
    free_granules += live_.test(index) ? 0 : node.size();
    ++block_count;
    if (block_count >= state_.used) return "neighbour links form a circle";
  }
  if (offset != state_.count_granules || state_.nodes[0].before != before)
    return "blocks do not fill the range";
  if (live_count != state_.live_blocks) return "the count of live blocks is wrong";
  if (free_granules != state_.free_granules) return "the count of free granules is wrong";
  if (state_.end != (is_free(before) ? before : 0))
    return "the end block is not the free last block";
  free_count = block_count - live_count;
  return nullptr;
}

status range_allocator::validate() const noexcept {
  std::uint32_t block_count = 0;
  std::uint32_t free_count = 0;
  const char* broken = broken_chain(block_count, free_count);
  if (broken == nullptr)
    broken = state_.bins.broken_invariant(free_count - (state_.end != 0 ? 1 : 0), &live_);
  if (broken == nullptr && index_ != nullptr) broken = index_->broken_invariant(block_count);
  std::uint32_t spare_count = 0;
  for (std::uint32_t index = state_.spare; index != 0 && spare_count < state_.used;
       index = state_.nodes[index].after) {
    if (live_.test(index)) broken = "a spare record is live";
    if (state_.nodes[index].size_word != 0) broken = "a spare record has a size";
    ++spare_count;
  }
  if (spare_count != state_.spare_count) broken = "the count of spare records is wrong";
  if (1 + block_count + spare_count != state_.used)
    broken = "a record is neither a block nor spare";
  if (live_.test(0)) broken = "the record at the ends is live";
  if (broken != nullptr) return refuse(errc::internal, broken);
  return {};
}

}  // namespace vmm
