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

namespace {

constexpr error too_many_grants =
    refuse(errc::invalid_argument, "rights for more locations than a list takes");

}  // namespace

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
    const table_lock state(state_);
    state->for_each_segment([&](const segment& in) {
      const region_map& regions = in.regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r))
        add_region(in, in.range(r));
    });
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of mappings");
  }
  return {};
}

status stream_pool::give_access(std::span<const address_range> ranges) {
  for (const address_range& range : ranges) {
    check(!range.empty(), "a mapping is empty");
    if (status given = parts_->core.remaps.give_access(range, rights_of(range.base)); !given)
      return given;
  }
  return {};
}

status stream_pool::check_peers(std::span<const access_grant> grants) const {
  if (grants.empty()) return refuse(errc::invalid_argument, "the list of grants is empty");
  const location placement = options_.placement.value_or(driver_->home());
  for (const access_grant& each : grants) {
    if (each.who == driver_->home() || each.who == placement) {
      return refuse(errc::invalid_argument,
                    "the home and the placement read and write: name other locations");
    }
  }
  check(!grants.empty(), "rights are given to nobody");
  return {};
}

status stream_pool::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  if (status valid = check_peers(grants); !valid) return valid;
  const growth_guard growing(entry_);
  // Before and after a suspension or resumption, what is mapped then gets its rights then.
  const suspension_phase phase = state_.with([](auto& state) { return state.suspension(); });
  if (phase == suspension_phase::changing) return memory_suspended;
  const grant_list before = parts_->core.remaps.rights();
  grant_list after = before;
  for (const access_grant& each : grants) {
    // A location without rights is not named: a driver that does not know it refuses the list.
    if (each.rights == access::none && after.of(each.who) == access::none) continue;
    if (!after.set(each)) return too_many_grants;
  }
  check(after.all().size() >= before.all().size(), "a location has lost its rights");
  const bool has_room = std::all_of(own_rights_.begin(), own_rights_.end(), [&](const auto& each) {
    return remapper::fit(after, &each->rights);
  });
  if (!has_room) return too_many_grants;
  const location placement = options_.placement.value_or(driver_->home());
  if (status reached = check_reach(*driver_, placement, grants); !reached) return reached;
  std::vector<address_range> mapped;
  if (status listed = list_mapped(mapped); !listed) return listed;
  if (status set = parts_->core.remaps.set_rights(after); !set) return set;
  const status given = phase == suspension_phase::suspended ? status{} : give_access(mapped);
  if (given) return given;
  const status undone = parts_->core.remaps.set_rights(before);
  check(undone.has_value(), "rights that were in force do not fit into their list");
  const status taken_back = try_to_close([&] {
    assume_held(rank::growth);
    return give_access(mapped);
  });
  if (taken_back) parts_->core.remaps.forget_others(before);
  return given;
}

// ---- rights of one block -------------------------------------------------------------

const grant_list* stream_pool::rights_of(address at) const noexcept {
  const auto found = std::find_if(own_rights_.begin(), own_rights_.end(),
                                  [at](const auto& each) { return each->range.contains(at); });
  check(found == own_rights_.end() || !(*found)->rights.empty(), "a block has rights of nobody");
  return found == own_rights_.end() ? nullptr : &(*found)->rights;
}

// The block's place in the list; it is held from now on.
result<std::size_t> stream_pool::keep_block(address at) {
  const result<address_range> whole = whole_block(at);
  if (!whole) return whole.error();
  const auto known = std::find_if(own_rights_.begin(), own_rights_.end(),
                                  [at](const auto& each) { return each->range.base == at; });
  if (known != own_rights_.end()) return static_cast<std::size_t>(known - own_rights_.begin());
  if (status room = reserve_more(own_rights_, 1); !room) return room.error();
  std::unique_ptr<own_rights> made{new (std::nothrow) own_rights};
  if (made == nullptr) return no_record_memory;
  made->range = *whole;
  const status held = state_.with([&](auto& state) -> status {
    locked_blocks blocks(state);
    const result<bool> is_whole = blocks.is_whole(at);
    if (!is_whole) return is_whole.error();
    if (!*is_whole) {
      return refuse(errc::not_supported,
                    "the block shares a mapping with other memory of the pool: allocate it with "
                    "allocate_whole(), or give rights to all of the pool's memory");
    }
    return blocks.keep(at);
  });
  if (!held) return held.error();
  own_rights_.push_back(std::move(made));
  return own_rights_.size() - 1;
}

