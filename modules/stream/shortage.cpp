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

// ---- the ladder ------------------------------------------------------------------------

// What every stream has finished with, once; then one stream after the other.
auto pool_shortage::ladder_for(growth_attempt& attempt, stream_waits& waits) {
  return shortage_ladder(single_rung([this] {
                           assume_locked(rank::growth);
                           return poll_streams();
                         }),
                         [this, &attempt, &waits] {
                           assume_locked(rank::growth);
                           return wait_for_next_stream(attempt, waits);
                         });
}

// All free memory is used before the next driver call.
result<address> pool_shortage::grow(growth_attempt& attempt, const error& cause) {
  check(is_shortage(cause.code), "memory is reported short without a failure");
  attempt.tried = {};
  if (!stops_for_others(attempt, cause)) attempt.relief = nullptr;
  const capture_watch::pressing pressing(captures_);
  if (!attempt.was_refused)
    attempt.may_wait = captures_.may_record_all();  // beside captures that were seen
  if (release_ready() != 0) attempt.refusal.reset();
  stream_waits waits;
  const auto again = [&] {
    assume_locked(rank::growth);
    return waits.begun_count == 0 ? retry_finished(attempt) : retry_after_wait(attempt);
  };
  const result<address> grown =
      retry_while_short(result<address>{cause}, again, ladder_for(attempt, waits));
  if (!grown && attempt.relief != nullptr && attempt.relief->has_stopped) return grown;
  if (!grown && grown.error().code == errc::out_of_memory && options_.spill) {
    attempt.refusal.reset();
    const spill_permit permit(parts_.core.memory);
    const result<address> spilled = grow_from_all(attempt);
    if (spilled) return spilled;
  }
  if (!grown && is_shortage(grown.error().code)) report(attempt, grown.error());
  return grown;
}

result<bool> pool_shortage::poll_streams() {
  if (status marked = parts_.clock.batches().record(); !marked && !is_deferred(marked.error()))
    return marked.error();
  if (status asked = parts_.clock.poll_all(); !asked) return asked.error();
  return true;
}

// One stream after the other, the request's own first. Captured streams are skipped. An attempt
// that other allocators' memory follows stops before the wait.
result<bool> pool_shortage::wait_for_next_stream(growth_attempt& attempt, stream_waits& waits) {
  if (attempt.relief != nullptr) {
    check(!attempt.relief->has_stopped, "an attempt is stopped twice");
    attempt.relief->has_stopped = true;
    return false;
  }
  if (waits.begun_count == 0) {
    const std::uint32_t streams = state_.with([](auto& state) { return state.progress().count(); });
    waits.stream_count = options_.wait_when_short ? streams : 0;
  }
  while (waits.begun_count < waits.stream_count) {
    const std::uint32_t step = waits.begun_count++;
    const std::uint32_t stream = (attempt.request.stream + step) % waits.stream_count;
    const stream_point last =
        state_.with([&](auto& state) { return state.progress().last_point(stream); });
    check(last.stream == stream, "another stream is waited for");
    const result<bool> waited = parts_.clock.wait_for(last);
    if (!waited && is_capture_refusal(waited.error())) continue;
    if (!waited) return waited.error();
    attempt.tried.waited = attempt.tried.waited || *waited;
    return true;
  }
  check(waits.begun_count == waits.stream_count, "a wait for more streams than exist");
  return false;
}

// With all that has finished.
result<address> pool_shortage::retry_finished(growth_attempt& attempt) {
  const result<address> own = parts_.reuse.coalesced(attempt.request);
  if (!own || *own) return own;
  if (status given = parts_.reclaim.make_room(attempt.request); !given) return given.error();
  const result<address> waited = parts_.reuse.behind_wait(attempt, {.all_streams = true});
  if (!waited || *waited) return waited;
  return grow_from_all(attempt);
}

result<address> pool_shortage::retry_after_wait(growth_attempt& attempt) {
  check(options_.wait_when_short, "a call that must not wait does");
  (void)parts_.clock.batches().record();  // of what others freed meanwhile
  if (status given = parts_.reclaim.make_room(attempt.request); !given) return given.error();
  const result<address> own = parts_.reuse.coalesced(attempt.request);
  if (!own || *own) return own;
  return grow_from_all(attempt);
}

