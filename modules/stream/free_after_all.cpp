// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Free after everything: blocks that are given back after all work of the device, and the marks of
// all work that they wait for. [K4]
//
// Such a free enters the open batch, a record of a stream that is none. To record a mark the batch
// is closed first, so that what is freed meanwhile waits for the next one; then the batch is as a
// stream that was forgotten: what is free under it becomes everyone's when its mark has passed. A
// mark that fails leaves the batch closed, for the next try.
module;
#include "../sync/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.intrusive;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

// Batches whose marks have not passed: behind so many, frees wait together for the next one.
constexpr std::uint32_t batches_in_flight_max = 4;

}  // namespace

// ---- batches -------------------------------------------------------------------------

bool stream_table::has_unmarked() const noexcept {
  if (closed_batch_ != no_stream) return true;
  if (open_batch_ == no_stream) return false;
  return !passed({open_batch_, progress_.last_epoch(open_batch_)});
}

void stream_table::open_batch_in(std::uint32_t record, bool known_only) noexcept {
  check(open_batch_ == no_stream, "a batch is opened beside another");
  check(phase_of(record) == stream_phase::unmarked, "a batch is opened in a record in use");
  check(!has_locked(record), "blocks wait for their pins in a batch that is new");
  open_batch_ = record;
  marks_known_only_ = known_only;
  record_of(record).is_batch = true;
}

// All work until now: a mark of a stream that is older does not stand for it.
void stream_table::close_batch(std::uint32_t next) noexcept {
  check(open_batch_ != no_stream && closed_batch_ == no_stream, "a batch is closed twice");
  check(phase_of(next) == stream_phase::unmarked, "a batch is opened in a record in use");
  (void)progress_.advance(open_batch_);
  closed_batch_ = std::exchange(open_batch_, next);
  record_of(next).is_batch = true;
  check(!has_locked(closed_batch_), "a block waits for its pins in a closed batch");
}

void stream_table::retire_batch(ticket_ref mark) noexcept {
  check(closed_batch_ != no_stream, "a mark is noted that no batch waits for");
  progress_.retire_marked(std::exchange(closed_batch_, no_stream), std::move(mark));
  ++marked_count_;
  paranoid_check([&] { return broken_invariant() == nullptr; },
                 "the records of streams are broken");
}

result<std::uint32_t> pool_state::provide_batch(bool known_only) noexcept {
  if (streams_.open_batch() != no_stream) return streams_.open_batch();
  if (status provided = provide_shared(); !provided) return provided.error();
  const bool needs_default = known_only && find_stream(stream_handle::default_stream) == no_stream;
  if (needs_default) {
    const result<std::uint32_t> added = add_stream(stream_handle::default_stream);
    if (!added) return added;
  }
  const result<std::uint32_t> made =
      add_record(stream_handle::default_stream, stream_phase::unmarked);
  if (!made) return made;
  streams_.open_batch_in(*made, known_only);
  check(!streams_.has_unmarked(), "a new batch waits for a mark");
  return made;
}

// What was freed while it is pinned waits for the mark after its last pin.
status pool_state::close_batch() noexcept {
  const std::uint32_t closed = streams_.open_batch();
  const result<std::uint32_t> next =
      add_record(stream_handle::default_stream, stream_phase::unmarked);
  if (!next) return next.error();
  check(closed != no_stream && *next != closed, "the batch that is closed is used again");
  if (streams_.has_locked(closed)) {
    for_each_segment([&](segment& in) {
      in.for_each_locked([&](region_id block) {
        block_lock lock = in.lock_of(block);
        if (lock.stream != closed) return;
        check(lock.freed && !lock.captured, "a live block is in a batch");
        streams_.remove_locked(closed);
        streams_.add_locked(*next);
        lock.stream = *next;
        in.write_lock(block, lock);
      });
    });
  }
  streams_.close_batch(*next);
  return {};
}

// ---- free ----------------------------------------------------------------------------

