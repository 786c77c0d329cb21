// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

// ---- rights ------------------------------------------------------------------------

// Every mapping that stands, those that wait to be unmapped included: they show memory that serves
// others by now.
status block_rights::list_mapped(std::vector<address_range>& out) {
  const auto add_region = [&out](const segment& in, granule_range where) {
    for (std::uint32_t at = where.offset; at < where.end();) {
      const mapping* const m = in.mapping_at(at);
      if (m == nullptr) return;  // a hole is one region
      const address_range range{in.address_of(m->offset), m->count_granules * granule_bytes};
      check(m->offset <= at && at < m->end(), "a mapping's address is not the one in the table");
      if (out.empty() || !(out.back() == range)) out.push_back(range);
      at = m->end();
    }
  };
  try {
    const table_lock state(state_);
    state->segments().for_each([&](const segment& in) {
      const region_map& regions = in.regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r))
        add_region(in, in.range(r));
    });
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of mappings");
  }
  return {};
}

status block_rights::refresh(std::span<const address_range> ranges) {
  for (const address_range& range : ranges) {
    check(!range.empty(), "a mapping is empty");
    if (status given = remaps_.give_access(range, of(range.base)); !given) return given;
  }
  return {};
}

status block_rights::set_peers(std::span<const access_grant> grants) {
  if (status valid = check_grants(scope(), grants); !valid) return valid;
  const growth_guard growing(entry_);
  // Before and after a suspension or resumption: memory gets its rights when it is mapped.
  const suspension_phase phase = state_.with([](auto& state) { return state.suspension(); });
  if (phase == suspension_phase::changing) return memory_suspended;
  std::vector<address_range> mapped;
  if (status listed = list_mapped(mapped); !listed) return listed;
  const auto fits = [&](const grant_list& after) -> status {
    assume_locked(rank::growth);
    const bool has_room = std::all_of(blocks_.begin(), blocks_.end(), [&](const auto& each) {
      return remapper::fit(after, &each->rights);
    });
    return has_room ? status{} : status{too_many_grants};
  };
  const auto apply = [&] {
    assume_locked(rank::growth);
    return phase == suspension_phase::suspended ? status{} : refresh(mapped);
  };
  return change_peers(scope(), grants, fits, apply);
}

// ---- rights of one block -------------------------------------------------------------

const grant_list* block_rights::of(address at) const noexcept {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [at](const auto& each) { return each->range.contains(at); });
  check(found == blocks_.end() || !(*found)->rights.empty(),
        "a recorded block has no access of "
        "its own");
  return found == blocks_.end() ? nullptr : &(*found)->rights;
}

// The block's place in the list; it is held from now on.
result<std::size_t> block_rights::keep(address at) {
  const result<address_range> whole =
      state_.with([&](auto& state) { return locked_blocks(state).live_range(at); });
  if (!whole) return whole.error();
  const auto known = std::find_if(blocks_.begin(), blocks_.end(),
                                  [at](const auto& each) { return each->range.base == at; });
  if (known != blocks_.end()) return static_cast<std::size_t>(known - blocks_.begin());
  if (status room = reserve_more(blocks_, 1); !room) return room.error();
  std::unique_ptr<own_rights> made{new (std::nothrow) own_rights};
  if (made == nullptr) return no_record_memory;
  made->range = *whole;
  const status held = state_.with([&](auto& state) -> status {
    locked_blocks blocks(state);
    const result<bool> has_own_mappings = blocks.has_own_mappings(at);
    if (!has_own_mappings) return has_own_mappings.error();
    if (!*has_own_mappings) {
      return refuse(errc::not_supported,
                    "the block shares a mapping with other memory of the pool: allocate it with "
                    "allocate_dedicated(), or give rights to all of the pool's memory");
    }
    return blocks.keep(at);
  });
  if (!held) return held.error();
  blocks_.push_back(std::move(made));
  return blocks_.size() - 1;
}

// All or nothing, as far as the driver lets it.
status block_rights::change(own_rights& of, std::span<const access_grant> grants) {
  const result<own_rights_change> change =
      own_rights_change::make(of.rights, remaps_.rights(), grants);
  if (!change) return change.error();
  const status given = remaps_.give_access(of.range, &change->after);
  if (given) of.rights = change->after;
  if (!given) (void)try_to_close([&] { return remaps_.give_access(of.range, &change->undo); });
  return given;
}

status block_rights::set_access(address at, std::span<const access_grant> grants) {
  if (status valid = check_grants(scope(), grants); !valid) return valid;
  if (options_.contents == contents_rule::zero_on_release ||
      options_.contents == contents_rule::poison) {
    return refuse(
        errc::not_supported,
        "memory_options::contents fills freed memory: give rights to all of the pool's memory");
  }
  const growth_guard growing(entry_);
  if (state_.is_suspended()) return memory_suspended;
  end_freed();
  const result<std::size_t> kept = keep(at);
  if (!kept) return kept.error();
  own_rights& of = *blocks_[*kept];
  check(of.range.base == at, "the held block is not the requested one");
  const status given = change(of, grants);
  if (given || !of.rights.empty()) return given;
  {
    const table_lock state(state_);
    (void)locked_blocks(*state).let_go(at);
  }
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(*kept));
  return given;
}

// Whether a freed block's work has finished, and it has the rights of all again, and is free.
bool block_rights::end_one(own_rights& of) {
  if (!of.is_freed) {
    const table_lock state(state_);
    const std::uint32_t owner = locked_blocks(*state).freed_by(of.range.base);
    if (owner == pool_state::no_stream) return false;
    of.last_use = state->streams().free_point(owner);
    of.is_freed = true;
    of.was_pinned = locked_blocks(*state).is_pinned(of.range.base);
  }
  const stream_point last_use = of.last_use;
  if (!clock_.poll(last_use)) return false;
  if (!state_.with([&](auto& state) { return state.progress().passed(last_use); })) return false;
  const grant_list all = remaps_.rights();
  grant_list again;
  for (const access_grant& each : of.rights.all())
    (void)again.set({each.grantee, all.of(each.grantee)});
  check(again.all().size() == of.rights.all().size(),
        "block_rights I2: the access of a block is not recorded");
  // If a pool ends while suspended, no mapping has any.
  const bool is_mapped =
      state_.with([](auto& state) { return state.suspension() != suspension_phase::suspended; });
  if (is_mapped && !remaps_.give_access(of.range, &again)) return false;
  const address at = of.range.base;
  check(of.is_freed, "block_rights I1: a live block loses its rights");
  const stream_point* const since = of.was_pinned ? nullptr : &of.last_use;
  if (state_.with([&](auto& state) { return locked_blocks(state).let_go(at, since); }))
    notices_.observe([&](block_observer& observer) { observer.freed(at); });
  return true;
}

void block_rights::end_freed() {
  if (blocks_.empty()) return;
  std::erase_if(blocks_, [this](const auto& each) {
    assume_locked(rank::growth);
    return end_one(*each);
  });
}

// A freed block whose access is still to be removed is not live.
void block_rights::end_all() {
  if (blocks_.empty()) return;
  check(gate_.is_closed_by(gate_reason::goes_away), "a pool in use waits for its streams to end");
  const relaxed_capture capture(driver_, captures_.is_on());
  if (clock_.finish_all()) end_freed();
}

}  // namespace vmm