// With all free memory, and then without cached memory in sizes that do not fit. An aligned block
// behind free memory of its stream may take a page more than in a place of its own.
result<address> pool_shortage::grow_from_all(growth_attempt& attempt) {
  growth_effort effort{.may_move = parts_.growth.may_alias() && attempt.may_wait,
                       .use_all_free = true,
                       .refusal = attempt.refusal};
  check(parts_.growth.may_alias() || !effort.may_move, "memory moves that can be mapped only once");
  const std::uint64_t held_bytes = parts_.core.memory.statistics().held_bytes;
  const auto grow_once = [&]() -> result<address> {
    assume_locked(rank::growth);
    const result<address> grown = parts_.growth.try_grow(attempt.request, effort);
    if (grown || !attempt.request.is_aligned() || !is_shortage(grown.error().code)) return grown;
    growth_effort alone = effort;
    alone.dedicated = true;
    return parts_.growth.try_grow(attempt.request, alone);
  };
  const result<address> grown =
      retry_while_short(grow_once(), grow_once, single_rung([&]() -> result<bool> {
                          if (parts_.reclaim.release_cached().released_count != 0)
                            attempt.tried.trimmed = true;
                          return parts_.core.memory.statistics().held_bytes < held_bytes;
                        }));
  attempt.refusal = effort.refusal;
  return grown;
}

result<address> pool_shortage::grow_dedicated(const stream_request& request, relief_pass& relief) {
  growth_effort effort{.may_move = false, .use_all_free = true, .dedicated = true};
  growth_attempt attempt{.request = request, .relief = &relief};
  stream_waits waits;
  auto ladder = ladder_for(attempt, waits);
  const auto grow_once = [&] {
    assume_locked(rank::growth);
    return parts_.growth.try_grow(request, effort);
  };
  const auto give_back = [&]() -> result<bool> {
    assume_locked(rank::growth);
    const capture_watch::pressing pressing(captures_);
    const result<bool> more = ladder();
    if (!more || !*more) return more;
    parts_.rights.end_freed();
    parts_.reclaim.unmap_stale(state_.stale_count());
    if (status unmapped = parts_.reclaim.unmap_idle(request.size_bytes()); !unmapped)
      return unmapped.error();
    (void)parts_.reclaim.release_cached();
    return true;
  };
  const result<address> first = grow_once();
  if (first || !stops_for_others(attempt, first.error())) attempt.relief = nullptr;
  result<address> at = retry_while_short(first, grow_once, give_back);
  if (attempt.relief != nullptr && attempt.relief->has_stopped) return at;
  if (!at && at.error().code == errc::out_of_memory && options_.spill) {
    const spill_permit permit(parts_.core.memory);
    at = grow_once();
  }
  check(!at || at->value != 0, "a block has no address");
  return at;
}

// ---- other allocators ----------------------------------------------------------------

// Whether other allocators may release memory of the device.
bool pool_shortage::stops_for_others(const growth_attempt& attempt, const error& cause) const {
  check(cause.code != errc::none, "a successful attempt is handled as a failure");
  return attempt.relief != nullptr && attempt.relief->stops_early &&
         is_device_shortage(cause.code) && relief_.has_others();
}

void pool_shortage::enter(const relief_key& key) noexcept {
  const auto give_back = [](void* of, std::uint64_t wanted_bytes) noexcept {
    return static_cast<pool_shortage*>(of)->give_idle_back(wanted_bytes);
  };
  relief_.enter(key, {this, give_back});
}

// Called on other allocators' threads: see vmm.optimizer:relief.
std::uint64_t pool_shortage::give_idle_back(std::uint64_t wanted_bytes) {
  check(wanted_bytes != 0, "no memory is wanted of another allocator");
  const relaxed_capture capture(driver_);
  std::uint64_t given_bytes = 0;
  {
    const growth_guard growing(entry_);
    given_bytes = release_ready();
  }
  if (given_bytes >= wanted_bytes) return given_bytes;
  return given_bytes + parts_.reclaim.trim_by(wanted_bytes - given_bytes).released_bytes;
}

// No work has used it: it goes at once, also beside running kernels.
std::uint64_t pool_shortage::release_ready() {
  if (ready_number_.load(std::memory_order_relaxed) == 0 || state_.is_suspended()) return 0;
  const std::uint64_t number = ready_number_.exchange(0, std::memory_order_acquire);
  check(number != 0, "memory that is ready is released by two threads");
  return parts_.reclaim.release_unused(ready_mark_.load(std::memory_order_relaxed), number);
}

// ---- the report --------------------------------------------------------------------

void pool_shortage::report(growth_attempt& attempt, const error& cause) {
  check(is_shortage(cause.code), "a shortage is reported without a failure");
  check(!attempt.tried.waited || options_.wait_when_short, "a call that must not wait does");
  if (attempt.created_mark) parts_.reclaim.release_created(*attempt.created_mark);
  attempt.tried.failure = cause.code;
  attempt.tried.held_bytes = parts_.core.memory.statistics().held_bytes;
  attempt.tried.budget_bytes = options_.budget_bytes;
  {
    const table_lock state(state_);
    state->set_last_shortage(state_report(*state).shortage(attempt.request, attempt.tried));
  }
  events_.note_shortage();
}

}  // namespace vmm
