// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

const char* segment_audit::broken_region(region_id region) const noexcept {
  const granule_range where = of_.range(region);
  const region_kind own = of_.kind(region);
  check(where.count != 0 && where.end() <= of_.regions_.count_granules(),
        "a region is empty, or leaves its segment");
  if (of_.is_claimed(region)) return nullptr;
  const mapping* const first = of_.mapping_at(where.offset);
  const mapping* const last = of_.mapping_at(where.end() - 1);
  const bool alone =
      own == region_kind::unlisted ||
      (of_.kind(of_.regions_.before(region)) != own && of_.kind(of_.regions_.after(region)) != own);
  if (own == hole_kind) {
    if (of_.regions_.link(region) != nullptr) return "a hole has a mapping";
    if (first != nullptr || last != nullptr) return "a hole has memory under it";
    return alone ? nullptr : "two holes are neighbours";
  }
  if (first == nullptr || last == nullptr) return "a region other than a hole has no memory";
  if (is_free_kind(own)) {
    const void* const known = of_.regions_.link(region);
    if (known != nullptr && known != first) return "a free region lacks the link to its start";
    return alone ? nullptr : "two free neighbours are not coalesced";
  }
  if (state_of(of_.regions_.tag(region)) == region_state::stale) {
    if (of_.regions_.word(region) != reinterpret_cast<std::uint64_t>(first) || !first->is_stale())
      return "a stale region lacks its mapping";
    return where == first->range() ? nullptr : "a stale region is not its mapping's";
  }
  if (of_.is_lent(region)) {
    const auto joins = [&](region_id neighbour) {
      return of_.is_lent(neighbour) && of_.lent_to(neighbour) == of_.lent_to(region);
    };
    const bool joined = joins(of_.regions_.before(region)) || joins(of_.regions_.after(region));
    return joined ? "two adjacent ranges of one arena are not coalesced" : nullptr;
  }
  return of_.regions_.link(region) == first ? nullptr : "a block lacks the link to its start";
}

const char* segment_audit::broken_tables() const noexcept {
  if (const char* broken = of_.blocks_.broken_invariant(); broken != nullptr) return broken;
  return of_.locked_.broken_invariant();
}

std::uint32_t segment_audit::check_all() const noexcept {
  std::uint32_t seen = 0;
  const region_map& regions = of_.regions_;
  for (region_id r = regions.first(); r != region_id::none; r = regions.after(r), ++seen)
    paranoid_check([&] { return broken_region(r) == nullptr; }, "a region of a segment is broken");
  paranoid_check([&] { return broken_tables() == nullptr; }, "a segment's tables are broken");
  return std::max(64u, seen + 32 * of_.blocks_.count() / 8);
}

}  // namespace vmm
