// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory is short: what is tried before out of memory is answered, in this order, and the report.
//
// The ladder is retry_while_short(): relieve() is the next rung (ask what has finished; then wait
// for one stream after the other), and after each rung the request is tried again with everything
// that is free. Between the first rung and the waits other allocators of the device give back what
// they do not use (vmm.optimizer:relief), with no lock of this pool held. What was created for a
// request that fails goes back to the driver at its end.
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

namespace {

// Freed blocks that wait: for their last pin, or for rights of their own to end.
[[nodiscard]] std::uint64_t waiting_granules(pool_state& state) noexcept {
  std::uint64_t waiting = 0;
  state.for_each_segment([&](const segment& in) {
    in.for_each_locked([&](region_id block) {
      if (in.lock_of(block).freed) waiting += in.range(block).count;
    });
  });
  check(waiting <= state.live_granules(), "more waits than is live");
  return waiting;
}

}  // namespace

// Memory is short: everything that is free is used before the driver is asked again.
result<address> stream_pool::grow_short(growth_attempt& attempt, const error& cause) {
  check(is_shortage(cause.code), "memory is taken as short that is not");
  attempt.tried = {};
  if (!stops_for_others(attempt, cause)) attempt.relief = nullptr;
  const capture_watch::pressing pressing(captures_);
  if (!attempt.was_refused)
    attempt.may_wait = captures_.may_record_all();  // beside captures that were seen
  shortage_ladder ladder;
  const auto again = [&] {
    assume_locked(rank::growth);
    return ladder.waits_begun == 0 ? grow_from_passed(attempt) : grow_after_wait(attempt);
  };
  const result<address> grown = retry_while_short(result<address>{cause}, again, [&] {
    assume_locked(rank::growth);
    return relieve(attempt, ladder);
  });
  check(grown || ladder.has_asked, "a request is given up before anything was tried");
  if (!grown && attempt.relief != nullptr && attempt.relief->has_stopped) return grown;
  if (!grown && grown.error().code == errc::out_of_memory && options_.spill) {
    attempt.refusal.reset();
    const spill_permit permit(parts_->core.memory);
    const result<address> spilled = grow_from_all(attempt);
    if (spilled) return spilled;
  }
  if (!grown && is_shortage(grown.error().code)) report_shortage(attempt, grown.error());
  return grown;
}

// The next rung: false where none is left.
result<bool> stream_pool::relieve(growth_attempt& attempt, shortage_ladder& ladder) {
  if (std::exchange(ladder.has_asked, true)) {
    if (attempt.relief == nullptr) return wait_for_next(attempt, ladder);
    check(!attempt.relief->has_stopped, "an attempt stops twice");
    attempt.relief->has_stopped = true;
    return false;
  }
  check(ladder.waits_begun == 0, "a stream is waited for before anybody was asked");
  if (status marked = parts_->clock.record_batches(); !marked && !is_put_off(marked.error()))
    return marked.error();
  if (status asked = parts_->clock.poll_all(); !asked) return asked.error();
  return true;
}

// The last rungs: one stream after the other, the request's own first. What is being captured
// cannot be waited for.
result<bool> stream_pool::wait_for_next(growth_attempt& attempt, shortage_ladder& ladder) {
  if (ladder.waits_begun == 0) {
    const std::uint32_t streams = state_.with([](auto& state) { return state.progress().count(); });
    ladder.stream_count = options_.wait_when_short ? streams : 0;
  }
  while (ladder.waits_begun < ladder.stream_count) {
    const std::uint32_t step = ladder.waits_begun++;
    const std::uint32_t stream = (attempt.request.stream + step) % ladder.stream_count;
    const stream_point last =
        state_.with([&](auto& state) { return state.progress().last_point(stream); });
    check(last.stream == stream, "another stream is waited for");
    const result<bool> waited = parts_->clock.wait_for(last);
    if (!waited && is_capture_refusal(waited.error())) continue;
    if (!waited) return waited.error();
    attempt.tried.blocked = attempt.tried.blocked || *waited;
    return true;
  }
  check(ladder.waits_begun == ladder.stream_count, "more streams are waited for than there are");
  return false;
}

