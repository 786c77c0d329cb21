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

namespace vmm {

namespace {

// The destroyed streams that may have an event each. Further ones share an event.
constexpr std::size_t leaving_max = 64;

}  // namespace

// ---- streams ---------------------------------------------------------------------------

result<std::uint32_t> stream_clock::enter(stream_handle stream) {
  if (status named = check_stream(driver_, stream); !named) return named.error();
  const std::uint64_t identity = path_.identity_of(stream);
  const table_lock state(state_);
  return stream_memory(*state).enter(driver_.feature_set().canonical(stream), identity);
}

// ---- queries -----------------------------------------------------------------------

// Finds out whether a point has passed: queries the present events, oldest first, and makes one if
// none covers the point.
status stream_clock::poll(const stream_point& point) {
  std::array<recorded_event, stream_progress::events_max> events;
  std::size_t count = 0;
  point_answer answer;
  {
    const table_lock state(state_);
    if (state->progress().phase_of(point.stream) == stream_phase::unrecorded) return {};
    answer = state->progress().ask(point);
    if (answer.is == point_answer::kind::passed) return {};
    count = state->progress().events_of(point.stream, events);
    check(answer.is != point_answer::kind::recorded || count != 0,
          "an event that covers a point is missing");
  }
  if (answer.is == point_answer::kind::unrecorded) {
    const result<ticket_ref> fresh = points_.event_for(std::move(answer));
    if (!fresh) return is_capture_refusal(fresh.error()) ? status{} : status{fresh.error()};
    count =
        state_.with([&](auto& state) { return state.progress().events_of(point.stream, events); });
  }
  check(count <= events.size(), "a stream has too many events");
  for (std::size_t i = 0; i < count; ++i) {
    const result<bool> finished = time_.passed(events[i].event);
    if (!finished) return finished.error();
    if (!*finished) return {};
    {
      const table_lock state(state_);
      state->progress().note_passed(events[i].at);
    }
  }
  return {};
}

// Queries the progress of every stream.
status stream_clock::poll_all() {
  const std::uint32_t streams = state_.with([](auto& state) { return state.progress().count(); });
  status asked;
  for (std::uint32_t stream = 0; stream < streams && asked; ++stream)
    asked = poll(state_.with([&](auto& state) { return state.progress().last_point(stream); }));
  debug_check(
      [&] { return state_.with([](auto& state) { return state.progress().count(); }) >= streams; },
      "records of streams vanished during their query");
  return asked;
}

// Polls a few forgotten streams, and gives the memory of finished ones to every stream. Failed
// queries are repeated later.
void stream_clock::poll_retired() {
  constexpr std::size_t looks_max = 8;
  std::size_t looks = state_.with([](auto& state) { return state.progress().retired_count(); });
  looks = std::min(looks, looks_max);
  for (; looks != 0; --looks) {
    stream_point last;
    {
      const table_lock state(state_);
      const std::uint32_t stream = state->progress().next_retired();
      if (stream == pool_state::no_stream) return;
      last = state->progress().last_point(stream);
    }
    if (!poll(last)) continue;
    const table_lock state(state_);
    check(state->streams().phase_of(last.stream) == stream_phase::retired,
          "a stream in use is handled as forgotten");
    if (state->progress().passed(last)) stream_memory(*state).clear_retired(last.stream);
  }
}

void stream_clock::catch_up() {
  poll_retired();
  if (batches_.record_few()) poll_retired();
}

// ---- waiting -----------------------------------------------------------------------

status stream_clock::order_behind(const stream_point& point, std::uint32_t stream) {
  const result<ticket_ref> event =
      points_.event_for(state_.with([&](auto& state) { return state.progress().ask(point); }));
  if (!event) return event.error();
  stream_handle handle{};
  {
    const table_lock state(state_);
    if (state->progress().passed(point)) return {};
    check(point.stream != stream, "a stream waits for itself");
    handle = state->progress().active_handle(stream);
    ++state->totals().device_wait_count;
    const stream_handle other = state->progress().shown_handle(point.stream);
    state->events().note({history_kind::wait, {}, handle, static_cast<std::uint64_t>(other)});
  }
  return time_.order(handle, *event);
}

result<bool> stream_clock::wait_for(const stream_point& point) {
  point_answer answer;
  stream_handle handle{};
  {
    const table_lock state(state_);
    check(point.stream < state->progress().count(), "a wait for a missing record");
    answer = state->progress().ask(point);
    if (answer.is == point_answer::kind::passed) return false;
    ++state->totals().host_wait_count;
    handle = state->progress().shown_handle(point.stream);
    state->events().note({history_kind::blocked, {}, handle});
  }
  const result<ticket_ref> event = points_.event_for(std::move(answer));
  const status waited = event ? time_.wait(*event) : status{event.error()};
  events_.note({history_kind::passed, {}, handle});
  if (!waited) return waited.error();
  {
    const table_lock state(state_);
    state->progress().note_passed(point);
  }
  return true;
}

status stream_clock::synchronize() {
  std::vector<recorded_event> events;
  if (status recorded = record_all(events); !recorded) return recorded;
  const relaxed_capture capture(driver_, captures_.is_on());
  if (!events.empty()) events_.note({history_kind::blocked});
  status waited;
  for (const recorded_event& each : events) {
    waited = time_.wait(each.event);
    if (!waited) break;
    {
      const table_lock state(state_);
      state->progress().note_passed(each.at);
    }
  }
  if (!events.empty()) events_.note({history_kind::passed});
  return waited;
}

// Events for the unfinished work of the streams. The wait holds no lock: other threads may grow the
// pool and forget streams meanwhile.
status stream_clock::record_all(std::vector<recorded_event>& out) {
  const growth_guard growing(entry_);
  const arena_flush pause(state_);  // frees in arenas are then visible to all
  if (status recorded = batches_.record(); !recorded) return recorded;
  const std::uint32_t count = state_.with([](auto& state) { return state.progress().count(); });
  if (status room = reserve_more(out, count); !room) return room;
  for (std::uint32_t stream = 0; stream < count; ++stream) {
    stream_point last;
    point_answer answer;
    {
      const table_lock state(state_);
      last = state->progress().last_point(stream);
      answer = state->progress().ask(last);
      if (answer.is == point_answer::kind::passed) continue;
      ++state->totals().host_wait_count;
    }
    const result<ticket_ref> event = points_.event_for(std::move(answer));
    if (!event) return event.error();
    check(out.size() < out.capacity(), "an event has no room");
    out.push_back({last, *event});
  }
  return {};
}

// ---- streams that go ---------------------------------------------------------------

status stream_clock::identify(stream_handle stream, std::uint64_t identity) {
  if (is_identified(stream, identity)) return {};
  const growth_guard growing(entry_);
  const named_stream named(entry_, stream);
  captures_.note_uncaptured(stream);
  std::uint32_t number = pool_state::no_stream;
  bool may_be_own = false;
  {
    const table_lock state(state_);
    number = state->progress().find(stream);
    if (number == pool_state::no_stream || state->progress().identity_of(number) == identity)
      return {};
    may_be_own = state->progress().identity_of(number) == 0;
  }
  if (may_be_own) {
    const status adopted = adopt(number, identity);
    const bool is_deferred = !adopted && is_capture_refusal(adopted.error());
    if (!is_deferred) return adopted;
    if (state_.with([&](auto& state) { return state.streams().has_locked(number); })) {
      const capture_watch::pressing pressing(captures_);  // else the request fails
      return adopt(number, identity);
    }
  }
  {
    const table_lock state(state_);
    if (status removed = arena_lending(*state).remove(stream); !removed) return removed;
  }
  const result<bool> joined = shares_event(number) ? leave_to_batch(number) : result<bool>{false};
  if (!joined) return joined.error();
  if (!*joined) {
    if (status recorded = record_leaving(number); !recorded) return recorded;
    if (status left = set_aside(number); !left) return left;
  }
  poll_retired();
  return {};
}

// A block that is freed and pinned keeps the record.
bool stream_clock::shares_event(std::uint32_t stream) {
  const table_lock state(state_);
  check(state->progress().phase_of(stream) == stream_phase::active, "a stream leaves twice");
  return state->progress().leaving_count() >= leaving_max && !state->streams().has_locked(stream);
}

// Frees the stream's handle and record. Its freed memory becomes free once all work submitted so
// far has finished, and waits in a batch. False if a block was freed and pinned meanwhile: it
// refers to the record, which stays.
result<bool> stream_clock::leave_to_batch(std::uint32_t stream) {
  check(time_.can_record_all(), "a stream leaves memory that no event covers");
  const events_guard no_mark(captures_.lock());
  for (;;) {
    const table_lock state(state_);
    stream_memory memory(*state);
    const result<std::uint32_t> batch = memory.provide_batch(false);
    if (!batch) return batch.error();
    stream_progress& progress = state->progress();
    const stream_point now = progress.advance(*batch);
    if (!memory.move_free(stream, now)) continue;
    if (state->streams().has_locked(stream)) return false;
    state->records().pass_stale_on(stream, now);
    progress.note_passed({stream, progress.last_epoch(stream)});  // nothing names a point of it
    progress.retire(stream, time_);
    memory.recycle(stream);
    return true;
  }
}

// The record is this stream's or an earlier one's: the driver returned no identity. All work is
// waited for, and the record is this stream's. Beside a capture it is set aside instead, except
// where blocks that are freed and pinned name it: they may still be used by this stream.
status stream_clock::adopt(std::uint32_t number, std::uint64_t identity) {
  if (status finished = points_.finish_all_work(); !finished) return finished;
  state_.with([&](auto& state) { state.progress().set_identity(number, identity); });
  return {};
}

// Behind all work, because the handle is another stream's now. A capture postpones the event.
status stream_clock::record_leaving(std::uint32_t stream) {
  check(!entry_.names_streams(), "a stream whose handle is used again is named");
  point_answer answer = state_.with(
      [&](auto& state) { return state.progress().ask(state.streams().leaving_point(stream)); });
  if (answer.is != point_answer::kind::unrecorded) return {};
  const result<ticket_ref> all = points_.record_all_work();
  if (!all) return is_capture_refusal(all.error()) ? status{} : status{all.error()};
  const table_lock state(state_);
  ++state->totals().event_count;
  point_events::note(*state, std::move(answer.order), {*all, true});
  return {};
}

// Sets the stream aside from its handle, and retires all such streams that have an event.
status stream_clock::set_aside(std::uint32_t stream) {
  const events_guard no_mark(captures_.lock());
  const table_lock state(state_);
  if (status provided = stream_memory(*state).provide_shared(); !provided) return provided;
  stream_progress& progress = state->progress();
  progress.set_aside(stream, time_);
  for (std::uint32_t gone = progress.next_set_aside(); gone != pool_state::no_stream;
       gone = progress.next_set_aside())
    progress.retire(gone, time_);
  return {};
}

status stream_clock::forget(stream_handle stream) {
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_.feature_set().canonical(stream));
  check(entry_.may_name(entry_.named()), "a stream that is forgotten cannot be named");
  stream_point last;
  std::uint32_t number = pool_state::no_stream;
  {
    const table_lock state(state_);
    number = state->progress().find(stream);
    if (number != pool_state::no_stream) {
      if (status removed = arena_lending(*state).remove(stream); !removed) return removed;
      last = state->streams().leaving_point(number);
      check(last.stream == number, "another stream is forgotten");
    }
  }
  if (number == pool_state::no_stream) {
    captures_.note_uncaptured(stream);
    return {};
  }
  if (status asked = poll(last); !asked) return asked;
  {
    const events_guard no_mark(captures_.lock());  // which would query the stream
    const table_lock state(state_);
    if (!state->progress().all_recorded(last.stream))
      return refuse(errc::in_use, "the stream is being captured, or another thread frees on it");
    if (status provided = stream_memory(*state).provide_shared(); !provided) return provided;
    state->progress().retire(last.stream, time_);
    check(state->progress().find(stream) == pool_state::no_stream,
          "stream_clock I1: a forgotten stream is still in the table");
  }
  captures_.note_uncaptured(stream);
  poll_retired();
  return {};
}

