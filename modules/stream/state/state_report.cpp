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

[[nodiscard]] history_region_kind kind_of_region(pool_region_kind kind) noexcept {
  switch (kind) {
    case pool_region_kind::live: return history_region_kind::live;
    case pool_region_kind::free: return history_region_kind::free;
    case pool_region_kind::hole: return history_region_kind::hole;
    case pool_region_kind::stale: return history_region_kind::stale;
    case pool_region_kind::busy: break;
  }
  return history_region_kind::busy;
}

void add_facts(const pool_statistics& now, std::vector<history_fact>& out) {
  const auto add = [&out](const char* name, std::uint64_t value) {
    out.push_back({name, std::to_string(value)});
  };
  add("reserved_bytes", now.reserved_bytes);
  add("mapped_bytes", now.mapped_bytes);
  add("live_bytes", now.live_bytes);
  add("peak_live_bytes", now.peak_live_bytes);
  add("peak_mapped_bytes", now.peak_mapped_bytes);
  add("reusable_bytes", now.reusable_bytes);
  add("captured_bytes", now.captured_bytes);
  add("hole_bytes", now.hole_bytes);
  add("stale_bytes", now.stale_bytes);
  add("live_count", now.live_count);
  add("stale_count", now.stale_count);
  add("moved_count", now.moved_count);
  add("moved_bytes", now.moved_bytes);
  add("slow_count", now.slow_count);
  add("device_wait_count", now.device_wait_count);
}

}  // namespace

pool_statistics state_report::statistics() const noexcept {
  pool_statistics now = state_.totals_;
  std::uint64_t free_granules = 0;
  std::uint64_t captured_granules = 0;
  std::uint64_t hole_granules = 0;
  for (const auto& in : state_.segments_) {
    now.reserved_bytes += in->where().range.size_bytes;
    hole_granules += in->regions().listed_granules(hole_kind);
    for (std::uint32_t stream = 0; stream < state_.streams_.count(); ++stream) {
      const bool kept = state_.streams_.is_capture(stream);
      const std::uint64_t listed = in->regions().listed_granules(kind_of(stream));
      (kept ? captured_granules : free_granules) += listed;
      if (state_.streams_.is_batch(stream)) now.pending_bytes += listed * granule_bytes;
    }
  }
  std::uint64_t live_granules = state_.mappings_.live_granules();
  if (state_.arenas_.table() != nullptr) {
    state_.arenas_.table()->for_each([&](std::uint32_t number, const arena& of) {
      const arena_lease& lease = state_.arenas_.table()->lease_of(number);
      const arena_numbers numbers = of.numbers();
      live_granules += numbers.live_granules - lease.counted_granules;
      free_granules += lease.lent_granules - numbers.live_granules;
      now.live_count += numbers.live_count;
      ++now.arena_count;
      now.arena_bytes += (lease.lent_granules - numbers.live_granules) * granule_bytes;
    });
  }
  check(free_granules <= state_.mappings_.handle_granules(), "more is free than exists");
  check(captured_granules <= live_granules, "more is kept for graphs than is live");
  now.mapped_bytes += state_.mappings_.handle_granules() * granule_bytes;
  now.live_bytes += (live_granules - captured_granules) * granule_bytes;
  now.peak_live_bytes =
      std::max(state_.mappings_.peak_live_granules(), live_granules) * granule_bytes;
  now.reusable_bytes = free_granules * granule_bytes;
  now.captured_bytes = captured_granules * granule_bytes;
  now.hole_bytes = hole_granules * granule_bytes;
  now.stale_bytes = state_.mappings_.stale_bytes();
  now.stale_count = state_.mappings_.stale_count();
  for (const auto& in : state_.segments_) now.live_count += in->block_count();
  check(now.pinned_count <= now.live_count, "more blocks are pinned than live");
  check(now.live_count != 0 || now.live_bytes == 0, "granules are live in no block");
  check(now.live_bytes + now.captured_bytes <= now.mapped_bytes, "more is live than is mapped");
  check((now.stale_count == 0) == (now.stale_bytes == 0), "a stale mapping has no addresses");
  check(now.mapped_bytes + now.stale_bytes + now.hole_bytes <= now.reserved_bytes,
        "more addresses are used than are reserved");
  for (std::uint32_t stream = 0; stream < state_.streams_.count(); ++stream)
    now.stream_count += state_.streams_.phase_of(stream) == stream_phase::active ? 1U : 0U;
  return now;
}

shortage_report state_report::shortage(const stream_request& request,
                                       shortage_report report) const noexcept {
  check(report.failure != errc::none, "a shortage is reported without a failure");
  const pool_statistics now = statistics();
  report.request_bytes = request.block_bytes();
  report.stream = state_.streams_.progress().shown_handle(request.stream);
  report.live_bytes = now.live_bytes;
  report.reusable_bytes = now.reusable_bytes;
  report.largest_free_bytes = largest_free_bytes();
  check(report.largest_free_bytes <= report.reusable_bytes, "a free region exceeds the free total");
  return report;
}

std::uint64_t state_report::largest_free_bytes() const noexcept {
  std::uint32_t largest = 0;
  for (const auto& in : state_.segments_) {
    for (std::uint32_t stream = 0; stream < state_.streams_.count(); ++stream) {
      if (state_.streams_.is_capture(stream)) continue;
      largest = std::max(largest, in->regions().largest(kind_of(stream)));
    }
    check(largest <= in->regions().count_granules() || state_.segments_.count() > 1,
          "a free region is larger than its segment");
  }
  return largest * granule_bytes;
}

