// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

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

constexpr std::size_t unmapped_min = 8;
constexpr std::size_t unmapped_max = 64;  // by one growth that is not short of memory
// Of the stale mappings that are too many, a growth unmaps this part: as many as growths leave on
// the average, and not all that the one before it has left.
constexpr std::size_t surplus_share = 64;

// Freed blocks that wait: for their last pin, or for rights of their own to end.
[[nodiscard]] std::uint64_t waiting_granules(pool_state& state) noexcept {
  std::uint64_t waiting = 0;
  state.segments().for_each([&](const segment& in) {
    in.for_each_locked([&](region_id block) {
      if (in.lock_of(block).freed) waiting += in.range(block).count;
    });
  });
  check(waiting <= live_granules_of(state), "more granules wait than are live");
  return waiting;
}

}  // namespace

// ---- requests ----------------------------------------------------------------------------

result<address> slow_path::allocate(const block_shape& shape, stream_handle given) {
  const stream_handle stream = driver_.feature_set().canonical(given);
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  if (status announced = captures_.check_announced(stream); !announced) return announced.error();
  captures_.note_uncaptured(stream);
  make_remembered_ready(stream);
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return with_others(
      call, [this](slow_call& each, relief_pass& relief) { return allocate_once(each, relief); });
}

result<address> slow_path::allocate_once(slow_call& call, relief_pass& relief) {
  check(call.request.count_granules != 0, "a request of 0 granules");
  const growth_guard growing(entry_);
  const named_stream named(entry_, call.stream);
  if (state_.is_suspended()) return memory_suspended;
  parts_.clock.catch_up();
  check(entry_.may_name(call.stream), "a request does not name its stream");
  const result<std::uint32_t> number = parts_.clock.enter(call.stream);
  if (!number) return number.error();
  tidy();
  call.request.stream = *number;
  const stream_request request = call.request;
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  parts_.reuse.provide_arena(request, call.stream);
  result<address> at{address{}};
  if (parts_.reuse.is_first_fit(request)) at = parts_.reuse.finished_of_all(request);
  if (at && !*at)
    at = parts_.reuse.own_or_finished(request);  // its own memory first, then that of others
  if (at && !*at) at = with_room(request);
  if (at && !*at) at = parts_.reuse.from_arena(request, call.stream);
  if (!at || *at) return note_served(request, call.size_bytes, at);
  const arena_flush pause(state_);
  if (pause.flushed_any()) at = parts_.reuse.after_flush(request);
  if (at && !*at) at = parts_.reuse.finished_of_all(request);
  if (!at || *at) return note_served(request, call.size_bytes, at);
  note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> grown = grow(call, relief);
  note_growth(request, history_kind::served, grown ? *grown : address{});
  if (options_.stream_arenas == arena_rule::always)
    parts_.reuse.provide_arena(request, call.stream);
  return note_served(request, call.size_bytes, grown);
}

void slow_path::tidy() {
  const std::size_t surplus =
      state_.with([](auto& state) { return idle_handles(state).surplus_stale_count(); });
  parts_.rights.end_freed();
  if (options_.policy.eager_unmap || surplus != 0)
    parts_.reclaim.unmap_stale(std::clamp(surplus / surplus_share, unmapped_min, unmapped_max));
}

result<address> slow_path::with_room(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  {
    const table_lock state(state_);
    if (!state->arenas().take_room_need()) return address{};
  }
  parts_.growth.add_room(request.stream);
  return parts_.reuse.own_or_finished(request);
}

// Free memory of the stream, under the short lock; else the slow path.
result<address> slow_path::allocate_aligned(const block_shape& shape, stream_handle stream) {
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  check(counted->is_aligned(), "an unaligned request is served at a chosen place");
  {
    const table_lock state(state_);
    stream_request request = *counted;
    request.stream = state->progress().find(stream);
    bool starved = false;
    const bool plain = request.stream != pool_state::no_stream && !state->needs_slow_path();
    const address at =
        plain ? own_memory(*state).try_allocate_aligned(request, starved) : address{};
    check(!at || !starved, "an allocation returned memory and a shortage");
    if (at) {
      state->events().note_block(history_kind::allocated, {at, request.block_bytes()},
                                 shape.size_bytes, stream);
      return at;
    }
  }
  return allocate(shape, stream);
}

// ---- their events ------------------------------------------------------------------------

