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

constexpr std::size_t reap_count = 8;
constexpr std::size_t reap_count_max = 64;  // by one growth that is not short of memory
// Of the stale mappings that are too many, a growth undoes this part: as many as growths leave on
// the average, and not all that the one before it has left.
constexpr std::size_t surplus_share = 64;

}  // namespace

// ---- requests ----------------------------------------------------------------------------

result<address> slow_path::allocate(const block_shape& shape, stream_handle given) {
  const stream_handle stream = driver_.feature_set().canonical(given);
  const result<stream_request> counted = shortage_.request_for(shape);
  if (!counted) return counted.error();
  if (status announced = captures_.check_announced(stream); !announced) return announced.error();
  captures_.note_uncaptured(stream);
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return shortage_.with_others(
      call, [this](slow_call& each, relief_pass& relief) { return allocate_once(each, relief); });
}

result<address> slow_path::allocate_once(slow_call& call, relief_pass& relief) {
  check(call.request.count_granules != 0, "a request of 0 granules");
  const growth_guard growing(entry_);
  const named_stream named(entry_, call.stream);
  if (state_.is_suspended()) return memory_suspended;
  parts_.clock.poll_retired();
  if (parts_.clock.record_few_batches()) parts_.clock.poll_retired();
  check(entry_.may_name(call.stream), "a request does not name its stream");
  const result<std::uint32_t> number = parts_.clock.enter(call.stream);
  if (!number) return number.error();
  const std::size_t surplus =
      state_.with([](auto& state) { return idle_handles(state).surplus_stale_count(); });
  parts_.rights.end_freed();
  if (options_.rules.unmap_early || surplus != 0)
    parts_.reclaim.unmap_stale(std::clamp(surplus / surplus_share, reap_count, reap_count_max));
  call.request.stream = *number;
  const stream_request request = call.request;
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  parts_.reuse.provide_arena(request, call.stream);
  result<address> at{address{}};
  if (parts_.reuse.is_first_fit(request)) at = parts_.reuse.finished_of_all(request);
  if (at && !*at)
    at = parts_.reuse.own_or_finished(request);  // its own memory first, then that of others
  if (at && !*at) at = parts_.reuse.from_arena(request, call.stream);
  if (!at || *at) return events_.served(request, call.size_bytes, at);
  const arena_flush pause(state_);
  if (pause.flushed_any()) at = parts_.reuse.after_flush(request);
  if (at && !*at) at = parts_.reuse.finished_of_all(request);
  if (!at || *at) return events_.served(request, call.size_bytes, at);
  events_.note_growth(request, history_kind::grow, {});
  shortage_.mark_created(call);
  const result<address> grown = grow(call, relief);
  events_.note_growth(request, history_kind::served, grown ? *grown : address{});
  if (options_.fronts == front_rule::always) parts_.reuse.provide_arena(request, call.stream);
  return events_.served(request, call.size_bytes, grown);
}

// Free memory of the stream, under the short lock; else the slow path.
result<address> slow_path::allocate_aligned(const block_shape& shape, stream_handle stream) {
  const result<stream_request> counted = shortage_.request_for(shape);
  if (!counted) return counted.error();
  check(counted->is_aligned(), "a request that any place takes is given another one");
  {
    const table_lock state(state_);
    stream_request request = *counted;
    request.stream = state->find_stream(stream);
    bool starved = false;
    const bool plain = request.stream != pool_state::no_stream && !state->needs_slow_path();
    const address at =
        plain ? own_memory(*state).try_allocate_aligned(request, starved) : address{};
    check(!at || !starved, "an allocation both failed and did not");
    if (at) {
      state->events().note_block(history_kind::allocated, {at, request.block_bytes()},
                                 shape.size_bytes, stream);
      return at;
    }
  }
  return allocate(shape, stream);
}

// ---- blocks of mappings of their own -----------------------------------------------------

void slow_path::keep_none() {
  check(options_.rules.keep_none, "a pool gives back what it is to keep");
  if (!notices_.is_in_callback() && !state_.is_suspended()) (void)parts_.reclaim.trim(0);
}

result<address> slow_path::allocate_dedicated(const block_shape& shape, stream_handle stream) {
  const result<stream_request> counted = shortage_.request_for(shape);
  if (!counted) return counted.error();
  if (options_.rules.keep_none) keep_none();
  captures_.note_uncaptured(driver_.feature_set().canonical(stream));
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  const result<address> at =
      shortage_.with_others(call, [this](slow_call& each, relief_pass& relief) {
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
  const stream_request request{pages + spare, *number, spare};
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  const arena_flush pause(state_);  // memory of arenas may have to be flushed for this
  events_.note_growth(request, history_kind::grow, {});
  shortage_.mark_created(call);
  const result<address> at = shortage_.grow_dedicated(request, relief);
  if (!at && options_.rules.keep_none && is_shortage(at.error().code)) {
    growth_attempt attempt{request};
    shortage_.report(attempt, at.error());
  }
  events_.note_growth(request, history_kind::served, at ? *at : address{});
  return events_.served(request, call.size_bytes, at);
}

// ---- growth ------------------------------------------------------------------------------

result<address> slow_path::grow(const slow_call& call, relief_pass& relief) {
  const stream_request& request = call.request;
  check(request.count_granules != 0, "a growth is for nothing");
  growth_attempt attempt{.request = request, .relief = &relief, .created_mark = call.created_mark};
  const std::uint64_t footprint_bytes = parts_.core.memory.statistics().footprint_bytes;
  attempt.has_headroom = state_.with(
      [&](auto& state) { return growth_planner(state).has_headroom(request, footprint_bytes); });
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

// ---- ahead of requests --------------------------------------------------------------------

prepare_report slow_path::prepare(std::uint64_t size_bytes, stream_handle stream) {
  prepare_report report;
  report.left_bytes = size_bytes;
  const result<stream_request> counted = shortage_.request_for({size_bytes});
  if (!counted) {
    report.failure = counted.error();
    return report;
  }
  const std::uint32_t count = counted->count_granules;
  const slow_call call{.size_bytes = size_bytes, .stream = stream, .request = *counted};
  if (const status fits = shortage_.check_can_fit(call); !fits) {
    report.failure = fits.error();
    return report;
  }
  const status more = parts_.growth.make_ready(count, stream, report);
  check(report.left_bytes <= std::max(size_bytes, count * granule_bytes),
        "more is left than requested");
  if (more) parts_.reclaim.unmap_ahead(report);
  if (more) return report;
  report.failure = more.error();
  if (!is_shortage(report.failure.code)) return report;
  if (report.created_bytes != 0) {
    const std::uint64_t gone_bytes = parts_.reclaim.trim_by(report.created_bytes).released_bytes;
    report.created_bytes -= std::min(report.created_bytes, gone_bytes);
  }
  const growth_guard growing(entry_);
  report.failure = parts_.growth.with_figures(report.failure, size_bytes);
  return report;
}

}  // namespace vmm
