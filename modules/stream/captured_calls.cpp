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

// Memory that nothing unfinished uses, since a graph cannot be made to wait, and that nobody else
// gets until the graph is released.
result<address> stream_pool::allocate_captured(const block_shape& shape, stream_handle stream,
                                               const capture_info& seen) {
  if (status allowed = check_captured(stream, seen); !allowed) return allowed.error();
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return with_idle_memory(
      call, [&](slow_call& each, relief_pass&) { return allocate_captured_in_turn(each, seen); });
}

result<address> stream_pool::allocate_captured_in_turn(slow_call& call, const capture_info& seen) {
  check(seen.state == capture_state::active, "a graph allocates that is not being captured");
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_->feature_set().canonical(call.stream));
  if (state_.is_suspended()) return memory_suspended;
  stream_request& request = call.request;
  {
    const table_lock state(state_);
    const result<std::uint32_t> record = locked_blocks(*state).enter_capture(seen.id, call.stream);
    if (!record) return record.error();
    request.stream = *record;
  }
  const result<address> at = take_for_capture(request, call);
  if (!at) return at;
  check(at->value != 0, "a graph is given nothing");
  check(request.stream != pool_state::no_stream, "a graph's block is nobody's");
  const table_lock state(state_);
  if (status given = locked_blocks(*state).give_to_capture(*at, request.stream); !given)
    return given.error();
  state->note_block(history_kind::captured, {*at, request.block_bytes()}, call.size_bytes,
                    call.stream);
  return at;
}

result<address> stream_pool::take_for_capture(const stream_request& request, slow_call& call) {
  check(request.count_granules != 0, "no granule is looked for");
  result<address> at = parts_->reuse.own_or_finished(request);
  if (!at || *at) return at;
  const lending_pause pause(state_);
  if (pause.took_any()) at = parts_->reuse.own_or_finished(request);
  if (!at || *at) return at;
  growth_effort exactly{.may_move = false, .use_all_free = true};
  const auto grow_once = [&] {
    assume_locked(rank::growth);
    return parts_->growth.try_grow(request, exactly);
  };
  bool is_drained = false;
  events_.note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> grown = retry_while_short(grow_once(), grow_once, [&]() -> result<bool> {
    assume_locked(rank::growth);
    if (std::exchange(is_drained, true)) return false;
    parts_->reclaim.unmap_stale(state_.stale_count());
    if (status given = parts_->reclaim.unmap_idle(request.size_bytes()); !given)
      return given.error();
    (void)parts_->reclaim.release_cached();
    return true;
  });
  growth_attempt attempt{.request = request, .may_wait = false, .created_mark = call.created_mark};
  if (!grown && is_shortage(grown.error().code)) report_shortage(attempt, grown.error());
  events_.note_growth(request, history_kind::served, grown ? *grown : address{});
  return grown;
}

// Whether the pool serves the stream in the capture that it was seen in.
status stream_pool::check_captured(stream_handle stream, const capture_info& seen) {
  check(captures_.is_on(), "a graph allocates or frees that cannot be captured");
  if (status named = check_stream(*driver_, stream); !named) return named;
  if (seen.state == capture_state::active) captures_.note_seen(stream, seen.id);
  return captures_.check_allowed(seen);
}

status stream_pool::free_captured(address at, stream_handle stream, const capture_info& seen) {
  if (status allowed = check_captured(stream, seen); !allowed) return allowed;
  const table_lock state(state_);
  const result<std::uint32_t> record = locked_blocks(*state).enter_capture(seen.id, stream);
  if (!record) return record.error();
  return locked_blocks(*state).free_in_capture(at, *record);
}

result<std::uint64_t> stream_pool::capture_number(stream_handle stream) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  return captures_.number(stream);
}

status stream_pool::release_capture(std::uint64_t number, stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  if (!is_ready()) return nothing_to_do();
  const growth_guard growing(entry_);
  const named_stream named(entry_, driver_->feature_set().canonical(stream));
  check(entry_.may_name(entry_.named()), "a graph is released on a stream that cannot be named");
  const result<bool> captured = captures_.is_captured(stream);
  if (!captured) return captured.error();
  if (*captured)
    return refuse(errc::in_use, "a graph's memory is released on a stream that is being captured");
  captures_.end_seen(number);
  if (state_.with([&](auto& state) { return state.captures().find(number) == nullptr; })) return {};
  const result<std::uint32_t> owner = parts_->clock.enter(stream);
  if (!owner) return owner.error();
  stream_point freed;
  for (bool done = false; !done;) {
    const table_lock state(state_);
    check(!state->streams().is_capture(*owner), "a graph's memory goes to a graph");
    freed = state->progress().advance(*owner);
    done = locked_blocks(*state).release_capture(number, freed);
  }
  events_.note({history_kind::graph_ended, {}, stream, number});
  (void)parts_->clock.poll(freed);  // marks it: the next capture on this stream can make none
  return {};
}

// ---- streams -------------------------------------------------------------------------

status stream_pool::synchronize() {
  return is_ready() ? parts_->clock.synchronize() : nothing_to_do();
}

status stream_pool::forget(stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  return is_ready() ? parts_->clock.forget(stream) : nothing_to_do();
}

// ---- rights --------------------------------------------------------------------------

status stream_pool::set_peers(std::span<const access_grant> grants) {
  if (status ready = set_up(); !ready) return ready;
  return parts_->rights.set_peers(grants);
}

status stream_pool::set_access(address at, std::span<const access_grant> grants) {
  if (!is_ready()) return why_not_ready();
  return parts_->rights.set_access(at, grants);
}

// ---- notices -----------------------------------------------------------------------

result<remap_subscription> stream_pool::subscribe(remap_listener& listener) {
  if (const status idle = nothing_to_do(); !idle) return idle.error();
  return notices_.subscribe(listener);
}

status stream_pool::unsubscribe(remap_subscription subscription) {
  if (const status idle = nothing_to_do(); !idle) return idle;
  return notices_.unsubscribe(subscription);
}

// ---- giving back ---------------------------------------------------------------------

trim_report stream_pool::trim(std::uint64_t limit_bytes) {
  trim_report report;
  if (is_ready()) return parts_->reclaim.trim(limit_bytes);
  if (const status idle = nothing_to_do(); !idle) report.failure = idle.error();
  return report;
}

}  // namespace vmm