status state_report::describe(history& into) const noexcept {
  try {
    std::vector<pool_region> regions;
    if (status listed = list_regions(regions); !listed) return listed;
    into.regions.reserve(regions.size());
    for (const pool_region& each : regions) {
      into.regions.push_back(
          {each.range, static_cast<std::uint64_t>(each.stream), kind_of_region(each.kind)});
    }
    const auto by_address = [](const history_region& a, const history_region& b) {
      return a.where.base < b.where.base;
    };
    check(into.regions.size() == regions.size(), "a region is left out");
    check(state_.segments_.empty() || !regions.empty(), "a segment has no region");
    std::sort(into.regions.begin(), into.regions.end(), by_address);
    list_mappings(into.mappings);
    into.facts.push_back({"allocator", "stream_pool"});
    into.facts.push_back({"policy", state_.sizes_.policy.name});
    into.facts.push_back({"page_bytes", std::to_string(state_.sizes_.page_bytes)});
    add_facts(statistics(), into.facts);
    return {};
  } catch (const std::bad_alloc&) {
    return no_history_memory;
  }
}

status state_report::list_regions(std::vector<pool_region>& out) const {
  try {
    for (const auto& in : state_.segments_) {
      const region_map& regions = in->regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
        if (in->is_lent(r)) {
          list_lent(*in, r, out);
          continue;
        }
        const pool_region next = shown(*in, r);
        const bool continues = next.kind == pool_region_kind::stale && !out.empty() &&
                               out.back().kind == pool_region_kind::stale &&
                               out.back().range.end() == next.range.base;
        if (continues) {
          out.back().range.size_bytes += next.range.size_bytes;
        } else {
          check(out.empty() || !out.back().range.contains(next.range.base), "two regions overlap");
          out.push_back(next);
        }
      }
    }
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of regions");
  }
}

// The mappings that the range touches, in address order.
status state_report::list_segments(address_range range, std::vector<memory_segment>& out) const {
  const auto list = [&](const segment& in) -> status {
    const address base = in.where().range.base;
    if (!in.where().range.contains(range))
      return refuse(errc::unknown_address, "the range does not lie in one stretch of the pool");
    for (address at = range.base; at < range.end();) {
      const auto offset = static_cast<std::uint32_t>((at - base) / granule_bytes);
      const mapping* const m = in.mapping_at(offset);
      if (m == nullptr || m->is_stale())
        return refuse(errc::not_allocated, "a part of the range has no memory behind it");
      if (m->memory->is_suspended) return memory_suspended;
      check(m->memory != nullptr, "a mapping has no memory");
      const address_range where{in.address_of(m->offset), m->memory->size_bytes};
      check(where.contains(at), "a mapping's address is not the one in the table");
      out.push_back({where, m->memory->handle});
      at = where.end();
    }
    return {};
  };
  status done = refuse(errc::unknown_address, "the address is not of this pool");
  for (const auto& in : state_.segments_) {
    if (in->where().range.contains(range.base)) done = list(*in);
  }
  check(!done || range.empty() || !out.empty(), "a range with bytes touches no mapping");
  return done;
}

pool_region state_report::shown(const segment& in, region_id region) const noexcept {
  const granule_range where = in.range(region);
  check(where.count != 0, "a region is empty");
  pool_region shown{{in.address_of(where.offset), where.count * granule_bytes}};
  const region_kind kind = in.kind(region);
  if (is_free_kind(kind)) {
    shown.kind = pool_region_kind::free;
    shown.stream = state_.streams_.progress().shown_handle(stream_of(kind));
  } else if (kind == region_kind::unlisted) {
    const region_state state = state_of(in.regions().tag(region));
    shown.kind = state == region_state::live    ? pool_region_kind::live
                 : state == region_state::stale ? pool_region_kind::stale
                                                : pool_region_kind::busy;
  }
  return shown;
}

// An arena's regions within a range.
void state_report::list_lent(const segment& in, region_id region,
                             std::vector<pool_region>& out) const {
  const std::uint32_t number = in.lent_to(region);
  const granule_range within = in.range(region);
  std::vector<arena_part> parts;
  state_.arenas_.table()->at(number).list(within, parts);
  check(!parts.empty() && parts.front().where.offset == within.offset,
        "an arena lacks memory of its refills");
  const stream_handle whose =
      state_.streams_.progress().shown_handle(state_.arenas_.table()->lease_of(number).record);
  for (const arena_part& part : parts) {
    check(part.where.count != 0 && part.where.end() <= within.end(),
          "an arena's region exceeds its range");
    pool_region shown{{in.address_of(part.where.offset), part.where.count * granule_bytes},
                      part.is_live ? pool_region_kind::live : pool_region_kind::free};
    if (!part.is_live) shown.stream = whose;
    out.push_back(shown);
  }
}

// Visits mapped granules only: most of a segment is a hole.
void state_report::list_mappings(std::vector<history_mapping>& out) const {
  for (const auto& in : state_.segments_) {
    const mapping* last = nullptr;
    const region_map& regions = in->regions();
    for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
      if (in->kind(r) == hole_kind) continue;
      const granule_range where = in->range(r);
      for (std::uint32_t at = where.offset; at < where.end();) {
        const mapping* const m = in->mapping_at(at);
        if (m == nullptr) break;  // the target of a growth under way
        if (m != last)
          out.push_back(
              {{in->address_of(m->offset), m->count_granules * granule_bytes}, m->is_stale()});
        last = m;
        check(m->end() > at, "a mapping ends before it begins");
        at = m->end();
      }
    }
  }
}

}  // namespace vmm
