// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

const char* segment::broken_region(region_id region) const noexcept {
  const granule_range where = range(region);
  const region_kind own = kind(region);
  check(where.count != 0 && where.end() <= regions_.count_granules(),
        "a region is empty, or leaves its segment");
  if (is_claimed(region)) return nullptr;
  const mapping* const first = mapping_at(where.offset);
  const mapping* const last = mapping_at(where.end() - 1);
  const bool alone = own == region_kind::unlisted ||
                     (kind(regions_.before(region)) != own && kind(regions_.after(region)) != own);
  if (own == hole_kind) {
    if (regions_.link(region) != nullptr) return "a hole has a mapping";
    if (first != nullptr || last != nullptr) return "a hole has memory under it";
    return alone ? nullptr : "two holes are neighbours";
  }
  if (first == nullptr || last == nullptr) return "a region other than a hole has no memory";
  if (is_free_kind(own)) {
    const void* const known = regions_.link(region);
    if (known != nullptr && known != first) return "a free region lacks the link to its start";
    return alone ? nullptr : "two free neighbours are not merged";
  }
  if (state_of(regions_.tag(region)) == region_state::stale) {
    if (regions_.word(region) != reinterpret_cast<std::uint64_t>(first) || !first->is_stale())
      return "a stale region lacks its mapping";
    return where == first->range() ? nullptr : "a stale region is not its mapping's";
  }
  if (is_lent(region)) {
    const auto joins = [&](region_id neighbour) {
      return is_lent(neighbour) && lent_to(neighbour) == lent_to(region);
    };
    const bool joined = joins(regions_.before(region)) || joins(regions_.after(region));
    return joined ? "two adjacent ranges of one arena are not coalesced" : nullptr;
  }
  return regions_.link(region) == first ? nullptr : "a block lacks the link to its start";
}

const char* segment::broken_tables() const noexcept {
  if (const char* broken = blocks_.broken_invariant(); broken != nullptr) return broken;
  return locked_.broken_invariant();
}

// Every region once for every so many changes as there are regions, so that a test's cost stays
// proportional to its calls.
void segment::audit_now() noexcept {
  unaudited_ = 0;
  std::uint32_t seen = 0;
  for (region_id r = regions_.first(); r != region_id::none; r = regions_.after(r), ++seen)
    paranoid_check([&] { return broken_region(r) == nullptr; }, "a region of a segment is broken");
  paranoid_check([&] { return broken_tables() == nullptr; }, "a segment's tables are broken");
  audit_cost_ = std::max(64u, seen + 32 * blocks_.count() / 8);
}

}  // namespace vmm