void slow_path::note_growth(const stream_request& request, history_kind what, address at) noexcept {
  if (!events_.is_on()) return;
  check(what == history_kind::grow || at.value % granule_bytes == 0, "a growth serves no block");
  const table_lock state(state_);
  state->events().note(
      {what, {at, request.block_bytes()}, state->progress().shown_handle(request.stream)});
}

result<address> slow_path::note_served(const stream_request& request, std::uint64_t asked_bytes,
                                       result<address> at) noexcept {
  if (!events_.is_on() || !at) return at;
  check(at->value != 0, "a request is served with a null block");
  check(request.block_bytes() >= asked_bytes, "a block is smaller than requested");
  const table_lock state(state_);
  state->events().note_block(history_kind::allocated, {*at, request.block_bytes()}, asked_bytes,
                             state->progress().shown_handle(request.stream));
  return at;
}

// ---- blocks of mappings of their own -----------------------------------------------------

void slow_path::keep_none() {
  check(options_.policy.tuning.keep_none, "a pool that keeps its memory releases it");
  if (!notifier::is_in_any_callback() && !state_.is_suspended()) (void)parts_.reclaim.trim(0);
}

result<address> slow_path::allocate_dedicated(const block_shape& shape, stream_handle stream) {
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  if (options_.policy.tuning.keep_none) keep_none();
  captures_.note_uncaptured(driver_.feature_set().canonical(stream));
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  const result<address> at = with_others(call, [this](slow_call& each, relief_pass& relief) {
    return allocate_dedicated_once(each, relief);
  });
  check(!at || at->value % shape.alignment_bytes == 0, "a block has another alignment");
  return at;
}

result<address> slow_path::allocate_dedicated_once(slow_call& call, relief_pass& relief) {
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_.feature_set().canonical(call.stream));
  if (state_.is_suspended()) return memory_suspended;
  check(entry_.may_name(entry_.named()), "a request of whole mappings does not name its stream");
  parts_.rights.end_freed();
  const result<std::uint32_t> number = parts_.clock.enter(call.stream);
  if (!number) return number.error();
  const std::uint32_t pages = state_.with(
      [&](auto& state) { return state.sizes().rounded_to_pages(call.request.block_granules()); });
  const std::uint32_t spare = call.request.spare_granules;
  const stream_request request{pages + spare, *number, spare, call.request.fill};
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  const arena_flush pause(state_);  // memory of arenas may have to be flushed for this
  note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> at = shortage_.grow_dedicated(request, relief);
  if (!at && options_.policy.tuning.keep_none && is_shortage(at.error().code)) {
    growth_attempt attempt{request};
    shortage_.report(attempt, at.error());
  }
  note_growth(request, history_kind::served, at ? *at : address{});
  return note_served(request, call.size_bytes, at);
}

// ---- growth ------------------------------------------------------------------------------

result<address> slow_path::grow(const slow_call& call, relief_pass& relief) {
  const stream_request& request = call.request;
  check(request.count_granules != 0, "a growth is for nothing");
  growth_attempt attempt{.request = request, .relief = &relief, .created_mark = call.created_mark};
  const std::uint64_t held_bytes = parts_.core.memory.statistics().held_bytes;
  attempt.has_headroom = state_.with(
      [&](auto& state) { return growth_planner(state).has_headroom(request, held_bytes); });
  attempt.may_wait = captures_.may_record_all();
  const result<address> grown = grow_by_steps(attempt);
  check(!grown || grown->value != 0, "a growth has no address");
  if (grown || !attempt.may_wait || !is_capture_refusal(grown.error())) return grown;
  attempt.may_wait = false;  // a capture has begun meanwhile on a stream that was to be waited for
  attempt.was_refused = true;
  return grow_by_steps(attempt);
}

result<address> slow_path::grow_by_steps(growth_attempt& attempt) {
  check(attempt.request.count_granules != 0, "a growth is for nothing");
  if (!attempt.has_headroom) {
    const result<address> waited = parts_.reuse.behind_wait(attempt, {});
    if (!waited || *waited) return waited;
  }
  growth_effort effort{.may_move = parts_.growth.may_alias() && attempt.may_wait};
  const result<address> grown = parts_.growth.try_grow(attempt.request, effort);
  attempt.refusal = effort.refusal;
  if (grown || !is_shortage(grown.error().code)) return grown;
  return shortage_.grow(attempt, grown.error());
}

