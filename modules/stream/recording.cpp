// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The state's part of a history: events of blocks, except those of the fast path, and the layout.
//
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.top;
import vmm.va;

namespace vmm {

namespace {

[[nodiscard]] history_region_kind kind_of_region(pool_region_kind kind) noexcept {
  switch (kind) {
    case pool_region_kind::live: return history_region_kind::live;
    case pool_region_kind::free: return history_region_kind::free;
    case pool_region_kind::hole: return history_region_kind::hole;
    case pool_region_kind::zombie: return history_region_kind::stale;
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
  add("stale_bytes", now.zombie_bytes);
  add("live_count", now.live_count);
  add("stale_count", now.zombie_count);
  add("moved_count", now.moved_count);
  add("moved_bytes", now.moved_bytes);
  add("grown_count", now.grown_count);
  add("wait_count", now.wait_count);
}

}  // namespace

void pool_state::note_block_now(history_kind kind, const segment& in, region_id block,
                                std::uint32_t stream) noexcept {
  check(recorder_ != nullptr, "an event is written to no history");
  const granule_range where = in.range(block);
  check(where.count != 0, "an event is of an empty block");
  const stream_handle handle =
      stream == no_stream ? stream_handle::default_stream : progress().shown_handle(stream);
  recorder_->note_block(kind, {in.address_of(where.offset), where.count * granule_bytes}, 0,
                        handle);
}

// Only what is mapped is looked at: most of a segment is a hole.
void pool_state::list_mappings(std::vector<history_mapping>& out) const {
  for (const auto& in : segments_) {
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

status pool_state::describe(history& into) const noexcept {
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
    check(segments_.empty() || !regions.empty(), "a segment has no region");
    std::sort(into.regions.begin(), into.regions.end(), by_address);
    list_mappings(into.mappings);
    into.facts.push_back({"allocator", "stream_pool"});
    into.facts.push_back({"policy", sizes_.rules.name});
    into.facts.push_back({"page_bytes", std::to_string(sizes_.page_bytes)});
    add_facts(statistics(), into.facts);
    return {};
  } catch (const std::bad_alloc&) {
    return no_history_memory;
  }
}

}  // namespace vmm
