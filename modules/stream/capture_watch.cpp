// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.timeline;

namespace vmm {

// ---- streams -------------------------------------------------------------------------

result<capture_info> capture_watch::query(stream_handle stream) {
  check(is_on(), "a backend without captures is queried for one");
  if (status named = check_stream(driver_, stream); !named) return named.error();
  return driver_.query_capture(stream);
}

// Streams that are never captured are queried too: where one synchronises with a stream that is,
// the driver refuses the query, as it would the event, and spoils nothing.
result<bool> capture_watch::is_captured(stream_handle stream) {
  if (!is_on()) return false;
  const result<capture_info> seen = query(stream);
  if (!seen && seen.error().code == errc::not_permitted) return true;
  if (!seen) return seen.error();
  return seen->state != capture_state::none;
}

// Where captures are announced, the driver is queried when it is needed anyway: a capture that the
// program has not announced is refused here, and gets no memory that others share.
status capture_watch::check_announced(stream_handle stream) {
  if (!options_.captures_announced || !path_.may_be_captured(stream)) return {};
  const result<bool> captured = is_captured(stream);
  if (!captured) return captured.error();
  if (!*captured) return {};
  note_seen(stream, 0);
  return refuse(errc::not_permitted,
                "the stream is being captured, and no capture was announced: call "
                "captures().begin() before, or leave pool_options::captures_announced unset");
}

status capture_watch::check_allowed(const capture_info& seen) const {
  check(seen.state != capture_state::none, "a call is refused for a missing capture");
  if (seen.state == capture_state::invalidated)
    return refuse(errc::not_permitted, "the stream's capture was invalidated: end it first");
  if (options_.capture == capture_rule::private_memory) return {};
  return refuse(errc::not_permitted,
                "the stream is being captured into a graph: allocate and free before or after, or "
                "open the pool with capture_rule::private_memory");
}

result<std::uint64_t> capture_watch::number(stream_handle stream) {
  if (status named = check_stream(driver_, stream); !named) return named.error();
  if (!driver_.feature_set().capture)
    return refuse(errc::not_supported, "this backend captures no streams");
  const result<capture_info> seen = driver_.query_capture(stream);
  if (!seen) return seen.error();
  check(seen->state != capture_state::active || can_capture(driver_.feature_set(), stream),
        "a stream is captured that cannot be captured");
  if (seen->state == capture_state::active) note_seen(stream, seen->id);
  if (seen->state == capture_state::active) return seen->id;
  return refuse(errc::invalid_argument, "the stream is not being captured");
}

// ---- captures that were seen ---------------------------------------------------------

// A stream that is seen in a capture is not queried later: it may have been destroyed. Without host
// memory no note is made.
void capture_watch::note_seen(stream_handle stream, std::uint64_t id) {
  const events_guard held(lock_);
  std::erase_if(seen_, [&](const seen_capture& each) { return each.stream == stream; });
  if (reserve_more(seen_, 1)) seen_.push_back({stream, id});
  publish_seen();
}

void capture_watch::end_seen(std::uint64_t id) {
  const events_guard held(lock_);
  std::erase_if(seen_, [&](const seen_capture& each) { return each.id == id; });
  publish_seen();
}

void capture_watch::note_uncaptured(stream_handle stream) {
  if (!has_seen_.load(std::memory_order_relaxed)) return;
  const events_guard held(lock_);
  std::erase_if(seen_, [&](const seen_capture& each) { return each.stream == stream; });
  publish_seen();
}

// ---- captures that are announced -----------------------------------------------------

void capture_watch::begin() {
  const events_guard held(lock_);
  ++announced_count_;
  check(announced_count_ != 0, "more captures are announced than can be counted");
  if (options_.captures_announced && announced_count_ == 1) gate_.close(gate_reason::captured);
}

status capture_watch::end() {
  const events_guard held(lock_);
  if (announced_count_ == 0)
    return refuse(errc::invalid_argument, "no capture was announced with captures().begin()");
  --announced_count_;
  check(!options_.captures_announced || gate_.is_closed_by(gate_reason::captured),
        "calls ignore an announced capture");
  if (announced_count_ != 0) return {};
  if (options_.captures_announced) gate_.open(gate_reason::captured);
  seen_.clear();
  publish_seen();
  return {};
}

std::uint32_t capture_watch::announced_count() const {
  const events_guard held(lock_);
  return announced_count_;
}

// ---- events behind all work ----------------------------------------------------------

// With the lock of events, so that no stream is forgotten, and gone, meanwhile.
status capture_watch::check_none_captured(stream_handle own) {
  if (announced_count_ != 0) return stream_captured;
  if (!is_on()) return {};
  const bool is_ending = gate_.is_closed_by(gate_reason::goes_away);
  const bool is_pressing = is_ending || is_pressing_.load(std::memory_order_relaxed);
  check(has_seen_.load(std::memory_order_relaxed) == !seen_.empty(),
        "capture_watch I1: seen and published captures differ");
  if (!entry_.names_streams() && !seen_.empty() && !is_pressing) return stream_captured;
  const bool is_own = std::any_of(seen_.begin(), seen_.end(),
                                  [own](const seen_capture& each) { return each.stream == own; });
  if (is_own && !is_ending) return stream_captured;  // a call does not spoil its own capture
  const result<bool> any = is_captured(stream_handle::default_stream);
  if (!any) return any.error();
  if (*any) return stream_captured;
  return entry_.names_streams() ? check_known() : status{};
}

status capture_watch::check_known() {
  check(entry_.names_streams(), "streams are named that may have been destroyed");
  constexpr std::size_t looks_max = 64;
  std::array<stream_handle, looks_max> asked{};
  for (std::uint32_t next = 0; next != pool_state::no_stream;) {
    std::size_t count = 0;
    {
      const table_lock state(state_);
      const stream_progress& progress = state->progress();
      for (; next < progress.count() && count < looks_max; ++next) {
        if (progress.phase_of(next) != stream_phase::active) continue;
        const stream_handle handle = progress.active_handle(next);
        if (path_.may_be_captured(handle)) asked[count++] = handle;
      }
      check(next <= progress.count(), "more streams are queried than exist");
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

bool capture_watch::may_record_all() {
  if (!is_on()) return true;
  bool needs_all = false;
  for (std::uint32_t stream = 0;; ++stream) {
    stream_handle handle{};
    {
      const table_lock state(state_);
      stream = state->progress().next_unrecorded(stream);
      if (stream == pool_state::no_stream) break;
      handle = state->progress().active_handle(stream);
      check(!state->progress().all_recorded(stream), "an existing event is created again");
    }
    if (!entry_.has_own_event(handle)) {
      needs_all = true;
      continue;
    }
    const result<bool> captured = is_captured(handle);
    const bool is_gone = !captured && captured.error().code == errc::invalid_argument;
    if (is_gone) needs_all = true;
    if (!is_gone && (!captured || *captured)) return false;
  }
  if (!needs_all) return true;
  const events_guard held(lock_);
  return check_none_captured(entry_.named()).has_value();
}

// ---- suspension ----------------------------------------------------------------------

status capture_watch::check_unused(stream_handle stream) {
  const result<bool> captured = is_captured(stream);
  if (!captured && captured.error().code == errc::invalid_argument) return {};  // it is gone
  if (!captured) return captured.error();
  return *captured ? status{being_captured} : status{};
}

// A graph that is being captured would find its memory gone when it is launched, and its streams
// cannot be waited for.
status capture_watch::check_no_use() {
  if (!is_on()) return {};
  if (!entry_.names_streams()) {
    const events_guard held(lock_);
    const status quiet = check_none_captured(entry_.named());
    return !quiet && is_capture_refusal(quiet.error()) ? status{being_captured} : quiet;
  }
  {
    // Of streams that allocate in captures alone. The record of a graph outlives its stream.
    const events_guard held(lock_);
    for (const seen_capture& each : seen_) {
      if (status quiet = check_unused(each.stream); !quiet) return quiet;
    }
  }
  const std::uint32_t count = state_.with([](auto& state) { return state.progress().count(); });
  for (std::uint32_t stream = 0; stream < count; ++stream) {
    stream_handle handle{};
    {
      const table_lock state(state_);
      check(stream < state->progress().count(), "records of streams were removed during the call");
      if (state->progress().phase_of(stream) != stream_phase::active) continue;
      handle = state->progress().active_handle(stream);
    }
    if (status quiet = check_unused(handle); !quiet) return quiet;
  }
  return {};
}

}  // namespace vmm
