// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:caching - expandable segments: one reservation for each pool and stream, larger than the
// device, mapped in pages.
module vmm.fit;

import vmm.base;
import vmm.std;

namespace vmm::tools {

namespace {

constexpr std::uint64_t small_page_bytes = std::uint64_t{2} << 20;
// A reservation where the device's memory has no known size.
constexpr std::uint64_t usual_device_bytes = std::uint64_t{1} << 42;

}  // namespace

void caching_model::adopt(const start_layout& layout, std::span<block_number> blocks) {
  const std::uint32_t pool = pool_of({0, layout.stream, layout.pool}, layout.is_small);
  const std::uint64_t page_bytes =
      layout.is_small ? small_page_bytes : options_.large_segment_bytes;
  segment_record segment{layout.base, 0, layout.is_expandable ? page_bytes : 0};
  block made;
  made.base = layout.base;
  made.segment = static_cast<std::uint32_t>(segments_.size());
  made.pool = pool;
  made.stream = layout.stream;
  made.is_expandable = layout.is_expandable;
  std::vector<start_part> parts = layout.parts;
  constexpr std::uint64_t room_bytes = usual_device_bytes;
  if (layout.is_expandable) parts.push_back({room_bytes, start_part_kind::unmapped, 0});
  std::uint32_t last = 0;
  for (const start_part& each : parts) {
    made.size_bytes = each.size_bytes;
    made.is_live = each.kind == start_part_kind::live;
    made.is_mapped = each.kind != start_part_kind::unmapped;
    made.previous = made.next = 0;
    const std::uint32_t number = add_block(made);
    if (last != 0) insert_after(number, last);
    last = number;
    made.base += each.size_bytes;
    segment.size_bytes += each.size_bytes;
    if (made.is_mapped) held_bytes_ += each.size_bytes;
    if (made.is_live) blocks[each.slot] = static_cast<block_number>(number);
    if (each.kind == start_part_kind::free) insert_free(number);
    if (!made.is_mapped) pools_[pool].unmapped.emplace(address_key_of(number), number);
  }
  peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  segments_.push_back(segment);
  if (!layout.is_expandable)
    native_segments_.emplace(segment.base, segment.base + segment.size_bytes);
}

bool caching_model::is_allocatable(std::uint32_t number) const noexcept {
  return number != 0 && !blocks_[number].is_live;
}

bool caching_model::has_room(std::uint32_t first, std::uint64_t size_bytes) const noexcept {
  std::uint64_t bytes = 0;
  for (std::uint32_t each = first; bytes < size_bytes && is_allocatable(each);
       each = blocks_[each].next)
    bytes += blocks_[each].size_bytes;
  return bytes >= size_bytes;
}

// The unmapped addresses of the lowest place, with a free block just before them, that suffice
// together with free memory behind them; else those of a new reservation.
std::uint32_t caching_model::find_expandable(const search& wanted) {
  block_pool& pool = pools_[wanted.pool];
  for (auto at = pool.unmapped.lower_bound({wanted.stream, 0, 0});
       at != pool.unmapped.end() && at->first.stream == wanted.stream; ++at) {
    const std::uint32_t before = blocks_[at->second].previous;
    const std::uint32_t first = is_allocatable(before) ? before : at->second;
    if (has_room(first, wanted.size_bytes)) return first;
  }
  const std::uint64_t page_bytes = pool.is_small ? small_page_bytes : options_.large_segment_bytes;
  const std::uint64_t device_bytes =
      device_.device_bytes == no_size ? usual_device_bytes : device_.device_bytes;
  block made;
  made.size_bytes = (device_bytes + device_bytes / 8) / page_bytes * page_bytes + page_bytes;
  if (wanted.size_bytes > made.size_bytes) return 0;
  made.base = reserve(made.size_bytes);
  made.segment = static_cast<std::uint32_t>(segments_.size());
  made.pool = wanted.pool;
  made.stream = wanted.stream;
  made.is_mapped = false;
  made.is_expandable = true;
  segments_.push_back({made.base, made.size_bytes, page_bytes});
  const std::uint32_t number = add_block(made);
  pool.unmapped.emplace(address_key_of(number), number);
  return number;
}

// A part is mapped whole or not at all; parts that were mapped before one that fails stay, free.
std::uint32_t caching_model::grow_expandable(const search& wanted) {
  std::uint32_t found = find_expandable(wanted);
  if (found == 0) return 0;
  if (!blocks_[found].is_mapped)
    if (!map(found, std::min(blocks_[found].size_bytes, wanted.size_bytes))) return 0;
  while (blocks_[found].size_bytes < wanted.size_bytes) {
    const std::uint64_t left_bytes = wanted.size_bytes - blocks_[found].size_bytes;
    const std::uint32_t next = blocks_[found].next;
    if (!map(next, std::min(left_bytes, blocks_[next].size_bytes))) return 0;
    found = next;  // has joined the block before it
  }
  pools_[wanted.pool].free.erase(key_of(found));
  return found;
}

bool caching_model::map(std::uint32_t number, std::uint64_t size_bytes) {
  const std::uint64_t page_bytes = segments_[blocks_[number].segment].page_bytes;
  const std::uint64_t bytes = (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
  debug_check([&] { return !blocks_[number].is_mapped && bytes <= blocks_[number].size_bytes; },
              "more is mapped than there are addresses");
  if (!charge(bytes)) return false;
  block_pool& pool = pools_[blocks_[number].pool];
  pool.unmapped.erase(address_key_of(number));
  if (bytes < blocks_[number].size_bytes) {
    block rest = blocks_[number];
    rest.base += bytes;
    rest.size_bytes -= bytes;
    const std::uint32_t added = add_block(rest);
    insert_after(added, number);
    pool.unmapped.emplace(address_key_of(added), added);
  }
  blocks_[number].is_mapped = true;
  blocks_[number].size_bytes = bytes;
  notify({segment_action::map, bytes, blocks_[number].base});
  merge(number, blocks_[number].previous);
  merge(number, blocks_[number].next);
  insert_free(number);
  return true;
}

// Releases the whole pages inside a free block, and reservations without any.
void caching_model::unmap(std::uint32_t number) {
  const block from = blocks_[number];
  const segment_record& segment = segments_[from.segment];
  const std::uint64_t page_bytes = segment.page_bytes;
  const std::uint64_t begin_bytes = from.base - segment.base;
  const std::uint64_t first = (begin_bytes + page_bytes - 1) / page_bytes * page_bytes;
  const std::uint64_t end = (begin_bytes + from.size_bytes) / page_bytes * page_bytes;
  if (first >= end) return;
  block_pool& pool = pools_[from.pool];
  pool.free.erase(key_of(number));
  if (first > begin_bytes) {
    block before = from;
    before.size_bytes = first - begin_bytes;
    before.previous = before.next = 0;
    const std::uint32_t added = add_block(before);
    if (from.previous != 0) {
      insert_after(added, from.previous);
    } else {
      blocks_[added].next = number;
      blocks_[number].previous = added;
    }
    insert_free(added);
  }
  if (end < begin_bytes + from.size_bytes) {
    block after = from;
    after.base = segment.base + end;
    after.size_bytes = begin_bytes + from.size_bytes - end;
    const std::uint32_t added = add_block(after);
    insert_after(added, number);
    insert_free(added);
  }
  blocks_[number].base = segment.base + first;
  blocks_[number].size_bytes = end - first;
  blocks_[number].is_mapped = false;
  held_bytes_ -= end - first;
  notify({segment_action::unmap, end - first, segment.base + first});
  merge(number, blocks_[number].previous);
  merge(number, blocks_[number].next);
  if (blocks_[number].previous == 0 && blocks_[number].next == 0) return remove_block(number);
  pool.unmapped.emplace(address_key_of(number), number);
}

}  // namespace vmm::tools