// All or nothing, as far as the driver lets it.
status stream_pool::give_own_rights(own_rights& of, std::span<const access_grant> grants) {
  const grant_list before = of.rights;
  grant_list after = before;
  const grant_list all = parts_->core.remaps.rights();
  grant_list undone = before;
  for (const access_grant& each : grants) {
    const bool is_new = std::none_of(before.all().begin(), before.all().end(),
                                     [&](const access_grant& b) { return b.who == each.who; });
    if (!after.set(each)) return too_many_grants;
    if (is_new) (void)undone.set({each.who, all.of(each.who)});
  }
  if (!parts_->core.remaps.fits(&after)) return too_many_grants;
  const status given = parts_->core.remaps.give_access(of.range, &after);
  if (given) of.rights = after;
  if (!given)
    (void)try_to_close([&] { return parts_->core.remaps.give_access(of.range, &undone); });
  check(given || of.rights == before, "rights that were refused are remembered");
  return given;
}

status stream_pool::set_access(address at, std::span<const access_grant> grants) {
  if (!is_ready()) return why_not_ready();
  if (status valid = check_peers(grants); !valid) return valid;
  if (clears_on_release()) {
    return refuse(errc::not_supported,
                  "memory_options::contents fills what is freed: give rights to all of the pool's "
                  "memory");
  }
  const growth_guard growing(entry_);
  if (state_.is_suspended()) return memory_suspended;
  end_freed_rights();
  const result<std::size_t> held = keep_block(at);
  if (!held) return held.error();
  own_rights& of = *own_rights_[*held];
  check(of.range.base == at, "another block is held than was named");
  const status given = give_own_rights(of, grants);
  if (given || !of.rights.empty()) return given;
  {
    const table_lock state(state_);
    (void)locked_blocks(*state).let_go(at);
  }
  own_rights_.erase(own_rights_.begin() + static_cast<std::ptrdiff_t>(*held));
  return given;
}

// Whether a freed block's work has finished, and it has the rights of all again, and is free.
bool stream_pool::take_rights_away(own_rights& of) {
  if (!of.is_freed) {
    const table_lock state(state_);
    const std::uint32_t owner = locked_blocks(*state).freed_by(of.range.base);
    if (owner == pool_state::no_stream) return false;
    of.last_use = state->streams().free_point(owner);
    of.is_freed = true;
    of.was_pinned = locked_blocks(*state).is_pinned(of.range.base);
  }
  const stream_point last_use = of.last_use;
  if (!parts_->clock.poll(last_use)) return false;
  if (!state_.with([&](auto& state) { return state.progress().passed(last_use); })) return false;
  const grant_list all = parts_->core.remaps.rights();
  grant_list again;
  for (const access_grant& each : of.rights.all()) (void)again.set({each.who, all.of(each.who)});
  check(again.all().size() == of.rights.all().size(), "a right is forgotten that was given");
  // Of a pool that ends while it is suspended no mapping has any.
  const bool is_mapped =
      state_.with([](auto& state) { return state.suspension() != suspension_phase::suspended; });
  if (is_mapped && !parts_->core.remaps.give_access(of.range, &again)) return false;
  const address at = of.range.base;
  check(of.is_freed, "a live block loses its rights");
  const stream_point* const since = of.was_pinned ? nullptr : &of.last_use;
  if (state_.with([&](auto& state) { return locked_blocks(state).let_go(at, since); }))
    notices_.observe([&](block_watcher& who) { who.freed(at); });
  return true;
}

// What the driver refuses, or is still in use, is tried again by a later call.
void stream_pool::end_freed_rights() {
  if (own_rights_.empty()) return;
  std::erase_if(own_rights_, [this](const auto& each) {
    assume_held(rank::growth);
    return take_rights_away(*each);
  });
}

// ---- blocks of whole mappings ----------------------------------------------------------

result<address> stream_pool::allocate_whole(std::uint64_t size_bytes, stream_handle stream) {
  if (!gate_.is_open()) {
    if (status entered = enter_closed_to_allocate(); !entered) return entered.error();
  }
  if (notices_.is_observed()) notices_.check_not_in_observer();
  if (status named = check_stream(*driver_, stream); !named) return named.error();
  if (asks_about(stream)) {
    const result<bool> captured = captures_.is_captured(stream);
    if (!captured) return captured.error();
    if (*captured)
      return refuse(errc::not_permitted, "the stream is being captured: allocate before it is");
  }
  const result<address> at = [&] {
    if (!notices_.is_observed()) return allocate_mappings({size_bytes}, stream);
    const observer_guard observed(entry_);
    const result<address> made = allocate_mappings({size_bytes}, stream);
    if (made) notices_.observe([&](block_watcher& who) { who.allocated({*made, size_bytes}); });
    return made;
  }();
  if (!at || options_.contents == contents_rule::none) return at;
  return fill_acquired(*at, stream);
}