status stream_pool::free(address at) {
  if (!gate_.is_open()) [[unlikely]] {
    if (status entered = enter_closed_to_free(); !entered) return entered;
  }
  debug_check([this] { return is_ready(); }, "a pool frees before it is set up");
  if (clears_on_release()) [[unlikely]]
    return refuse(errc::not_supported,
                  "memory_options::contents fills a block on a stream: free it on one");
  if (options_.watcher == nullptr) [[likely]] {
    if (status freed = free_into_batch(at); !freed) return freed;
  } else {
    board_.check_not_watching();
    const watched_turn turn(watcher_turns());
    const bool is_locked =
        state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
    if (status freed = free_into_batch(at); !freed) return freed;
    if (!is_locked) tell([&](block_watcher& who) { who.freed(at); });
  }
  if (parts_->time.marks_all() && !was_refused_.load(std::memory_order_relaxed))
    (void)mark_few_batches();
  return {};
}

status stream_pool::free_into_batch(address at) {
  const auto state = state_.lock();
  std::uint32_t batch = state->streams().open_batch();
  if (batch == pool_state::no_stream) [[unlikely]] {
    if (status live = locked_blocks(*state).check_live(at); !live) return live;
    const result<std::uint32_t> made = state->provide_batch(!parts_->time.marks_all());
    if (!made) return made.error();
    batch = *made;
    check(batch != pool_state::no_stream, "a batch is made that is none");
  }
  debug_check([&] { return state->streams().phase_of(batch) == stream_phase::unmarked; },
              "a block is freed into a batch whose mark is made");
  return state->free(at, batch);
}

// ---- captures ------------------------------------------------------------------------

status stream_pool::capture_begins() {
  if (status idle = nothing_to_do(); !idle) return idle;
  board_.check_not_telling();
  const sync::lock_guard<mark_lock> marking(mark_lock_);
  ++captures_announced_;
  check(captures_announced_ != 0, "more captures are announced than can be counted");
  if (options_.captures_announced && captures_announced_ == 1) gate_.close(gate_reason::captured);
  return {};
}

status stream_pool::capture_ended() {
  if (status idle = nothing_to_do(); !idle) return idle;
  board_.check_not_telling();
  {
    const sync::lock_guard<mark_lock> marking(mark_lock_);
    if (captures_announced_ == 0)
      return refuse(errc::invalid_argument, "no capture was announced with capture_begins()");
    --captures_announced_;
    check(!options_.captures_announced || gate_.is_closed_by(gate_reason::captured),
          "a capture was announced, and calls do not look for it");
    if (options_.captures_announced && captures_announced_ == 0) gate_.open(gate_reason::captured);
    if (captures_announced_ == 0) seen_captures_.clear();
    has_seen_capture_.store(!seen_captures_.empty(), std::memory_order_relaxed);
  }
  if (is_ready() && parts_->time.marks_all()) (void)mark_few_batches();
  return {};
}

// Through the default stream, of all streams that synchronise with it; where streams may be named,
// of those that are known. Under the lock of marks, so that none of them is forgotten, and gone,
// meanwhile. A capture that a call has seen puts events off as one that was announced, but where
// memory is short: its end may never be seen.
status stream_pool::check_nothing_captured() {
  if (captures_announced_ != 0) return stream_captured;
  if (!watches_capture_) return {};
  const bool is_ending = gate_.is_closed_by(gate_reason::goes_away);
  const bool is_pressing = is_ending || is_pressing_.load(std::memory_order_relaxed);
  check(has_seen_capture_.load(std::memory_order_relaxed) == !seen_captures_.empty(),
        "captures were seen of which calls hear nothing, or the reverse");
  if (!names_streams_ && !seen_captures_.empty() && !is_pressing) return stream_captured;
  const bool is_own =
      std::any_of(seen_captures_.begin(), seen_captures_.end(),
                  [this](const seen_capture& each) { return each.stream == named_; });
  if (is_own && !is_ending) return stream_captured;  // a call does not spoil its own capture
  const result<bool> any = is_captured(stream_handle::default_stream);
  if (!any) return any.error();
  if (*any) return stream_captured;
  return names_streams_ ? check_known_not_captured() : status{};
}

