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

// Memory without unfinished work, since a graph cannot be made to wait, which only the graph has
// until it is released.
result<address> captured_calls::allocate(const block_shape& shape, stream_handle stream,
                                         const capture_info& seen) {
  if (status allowed = enter(stream, seen); !allowed) return allowed.error();
  const result<stream_request> counted = slow_.request_for(shape);
  if (!counted) return counted.error();
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return slow_.with_others(
      call, [&](slow_call& each, relief_pass&) { return allocate_once(each, seen); });
}

result<address> captured_calls::allocate_once(slow_call& call, const capture_info& seen) {
  check(seen.state == capture_state::active, "an uncaptured graph allocates");
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_.feature_set().canonical(call.stream));
  if (state_.is_suspended()) return memory_suspended;
  stream_request& request = call.request;
  {
    const table_lock state(state_);
    const result<std::uint32_t> record = locked_blocks(*state).enter_capture(seen.id, call.stream);
    if (!record) return record.error();
    request.stream = *record;
  }
  const result<address> at = take(request, call);
  if (!at) return at;
  check(at->value != 0, "a graph gets a null block");
  check(request.stream != pool_state::no_stream, "a graph's block has no owner");
  const table_lock state(state_);
  if (status given = locked_blocks(*state).give_to_capture(*at, request.stream); !given)
    return given.error();
  state->events().note_block(history_kind::captured, {*at, request.block_bytes()}, call.size_bytes,
                             call.stream);
  return at;
}

result<address> captured_calls::take(const stream_request& request, slow_call& call) {
  check(request.count_granules != 0, "no granule is looked for");
  result<address> at = parts_.reuse.own_or_finished(request);
  if (!at || *at) return at;
  const arena_flush pause(state_);
  if (pause.flushed_any()) at = parts_.reuse.own_or_finished(request);
  if (!at || *at) return at;
  growth_effort exactly{.may_move = false, .use_all_free = true};
  const auto grow_once = [&] {
    assume_locked(rank::growth);
    return parts_.growth.try_grow(request, exactly);
  };
  slow_.note_growth(request, history_kind::grow, {});
  slow_.mark_created(call);
  const result<address> grown = retry_while_short(
      grow_once(), grow_once, single_rung([&]() -> result<bool> {
        assume_locked(rank::growth);
        parts_.reclaim.unmap_stale(state_.stale_count());
        if (status given = parts_.reclaim.unmap_idle(request.size_bytes()); !given)
          return given.error();
        (void)parts_.reclaim.release_cached();
        return true;
      }));
  growth_attempt attempt{.request = request, .may_wait = false, .created_mark = call.created_mark};
  if (!grown && is_shortage(grown.error().code)) shortage_.report(attempt, grown.error());
  slow_.note_growth(request, history_kind::served, grown ? *grown : address{});
  return grown;
}

// Whether the pool serves the stream in the capture that it was seen in.
status captured_calls::enter(stream_handle stream, const capture_info& seen) {
  check(captures_.is_on(), "a graph allocates or frees that cannot be captured");
  if (status named = check_stream(driver_, stream); !named) return named;
  if (seen.state == capture_state::active) captures_.note_seen(stream, seen.id);
  return captures_.check_allowed(seen);
}

status captured_calls::enter_to_free(address at, stream_handle stream, const capture_info& seen) {
  if (status allowed = enter(stream, seen); !allowed) return allowed;
  const table_lock state(state_);
  locked_blocks blocks(*state);
  const result<std::uint32_t> record = blocks.enter_capture(seen.id, stream);
  return record ? blocks.check_free_in_capture(at, *record) : status{record.error()};
}

status captured_calls::free(address at, stream_handle stream, const capture_info& seen) {
  if (status allowed = enter(stream, seen); !allowed) return allowed;
  const table_lock state(state_);
  const result<std::uint32_t> record = locked_blocks(*state).enter_capture(seen.id, stream);
  if (!record) return record.error();
  return locked_blocks(*state).free_in_capture(at, *record);
}

status captured_calls::release(std::uint64_t number, stream_handle stream) {
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_.feature_set().canonical(stream));
  check(entry_.may_name(entry_.named()), "a graph is released on a stream that cannot be named");
  const result<bool> captured = captures_.is_captured(stream);
  if (!captured) return captured.error();
  if (*captured)
    return refuse(errc::in_use, "a graph's memory is released on a stream that is being captured");
  captures_.end_seen(number);
  if (state_.with([&](auto& state) { return state.captures().find(number) == nullptr; })) return {};
  const result<std::uint32_t> owner = parts_.clock.enter(stream);
  if (!owner) return owner.error();
  stream_point freed;
  for (bool done = false; !done;) {
    const table_lock state(state_);
    check(!state->streams().is_capture(*owner),
          "captured_calls I1: a graph's memory goes to a graph");
    freed = state->progress().advance(*owner);
    done = locked_blocks(*state).release_graph(number, freed);
  }
  events_.note({history_kind::graph_ended, {}, stream, number});
  (void)parts_.clock.poll(freed);  // marks it: the next capture on this stream can make none
  return {};
}

}  // namespace vmm
