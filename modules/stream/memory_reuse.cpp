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

constexpr std::size_t others_count_max = 64;

}  // namespace

// ---- memory of streams -----------------------------------------------------------------

result<address> memory_reuse::own_or_finished(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  std::array<stream_point, others_count_max> others;
  std::size_t count = 0;
  {
    const table_lock state(state_);
    const result<address> own = own_memory(*state).allocate(request);
    if (!own || *own) return own;
    count = stream_memory(*state).other_stream_candidates(request, others);
  }
  return finished_of(request, std::span(others).first(count));
}

// What of these streams' memory is found to be finished with.
result<address> memory_reuse::finished_of(const stream_request& request,
                                          std::span<const stream_point> others) {
  check(others.size() <= others_count_max, "more streams are searched than the list holds");
  if (others.empty()) return address{};
  for (const stream_point& point : others) {
    if (status asked = clock_.poll(point); !asked) return asked.error();
  }
  const table_lock state(state_);
  const result<other_stream_claim> claim =
      stream_memory(*state).claim_from_other(request, {.passed_only = true});
  if (!claim) return claim.error();
  if (claim->region == region_id::none) return address{};
  check(claim->last_use.stream != request.stream,
        "a stream reuses its own memory as another stream's");
  check(state->streams().passed(claim->last_use),
        "memory_reuse I1: unfinished work may use reused memory");
  return stream_memory(*state).finish_claim(*claim);
}

// Requests that take the lowest fitting address: searched stream by stream that address would
// differ, and the blocks there would fragment the places of later ones.
bool memory_reuse::is_first_fit(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  return state_.with(
      [&](auto& state) { return request.count_granules >= state.sizes().lowest_granules; });
}

result<address> memory_reuse::finished_of_all(const stream_request& request) {
  std::array<stream_point, others_count_max> others;
  const std::size_t count = state_.with(
      [&](auto& state) { return stream_memory(state).others_to_reclaim(request.stream, others); });
  check(count <= others.size(), "more streams are named than there is room for");
  if (count == 0) return address{};
  for (const stream_point& point : std::span(others).first(count)) {
    if (status asked = clock_.poll(point); !asked) return asked.error();
  }
  region_walk walk;
  for (bool goes_on = true; goes_on;)
    goes_on = state_.with(
        [&](auto& state) { return stream_memory(state).reclaim_finished(request.stream, walk); });
  return state_.with([&](auto& state) {
    const result<address> at = own_memory(state).allocate(request);
    if (at && *at) ++state.totals().other_stream_count;
    return at;
  });
}

result<address> memory_reuse::behind_wait(const growth_attempt& attempt,
                                          const other_stream_search& how) {
  check(attempt.request.count_granules != 0, "no granule is looked for");
  if (!attempt.may_wait) return address{};
  const result<other_stream_claim> claim = state_.with(
      [&](auto& state) { return stream_memory(state).claim_from_other(attempt.request, how); });
  if (!claim) return claim.error();
  if (claim->region == region_id::none) return address{};
  check(claim->last_use.stream != attempt.request.stream, "a stream waits for itself");
  const status ordered = clock_.order_behind(claim->last_use, attempt.request.stream);
  const table_lock state(state_);
  if (ordered) return stream_memory(*state).finish_claim(*claim);
  stream_memory(*state).return_claim(*claim);
  return ordered.error();
}

result<address> memory_reuse::coalesced(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  region_walk walk;
  for (bool goes_on = true; goes_on;)
    goes_on = state_.with(
        [&](auto& state) { return stream_memory(state).coalesce_finished(request.stream, walk); });
  return state_.with([&](auto& state) { return own_memory(state).allocate(request); });
}

// ---- memory of arenas ------------------------------------------------------------------

address memory_reuse::allocate_in_arena(const arena_table& arenas, std::uint64_t size_bytes,
                                        stream_handle stream) noexcept {
  arena* const own = arenas.find(stream);
  if (own == nullptr) return {};
  if (const address at = own->take(stream, size_bytes)) return at;
  if (size_bytes > arena_lending::request_bytes_max) return {};
  {
    const table_lock state(state_);
    const address at = arena_lending(*state).refill_and_take(stream, size_bytes);
    debug_check([&] { return at.value % granule_bytes == 0; }, "a block begins inside a granule");
    if (at || !stream_memory(*state).has_nothing_to_tidy()) return at;
  }
  return path_.gate().is_open() ? take_between_arenas(size_bytes, stream) : address{};
}

address memory_reuse::take_between_arenas(std::uint64_t size_bytes, stream_handle stream) noexcept {
  if (options_.captures_announced) return {};
  const growth_guard growing(entry_);
  if (rights_.has_own()) return {};
  stream_request request;
  transfer_under_way moving;
  {
    const table_lock state(state_);
    // Another thread may have freed memory of the stream.
    const address at = arena_lending(*state).refill_and_take(stream, size_bytes);
    if (at || !stream_memory(*state).has_nothing_to_tidy()) return at;
    request = {state->granules_for(size_bytes), state->progress().find(stream)};
    if (request.count_granules == 0 || request.stream == pool_state::no_stream) return {};
    if (state->arenas().needs_room()) return {};
    moving = begin_transfer(*state, request);
  }
  const result<address> found = finish_transfer(std::move(moving), request, stream);
  check(!found || found->value % granule_bytes == 0, "a block begins inside a granule");
  return found ? *found : address{};
}