// ---- waiting for all -------------------------------------------------------------------

status stream_clock::finish_all() {
  check(gate_.is_closed_by(gate_reason::goes_away), "a pool in use waits for its streams to end");
  if (time_.can_record_all()) {
    const status recorded = try_to_close([&] {
      assume_locked(rank::growth);
      return batches_.record();
    });
    if (!recorded) return recorded;
  }
  if (!entry_.names_streams()) {
    return try_to_close([&] {
      assume_locked(rank::growth);
      return points_.finish_all_work();
    });
  }
  const std::uint32_t streams = state_.with([](auto& state) { return state.progress().count(); });
  for (std::uint32_t stream = 0; stream < streams; ++stream) {
    const status waited = try_to_close([&] {
      assume_locked(rank::growth);
      const result<bool> finished = finish(stream);
      return finished ? status{} : status{finished.error()};
    });
    if (!waited) return waited;
  }
  return {};
}

// False: the driver refuses the stream, and has neither an event of all work nor a wait for it.
result<bool> stream_clock::finish(std::uint32_t stream) {
  stream_handle handle{};
  stream_point last;
  bool is_active = false;
  {
    const table_lock state(state_);
    is_active = state->progress().phase_of(stream) == stream_phase::active;
    if (is_active) handle = state->progress().active_handle(stream);
    last = state->progress().last_point(stream);
  }
  check(last.stream == stream, "another stream is waited for");
  if (!is_active) {
    const result<bool> waited = wait_for(last);
    return waited ? result<bool>{true} : waited;
  }
  const result<bool> captured = captures_.is_captured(handle);
  if (captured && *captured) return stream_captured;
  // Also called for a destroyed stream.
  if (!captured && captured.error().code != errc::invalid_argument) return captured.error();
  const result<bool> finished = time_.finish(handle);
  if (finished && *finished) state_.with([&](auto& state) { state.progress().note_passed(last); });
  return finished;
}

// Waits for other streams that use the memory, with or without a record.
status stream_clock::finish_others(std::span<const stream_handle> streams) {
  for (const stream_handle stream : streams) {
    const result<bool> captured = captures_.is_captured(stream);
    if (!captured) return captured.error();
    if (*captured) return refuse(errc::in_use, "a stream to wait for is being captured");
    const result<ticket_ref> event = time_.record(stream);
    const status waited = event ? time_.wait(*event) : status{event.error()};
    if (!waited) return waited;
  }
  return {};
}

}  // namespace vmm
