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

std::size_t idle_handles::surplus_stale_count() const noexcept {
  const std::uint64_t count = state_.mappings_.stale_count();
  const std::uint64_t kept = state_.sizes_.policy.tuning.stale_count_max;
  check(count != 0 || !state_.mappings_.has_listed_stale(), "the count of stale mappings is wrong");
  return count > kept ? count - kept : 0;
}

void idle_handles::stale_unmapped(mapping& gone) noexcept {
  segment& in = state_.segments().of(gone);
  check(gone.is_stale(), "a mapping in use is taken as unmapped");
  state_.mappings_.forget_stale(gone);
  const region_id region = in.region_at_unit(gone.offset);
  check(in.range(region) == gone.range(), "a stale region is not its mapping's");
  in.unmap(gone, state_.mappings_);
  in.make_hole(region);
  check(in.mapping_at(gone.offset) == nullptr, "an unmapped mapping is still recorded");
  state_.mappings_.drop(gone);
}

free_handle_walk idle_handles::begin_walk(std::uint64_t size_bytes,
                                          std::uint64_t made_for) const noexcept {
  return {.bytes_left = size_bytes,
          .looks_left = state_.mappings_.handle_count() + state_.streams_.count(),
          .made_for = made_for};
}

result<bool> idle_handles::claim_idle(free_handle_walk& walk, std::size_t looks_max,
                                      std::vector<handle_record*>& out) noexcept {
  for (std::size_t looks = 0; looks < looks_max; ++looks) {
    if (walk.bytes_left == 0 || walk.looks_left == 0) return false;
    --walk.looks_left;
    if (walk.next == nullptr || !walk.next->is_free) {
      if (walk.streams_begun == state_.streams_.count()) return false;
      const auto stream = static_cast<std::uint32_t>(walk.streams_begun++);
      walk.next = state_.mappings_.free_of(stream).largest();
      continue;
    }
    handle_record& h = *walk.next;
    check(h.memory != nullptr && h.count_granules != 0, "a free handle has no memory");
    walk.next = state_.mappings_.free_of(h.stream).next_smaller(h);
    const bool is_claimed =
        walk.made_for == 0 ? is_idle(h) : h.made_for == walk.made_for && is_unused(h);
    if (!is_claimed) {
      walk.waiting_bytes += h.memory->size_bytes;
      continue;
    }
    if (status room = reserve_more(out, 1); !room) return room.error();
    if (status claimed = claim_handle(h); !claimed) return claimed.error();
    out.push_back(&h);
    walk.bytes_left -= std::min(walk.bytes_left, h.memory->size_bytes);
  }
  return true;
}

physical_memory& idle_handles::handle_unmapped(handle_record& gone) noexcept {
  check(gone.stale_mappings == nullptr, "a handle with a stale mapping is released");
  mapping& m = *gone.current;
  check(!m.is_stale() && m.of == &gone, "a handle's address is not the one in its record");
  check(!gone.is_free && m.live_granules == 0, "a handle in use is taken as unmapped");
  segment& in = state_.segments().of(m);
  const region_id region = in.join_regions(m);
  in.unmap(m, state_.mappings_);
  in.make_hole(region);
  state_.mappings_.drop(m);
  check(gone.memory != nullptr, "a handle has no memory");
  physical_memory& memory = *gone.memory;
  state_.mappings_.remove_handle(gone);
  state_.mappings_.drop(gone);
  return memory;
}

void idle_handles::handle_stays(handle_record& kept) noexcept {
  check(kept.current != nullptr && !kept.current->is_stale(), "an unmapped handle is retained");
  check(kept.stale_mappings == nullptr || kept.stale_mappings->is_stale(),
        "a handle names a mapping in use as stale");
  kept.current->is_announced = false;
  return_handle(kept);
}

status idle_handles::claim_handle(handle_record& h) noexcept {
  const mapping& m = *h.current;
  check(m.of == &h && m.live_granules == 0, "a handle in use is claimed");
  segment& in = state_.segments().of(m);
  if (status cut = in.cut_at_borders(m.range()); !cut) return cut;
  state_.mappings_.leave_free(h);
  in.for_each_region(m, [&](region_id region) { in.claim_free(region); });
  check(!h.is_free, "a handle that is claimed may be claimed again");
  return {};
}

void idle_handles::return_handle(handle_record& h) noexcept {
  const mapping& m = *h.current;
  check(!h.is_free, "pool_state I5: an unclaimed handle is returned");
  check(!m.is_stale() && m.of == &h, "a handle's address is not the one in its record");
  segment& in = state_.segments().of(m);
  in.for_each_region(m, [&](region_id region) { in.return_claim(region, state_.streams_); });
  check(m.live_granules == 0, "a handle in use is returned");
  state_.mappings_.enter_free(h, state_.now_for(h.stream));
}

bool idle_handles::is_idle(const handle_record& h) const noexcept {
  const mapping& m = *h.current;
  check(h.is_free, "a handle in use is handled as idle");
  const segment& in = state_.segments().of(m);
  const bool passed = in.all_regions(
      m, [&](region_id region) { return state_.streams_.passed(in.freed_at(region)); });
  if (!passed) return false;
  for (const mapping* old = h.stale_mappings; old != nullptr; old = old->next_of_handle) {
    check(old->is_stale() && old->of == &h, "a stale mapping is another handle's");
    if (!state_.streams_.passed(old->last_use)) return false;
  }
  return true;
}

// Each free has an epoch of its own: what was freed in it since its growth is younger than that.
bool idle_handles::is_unused(const handle_record& h) const noexcept {
  check(h.made_at != 0, "a handle is looked at that no growth has mapped");
  if (h.stale_mappings != nullptr) return false;
  const segment& in = state_.segments().of(*h.current);
  return in.all_regions(*h.current, [&](region_id region) {
    const stream_point freed = in.freed_at(region);
    return freed.epoch <= h.made_at || state_.streams_.passed(freed);
  });
}

status idle_handles::list_current(std::vector<mapping*>& out) const noexcept {
  try {
    for (const auto& in : state_.segments_) {
      const region_map& regions = in->regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
        const granule_range where = in->range(r);
        for (std::uint32_t at = where.offset; at < where.end();) {
          mapping* const m = in->mapping_at(at);
          if (m == nullptr) break;  // a hole is one region
          check(m->offset <= at && at < m->end(),
                "a mapping's address is not the one in the table");
          if (!m->is_stale() && (out.empty() || out.back() != m)) out.push_back(m);
          at = m->end();
        }
      }
    }
    return {};
  } catch (const std::bad_alloc&) {
    return no_record_memory;
  }
}

}  // namespace vmm
