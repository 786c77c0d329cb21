// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit:answer - what an allocator held before the first event of a recording: from the segments
// at the end, backward over the events.
module vmm.fit;

import vmm.recording;
import vmm.std;

namespace vmm::tools {

namespace {

struct start_segment {
  std::uint64_t end = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
  bool is_small = false;
};
using start_segments = std::map<std::uint64_t, start_segment>;

constexpr std::uint64_t small_segment_size = std::uint64_t{2} << 20;

// Expandable memory is mapped and unmapped in parts of a segment.
void add_range(start_segments& to, std::uint64_t base, start_segment made) {
  auto next = to.lower_bound(base);
  if (next != to.end() && next->first <= made.end && next->second.stream == made.stream) {
    made.end = std::max(made.end, next->second.end);
    next = to.erase(next);
  }
  if (next != to.begin()) {
    const auto before = std::prev(next);
    if (before->second.end >= base && before->second.stream == made.stream) {
      before->second.end = std::max(before->second.end, made.end);
      return;
    }
  }
  to.emplace(base, made);
}

void remove_range(start_segments& from, std::uint64_t base, std::uint64_t end) {
  auto at = from.upper_bound(base);
  if (at == from.begin()) return;
  --at;
  const start_segment whole = at->second;
  const std::uint64_t first = at->first;
  if (whole.end < end) return;  // fits to nothing that is known
  from.erase(at);
  start_segment part = whole;
  if (first < base) {
    part.end = base;
    from.emplace(first, part);
  }
  part.end = whole.end;
  if (end < whole.end) from.emplace(end, part);
}

[[nodiscard]] start_segments segments_at_start(const recording& from, std::uint64_t device) {
  start_segments out;
  for (const recorded_segment& each : from.segments) {
    if (each.device != device || each.size_bytes > no_size - each.base) continue;
    out.emplace(each.base,
                start_segment{each.base + each.size_bytes, each.stream, each.pool, each.is_small});
  }
  const auto events = events_of(from, device);
  for (std::size_t i = events.size(); i-- != 0;) {
    const recorded_event& each = events[i];
    if (each.size_bytes > no_size - each.at) continue;
    const start_segment made{each.at + each.size_bytes, static_cast<std::uint16_t>(each.stream),
                             each.pool, each.size_bytes == small_segment_size};
    switch (each.action) {
      case recorded_action::segment_alloc: out.erase(each.at); break;
      case recorded_action::segment_free: out.emplace(each.at, made); break;
      case recorded_action::segment_map: remove_range(out, each.at, made.end); break;
      case recorded_action::segment_unmap: add_range(out, each.at, made); break;
      default: break;
    }
  }
  return out;
}

// The live blocks of a segment, and the free memory between them.
void add_blocks(const request_stream& asked, std::uint64_t base, std::uint64_t end,
                start_layout& into) {
  std::uint64_t at = base;
  const auto& addresses = asked.before_addresses;
  for (auto each = std::lower_bound(addresses.begin(), addresses.end(), base);
       each != addresses.end() && *each < end; ++each) {
    const auto number = static_cast<std::size_t>(each - addresses.begin());
    const std::uint64_t rounded = (asked.requests[number].size_bytes + 511) / 512 * 512;
    const std::uint64_t size_bytes = std::min(std::max<std::uint64_t>(rounded, 512), end - *each);
    if (*each < at || size_bytes == 0) continue;
    if (*each > at) into.parts.push_back({*each - at, start_part_kind::free, 0});
    into.parts.push_back({size_bytes, start_part_kind::live, asked.requests[number].slot});
    at = *each + size_bytes;
  }
  if (at < end) into.parts.push_back({end - at, start_part_kind::free, 0});
}

}  // namespace

std::vector<start_layout> start_of(const recording& from, std::uint64_t device,
                                   const request_stream& asked, bool is_expandable) {
  std::vector<start_layout> out;
  std::map<std::uint64_t, std::size_t> layout_by_pool;  // of expandable segments
  std::map<std::size_t, std::uint64_t> ends;
  for (const auto& [base, segment] : segments_at_start(from, device)) {
    start_layout* into = nullptr;
    if (is_expandable) {
      const std::uint64_t name = std::uint64_t{segment.pool} << 17 |
                                 std::uint64_t{segment.stream} << 1 | (segment.is_small ? 1 : 0);
      const auto [found, is_new] = layout_by_pool.try_emplace(name, out.size());
      if (!is_new) {
        into = &out[found->second];
        const std::uint64_t hole_bytes = base - ends[found->second];
        if (hole_bytes != 0) into->parts.push_back({hole_bytes, start_part_kind::unmapped, 0});
      }
      ends[found->second] = segment.end;
    }
    if (into == nullptr) {
      out.push_back({base, segment.stream, segment.pool, segment.is_small, is_expandable, {}});
      into = &out.back();
    }
    add_blocks(asked, base, segment.end, *into);
  }
  return out;
}

}  // namespace vmm::tools