status stream_pool::check_known_not_captured() {
  check(names_streams_, "streams are named that may have been destroyed");
  constexpr std::size_t looks_max = 64;
  std::array<stream_handle, looks_max> asked{};
  for (std::uint32_t next = 0; next != pool_state::no_stream;) {
    std::size_t count = 0;
    {
      const auto state = state_.lock();
      const stream_progress& progress = state->progress();
      for (; next < progress.count() && count < looks_max; ++next) {
        if (progress.phase_of(next) != stream_phase::active) continue;
        const stream_handle handle = progress.active_handle(next);
        if (asks_about(handle)) asked[count++] = handle;
      }
      check(next <= progress.count(), "more streams are looked at than there are");
      if (next == progress.count()) next = pool_state::no_stream;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const result<bool> captured = is_captured(asked[i]);
      if (!captured && captured.error().code == errc::invalid_argument) continue;  // it is gone
      if (!captured) return captured.error();
      if (*captured) return stream_captured;
    }
  }
  return {};
}

// ---- marks ---------------------------------------------------------------------------

// Where few are on their way; what cannot be marked now can be later. Whether anything was. After
// the driver itself refused, since a stream is captured that nobody announced, only a call that
// needs memory tries.
bool stream_pool::mark_few_batches() {
  const bool is_wanted = state_.with([](auto& state) {
    const stream_table& streams = state.streams();
    return streams.has_unmarked() && streams.marked_batch_count() < batches_in_flight_max;
  });
  return is_wanted && mark_batches().has_value();
}

// Records marks for all that was freed after everything so far. Under the lock of growth where
// known streams are marked one by one. Errors: see is_put_off(); driver errors.
status stream_pool::mark_batches() {
  constexpr int batches_max = 2;  // one that an earlier mark failed for, and the open one
  for (int batch = 0; batch < batches_max; ++batch) {
    if (!state_.with([](auto& state) { return state.streams().has_unmarked(); })) return {};
    const sync::lock_guard<mark_lock> marking(mark_lock_);
    const undisturbed capture(*driver_, watches_capture_);
    if (status marked = mark_batch(); !marked) return marked;
  }
  return {};
}

status stream_pool::mark_batch() {
  if (status quiet = check_nothing_captured(); !quiet) return quiet;
  {
    const auto state = state_.lock();
    if (!state->streams().has_unmarked()) return {};
    if (state->streams().closed_batch() == pool_state::no_stream) {
      if (status closed = state->close_batch(); !closed) return closed;
    }
  }
  const bool is_one_event = parts_->time.marks_all();
  check(captures_announced_ == 0, "an event of all streams is recorded in a capture");
  result<ticket_ref> mark = is_one_event ? parts_->time.mark_all() : mark_known_streams();
  if (!mark && is_lost(mark.error())) {
    result<ticket_ref> all = parts_->time.cover_all();
    if (all || all.error().code != errc::not_supported) mark = std::move(all);
  }
  was_refused_.store(!mark && is_put_off(mark.error()) && is_one_event, std::memory_order_relaxed);
  if (!mark) return mark.error();
  const auto state = state_.lock();
  check(state->streams().closed_batch() != pool_state::no_stream, "a mark is for no batch");
  ++state->totals().mark_count;
  state->streams().retire_batch(std::move(*mark));
  return {};
}

// A mark behind those of every stream: of active ones a mark that was recorded after the batch was
// closed, of forgotten ones the last that they left.
result<ticket_ref> stream_pool::mark_known_streams() {
  std::vector<ticket_ref> marks;
  const std::uint32_t count = state_.with([](auto& state) { return state.progress().count(); });
  if (status room = reserve_more(marks, count); !room) return room.error();
  for (std::uint32_t stream = 0; stream < count; ++stream) {
    point_answer answer;
    {
      const auto state = state_.lock();
      const std::uint32_t closed = state->streams().closed_batch();
      check(closed != pool_state::no_stream, "streams are marked that no batch waits for");
      const bool is_active = state->progress().phase_of(stream) == stream_phase::active;
      const stream_point last = is_active
                                    ? stream_point{stream, state->progress().last_epoch(closed)}
                                    : state->progress().last_point(stream);
      answer = state->progress().ask(last);
      if (answer.is == point_answer::kind::passed) continue;
    }
    result<ticket_ref> mark = answer.is == point_answer::kind::unmarked
                                  ? record(std::move(answer.order))
                                  : std::move(answer.mark);
    if (!mark) return mark;
    check(marks.size() < marks.capacity(), "a mark has no room");
    marks.push_back(std::move(*mark));
  }
  return parts_->time.mark_behind(marks);
}

}  // namespace vmm