// With memory of another arena, once its stream has finished with it. Under the growth lock.
result<address> memory_reuse::from_arena(const stream_request& request, stream_handle stream) {
  if (path_.published_arenas() == nullptr) return address{};
  if (request.size_bytes() > arena_lending::request_bytes_max) return address{};
  if (request.is_aligned()) return address{};  // arenas do not align
  check(request.count_granules != 0, "a search for 0 granules");
  transfer_under_way moving;
  {
    const table_lock state(state_);
    moving = begin_transfer(*state, request);
  }
  return finish_transfer(std::move(moving), request, stream);
}

memory_reuse::transfer_under_way memory_reuse::begin_transfer(
    pool_state& state, const stream_request& request) noexcept {
  check(request.count_granules != 0, "a transfer of 0 granules");
  transfer_under_way moving{arena_lending(state).begin_transfer(request), {}};
  if (moving.what.from == arena_table::none) return moving;
  moving.answer = state.progress().ask(moving.what.freed);
  check(moving.answer.is == point_answer::kind::unrecorded, "a point of now is recorded");
  return moving;
}

// Where the stream that freed the memory has not finished with it, or is being captured, it stays.
result<address> memory_reuse::finish_transfer(transfer_under_way&& moving,
                                              const stream_request& request, stream_handle stream) {
  if (moving.what.from == arena_table::none) return address{};
  check(request.count_granules != 0, "a transfer of 0 granules");
  record_order& order = moving.answer.order;
  const result<fresh_event> event = clock_.points().record_on(order.handle());
  const result<bool> passed = event ? time_.passed(event->ticket) : result<bool>{event.error()};
  const table_lock state(state_);
  const bool has_passed = passed && *passed;
  if (event) ++state->totals().event_count;
  if (has_passed) state->progress().note_passed(moving.what.freed);
  if (event && !has_passed) point_events::note(*state, std::move(order), *event);
  arena_lending lending(*state);
  const bool arrived = lending.end_transfer(moving.what, request, has_passed);
  check(!arrived || has_passed, "unfinished work may use transferred memory");
  if (!passed && !is_capture_refusal(passed.error())) return passed.error();
  if (!arrived) return address{};
  arena* const own = state->arenas().table()->find(stream);
  const address taken = own == nullptr ? address{} : own->take(stream, request.size_bytes());
  const result<address> at = taken ? result<address>{taken} : own_memory(*state).allocate(request);
  if (at && *at) ++state->totals().other_stream_count;
  check(!at || at->value % granule_bytes == 0, "a block begins inside a granule");
  return at;
}

result<address> memory_reuse::after_flush(const stream_request& request) {
  check(request.count_granules != 0, "no granule is looked for");
  const result<address> found = own_or_finished(request);
  if (!found || *found) return found;
  const bool is_much_free = state_.with([](auto& state) {
    const pool_statistics now = state_report(state).statistics();
    return now.reusable_bytes / 3 > now.live_bytes / 10;
  });
  if (!is_much_free) return found;
  if (status asked = clock_.poll_all(); !asked) return asked.error();
  return coalesced(request);
}

// Under the growth lock. An arena is optional, so a failure to create one is not an error. If its
// stream's arena may serve a request, the pool's memory is left to streams without one.
void memory_reuse::provide_arena(const stream_request& request, stream_handle stream) noexcept {
  const std::uint32_t record = request.stream;
  if (path_.observes_blocks() || options_.stream_arenas == arena_rule::never ||
      options_.policy.eager_unmap)
    return;
  struct wish {
    bool is_wanted = false;
    address_range where{};
  };
  const wish wished = state_.with([&](auto& state) -> wish {
    const bool is_wanted =
        options_.stream_arenas == arena_rule::always || state.arenas().is_wanted();
    if (!is_wanted || state.segments().count() == 0) return {};
    if (state.arenas().table() != nullptr && !state.arenas().table()->takes(stream)) {
      const bool has_one = state.arenas().table()->number_of(stream) != arena_table::none;
      if (!has_one || request.size_bytes() > arena_lending::request_bytes_max)
        state.end_want(false);
      return {};
    }
    return {true, state.segments().at(0).where().range};
  });
  if (!wished.is_wanted) return;
  const pool_geometry sizes = state_.with([](auto& state) { return state.sizes(); });
  result<std::unique_ptr<arena>> made = arena::create(wished.where, sizes);
  const table_lock state(state_);
  const bool is_added =
      made && state->arenas().add(wished.where, stream, record, std::move(*made)).has_value();
  state->end_want(is_added);
  check(!is_added || state->arenas().table()->find(stream) != nullptr,
        "a new arena is missing from its table");
  if (is_added) path_.publish_arenas(state->arenas().table());
}

}  // namespace vmm
