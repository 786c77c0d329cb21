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
constexpr int batches_max = 2;  // of one call: one that an earlier mark failed for, the open one

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
  if (!notices_.is_observed()) [[likely]] {
    if (status freed = free_into_batch(at); !freed) return freed;
  } else {
    notices_.check_not_in_observer();
    const observer_guard observed(entry_);
    const bool is_locked =
        state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
    if (status freed = free_into_batch(at); !freed) return freed;
    if (!is_locked) notices_.observe([&](block_watcher& who) { who.freed(at); });
  }
  if (!was_refused_.load(std::memory_order_relaxed)) try_mark_batches();
  return {};
}

status stream_pool::free_into_batch(address at) {
  const table_lock state(state_);
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
  notices_.check_not_in_callback();
  captures_.begin();
  return {};
}

status stream_pool::capture_ended() {
  if (status idle = nothing_to_do(); !idle) return idle;
  notices_.check_not_in_callback();
  if (status ended = captures_.end(); !ended) return ended;
  if (is_ready()) try_mark_batches();
  return {};
}

// ---- marks ---------------------------------------------------------------------------

bool stream_pool::has_unmarked_batch() {
  return state_.with([](auto& state) { return state.streams().has_unmarked(); });
}

// Where few are on their way.
bool stream_pool::wants_batch_mark() {
  return state_.with([](auto& state) {
    const stream_table& streams = state.streams();
    return streams.has_unmarked() && streams.marked_batch_count() < batches_in_flight_max;
  });
}

// What cannot be marked now can be later. Whether anything was.
bool stream_pool::mark_few_batches() { return wants_batch_mark() && mark_batches().has_value(); }

// For calls that need no memory: after the driver itself refused, since a stream is captured that
// nobody announced, only a call that needs some tries.
void stream_pool::try_mark_batches() {
  if (parts_->time.marks_all() && wants_batch_mark())
    (void)mark_batches_by_event(stream_handle::default_stream);
}

// Records marks for all that was freed after everything so far. Errors: see is_put_off(); driver
// errors.
status stream_pool::mark_batches() {
  if (parts_->time.marks_all()) return mark_batches_by_event(entry_.named());
  for (int batch = 0; batch < batches_max && has_unmarked_batch(); ++batch) {
    const events_guard marking(captures_.lock());
    const undisturbed capture(*driver_, captures_.is_on());
    const result<bool> closed = close_batch(entry_.named());
    if (!closed) return closed.error();
    if (!*closed) continue;
    if (status marked = end_batch(mark_known_streams()); !marked) return marked;
  }
  return {};
}

// The same on drivers that have an event behind all work. `own`: the stream that the call names.
status stream_pool::mark_batches_by_event(stream_handle own) {
  check(parts_->time.marks_all(), "an event of all streams is recorded, and there is none");
  for (int batch = 0; batch < batches_max && has_unmarked_batch(); ++batch) {
    const events_guard marking(captures_.lock());
    const undisturbed capture(*driver_, captures_.is_on());
    const result<bool> closed = close_batch(own);
    if (!closed) return closed.error();
    if (!*closed) continue;
    result<ticket_ref> mark = parts_->time.mark_all();
    was_refused_.store(!mark && is_put_off(mark.error()), std::memory_order_relaxed);
    if (status marked = end_batch(std::move(mark)); !marked) return marked;
  }
  return {};
}

// Whether there is a closed batch to record a mark for.
result<bool> stream_pool::close_batch(stream_handle own) {
  if (status quiet = captures_.check_none_captured(own); !quiet) return quiet.error();
  const table_lock state(state_);
  if (!state->streams().has_unmarked()) return false;
  if (state->streams().closed_batch() != pool_state::no_stream) return true;
  const status closed = state->close_batch();
  return closed ? result<bool>{true} : closed.error();
}

status stream_pool::end_batch(result<ticket_ref>&& mark) {
  if (!mark) return mark.error();
  const table_lock state(state_);
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
      const table_lock state(state_);
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
                                  ? record_by_name(std::move(answer.order))
                                  : std::move(answer.mark);
    if (!mark) return mark;
    check(marks.size() < marks.capacity(), "a mark has no room");
    marks.push_back(std::move(*mark));
  }
  return parts_->time.mark_behind(marks);
}

}  // namespace vmm
