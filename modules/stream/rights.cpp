// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of mappings of their own, and what is in a block when it comes and goes.
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
  captures_.note_uncaptured(driver_->feature_set().canonical(stream));
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
  parts_->rights.end_freed();
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
    assume_locked(rank::growth);
    return parts_->growth.try_grow(request, effort);
  };
  const auto give_back = [&]() -> result<bool> {
    assume_locked(rank::growth);
    const capture_watch::pressing pressing(captures_);
    const result<bool> more = relieve(attempt, ladder);
    if (!more || !*more) return more;
    parts_->rights.end_freed();
    parts_->reclaim.unmap_stale(state_.stale_count());
    if (status unmapped = parts_->reclaim.unmap_idle(request.size_bytes()); !unmapped)
      return unmapped.error();
    (void)parts_->reclaim.release_cached();
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

// A suspension that began after the block was made waits, or has the block's memory already: then
// the block goes back.
result<address> stream_pool::fill_acquired(address at, stream_handle stream) {
  if (!contents_.fills_on_acquire()) return at;
  const change_guard changing(&suspension_.phases());
  status filled = memory_suspended;
  if (suspension_.phases().may_fill_here()) {
    const result<address_range> whole =
        state_.with([&](auto& state) { return state.live_range(at); });
    check(whole.has_value(), "a block is not live that was just made");
    filled = contents_.on_acquire(*whole, stream);
  }
  if (filled) return at;
  (void)try_to_close([&] { return free_told(at, stream); });  // else nothing would free it
  return filled.error();
}

status stream_pool::fill_released(address at, stream_handle stream) {
  if (!suspension_.phases().may_fill_here()) return {};
  const result<address_range> whole =
      state_.with([&](auto& state) { return state.live_range(at); });
  if (!whole) return whole.error();
  check(whole->base == at && !whole->empty(), "another block is filled than was named");
  const bool is_pinned =
      state_.with([&](auto& state) { return locked_blocks(state).is_pinned(at); });
  if (is_pinned) {
    return refuse(errc::in_use,
                  "memory_options::contents: a pinned block is not filled; unpin it first");
  }
  return contents_.on_release(*whole, stream);
}

}  // namespace vmm