// What is idle goes back. In a callback nothing can: the next call does it.
void stream_pool::keep_none() {
  check(options_.rules.keep_none, "a pool gives back what it is to keep");
  if (!notices_.is_in_callback() && !state_.is_suspended()) (void)trim(0);
}

// A block of mappings of its own.
result<address> stream_pool::allocate_mappings(const block_shape& shape, stream_handle stream) {
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  if (options_.rules.keep_none) keep_none();
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  const result<address> at = with_idle_memory(call, [this](slow_call& each, relief_pass& relief) {
    return allocate_mappings_in_turn(each, relief);
  });
  check(!at || at->value % shape.alignment_bytes == 0, "a block has another alignment");
  return at;
}

result<address> stream_pool::allocate_mappings_in_turn(slow_call& call, relief_pass& relief) {
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_->feature_set().canonical(call.stream));
  if (state_.is_suspended()) return memory_suspended;
  check(entry_.may_name(entry_.named()), "a request of whole mappings does not name its stream");
  end_freed_rights();
  const result<std::uint32_t> number = parts_->clock.enter(call.stream);
  if (!number) return number.error();
  const std::uint32_t pages = state_.with(
      [&](auto& state) { return state.sizes().rounded_to_pages(call.request.block_granules()); });
  const std::uint32_t spare = call.request.spare_granules;
  const stream_request request{pages + spare, *number, spare};
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  const lending_pause pause(state_);  // what fronts keep may have to go back for this
  events_.note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> at = allocate_apart(request, relief);
  if (!at && options_.rules.keep_none && is_shortage(at.error().code)) {
    growth_attempt attempt{request};
    report_shortage(attempt, at.error());
  }
  events_.note_growth(request, history_kind::served, at ? *at : address{});
  return events_.served(request, call.size_bytes, at);
}

// Of memory that is created, or lies in the cache. Where there is none, what is free and idle goes
// there first; then what its streams have to be waited for.
result<address> stream_pool::allocate_apart(const stream_request& request, relief_pass& relief) {
  growth_effort effort{.may_move = false, .use_all_free = true, .apart = true};
  growth_attempt attempt{.request = request, .relief = &relief};
  shortage_ladder ladder;
  const auto grow_once = [&] {
    assume_held(rank::growth);
    return try_growth(request, effort);
  };
  const auto give_back = [&]() -> result<bool> {
    assume_held(rank::growth);
    const capture_watch::pressing pressing(captures_);
    const result<bool> more = relieve(attempt, ladder);
    if (!more || !*more) return more;
    end_freed_rights();
    reap(state_.stale_count());
    if (status unmapped = unmap_idle(request.size_bytes()); !unmapped) return unmapped.error();
    (void)release_cached();
    return true;
  };
  const result<address> first = grow_once();
  if (first || !stops_for_others(attempt, first.error())) attempt.relief = nullptr;
  result<address> at = retry_while_short(first, grow_once, give_back);
  if (attempt.relief != nullptr && attempt.relief->has_stopped) return at;
  if (!at && at.error().code == errc::out_of_memory && options_.spill) {
    const spill_permit permit(parts_->core.memory);
    at = grow_once();
  }
  check(!at || at->value != 0, "a block begins nowhere");
  return at;
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
    const table_lock state(state_);
    state->for_each_segment([&](const segment& in) {
      if (in.where().range.contains(range.base)) done = list(in);
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
  const physical_statistics now = parts_->core.memory.statistics();
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

// A suspension that began after the block was made waits, or has the block's memory already: then
// the block goes back.
result<address> stream_pool::fill_acquired(address at, stream_handle stream) {
  if (options_.contents == contents_rule::zero_on_release) return at;
  const change_guard changing(&change_lock_);
  if (!may_fill()) {
    (void)free_told(at, stream);
    return memory_suspended;
  }
  const result<address_range> whole = whole_block(at);
  check(whole.has_value(), "a block is not live that was just made");
  const std::uint8_t value = options_.contents == contents_rule::poison ? poison_byte : 0;
  const status filled = driver_->fill({*whole, value, stream});
  if (filled) return at;
  (void)free_told(at, stream);
  return filled.error();
}

// Whether blocks have their memory. A thread that is to change that waits for a lock that this one
// has, and has changed nothing yet; in a callback of the change itself part of it may be gone.
bool stream_pool::may_fill() {
  check(options_.contents != contents_rule::none, "a block is filled that keeps its bytes");
  const table_lock state(state_);
  const suspension_phase phase = state->suspension();
  if (phase != suspension_phase::changing) return phase == suspension_phase::running;
  if (changer_.load(std::memory_order_relaxed) == this_thread()) return false;
  return changing_from_.load(std::memory_order_relaxed) == suspension_phase::running;
}

status stream_pool::fill_released(address at, stream_handle stream) {
  if (!may_fill()) return {};
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
