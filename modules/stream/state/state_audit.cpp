// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

// Most of a segment is a hole: as many units at a time are seen to be empty.
constexpr std::uint32_t units_at_a_look = 64;
constexpr const mapping* nothing_mapped[units_at_a_look] = {};

}  // namespace

status state_audit::validate() const noexcept {
  if (state_.deferred_ != region_id::none)
    return refuse(errc::internal, "pool_state I7: a deferred free was not finished");
  sums seen;
  for (const auto& in : state_.segments_) {
    if (status valid = in->regions().validate(); !valid) return valid;
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      if (const char* broken = broken_region(*in, r, seen); broken != nullptr)
        return refuse(errc::internal, broken);
    }
    for (const char* broken : {broken_mappings(*in, seen), broken_tables(*in, seen)}) {
      if (broken != nullptr) return refuse(errc::internal, broken);
    }
  }
  for (const char* broken :
       {broken_sums(seen), state_.mappings_.broken_invariant(), state_.streams_.broken_invariant(),
        state_.captures_.broken_invariant(state_.streams_),
        arena_lending::broken_invariant(state_)}) {
    if (broken != nullptr) return refuse(errc::internal, broken);
  }
  return {};
}

// Checks that need more than the region's own segment.
const char* state_audit::broken_region(const segment& in, region_id region,
                                       sums& seen) const noexcept {
  if (const char* broken = segment_audit(in).broken_region(region); broken != nullptr)
    return broken;
  const granule_range where = in.range(region);
  const region_kind kind = in.kind(region);
  if (kind == hole_kind) return nullptr;
  const region_state state = state_of(in.regions().tag(region));
  if (kind == region_kind::unlisted && state == region_state::stale) {
    ++seen.stale_count;
    return nullptr;
  }
  check(where.count != 0, "a region is empty");
  seen.owned += where.count;
  if (in.is_lent(region)) {
    seen.live += where.count;
    return nullptr;
  }
  if (is_free_kind(kind)) {
    if (in.regions().word(region) > state_.streams_.progress().last_epoch(stream_of(kind)))
      return "a free region is newer than its stream";
    if (state_.streams_.is_capture(stream_of(kind))) seen.live += where.count;
    return nullptr;
  }
  if (state != region_state::live) return "a region is claimed while no growth is under way";
  seen.live += where.count;
  const bool plain = in.blocks().find(where.offset) == region;
  const bool locked = in.locked_blocks().find(where.offset) == region;
  if (plain && in.regions().word(region) != 0) return "an unlocked block has a lock record";
  if (locked && in.lock_of(region).pins != 0) ++seen.pinned_count;
  seen.block_count += plain ? 1U : 0U;
  seen.locked_count += locked ? 1U : 0U;
  return plain != locked ? nullptr : "a block is in no table, or in both";
}

const char* state_audit::broken_mapping(const segment& in, const mapping& m,
                                        sums& seen) const noexcept {
  if (m.is_stale()) return nullptr;
  if (m.of == nullptr || m.of->current != &m) return "a current mapping is not its handle's";
  seen.handle_granules += m.count_granules;
  check(m.count_granules != 0, "a mapping is empty");
  std::uint64_t live = 0;
  in.for_each_region(m, [&](region_id region) {
    const granule_range where = in.range(region);
    const region_kind kind = in.kind(region);
    const bool kept = is_free_kind(kind) && state_.streams_.is_capture(stream_of(kind));
    if (kind == region_kind::unlisted || kept)
      live += std::min(where.end(), m.end()) - std::max(where.offset, m.offset);
  });
  if (live != m.live_granules) return "a handle's count of live granules is wrong";
  return m.of->is_free == (live == 0) ? nullptr
                                      : "a handle is free and not in a list, or the reverse";
}

// Up to the hole at the end, which is nearly all of a segment: a mapping in it would be missing in
// the sums.
const char* state_audit::broken_mappings(const segment& in, sums& seen) const noexcept {
  const mapping* before = nullptr;
  const std::uint32_t unit_count = in.unit_count();
  const region_id last = in.regions().last();
  const std::uint64_t unit_granules = std::uint64_t{1} << state_.sizes_.unit_shift;
  const std::uint64_t used_count =
      in.kind(last) != hole_kind
          ? unit_count
          : round_up(in.range(last).offset, unit_granules) >> state_.sizes_.unit_shift;
  check(used_count <= unit_count, "a segment's last hole begins behind it");
  for (std::uint32_t unit = 0; unit < used_count; ++unit) {
    const mapping* const m = in.units()[unit];
    if (m == nullptr && unit % units_at_a_look == 0 && unit + units_at_a_look <= unit_count &&
        std::memcmp(&in.units()[unit], nothing_mapped, sizeof nothing_mapped) == 0) {
      before = nullptr;
      unit += units_at_a_look - 1;
      continue;
    }
    if (m != nullptr && m != before) {
      if (m->offset >> state_.sizes_.unit_shift != unit)
        return "a mapping's address is not the one in its record";
      check(m->count_granules != 0, "a mapping is empty");
      const std::uint32_t end = unit + (m->count_granules >> state_.sizes_.unit_shift);
      const bool is_end = end < unit_count && in.units()[end] == nullptr;
      if (m->is_end != is_end) return "the end of a window is not recorded, or another mapping is";
      if (const char* broken = broken_mapping(in, *m, seen); broken != nullptr) return broken;
    }
    before = m;
  }
  return nullptr;
}

// After all of its regions.
const char* state_audit::broken_tables(const segment& in, sums& seen) const noexcept {
  const std::uint64_t blocks = std::exchange(seen.block_count, 0);
  const std::uint64_t locked = std::exchange(seen.locked_count, 0);
  if (const char* broken = segment_audit(in).broken_tables(); broken != nullptr) return broken;
  const bool agree = blocks == in.blocks().count() && locked == in.locked_blocks().count();
  return agree ? nullptr : "a table of blocks has one that is not live";
}

const char* state_audit::broken_sums(const sums& seen) const noexcept {
  std::uint64_t uncounted = 0;  // lent, and not counted as live
  if (state_.arenas_.table() != nullptr) {
    state_.arenas_.table()->for_each([&](std::uint32_t number, const arena&) {
      const arena_lease& lease = state_.arenas_.table()->lease_of(number);
      uncounted += lease.lent_granules - lease.counted_granules;
    });
  }
  if (seen.live != state_.mappings_.live_granules() + uncounted)
    return "the count of live granules is wrong";
  if (seen.handle_granules != state_.mappings_.handle_granules())
    return "the count of physical granules is wrong";
  if (seen.owned != state_.mappings_.handle_granules()) return "live and free memory do not add up";
  if (seen.pinned_count != state_.totals_.pinned_count)
    return "the count of pinned blocks is wrong";
  if (seen.stale_count != state_.mappings_.stale_count())
    return "the count of stale mappings is wrong";
  return nullptr;
}

}  // namespace vmm
