// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a pool does on streams that are being captured into a graph.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

result<capture_info> stream_pool::capture_of(stream_handle stream) {
  check(watches_capture_, "a backend that captures nothing is asked about a capture");
  if (status named = check_stream(stream); !named) return named.error();
  return driver_->query_capture(stream);
}

// Whether a mark would be a capture's. That is asked of streams that are never captured too: where
// one synchronises with a stream that is, the driver refuses the question, as it would the mark,
// and spoils nothing.
result<bool> stream_pool::is_captured(stream_handle stream) {
  if (!watches_capture_) return false;
  const result<capture_info> seen = capture_of(stream);
  if (!seen && seen.error().code == errc::not_permitted) return true;
  if (!seen) return seen.error();
  return seen->state != capture_state::none;
}

// Where captures are announced, the driver is asked when it is needed anyway: a capture of which
// the program has said nothing is refused here, and gets no memory that others share.
status stream_pool::check_announced(stream_handle stream) {
  if (!options_.captures_announced || !watches_capture_ || !asks_about(stream)) return {};
  const result<bool> captured = is_captured(stream);
  if (!captured) return captured.error();
  if (!*captured) return {};
  note_capture(stream, 0);
  return refuse(errc::not_permitted,
                "the stream is being captured, and no capture was announced: call "
                "capture_begins() before, or leave pool_options::captures_announced unset");
}

// Whether a mark can be made for everything that was freed: a stream that is being captured takes
// none, and waiting for it would take others into its graph.
bool stream_pool::may_mark_all() {
  if (!watches_capture_) return true;
  bool needs_all = false;
  for (std::uint32_t stream = 0;; ++stream) {
    stream_handle handle{};
    {
      const auto state = state_.lock();
      stream = state->progress().next_unmarked(stream);
      if (stream == pool_state::no_stream) break;
      handle = state->progress().active_handle(stream);
      check(!state->progress().all_marked(stream), "a mark is made that is there");
    }
    if (!may_name(handle)) {
      needs_all = true;
      continue;
    }
    const result<bool> captured = is_captured(handle);
    const bool is_gone = !captured && captured.error().code == errc::invalid_argument;
    if (is_gone) needs_all = true;
    if (!is_gone && (!captured || *captured)) return false;
  }
  if (!needs_all) return true;
  const sync::lock_guard<mark_lock> marking(mark_lock_);
  return check_nothing_captured().has_value();
}

// A stream that is seen in a capture is not asked about later: it may have been destroyed. Where no
// host memory is left for a note there is none.
void stream_pool::note_capture(stream_handle stream, std::uint64_t id) {
  check(watches_capture_, "a capture is seen, and nothing asks for it");
  const sync::lock_guard<mark_lock> marking(mark_lock_);
  std::erase_if(seen_captures_, [&](const seen_capture& each) { return each.stream == stream; });
  if (reserve_more(seen_captures_, 1)) seen_captures_.push_back({stream, id});
  has_seen_capture_.store(!seen_captures_.empty(), std::memory_order_relaxed);
}

void stream_pool::end_seen_capture(std::uint64_t id) {
  const sync::lock_guard<mark_lock> marking(mark_lock_);
  check(watches_capture_ || seen_captures_.empty(), "a capture is seen, and nothing asks for it");
  std::erase_if(seen_captures_, [&](const seen_capture& each) { return each.id == id; });
  has_seen_capture_.store(!seen_captures_.empty(), std::memory_order_relaxed);
}

void stream_pool::note_uncaptured(stream_handle stream) {
  if (!has_seen_capture_.load(std::memory_order_relaxed)) return;
  check(watches_capture_, "a capture has ended that was not watched for");
  const sync::lock_guard<mark_lock> marking(mark_lock_);
  std::erase_if(seen_captures_, [&](const seen_capture& each) { return each.stream == stream; });
  has_seen_capture_.store(!seen_captures_.empty(), std::memory_order_relaxed);
}

status stream_pool::refuse_capture(const capture_info& seen) const {
  check(seen.state != capture_state::none, "a call is refused for a capture that is none");
  if (seen.state == capture_state::invalidated)
    return refuse(errc::not_permitted, "the stream's capture was invalidated: end it first");
  if (options_.capture == capture_rule::private_memory) return {};
  return refuse(errc::not_permitted,
                "the stream is being captured into a graph: allocate and free before or after, or "
                "open the pool with capture_rule::private_memory");
}

// Memory that nothing unfinished uses, since a graph cannot be made to wait, and that nobody else
// gets until the graph is released.
result<address> stream_pool::allocate_captured(const block_shape& shape, stream_handle stream,
                                               const capture_info& seen) {
  check(watches_capture_, "a graph allocates that cannot be captured");
  if (status named = check_stream(stream); !named) return named.error();
  if (seen.state == capture_state::active) note_capture(stream, seen.id);
  if (status allowed = refuse_capture(seen); !allowed) return allowed.error();
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return with_idle_memory(
      call, [&](slow_call& each, relief_pass&) { return allocate_captured_in_turn(each, seen); });
}

