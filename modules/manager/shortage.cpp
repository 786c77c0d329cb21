// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.tracker;

namespace vmm {
namespace {

// A block that has lost its memory may keep mappings of other memory until it is freed.
std::uint64_t memory_of_live(const tracker& records) {
  std::uint64_t sum_bytes = 0;
  records.visit([&](const tracked_range& each) {
    if (each.sizes.user_bytes != 0) sum_bytes += each.sizes.mapped_bytes;
  });
  return sum_bytes;
}

}  // namespace

bool manager_shortage::drain(int& drains_left) {
  check(drains_left >= 0 && drains_left <= recovery_attempts, "I1: memory is drained too often");
  if (drains_left == 0) return false;
  --drains_left;
  (void)ranges_.give_back(0);
  return true;
}

bool manager_shortage::wait_for_oldest(relief_pass* pass) {
  if (pass != nullptr) {
    check(!pass->has_stopped, "an attempt is stopped twice");
    pass->has_stopped = true;
    return false;
  }
  if (!base_.options.wait_when_short) return false;
  history_.note({history_kind::blocked});
  const bool has_reaped = base_.blocks->reap_waiting();
  history_.note({history_kind::passed});
  if (!has_reaped) return false;
  (void)ranges_.release_cached(0);
  return true;
}

// ---- calls that fail -----------------------------------------------------------------

std::uint64_t manager_shortage::creation_mark() const noexcept {
  return base_.is_set_up.load(std::memory_order_acquire) ? base_.blocks->memory().creation_mark()
                                                         : 0;
}

status manager_shortage::check_can_fit(const creation& what) {
  check(what.size_bytes > 0, "room is looked for that takes nothing");
  check(base_.blocks != nullptr, "room is looked for before a manager is set up");
  physical_pool& memory = base_.blocks->memory();
  const std::uint64_t device_bytes = base_.options.spill ? 0 : memory.device_bytes(what.size_bytes);
  if (base_.options.budget_bytes == 0 && device_bytes == 0) return {};
  // The blocks' sizes count memory mapped at two addresses twice.
  const bool is_known = base_.counts.remapped_copy_count.load(std::memory_order_relaxed) == 0;
  std::uint64_t live_bytes = is_known ? base_.blocks->records().totals().mapped_bytes : 0;
  const auto exceeds = [&](std::uint64_t limit_bytes) {
    return limit_bytes != 0 &&
           (what.size_bytes > limit_bytes || live_bytes > limit_bytes - what.size_bytes);
  };
  if (!exceeds(base_.options.budget_bytes) && !exceeds(device_bytes)) return {};
  if (is_known) live_bytes = memory_of_live(base_.blocks->records());
  if (exceeds(base_.options.budget_bytes)) return budget_spent;
  return exceeds(device_bytes) ? status{device_full} : status{};
}

// Releases the created memory, and returns the error with its figures.
error manager_shortage::end_failed(std::uint64_t mark, std::uint64_t size_bytes, const error& why) {
  check(why.code != errc::none, "a successful call is handled as a failure");
  if (!base_.is_set_up.load(std::memory_order_acquire) || !base_.made_in.is_here()) return why;
  const trim_report released = ranges_.release_created(mark);
  check(released.released_count != 0 || released.released_bytes == 0,
        "I2: memory that a failed call created was released in no handle");
  if (history_.is_recorded() && released.released_bytes != 0) {
    history_.note({history_kind::trimmed, {{}, released.released_bytes}});
    history_.note_footprint();
  }
  return manager_report(base_).with_figures(why, size_bytes);
}

error manager_shortage::end_failed_growth(std::uint64_t mark, std::uint64_t added_bytes,
                                          const error& why) {
  error failed = end_failed(mark, added_bytes, why);
  failed.figures.is_growth = failed.figures.requested_bytes != 0;
  return failed;
}

void manager_shortage::enter() noexcept {
  const auto give_back = [](void* of, std::uint64_t wanted_bytes) noexcept {
    return static_cast<manager_shortage*>(of)->give_idle_back(wanted_bytes);
  };
  check(base_.blocks != nullptr, "a manager enters the registry before it is set up");
  relief_.enter(relief_key::of(base_.driver, base_.placement()), {this, give_back});
}

trim_report manager_shortage::trim(std::uint64_t limit_bytes) {
  if (!base_.made_in.is_here()) return {.failure = refuse_forked()};
  if (!base_.is_set_up.load(std::memory_order_acquire)) return {};
  const relaxed_capture quiet(*base_.driver);
  const trim_report report = ranges_.give_back(limit_bytes);
  check(report.released_count != 0 || report.released_bytes == 0,
        "bytes were released in no handle");
  if (history_.is_recorded()) {
    if (report.released_bytes != 0)
      history_.note({history_kind::trimmed, {{}, report.released_bytes}});
    history_.note_footprint();
  }
  return report;
}

// Called on other allocators' threads: see vmm.optimizer:relief.
std::uint64_t manager_shortage::give_idle_back(std::uint64_t wanted_bytes) {
  const manager_statistics now = manager_report(base_).statistics();
  const std::uint64_t idle_bytes = now.retained_bytes + now.retained_mapped_bytes;
  check(wanted_bytes != 0, "no memory is wanted of another allocator");
  const trim_report given = trim(idle_bytes > wanted_bytes ? idle_bytes - wanted_bytes : 0);
  check(given.released_count != 0 || given.released_bytes == 0, "bytes were released in no handle");
  return given.released_bytes;
}

}  // namespace vmm