// With all that has finished.
result<address> stream_pool::grow_from_passed(growth_attempt& attempt) {
  const result<address> own = parts_->reuse.coalesced(attempt.request);
  if (!own || *own) return own;
  if (status given = parts_->reclaim.make_room(attempt.request); !given) return given.error();
  const result<address> waited = parts_->reuse.behind_wait(attempt, {.all_streams = true});
  if (!waited || *waited) return waited;
  return grow_from_all(attempt);
}

result<address> stream_pool::grow_after_wait(growth_attempt& attempt) {
  check(options_.wait_when_short, "a caller waits that must not");
  (void)parts_->clock.record_batches();  // of what others freed meanwhile
  if (status given = parts_->reclaim.make_room(attempt.request); !given) return given.error();
  const result<address> own = parts_->reuse.coalesced(attempt.request);
  if (!own || *own) return own;
  return grow_from_all(attempt);
}

// With everything that is free, and then without what lies in the cache in sizes that do not fit.
// An aligned block behind free memory of its stream may take a page more than in a place of its
// own.
result<address> stream_pool::grow_from_all(growth_attempt& attempt) {
  growth_effort effort{.may_move = parts_->growth.may_alias() && attempt.may_wait,
                       .use_all_free = true,
                       .refusal = attempt.refusal};
  check(parts_->growth.may_alias() || !effort.may_move,
        "memory moves that can be mapped only once");
  const std::uint64_t footprint_bytes = parts_->core.memory.statistics().footprint_bytes;
  const auto grow_once = [&]() -> result<address> {
    assume_locked(rank::growth);
    const result<address> grown = parts_->growth.try_grow(attempt.request, effort);
    if (grown || !attempt.request.is_aligned() || !is_shortage(grown.error().code)) return grown;
    growth_effort apart = effort;
    apart.apart = true;
    return parts_->growth.try_grow(attempt.request, apart);
  };
  bool is_drained = false;
  const result<address> grown = retry_while_short(grow_once(), grow_once, [&]() -> result<bool> {
    if (std::exchange(is_drained, true)) return false;
    if (parts_->reclaim.release_cached().released_count != 0) attempt.tried.trimmed = true;
    return parts_->core.memory.statistics().footprint_bytes < footprint_bytes;
  });
  attempt.refusal = effort.refusal;
  return grown;
}

// ---- requests that fail --------------------------------------------------------------

// Whether other allocators may give back what the device is short of.
bool stream_pool::stops_for_others(growth_attempt& attempt, const error& cause) const noexcept {
  check(cause.code != errc::none, "an attempt that succeeded is taken for a failure");
  return attempt.relief != nullptr && attempt.relief->stops_early &&
         is_device_shortage(cause.code) && relief_.has_others();
}

// Before the first growth of a request: what is created from here on is its own.
void stream_pool::mark_created(slow_call& call) const noexcept {
  check(parts_ != nullptr, "memory is created before there is a pool");
  if (!call.created_mark) call.created_mark = parts_->core.memory.creation_mark();
}

