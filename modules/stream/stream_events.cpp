// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How far the work of streams has come: events that are recorded, asked and waited for, and streams
// that go.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.intrusive;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;

namespace vmm {

// ---- asking ------------------------------------------------------------------------

// Finds out whether a point has passed: asks the marks that are there, oldest first, and makes one
// where none covers the point.
status stream_pool::poll_events(const stream_point& point) {
  std::array<known_mark, stream_progress::marks_max> marks;
  std::size_t count = 0;
  point_answer answer;
  {
    const auto state = state_.lock();
    answer = state->progress().ask(point);
    if (answer.is == point_answer::kind::passed) return {};
    count = state->progress().marks_of(point.stream, marks);
    check(answer.is != point_answer::kind::marked || count != 0,
          "a mark covers a point and is not there");
  }
  if (answer.is == point_answer::kind::unmarked) {
    const result<ticket_ref> fresh = mark_for(std::move(answer));
    if (!fresh) return is_capture_refusal(fresh.error()) ? status{} : status{fresh.error()};
    count =
        state_.with([&](auto& state) { return state.progress().marks_of(point.stream, marks); });
  }
  check(count <= marks.size(), "a stream has more marks than there is room for");
  for (std::size_t i = 0; i < count; ++i) {
    const result<bool> finished = parts_->time.passed(marks[i].mark);
    if (!finished) return finished.error();
    if (!*finished) return {};
    state_.with([&](auto& state) { state.progress().note_passed(marks[i].at); });
  }
  return {};
}

// Asks what every stream has finished.
status stream_pool::poll_all_streams() {
  const std::uint32_t streams = state_.with([](auto& state) { return state.progress().count(); });
  status asked;
  for (std::uint32_t stream = 0; stream < streams && asked; ++stream)
    asked =
        poll_events(state_.with([&](auto& state) { return state.progress().last_point(stream); }));
  debug_check(
      [&] { return state_.with([](auto& state) { return state.progress().count(); }) >= streams; },
      "records of streams went while they were asked");
  return asked;
}

// Asks after a few streams that were forgotten, and gives everyone what those left that have
// finished. What the driver cannot tell now is asked again.
void stream_pool::poll_retired_streams() {
  constexpr std::size_t looks_max = 8;
  std::size_t looks = state_.with([](auto& state) { return state.progress().retired_count(); });
  looks = std::min(looks, looks_max);
  for (; looks != 0; --looks) {
    stream_point last;
    {
      const auto state = state_.lock();
      const std::uint32_t stream = state->progress().next_retired();
      if (stream == pool_state::no_stream) return;
      last = state->progress().last_point(stream);
    }
    if (!poll_events(last)) continue;
    const auto state = state_.lock();
    check(state->streams().phase_of(last.stream) == stream_phase::retired,
          "a stream in use is taken as forgotten");
    if (state->progress().passed(last)) state->clear_retired(last.stream);
  }
}

// ---- marks -------------------------------------------------------------------------

// Records the event that a point wants. Under the lock of growth, so that the stream is not
// forgotten meanwhile.
result<ticket_ref> stream_pool::record(mark_order&& order) {
  const result<fresh_mark> fresh = make_mark(order.handle());
  if (!fresh) return fresh.error();
  const auto state = state_.lock();
  ++state->totals().mark_count;
  note_mark(*state, std::move(order), *fresh);
  return fresh->ticket;
}

void stream_pool::note_mark(pool_state& state, mark_order&& order,
                            const fresh_mark& mark) noexcept {
  check(mark.ticket.get() == nullptr || mark.ticket.get()->home != nullptr,
        "a mark is noted that nobody made");
  if (mark.is_of_all) return state.progress().add_mark_of_all(std::move(order), mark.ticket);
  state.progress().add_mark(std::move(order), mark.ticket);
}

// An event on the stream, where the stream can be named. A handle that the driver refuses is one
// that was destroyed, or of another context: an event behind all work covers its work. Nothing is
// concluded from a refusal beyond that, so that a fault that passes does no harm.
result<stream_pool::fresh_mark> stream_pool::make_mark(stream_handle stream) {
  const bool has_event_of_all = parts_->time.marks_all();
  check(has_event_of_all || names_streams_, "a stream is neither named nor covered");
  if (may_name(stream)) {
    const result<ticket_ref> own = mark_stream(stream);
    if (own) return fresh_mark{*own, false};
    if (own.error().code != errc::invalid_argument) return own.error();
    if (!has_event_of_all) {
      error refused = own.error();  // with the driver's code
      if (stream != named_) refused.detail = stream_lost.detail;
      return refused;
    }
  }
  check(has_event_of_all, "a stream is not named, and no event stands for its work");
  const result<ticket_ref> all = mark_everything();
  if (!all) return all.error();
  return fresh_mark{*all, true};
}

// Behind all work of the device, where no capture is known that the event, or the wait in its
// place, would spoil. The driver's own refusal is that of a capture.
result<ticket_ref> stream_pool::mark_everything() {
  const sync::lock_guard<mark_lock> marking(mark_lock_);
  if (status quiet = check_nothing_captured(); !quiet) return quiet.error();
  check(captures_announced_ == 0, "an event of all streams is recorded in a capture");
  result<ticket_ref> all = parts_->time.cover_all();
  if (!all && is_put_off(all.error())) return stream_captured;
  return all || all.error().code != errc::not_supported ? all : result<ticket_ref>{stream_lost};
}

// Of every stream, destroyed or not, and of streams that the pool does not know.
status stream_pool::finish_all_work() {
  const std::uint64_t clock = state_.with([](auto& state) { return state.progress().clock(); });
  const result<ticket_ref> all = mark_everything();
  if (!all) return all.error();
  if (status waited = parts_->time.wait(*all); !waited) return waited;
  check(all->known_passed(), "all work was waited for and goes on");
  const auto state = state_.lock();
  for (std::uint32_t stream = 0; stream < state->progress().count(); ++stream) {
    const stream_phase phase = state->progress().phase_of(stream);
    if (phase == stream_phase::active || phase == stream_phase::retired)
      state->progress().note_passed({stream, clock});
  }
  check(state->progress().clock() >= clock, "a pool's clock goes back");
  return {};
}

status stream_pool::check_stream(stream_handle stream) const noexcept {
  return driver_->feature_set().is_per_thread(stream) ? status{per_thread_stream} : status{};
}

// Of work that is not being captured: no graph's mark is kept.
result<ticket_ref> stream_pool::mark_stream(stream_handle stream) {
  result<bool> captured = is_captured(stream);
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  result<ticket_ref> fresh = parts_->time.mark(stream);
  if (!fresh) return fresh;
  captured = is_captured(stream);  // it may have begun meanwhile: then nobody asks the mark
  if (!captured) return captured.error();
  if (*captured) return stream_captured;
  check(!*captured, "a mark is kept that is a captured graph's");
  return fresh;
}

// A mark that covers the point: the oldest that does, or a new one; null where it has passed. All
// work is waited for where the driver refuses the stream and has no event in its place.
result<ticket_ref> stream_pool::mark_for(point_answer&& answer) {
  if (answer.is != point_answer::kind::unmarked) return std::move(answer.mark);
  result<ticket_ref> made = record(std::move(answer.order));
  if (made || !is_lost(made.error())) return made;
  check(!parts_->time.marks_all(), "a stream is lost that an event of all work covers");
  if (status finished = finish_all_work(); !finished) return finished.error();
  return ticket_ref{};
}

// ---- waiting -----------------------------------------------------------------------

status stream_pool::order_behind(const stream_point& point, std::uint32_t stream) {
  const result<ticket_ref> mark =
      mark_for(state_.with([&](auto& state) { return state.progress().ask(point); }));
  if (!mark) return mark.error();
  stream_handle handle{};
  {
    const auto state = state_.lock();
    if (state->progress().passed(point)) return {};
    check(point.stream != stream, "a stream waits for itself");
    handle = state->progress().active_handle(stream);
    ++state->totals().wait_count;
    const stream_handle other = state->progress().shown_handle(point.stream);
    if (recorder_)
      recorder_->note({history_kind::wait, {}, handle, static_cast<std::uint64_t>(other)});
  }
  return parts_->time.order(handle, *mark);
}

// Whether the calling thread was made to wait.
result<bool> stream_pool::wait_for(const stream_point& point) {
  point_answer answer;
  stream_handle handle{};
  {
    const auto state = state_.lock();
    check(point.stream < state->progress().count(), "a record is waited for that is not there");
    answer = state->progress().ask(point);
    if (answer.is == point_answer::kind::passed) return false;
    ++state->totals().blocked_count;
    handle = state->progress().shown_handle(point.stream);
    if (recorder_) recorder_->note({history_kind::blocked, {}, handle});
  }
  const result<ticket_ref> mark = mark_for(std::move(answer));
  const status waited = mark ? parts_->time.wait(*mark) : status{mark.error()};
  note({history_kind::passed, {}, handle});
  if (!waited) return waited.error();
  state_.with([&](auto& state) { state.progress().note_passed(point); });
  return true;
}

status stream_pool::synchronize() {
  if (!is_ready()) return nothing_to_do();
  std::vector<known_mark> marks;
  if (status marked = mark_all(marks); !marked) return marked;
  const undisturbed capture(*driver_, watches_capture_);
  if (!marks.empty()) note({history_kind::blocked});
  status waited;
  for (const known_mark& each : marks) {
    waited = parts_->time.wait(each.mark);
    if (!waited) break;
    state_.with([&](auto& state) { state.progress().note_passed(each.at); });
  }
  if (!marks.empty()) note({history_kind::passed});
  return waited;
}

// Marks for what streams have not finished. Waiting for them needs no lock: others grow meanwhile,
// and streams may be forgotten.
status stream_pool::mark_all(std::vector<known_mark>& out) {
  const growth_turn turn(way_in());
  const lending_pause pause(state_);  // what was freed in fronts is freed for all to see
  if (status marked = mark_batches(); !marked) return marked;
  const std::uint32_t count = state_.with([](auto& state) { return state.progress().count(); });
  if (status room = reserve_more(out, count); !room) return room;
  for (std::uint32_t stream = 0; stream < count; ++stream) {
    stream_point last;
    point_answer answer;
    {
      const auto state = state_.lock();
      last = state->progress().last_point(stream);
      answer = state->progress().ask(last);
      if (answer.is == point_answer::kind::passed) continue;
      ++state->totals().blocked_count;
    }
    const result<ticket_ref> mark = mark_for(std::move(answer));
    if (!mark) return mark.error();
    check(out.size() < out.capacity(), "a mark has no room");
    out.push_back({last, *mark});
  }
  return {};
}

// ---- streams that go ---------------------------------------------------------------

status stream_pool::forget(stream_handle stream) {
  if (status named = check_stream(stream); !named) return named;
  if (!is_ready()) return nothing_to_do();
  const growth_turn turn(way_in());
  const named_stream named(named_, driver_->feature_set().canonical(stream));
  note_uncaptured(stream);
  check(may_name(named_), "a stream that is forgotten cannot be named");
  stream_point last;
  {
    const auto state = state_.lock();
    const std::uint32_t number = state->find_stream(stream);
    if (number == pool_state::no_stream) return {};
    if (status removed = front_lending(*state).remove(stream); !removed) return removed;
    last = state->streams().leaving_point(number);
    check(last.stream == number, "another stream is forgotten");
  }
  if (status asked = poll_events(last); !asked) return asked;
  {
    const sync::lock_guard<mark_lock> no_mark(mark_lock_);  // which would ask about the stream
    const auto state = state_.lock();
    if (!state->progress().all_marked(last.stream))
      return refuse(errc::in_use, "the stream is being captured, or another thread frees on it");
    if (status provided = state->provide_shared(); !provided) return provided;
    state->progress().retire(last.stream, parts_->time);
    check(state->find_stream(stream) == pool_state::no_stream, "a forgotten stream is found");
  }
  poll_retired_streams();
  return {};
}

}  // namespace vmm
