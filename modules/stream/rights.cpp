// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Who may use a pool's memory, and what is in a block when it comes and goes.
module vmm.stream;

import vmm.backend;
import vmm.optimizer;
import vmm.options;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.va;

namespace vmm {

// ---- rights ------------------------------------------------------------------------

// Every mapping that stands, those that wait to be unmapped included: they show memory that serves
// others by now.
status stream_pool::list_mapped(std::vector<address_range>& out) {
  const auto add_region = [&out](const segment& in, granule_range where) {
    for (std::uint32_t at = where.offset; at < where.end();) {
      const mapping* const m = in.mapping_at(at);
      if (m == nullptr) return;  // a hole is one region
      const address_range range{in.address_of(m->offset), m->count_granules * granule_bytes};
      check(m->offset <= at && at < m->end(), "a mapping does not lie where it is found");
      if (out.empty() || !(out.back() == range)) out.push_back(range);
      at = m->end();
    }
  };
  try {
    state_.with([&](auto& state) {
      state.for_each_segment([&](const segment& in) {
        const region_map& regions = in.regions();
        for (region_id r = regions.first(); r != region_id::none; r = regions.after(r))
          add_region(in, in.range(r));
      });
    });
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of mappings");
  }
  return {};
}

status stream_pool::give_access(std::span<const address_range> ranges) {
  for (const address_range& range : ranges) {
    check(!range.empty(), "a mapping is empty");
    if (status given = parts_->remaps.give_access(range); !given) return given;
  }
  return {};
}

status stream_pool::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  const growth_turn turn(way_in());
  // Before and after a suspension or resumption, what is mapped then gets its rights then.
  const suspension_phase phase = state_.with([](auto& state) { return state.suspension(); });
  if (phase == suspension_phase::changing) return memory_suspended;
  const location placement = options_.placement.value_or(driver_->home());
  const grant_list before = parts_->remaps.rights();
  grant_list after = before;
  for (const access_grant& each : grants) {
    if (each.who == driver_->home() || each.who == placement) {
      return refuse(errc::invalid_argument,
                    "the home and the placement read and write: name other locations");
    }
    if (!after.set(each))
      return refuse(errc::invalid_argument, "rights for more locations than a list takes");
  }
  check(after.all().size() >= before.all().size(), "a location has lost its rights");
  std::vector<address_range> mapped;
  if (status listed = list_mapped(mapped); !listed) return listed;
  if (status set = parts_->remaps.set_rights(after); !set) return set;
  const status given =
      phase == suspension_phase::suspended ? status{} : give_access(mapped);
  if (given) return given;
  const status undone = parts_->remaps.set_rights(before);
  check(undone.has_value(), "rights that were in force do not fit into their list");
  (void)try_to_close([&] { return give_access(mapped); });
  return given;
}

status stream_pool::set_access(address at, std::span<const access_grant> grants) {
  if (!is_ready()) return why_not_ready();
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  const result<address_range> whole = whole_block(at);
  if (!whole) return whole.error();
  check(whole->base == at && !whole->empty(), "another block is found than was named");
  return refuse(errc::not_supported,
                "blocks of a pool share their mappings: rights are given to all of a pool's "
                "memory, or to one block of a manager");
}

result<std::vector<memory_segment>> stream_pool::segments(address_range range) {
  if (!is_ready()) return why_not_ready();
  std::vector<memory_segment> listed;
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
      check(where.contains(at), "a mapping does not lie where it is found");
      listed.push_back({where, m->memory->handle});
      at = where.end();
    }
    return {};
  };
  status done = refuse(errc::unknown_address, "the address is not of this pool");
  try {
    state_.with([&](auto& state) {
      state.for_each_segment([&](const segment& in) {
        if (in.where().range.contains(range.base)) done = list(in);
      });
    });
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of segments");
  }
  if (!done) return done.error();
  check(range.empty() || !listed.empty(), "a range with bytes touches no mapping");
  return listed;
}

std::uint64_t stream_pool::spilled_bytes() const noexcept {
  if (!is_ready()) return 0;
  const physical_statistics now = parts_->memory.statistics();
  check(now.spilled_bytes <= now.footprint_bytes, "more is spilled than is held");
  return now.spilled_bytes;
}

// ---- contents ----------------------------------------------------------------------

// What free() would give back. Errors: those of a wrong address, and in_use where free() would not
// end it.
result<address_range> stream_pool::whole_block(address at) {
  return state_.with([&](auto& state) -> result<address_range> {
    const result<segment::found_block> found = state.find_block(at);
    if (!found) return found.error();
    if (status live = locked_blocks(state).check_live(at); !live) return live.error();
    const granule_range where = found->in->range(found->region);
    check(found->in->address_of(where.offset) == at, "another block is found than was named");
    return address_range{at, where.count * granule_bytes};
  });
}

result<address> stream_pool::fill_acquired(address at, stream_handle stream) {
  if (options_.contents == contents_rule::zero_on_release) return at;
  const result<address_range> whole = whole_block(at);
  check(whole.has_value(), "a block is not live that was just made");
  const std::uint8_t value = options_.contents == contents_rule::poison ? poison_byte : 0;
  const status filled = driver_->fill({*whole, value, stream});
  if (filled) return at;
  (void)free_told(at, stream);
  return filled.error();
}

status stream_pool::fill_released(address at, stream_handle stream) {
  if (is_suspended()) return {};
  const result<address_range> whole = whole_block(at);
  if (!whole) return whole.error();
  check(whole->base == at && !whole->empty(), "another block is filled than was named");
  const bool is_pinned =
      state_.with([&](auto& state) { return locked_blocks(state).is_pinned(at); });
  if (is_pinned) {
    return refuse(errc::in_use,
                  "memory_options::contents: a pinned block is not filled; unpin it first");
  }
  const std::uint8_t value = options_.contents == contents_rule::poison ? poison_byte : 0;
  return driver_->fill({*whole, value, stream});
}

}  // namespace vmm
