// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What allocate and free do where the fast path does not serve: a watcher, a stream that may be
// captured, memory of other streams, growth.
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.optimizer;
import vmm.physical;
import vmm.reservation;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

namespace {

constexpr std::size_t reap_count = 8;
constexpr std::size_t reap_count_max = 64;  // by one growth that is not short of memory
// Of the stale mappings that are too many, a growth undoes this part: as many as growths leave on
// the average, and not all that the one before it has left.
constexpr std::size_t surplus_share = 64;

}  // namespace

// ---- allocate and free -------------------------------------------------------------

result<address> stream_pool::allocate_watched(const block_shape& shape, stream_handle stream) {
  check(watches_ || captures_.is_on(), "a call that nobody watches takes the slow way");
  const result<address> at = allocate_told(shape, stream);
  if (!at || options_.contents == contents_rule::none) [[likely]]
    return at;
  return fill_acquired(*at, stream);
}

result<address> stream_pool::allocate_told(const block_shape& shape, stream_handle stream) {
  if (notices_.is_observed()) [[unlikely]] {
    notices_.check_not_in_observer();
    return with_relief(relief_, shape.size_bytes, [&](relief_pass&) -> result<address> {
      const observer_guard observed(entry_);
      const result<address> at = check_capture_and_allocate(shape, stream);
      if (at) notices_.observe([&](block_watcher& who) { who.allocated({*at, shape.size_bytes}); });
      return at;
    });
  }
  return check_capture_and_allocate(shape, stream);
}

// Asks first whether the stream is being captured.
result<address> stream_pool::check_capture_and_allocate(const block_shape& shape,
                                                        stream_handle stream) {
  check(watches_ || captures_.is_on(), "a capture is asked for in vain");
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) [[unlikely]]
    return seen.error();
  if (seen->state != capture_state::none) [[unlikely]]
    return allocate_captured(shape, stream, *seen);
  if (options_.rules.keep_none) return allocate_mappings(shape, stream);
  return shape.alignment_bytes > granule_bytes ? allocate_aligned_uncaptured(shape, stream)
                                               : allocate_uncaptured(shape.size_bytes, stream);
}

status stream_pool::free_watched(address at, stream_handle stream) {
  check(!options_.rules.keep_none || sees_all_, "a pool that keeps nothing takes the fast way");
  const status freed = free_filled(at, stream);
  if (freed && options_.rules.keep_none) keep_none();
  return freed;
}

// All that a free can fail with comes before the fill: bytes that were filled are gone.
status stream_pool::free_filled(address at, stream_handle stream) {
  check(watches_ || captures_.is_on(), "a call that nobody watches takes the slow way");
  if (!contents_.fills_on_release()) [[likely]]
    return free_told(at, stream);
  const change_guard changing(notices_.is_in_callback() ? nullptr : &suspension_.phases());
  if (notices_.is_observed()) [[unlikely]]
    notices_.check_not_in_observer();
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) return seen.error();
  if (status ready = enter_to_free(at, stream, *seen); !ready) return ready;
  if (status filled = fill_released(at, stream); !filled) return filled;
  return free_as_seen(at, stream, *seen);
}

// The block can be freed on the stream, which has its record from now on.
status stream_pool::enter_to_free(address at, stream_handle stream, const capture_info& seen) {
  check(contents_.fills_on_release(), "a free is entered that fills nothing");
  if (seen.state != capture_state::none) {
    if (status allowed = check_captured(stream, seen); !allowed) return allowed;
    const table_lock state(state_);
    locked_blocks blocks(*state);
    const result<std::uint32_t> record = blocks.enter_capture(seen.id, stream);
    return record ? blocks.check_free_in_capture(at, *record) : status{record.error()};
  }
  if (status named = check_stream(*driver_, stream); !named) return named;
  const table_lock state(state_);
  if (status live = locked_blocks(*state).check_live(at); !live) return live;
  if (state->find_stream(stream) != pool_state::no_stream) return {};
  const result<std::uint32_t> added = state->add_stream(driver_->feature_set().canonical(stream));
  return added ? status{} : status{added.error()};
}

