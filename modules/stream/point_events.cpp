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

// An event that covers the point: the oldest that does, or a new one; null where it has passed. All
// work is waited for where the driver refuses the stream and has no event in its place.
result<ticket_ref> point_events::event_for(point_answer&& answer) {
  if (answer.is != point_answer::kind::unrecorded) return std::move(answer.event);
  result<ticket_ref> made = record_point(std::move(answer.order));
  if (made || !is_lost(made.error())) return made;
  check(!time_.can_record_all(), "a destroyed stream is not covered by an event of all work");
  if (status finished = finish_all_work(); !finished) return finished.error();
  return ticket_ref{};
}

// Records the event that a point needs. With the growth lock, so that the stream is not forgotten
// meanwhile.
result<ticket_ref> point_events::record_point(record_order&& order) {
  const result<fresh_event> fresh = record_on(order.handle());
  if (!fresh) return fresh.error();
  const table_lock state(state_);
  ++state->totals().event_count;
  note(*state, std::move(order), *fresh);
  return fresh->ticket;
}

// The same where no event stands for the stream's work.
result<ticket_ref> point_events::record_point_named(record_order&& order) {
  const result<ticket_ref> own = record_named(order.handle());
  if (!own) return own;
  const table_lock state(state_);
  ++state->totals().event_count;
  note(*state, std::move(order), {*own, false});
  return own;
}

void point_events::note(pool_state& state, record_order&& order,
                        const fresh_event& event) noexcept {
  check(event.ticket.get() == nullptr || event.ticket.get()->home != nullptr,
        "an event is recorded that was not made");
  if (event.is_of_all) return state.progress().add_event_of_all(std::move(order), event.ticket);
  state.progress().add_event(std::move(order), event.ticket);
}

// An event on the stream, where the stream can be named. A handle that the driver refuses is one
// that was destroyed, or of another context: an event behind all work covers its work. Nothing is
// concluded from a refusal beyond that, so that a fault that passes does no harm.
result<fresh_event> point_events::record_on(stream_handle stream) {
  const bool has_event_of_all = time_.can_record_all();
  check(has_event_of_all || entry_.names_streams(), "I1: a stream is neither named nor covered");
  if (entry_.has_own_event(stream)) {
    const result<ticket_ref> own = has_event_of_all ? record_stream(stream) : record_named(stream);
    if (own) return fresh_event{*own, false};
    if (own.error().code != errc::invalid_argument || !has_event_of_all) return own.error();
  }
  check(has_event_of_all, "a stream has no event of its own, and no other stands for its work");
  const result<ticket_ref> all = record_all_work();
  if (!all) return all.error();
  return fresh_event{*all, true};
}

// The same where no event stands for the stream's work.
result<ticket_ref> point_events::record_named(stream_handle stream) {
  check(!time_.can_record_all(), "a stream is named without need");
  const result<ticket_ref> own = record_stream(stream);
  if (own || own.error().code != errc::invalid_argument || stream == entry_.named()) return own;
  error refused = own.error();  // with the driver's code
  refused.detail = stream_lost.detail;
  return refused;
}

// Of work that is not being captured: no graph's event is kept.
result<ticket_ref> point_events::record_stream(stream_handle stream) {
  result<bool> captured = captures_.is_captured(stream);
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  result<ticket_ref> fresh = time_.record(stream);
  if (!fresh) return fresh;
  captured =
      captures_.is_captured(stream);  // it may have begun meanwhile: then the event is not queried
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  return fresh;
}

// Behind all work of the device, where no capture is known that the event, or the wait in its
// place, would spoil. The driver's own refusal is that of a capture.
result<ticket_ref> point_events::record_all_work() {
  const events_guard recording(captures_.lock());
  if (status quiet = captures_.check_none_captured(entry_.named()); !quiet) return quiet.error();
  result<ticket_ref> all = time_.cover_all();
  if (!all && is_deferred(all.error())) return stream_captured;
  const bool has_none = !all && !time_.can_record_all() && all.error().code == errc::not_supported;
  return has_none ? result<ticket_ref>{stream_lost} : all;
}

status point_events::finish_all_work() {
  const std::uint64_t clock = state_.with([](auto& state) { return state.progress().clock(); });
  const result<ticket_ref> all = record_all_work();
  if (!all) return all.error();
  if (status waited = time_.wait(*all); !waited) return waited;
  check(all->known_passed(), "work is pending after a wait for all work");
  const table_lock state(state_);
  for (std::uint32_t stream = 0; stream < state->progress().count(); ++stream) {
    const stream_phase phase = state->progress().phase_of(stream);
    if (phase == stream_phase::active || phase == stream_phase::retired)
      state->progress().note_passed({stream, clock});
  }
  check(state->progress().clock() >= clock, "a pool's clock runs backwards");
  return {};
}

}  // namespace vmm