// Refuses what nothing can make room for: what is live and the request are more than the budget, or
// than all of the device. What was freed and waits does not count: it may be free in time. No
// driver call, but for the device's size, once.
status stream_pool::check_can_fit(const slow_call& call) {
  const std::uint64_t size_bytes = call.request.block_bytes();
  check(size_bytes >= call.size_bytes, "a request is rounded down");
  std::uint64_t device_bytes = 0;
  if (!options_.spill && size_bytes > physical_pool::queried_bytes_min) {
    const relaxed_capture capture(*driver_, captures_.is_on());
    device_bytes = parts_->core.memory.device_bytes(size_bytes);
  } else if (!options_.spill) {
    device_bytes = parts_->core.memory.device_bytes(0);
  }
  const std::uint64_t budget_bytes = options_.budget_bytes;
  if (budget_bytes == 0 && device_bytes == 0) return {};
  const auto exceeds = [&](std::uint64_t limit_bytes, std::uint64_t live_bytes) {
    return limit_bytes != 0 && (size_bytes > limit_bytes || live_bytes > limit_bytes - size_bytes);
  };
  std::uint64_t live_bytes =
      state_.with([](auto& state) { return state.live_granules(); }) * granule_bytes;
  if (!exceeds(budget_bytes, live_bytes) && !exceeds(device_bytes, live_bytes)) return {};
  const growth_guard growing(entry_);
  if (state_.is_suspended()) return memory_suspended;
  live_bytes = state_.with([](auto& state) {
    return state.statistics().live_bytes - waiting_granules(state) * granule_bytes;
  });
  const bool is_over_budget = exceeds(budget_bytes, live_bytes);
  if (!is_over_budget && !exceeds(device_bytes, live_bytes)) return {};
  const result<std::uint32_t> number = parts_->clock.enter(call.stream);
  if (!number) return number.error();
  growth_attempt attempt{.request = call.request};
  attempt.request.stream = *number;
  const error& why = is_over_budget ? budget_spent : device_full;
  report_shortage(attempt, why);
  return parts_->growth.with_figures(why, call.size_bytes);
}

// What was created goes back, and the error says how much there was.
result<address> stream_pool::end_failed(const slow_call& call, const error& why) {
  check(why.code != errc::none, "a request that succeeded is taken for a failure");
  const bool is_short = is_shortage(why.code) || why.code == errc::out_of_addresses;
  if (!call.created_mark && !is_short) return why;
  const growth_guard growing(entry_);
  if (call.created_mark) parts_->reclaim.release_created(*call.created_mark);
  return is_short ? parts_->growth.with_figures(why, call.size_bytes) : why;
}

// ---- other allocators ----------------------------------------------------------------

// Called on other allocators' threads: see vmm.optimizer:relief.
std::uint64_t stream_pool::give_idle_back(std::uint64_t wanted_bytes) {
  check(wanted_bytes != 0, "no memory is wanted of another allocator");
  const relaxed_capture capture(*driver_);
  const std::uint64_t free_bytes = statistics().reusable_bytes;
  return trim(free_bytes > wanted_bytes ? free_bytes - wanted_bytes : 0).released_bytes;
}

// ---- the report --------------------------------------------------------------------

void stream_pool::report_shortage(growth_attempt& attempt, const error& cause) {
  check(is_shortage(cause.code), "a shortage is reported that was none");
  check(!attempt.tried.blocked || options_.wait_when_short, "a caller waits that must not");
  if (attempt.created_mark) parts_->reclaim.release_created(*attempt.created_mark);
  attempt.tried.failure = cause.code;
  attempt.tried.held_bytes = parts_->core.memory.statistics().footprint_bytes;
  attempt.tried.budget_bytes = options_.budget_bytes;
  {
    const table_lock state(state_);
    state->write_shortage(attempt.request, attempt.tried);
  }
  events_.note_shortage();
}

shortage_report stream_pool::last_shortage() const {
  if (!is_ready()) return {};
  return state_.with([](const auto& state) { return state.last_shortage(); });
}

void pool_state::write_shortage(const stream_request& request, shortage_report report) noexcept {
  check(report.failure != errc::none, "a shortage is reported that was none");
  const pool_statistics now = statistics();
  report.request_bytes = request.block_bytes();
  report.stream = progress().shown_handle(request.stream);
  report.live_bytes = now.live_bytes;
  report.reusable_bytes = now.reusable_bytes;
  report.largest_free_bytes = largest_free_bytes();
  check(report.largest_free_bytes <= report.reusable_bytes,
        "a free region is larger than all that is free");
  shortage_ = report;
}

std::uint64_t pool_state::largest_free_bytes() const noexcept {
  std::uint32_t largest = 0;
  for (const auto& in : segments_) {
    for (std::uint32_t stream = 0; stream < streams_.count(); ++stream) {
      if (streams_.is_capture(stream)) continue;
      largest = std::max(largest, in->regions().largest(kind_of(stream)));
    }
    check(largest <= in->regions().count_granules() || segments_.size() > 1,
          "a free region is larger than its segment");
  }
  return largest * granule_bytes;
}

}  // namespace vmm