status stream_pool::free_told(address at, stream_handle stream) {
  if (notices_.is_observed()) [[unlikely]]
    notices_.check_not_in_observer();
  const result<capture_info> seen = captures_.of(stream);
  if (!seen) [[unlikely]]
    return seen.error();
  return free_as_seen(at, stream, *seen);
}

status stream_pool::free_as_seen(address at, stream_handle stream, const capture_info& seen) {
  if (seen.state != capture_state::none) [[unlikely]]
    return free_captured(at, stream, seen);
  if (notices_.is_observed()) [[unlikely]] {
    const observer_guard observed(entry_);
    const bool is_locked =
        state_.with([&](auto& state) { return locked_blocks(state).is_locked(at); });
    const status freed = free_uncaptured(at, stream);
    if (freed && !is_locked) notices_.observe([&](block_watcher& who) { who.freed(at); });
    return freed;
  }
  return free_uncaptured(at, stream);
}

status stream_pool::free_on_new_stream(pool_state& state, address at, stream_handle stream) {
  if (status named = check_stream(*driver_, stream); !named) return named;
  if (status live = locked_blocks(state).check_live(at); !live) return live;
  const result<std::uint32_t> added = state.add_stream(driver_->feature_set().canonical(stream));
  if (!added) return added.error();
  check(state.find_stream(stream) == *added, "a new stream is not found");
  return state.free(at, *added);
}

result<address> stream_pool::allocate_slow_path(const block_shape& shape, stream_handle given) {
  const stream_handle stream = driver_->feature_set().canonical(given);
  const result<stream_request> counted = request_for(shape);
  if (!counted) return counted.error();
  if (status announced = captures_.check_announced(stream); !announced) return announced.error();
  captures_.note_uncaptured(stream);
  slow_call call{.size_bytes = shape.size_bytes, .stream = stream, .request = *counted};
  return with_idle_memory(call, [this](slow_call& each, relief_pass& relief) {
    return allocate_in_turn(each, relief);
  });
}

result<address> stream_pool::allocate_in_turn(slow_call& call, relief_pass& relief) {
  check(call.request.count_granules != 0, "no granule is asked for");
  const growth_guard growing(entry_);
  const named_stream named(entry_, call.stream);
  if (state_.is_suspended()) return memory_suspended;
  parts_->clock.poll_retired();
  if (parts_->clock.record_few_batches()) parts_->clock.poll_retired();
  check(entry_.may_name(call.stream), "a request does not name its stream");
  const result<std::uint32_t> number = parts_->clock.enter(call.stream);
  if (!number) return number.error();
  const std::size_t surplus = state_.with([](auto& state) { return state.surplus_stale_count(); });
  parts_->rights.end_freed();
  if (options_.rules.unmap_early || surplus != 0)
    parts_->reclaim.unmap_stale(std::clamp(surplus / surplus_share, reap_count, reap_count_max));
  call.request.stream = *number;
  const stream_request request = call.request;
  check(request.block_bytes() >= call.size_bytes, "a request is rounded down");
  parts_->reuse.provide_front(request, call.stream);
  result<address> at{address{}};
  if (parts_->reuse.is_first_fit(request)) at = parts_->reuse.finished_of_all(request);
  if (at && !*at)
    at = parts_->reuse.own_or_finished(request);  // its own memory first, then that of others
  if (at && !*at) at = parts_->reuse.from_front(request, call.stream);
  if (!at || *at) return events_.served(request, call.size_bytes, at);
  const lending_pause pause(state_);
  if (pause.took_any()) at = parts_->reuse.after_flush(request);
  if (at && !*at) at = parts_->reuse.finished_of_all(request);
  if (!at || *at) return events_.served(request, call.size_bytes, at);
  events_.note_growth(request, history_kind::grow, {});
  mark_created(call);
  const result<address> grown = grow(call, relief);
  events_.note_growth(request, history_kind::served, grown ? *grown : address{});
  if (options_.fronts == front_rule::always) parts_->reuse.provide_front(request, call.stream);
  return events_.served(request, call.size_bytes, grown);
}

