// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.tracker;
import vmm.va;

namespace vmm {

namespace {

// In address order.
bool are_disjoint(const std::vector<extent_info>& listed) {
  const auto overlap = [](const extent_info& a, const extent_info& b) {
    return a.where.end() > b.where.base;
  };
  return std::adjacent_find(listed.begin(), listed.end(), overlap) == listed.end();
}

}  // namespace

error manager_report::with_figures(const error& why, std::uint64_t size_bytes) const {
  const bool is_short = is_shortage(why.code) || why.code == errc::out_of_addresses;
  if (!is_short || why.figures.requested_bytes != 0) return why;
  check(base_.blocks != nullptr, "memory is short before a manager is set up");
  error detailed = why;
  shortage_figures& figures = detailed.figures;
  figures.requested_bytes = size_bytes;
  figures.held_bytes = base_.blocks->memory().statistics().held_bytes;
  figures.largest_free_bytes =
      std::max(base_.blocks->memory().largest_cached_bytes(), base_.cache.largest_bytes());
  if (why.code == errc::over_budget && base_.options.budget_bytes != 0) {
    figures.used_bytes = figures.held_bytes;
    figures.limit_bytes = base_.options.budget_bytes;
  } else if (why.code == errc::out_of_memory) {
    const std::optional<memory_info> device = base_.blocks->memory().query_device();
    if (device) figures.limit_bytes = device->total_bytes;
    if (device) figures.used_bytes = device->used_bytes();
  } else if (why.code == errc::out_of_addresses) {
    const address_space_statistics space = base_.blocks->space().statistics();
    figures.used_bytes = space.live_bytes;
    figures.limit_bytes = space.reserved_bytes;
  }
  return detailed;
}

manager_statistics manager_report::statistics() const {
  manager_statistics numbers;
  if (!base_.is_set_up.load(std::memory_order_acquire) || !base_.made_in.is_here()) return numbers;
  numbers.live_count = base_.blocks->records().size();
  const range_sizes live = base_.blocks->records().totals();
  check(live.user_bytes <= live.mapped_bytes && live.mapped_bytes <= live.reserved_bytes,
        "the sizes of live blocks disagree");
  numbers.user_bytes = live.user_bytes;
  numbers.mapped_bytes = live.mapped_bytes;
  const physical_statistics physical = base_.blocks->memory().statistics();
  numbers.held_bytes = physical.held_bytes;
  check(physical.peak_held_bytes >= physical.held_bytes, "more memory is held than the peak");
  check(physical.memory_count <= physical.created_count, "more pieces are held than were created");
  numbers.peak_held_bytes = physical.peak_held_bytes;
  check(physical.spilled_bytes <= physical.held_bytes, "more is spilled than is held");
  numbers.spilled_bytes = physical.spilled_bytes;
  numbers.retained_bytes = physical.cached_bytes;
  numbers.created_count = physical.created_count;
  numbers.suspended_bytes = physical.suspended_bytes;
  numbers.reused_handle_count = physical.reused_count;
  numbers.retained_mapped_bytes = base_.cache.size_bytes();
  numbers.retired_bytes = base_.blocks->retired().size_bytes();
  numbers.refused_unmap_count = base_.blocks->retired().refused_count();
  const address_space_statistics space = base_.blocks->space().statistics();
  numbers.reserved_bytes = space.reserved_bytes;
  numbers.space_live_bytes = space.live_bytes;
  check(space.live_bytes <= space.reserved_bytes, "more addresses are handed out than reserved");
  check(space.high_water_bytes <= space.reserved_bytes, "more addresses were in use than reserved");
  numbers.space_high_water_bytes = space.high_water_bytes;
  numbers.reused_range_count = base_.counts.reused_range_count.load(std::memory_order_relaxed);
  numbers.grown_reuse_count = base_.counts.grown_reuse_count.load(std::memory_order_relaxed);
  numbers.unbound_range_count = base_.counts.unbound_range_count.load(std::memory_order_relaxed);
  numbers.remapped_copy_count = base_.counts.remapped_copy_count.load(std::memory_order_relaxed);
  numbers.real_copy_count = base_.counts.real_copy_count.load(std::memory_order_relaxed);
  numbers.recovery_count = base_.counts.recovery_count.load(std::memory_order_relaxed);
  return numbers;
}

result<std::vector<extent_info>> manager_report::extents() const {
  if (!base_.made_in.is_here()) return refuse_forked();
  std::vector<extent_info> listed;
  if (!base_.is_set_up.load(std::memory_order_acquire)) return listed;
  try {
    // Handed out but neither live nor cached: retired.
    base_.blocks->space().visit([&listed](address_range where, bool is_live) {
      listed.push_back({where, 0, is_live ? extent_kind::retired : extent_kind::hole});
    });
    const auto by_base = [](const extent_info& a, const extent_info& b) {
      return a.where.base < b.where.base;
    };
    std::sort(listed.begin(), listed.end(), by_base);
    debug_check([&] { return are_disjoint(listed); }, "two extents overlap");
    const auto mark = [&](const tracked_range& range, extent_kind kind) {
      const extent_info wanted{{range.base, 0}, 0, kind};
      const auto found = std::lower_bound(listed.begin(), listed.end(), wanted, by_base);
      if (found == listed.end() || found->where.base != range.base) return;
      check(range.sizes.mapped_bytes <= range.sizes.reserved_bytes,
            "more is mapped than is reserved");
      found->kind = kind;
      // What another thread has changed since the addresses were listed is as listed.
      found->mapped_bytes = std::min(range.sizes.mapped_bytes, found->where.size_bytes);
    };
    base_.blocks->records().visit(
        [&mark](const tracked_range& range) { mark(range, extent_kind::live); });
    base_.cache.visit([&mark](const block& cached) { mark(cached, extent_kind::retained); });
    while (!listed.empty() && listed.back().kind == extent_kind::hole) listed.pop_back();
    check(listed.empty() || !listed.back().where.empty(), "an extent has no addresses");
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of extents");
  }
  return listed;
}

// For vmm-top, from a thread of its own.
void manager_report::sample(top_sample& out) const noexcept {
  const manager_statistics now = statistics();
  check(out.held_bytes == 0 && out.live_bytes == 0, "a sample is written to one in use");
  out.kind = top_kind::manager;
  out.set_names(base_.options.policy.name, base_.driver->name());
  out.held_bytes = now.held_bytes;
  out.peak_held_bytes = now.peak_held_bytes;
  out.live_bytes = now.mapped_bytes;
  out.free_bytes = now.retained_bytes + now.retained_mapped_bytes;
  out.reserved_bytes = now.reserved_bytes;
  out.budget_bytes = base_.options.budget_bytes;
  out.live_count = now.live_count;
  out.slow_count = now.created_count;
}

}  // namespace vmm