// ---- requests that cannot fit ----------------------------------------------------------

result<stream_request> slow_path::request_for(const block_shape& shape) {
  const result<std::uint32_t> count = count_granules(shape.size_bytes);
  if (!count) return count.error();
  stream_request request{*count};
  request.fill = shape.fill;
  if (shape.alignment_bytes <= granule_bytes) return request;
  check(std::has_single_bit(shape.alignment_bytes), "a request has a wrong alignment");
  const std::uint32_t spare = granules_in(shape.alignment_bytes) - 1;
  if (std::uint64_t{*count} + spare > std::numeric_limits<std::uint32_t>::max())
    return refuse(errc::out_of_addresses, "no range of addresses fits the aligned block");
  request.count_granules += spare;
  request.spare_granules = spare;
  check(request.block_granules() == *count, "an aligned block has another size");
  return request;
}

result<std::uint32_t> slow_path::count_granules(std::uint64_t size_bytes) {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a block has at least one byte");
  const std::uint32_t count =
      state_.with([&](auto& state) { return state.granules_for(size_bytes); });
  check(count * granule_bytes >= size_bytes || count == 0, "a request is rounded down");
  if (count != 0) return count;
  check(size_bytes >= granule_bytes, "a granule is too large for a segment");
  return refuse_too_large(size_bytes);
}

// No segment can hold the request. If the budget or the device is smaller too, the error names that
// limit.
error slow_path::refuse_too_large(std::uint64_t size_bytes) {
  const relaxed_capture capture(driver_, captures_.is_on());
  const std::uint64_t device_bytes =
      options_.spill ? 0 : parts_.core.memory.device_bytes(size_bytes);
  const std::uint64_t budget_bytes = options_.budget_bytes;
  check(size_bytes != 0, "a request of 0 bytes is refused as too large");
  pool_growth& growth = parts_.growth;
  if (budget_bytes != 0 && size_bytes > budget_bytes)
    return growth.with_figures(budget_spent, size_bytes);
  if (device_bytes != 0 && size_bytes > device_bytes)
    return growth.with_figures(device_full, size_bytes);
  return growth.with_figures(
      refuse(errc::out_of_addresses,
             "A pool's block fits into one segment, which has memory_options::reservation_bytes "
             "of addresses and at most 512 GiB; a manager has larger blocks."),
      size_bytes);
}

// Refuses requests that cannot succeed: the live blocks and the request exceed the budget, or the
// whole device. Freed memory that waits does not count: it may be free in time. No driver call,
// except for the device's size, once.
status slow_path::check_can_fit(const slow_call& call) {
  const std::uint64_t size_bytes = call.request.block_bytes();
  check(size_bytes >= call.size_bytes, "a request is rounded down");
  std::uint64_t device_bytes = 0;
  if (!options_.spill && size_bytes > physical_pool::queried_bytes_min) {
    const relaxed_capture capture(driver_, captures_.is_on());
    device_bytes = parts_.core.memory.device_bytes(size_bytes);
  } else if (!options_.spill) {
    device_bytes = parts_.core.memory.device_bytes(0);
  }
  const std::uint64_t budget_bytes = options_.budget_bytes;
  if (budget_bytes == 0 && device_bytes == 0) return {};
  const auto exceeds = [&](std::uint64_t limit_bytes, std::uint64_t live_bytes) {
    return limit_bytes != 0 && (size_bytes > limit_bytes || live_bytes > limit_bytes - size_bytes);
  };
  std::uint64_t live_bytes =
      state_.with([](auto& state) { return live_granules_of(state); }) * granule_bytes;
  if (!exceeds(budget_bytes, live_bytes) && !exceeds(device_bytes, live_bytes)) return {};
  const growth_guard growing(entry_);
  if (state_.is_suspended()) return memory_suspended;
  live_bytes = state_.with([](auto& state) {
    return state_report(state).statistics().live_bytes - waiting_granules(state) * granule_bytes;
  });
  const bool is_over_budget = exceeds(budget_bytes, live_bytes);
  if (!is_over_budget && !exceeds(device_bytes, live_bytes)) return {};
  const result<std::uint32_t> number = parts_.clock.enter(call.stream);
  if (!number) return number.error();
  growth_attempt attempt{.request = call.request};
  attempt.request.stream = *number;
  const error& why = is_over_budget ? budget_spent : device_full;
  shortage_.report(attempt, why);
  return parts_.growth.with_figures(why, call.size_bytes);
}