result<address> stream_pool::allocate_captured_in_turn(slow_call& call, const capture_info& seen) {
  check(seen.state == capture_state::active, "a graph allocates that is not being captured");
  const growth_turn turn(way_in());
  const named_stream named(named_, driver_->feature_set().canonical(call.stream));
  if (is_suspended()) return memory_suspended;
  stream_request& request = call.request;
  {
    const auto state = state_.lock();
    const result<std::uint32_t> record = locked_blocks(*state).enter_capture(seen.id, call.stream);
    if (!record) return record.error();
    request.stream = *record;
  }
  const result<address> at = take_for_capture(request, call);
  if (!at) return at;
  check(at->value != 0, "a graph is given nothing");
  check(request.stream != pool_state::no_stream, "a graph's block is nobody's");
  const auto state = state_.lock();
  if (status given = locked_blocks(*state).give_to_capture(*at, request.stream); !given)
    return given.error();
  if (recorder_)
    recorder_->note_block(history_kind::captured, {*at, request.block_bytes()}, call.size_bytes,
                          call.stream);
  return at;
}

result<address> stream_pool::take_for_capture(const stream_request& request, slow_call& call) {
  check(request.count_granules != 0, "no granule is looked for");
  result<address> at = reuse(request);
  if (!at || *at) return at;
  const lending_pause pause(state_);
  if (pause.took_any()) at = reuse(request);
  if (!at || *at) return at;
  growth_effort exactly{.may_move = false, .use_all_free = true};
  const auto grow_once = [&] { return try_growth(request, exactly); };
  bool is_drained = false;
  note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> grown = retry_while_short(grow_once(), grow_once, [&]() -> result<bool> {
    if (std::exchange(is_drained, true)) return false;
    reap(stale_count());
    if (status given = unmap_idle(request.size_bytes()); !given) return given.error();
    (void)release_cached();
    return true;
  });
  growth_attempt attempt{.request = request, .may_wait = false, .created_mark = call.created_mark};
  if (!grown && is_shortage(grown.error().code)) report_shortage(attempt, grown.error());
  note_growth(request, history_kind::served, grown ? *grown : address{});
  return grown;
}

status stream_pool::free_captured(address at, stream_handle stream, const capture_info& seen) {
  check(watches_capture_, "a graph frees that cannot be captured");
  if (status named = check_stream(stream); !named) return named;
  if (seen.state == capture_state::active) note_capture(stream, seen.id);
  if (status allowed = refuse_capture(seen); !allowed) return allowed;
  const auto state = state_.lock();
  const result<std::uint32_t> record = locked_blocks(*state).enter_capture(seen.id, stream);
  if (!record) return record.error();
  return locked_blocks(*state).free_in_capture(at, *record);
}

result<std::uint64_t> stream_pool::capture_number(stream_handle stream) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  if (status named = check_stream(stream); !named) return named.error();
  if (!driver_->feature_set().capture)
    return refuse(errc::not_supported, "this backend captures no streams");
  const result<capture_info> seen = driver_->query_capture(stream);
  if (!seen) return seen.error();
  check(seen->state != capture_state::active || can_capture(driver_->feature_set(), stream),
        "a stream is captured that cannot be");
  if (seen->state == capture_state::active) note_capture(stream, seen->id);
  if (seen->state == capture_state::active) return seen->id;
  return refuse(errc::invalid_argument, "the stream is not being captured");
}

status stream_pool::release_capture(std::uint64_t number, stream_handle stream) {
  if (status named = check_stream(stream); !named) return named;
  if (!is_ready()) return nothing_to_do();
  const growth_turn turn(way_in());
  const named_stream named(named_, driver_->feature_set().canonical(stream));
  check(may_name(named_), "a graph is released on a stream that cannot be named");
  const result<bool> captured = is_captured(stream);
  if (!captured) return captured.error();
  if (*captured)
    return refuse(errc::in_use, "a graph's memory is released on a stream that is being captured");
  end_seen_capture(number);
  if (state_.with([&](auto& state) { return state.captures().find(number) == nullptr; })) return {};
  const result<std::uint32_t> owner = enter_stream(stream);
  if (!owner) return owner.error();
  stream_point freed;
  for (bool done = false; !done;) {
    const auto state = state_.lock();
    check(!state->streams().is_capture(*owner), "a graph's memory goes to a graph");
    freed = state->progress().advance(*owner);
    done = locked_blocks(*state).release_capture(number, freed);
  }
  note({history_kind::graph_ended, {}, stream, number});
  (void)poll_events(freed);  // marks it: the next capture on this stream can make none
  return {};
}

}  // namespace vmm
