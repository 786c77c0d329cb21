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

// Batches whose events have not passed: behind so many, frees wait together for the next one.
constexpr std::uint32_t batches_in_flight_max = 4;
constexpr int batches_max = 2;  // of one call: one that an earlier event failed for, the open one

}  // namespace

bool batch_events::has_unrecorded() {
  return state_.with([](auto& state) { return state.streams().has_unrecorded(); });
}

// Where few are on their way.
bool batch_events::wants_event() {
  return state_.with([](auto& state) {
    const stream_table& streams = state.streams();
    return streams.has_unrecorded() && streams.recorded_batch_count() < batches_in_flight_max;
  });
}

// What cannot be recorded now can be later. Whether anything was.
bool batch_events::record_few() { return wants_event() && record().has_value(); }

// For calls that need no memory: after a refusal of the driver for an unannounced capture, only a
// call that needs memory tries again.
void batch_events::try_record() {
  if (time_.can_record_all() && wants_event()) (void)record_by_event(stream_handle::default_stream);
}

// Records events for the device-wide frees so far. Errors: see is_deferred(); driver errors.
status batch_events::record() {
  if (time_.can_record_all()) return record_by_event(entry_.named());
  for (int batch = 0; batch < batches_max && has_unrecorded(); ++batch) {
    const events_guard recording(captures_.lock());
    const relaxed_capture capture(driver_, captures_.is_on());
    const result<bool> closed = close(entry_.named());
    if (!closed) return closed.error();
    if (!*closed) continue;
    result<ticket_ref> event = record_known_streams();
    if (!event && is_lost(event.error())) {
      result<ticket_ref> all = time_.cover_all();
      if (all || all.error().code != errc::not_supported) event = std::move(all);
    }
    if (status recorded = end(std::move(event)); !recorded) return recorded;
  }
  return {};
}

// The same on drivers that have an event behind all work. `own`: the stream that the call names.
status batch_events::record_by_event(stream_handle own) {
  check(time_.can_record_all(), "an event of all streams is recorded on a driver without one");
  for (int batch = 0; batch < batches_max && has_unrecorded(); ++batch) {
    const events_guard recording(captures_.lock());
    const relaxed_capture capture(driver_, captures_.is_on());
    const result<bool> closed = close(own);
    if (!closed) return closed.error();
    if (!*closed) continue;
    result<ticket_ref> event = time_.record_all();
    was_refused_.store(!event && is_deferred(event.error()), std::memory_order_relaxed);
    if (status recorded = end(std::move(event)); !recorded) return recorded;
  }
  return {};
}

// Whether there is a closed batch to record an event for.
result<bool> batch_events::close(stream_handle own) {
  if (status quiet = captures_.check_none_captured(own); !quiet) return quiet.error();
  const table_lock state(state_);
  if (!state->streams().has_unrecorded()) return false;
  if (state->streams().closed_batch() != pool_state::no_stream) return true;
  const status closed = stream_memory(*state).close_batch();
  return closed ? result<bool>{true} : closed.error();
}

status batch_events::end(result<ticket_ref>&& event) {
  if (!event) return event.error();
  const table_lock state(state_);
  check(state->streams().closed_batch() != pool_state::no_stream, "an event is for no batch");
  ++state->totals().event_count;
  state->streams().retire_batch(std::move(*event));
  return {};
}

// An event behind those of every stream: of active ones an event that was recorded after the batch
// was closed, of forgotten ones the last that they left.
result<ticket_ref> batch_events::record_known_streams() {
  std::vector<ticket_ref> events;
  const std::uint32_t count = state_.with([](auto& state) { return state.progress().count(); });
  if (status room = reserve_more(events, count); !room) return room.error();
  for (std::uint32_t stream = 0; stream < count; ++stream) {
    point_answer answer;
    {
      const table_lock state(state_);
      const std::uint32_t closed = state->streams().closed_batch();
      check(closed != pool_state::no_stream, "streams are recorded that no batch waits for");
      const bool is_active = state->progress().phase_of(stream) == stream_phase::active;
      const stream_point last = is_active
                                    ? stream_point{stream, state->progress().last_epoch(closed)}
                                    : state->progress().last_point(stream);
      answer = state->progress().ask(last);
      if (answer.is == point_answer::kind::passed) continue;
    }
    result<ticket_ref> event = answer.is == point_answer::kind::unrecorded
                                   ? points_.record_point_named(std::move(answer.order))
                                   : std::move(answer.event);
    if (!event) return event;
    check(events.size() < events.capacity(), "an event has no room");
    events.push_back(std::move(*event));
  }
  return time_.record_behind(events);
}

}  // namespace vmm