result<std::uint32_t> stream_pool::count_granules(std::uint64_t size_bytes) {
  if (size_bytes == 0) return refuse(errc::invalid_argument, "a block has at least one byte");
  const std::uint32_t count =
      state_.with([&](auto& state) { return state.granules_for(size_bytes); });
  check(count * granule_bytes >= size_bytes || count == 0, "a request is rounded down");
  if (count != 0) return count;
  check(size_bytes >= granule_bytes, "a granule is too large for a segment");
  return refuse_too_large(size_bytes);
}

// No segment takes the request. Where the budget or the device is smaller too, the error says so.
error stream_pool::refuse_too_large(std::uint64_t size_bytes) {
  const relaxed_capture capture(*driver_, captures_.is_on());
  const std::uint64_t device_bytes =
      options_.spill ? 0 : parts_->core.memory.device_bytes(size_bytes);
  const std::uint64_t budget_bytes = options_.budget_bytes;
  check(size_bytes != 0, "no byte is too many");
  pool_growth& growth = parts_->growth;
  if (budget_bytes != 0 && size_bytes > budget_bytes)
    return growth.with_figures(budget_spent, size_bytes);
  if (device_bytes != 0 && size_bytes > device_bytes)
    return growth.with_figures(device_full, size_bytes);
  return growth.with_figures(
      refuse(errc::out_of_addresses,
             "A pool's block fits into one segment, which has memory_options::reservation_bytes "
             "of addresses and at most 512 GiB; a manager has larger blocks."),
      size_bytes);
}

// ---- pins --------------------------------------------------------------------------

status stream_pool::pin(address at) {
  if (!is_ready()) return why_not_ready();
  const table_lock state(state_);
  if (state->suspension() != suspension_phase::running) return memory_suspended;
  return locked_blocks(*state).pin(at);
}

status stream_pool::unpin(address at) {
  if (!is_ready()) return why_not_ready();
  notices_.check_not_in_observer();
  return state_.with([&](auto& state) { return locked_blocks(state).unpin(at); });
}

// ---- growth ------------------------------------------------------------------------

result<address> stream_pool::grow(const slow_call& call, relief_pass& relief) {
  const stream_request& request = call.request;
  check(request.count_granules != 0, "a growth is for nothing");
  growth_attempt attempt{.request = request, .relief = &relief, .created_mark = call.created_mark};
  const std::uint64_t footprint_bytes = parts_->core.memory.statistics().footprint_bytes;
  attempt.has_headroom = state_.with(
      [&](auto& state) { return growth_planner(state).has_headroom(request, footprint_bytes); });
  attempt.may_wait = captures_.may_record_all();
  const result<address> grown = grow_by_steps(attempt);
  check(!grown || grown->value != 0, "a growth has no address");
  if (grown || !attempt.may_wait || !is_capture_refusal(grown.error())) return grown;
  attempt.may_wait = false;  // a capture has begun meanwhile on a stream that was to be waited for
  attempt.was_refused = true;
  return grow_by_steps(attempt);
}

result<address> stream_pool::grow_by_steps(growth_attempt& attempt) {
  check(attempt.request.count_granules != 0, "a growth is for nothing");
  if (!attempt.has_headroom) {
    const result<address> waited = parts_->reuse.behind_wait(attempt, {});
    if (!waited || *waited) return waited;
  }
  growth_effort effort{.may_move = parts_->growth.may_alias() && attempt.may_wait};
  const result<address> grown = parts_->growth.try_grow(attempt.request, effort);
  attempt.refusal = effort.refusal;
  if (grown || !is_shortage(grown.error().code)) return grown;
  return grow_short(attempt, grown.error());
}

}  // namespace vmm