// ---- requests that fail ------------------------------------------------------------------

// Releases the created memory, and returns the error with its figures.
result<address> slow_path::end_failed(const slow_call& call, const error& why) {
  check(why.code != errc::none, "a successful request is handled as a failure");
  const bool is_short = is_shortage(why.code) || why.code == errc::out_of_addresses;
  if (!call.created_mark && !is_short) return why;
  check(!call.created_mark || *call.created_mark <= parts_.core.memory.creation_mark(),
        "shortage I1: a request has created memory before it began");
  const growth_guard growing(entry_);
  if (call.created_mark) parts_.reclaim.release_created(*call.created_mark);
  return is_short ? parts_.growth.with_figures(why, call.size_bytes) : why;
}

// ---- ahead of requests --------------------------------------------------------------------

// A part of the device stays free: what else runs there created its memory before the peak.
void slow_path::make_remembered_ready(stream_handle stream) {
  constexpr std::uint64_t spare_share = 16;
  const std::uint64_t peak_bytes = events_.take_remembered();
  if (peak_bytes == 0) return;
  const relaxed_capture capture(driver_, captures_.is_on());
  const std::optional<memory_info> device = parts_.core.memory.query_device();
  std::uint64_t ready_bytes = peak_bytes;
  if (device) {
    const std::uint64_t spare_bytes = device->total_bytes / spare_share;
    ready_bytes =
        std::min(peak_bytes, device->free_bytes - std::min(device->free_bytes, spare_bytes));
  }
  if (ready_bytes == 0) return;
  const std::uint64_t number = parts_.growth.next_announcement();
  shortage_.note_ready(parts_.core.memory.creation_mark(), number);
  (void)announce(ready_bytes, stream, number);  // what fails is created by requests
  events_.note_ready();
}

preallocate_report slow_path::preallocate(std::uint64_t size_bytes, stream_handle stream) {
  return announce(size_bytes, stream, parts_.growth.next_announcement());
}

// What a lender can never give is not begun.
status slow_path::check_lent(const stream_request& request) {
  if (!driver_.feature_set().is_lender) return {};
  std::uint64_t free_bytes = 0, page_bytes = 0;
  {
    const table_lock state(state_);
    free_bytes = state_report(*state).statistics().reusable_bytes;
    page_bytes = state->sizes().page_bytes;
  }
  const std::uint64_t size_bytes = round_up(request.block_bytes(), page_bytes);
  free_bytes -= free_bytes % page_bytes;
  return size_bytes <= free_bytes ? status{}
                                  : parts_.core.memory.check_room(size_bytes - free_bytes);
}

preallocate_report slow_path::announce(std::uint64_t size_bytes, stream_handle stream,
                                       std::uint64_t number) {
  preallocate_report report;
  report.left_bytes = size_bytes;
  const result<stream_request> counted = request_for({size_bytes});
  if (!counted) {
    report.failure = counted.error();
    return report;
  }
  const std::uint32_t count = counted->count_granules;
  const slow_call call{.size_bytes = size_bytes, .stream = stream, .request = *counted};
  if (const status fits = check_can_fit(call); !fits) {
    report.failure = fits.error();
    return report;
  }
  if (const status lent = check_lent(*counted); !lent) {
    report.failure = parts_.growth.with_figures(lent.error(), size_bytes);
    return report;
  }
  const std::uint64_t mark = parts_.core.memory.creation_mark();
  const status more = parts_.growth.make_ready(
      {.stream = stream, .count_granules = count, .number = number}, report);
  check(report.left_bytes <= std::max(size_bytes, count * granule_bytes),
        "more is missing than requested");
  if (more) parts_.reclaim.unmap_ahead(report);
  if (more) return report;
  report.failure = more.error();
  if (!is_shortage(report.failure.code)) return report;
  const growth_guard growing(entry_);
  if (report.created_bytes != 0 && !state_.is_suspended())
    report.created_bytes -=
        std::min(report.created_bytes, parts_.reclaim.release_unused(mark, number));
  report.failure = parts_.growth.with_figures(report.failure, size_bytes);
  return report;
}

}  // namespace vmm
