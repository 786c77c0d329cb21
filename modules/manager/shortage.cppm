// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:shortage - shortages: the memory that is released before a request fails, in this
// order. Not exported.
//
// 1  drain(): memory that the manager retains for reuse, twice
// 2  idle memory of other allocators of the device: 3 stops, the locks are released, and the
//    attempt is repeated (with_relief(), vmm.optimizer:relief)
// 3  wait_for_oldest(): freed memory that waits for work, with options().wait_when_short
// 4  memory at options().spill: with_spill()
//
// A new rung is a function beside drain() with its place in the ladder of recover(), and a line
// above. It returns true if the request is to be tried again, false if it has nothing left, which
// begins the next rung; one that runs once in an attempt is a single_rung(). Where may_have() finds
// too little room, recover() takes the next rung without an attempt. A rung runs under the lock of
// recovery, so it calls neither users nor other allocators: such calls belong to 2, between two
// attempts. A rung behind 2 is a part of wait_for_oldest(), below its stop.
//
// I1  A recovery releases retained memory twice: the second time finds memory that other threads,
//     short at the same time, had collected in vain. One thread recovers at a time.
// I2  Memory created by a failed call is released to the driver.
//
// Thread safety: all of it. Cost: none where memory is not short, except for check_can_fit().
module;
#include "../base/thread_annotations.h"

export module vmm.manager:shortage;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import :base;
import :history;
import :locks;
import :report;
import :reuse;

namespace vmm {

class manager_shortage {
 public:
  manager_shortage(manager_base& base, manager_history& history, range_reuse& ranges) noexcept
      : base_(base), history_(history), ranges_(ranges) {}
  manager_shortage(const manager_shortage&) = delete;
  manager_shortage& operator=(const manager_shortage&) = delete;

  /// Effects: serves other allocators of the device with idle memory, until leave(). Requires: the
  /// engine exists.
  void enter() noexcept;
  void leave() noexcept { relief_.leave(); }
  [[nodiscard]] relief_member& relief() noexcept { return relief_; }
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes);

  /// Refuses memory that exceeds, together with the live blocks, the budget or the device. Errors:
  /// over_budget, out_of_memory. Cost: O(1), at most one query_memory.
  [[nodiscard]] status check_can_fit(const creation& what);
  /// Repeats `operation`, which returns a result, while memory is short and more can be released.
  /// Errors: the operation's.
  template <class Operation>
  [[nodiscard]] auto create(const creation& what, Operation&& operation) {
    return with_relief(relief_, what.size_bytes,
                       [&](relief_pass& pass) { return with_spill(what, pass, operation); });
  }
  /// The same without 2 and 4, for with_others().
  template <class Operation>
  [[nodiscard]] auto recover(const creation& what, relief_pass& pass, Operation&& operation)
      VMM_EXCLUDES(manager_lock::recovery) {
    const relief_pause pause;  // other processes are waited for once, by with_relief()
    auto outcome = operation();
    if (outcome || !is_shortage(outcome.error().code)) return outcome;
    check(base_.blocks != nullptr, "a manager that is not set up is short of memory");
    errc latest = outcome.error().code;  // a budget is short at first, and then the device
    const auto attempt = [&] {
      auto again = operation();
      latest = again ? errc::none : again.error().code;
      return again;
    };
    const auto stops_early = [&] {
      return pass.stops_early && is_device_shortage(latest) && relief_.has_others();
    };
    const rank_guard recovering(manager_lock::recovery, recovery_mutex_);
    base_.counts.recovery_count.fetch_add(1, std::memory_order_relaxed);
    int drains_left = recovery_attempts;
    shortage_ladder ladder([&] { return drain(drains_left); },
                           [&] { return wait_for_oldest(stops_early() ? &pass : nullptr); });
    return retry_while_short(std::move(outcome), attempt, [&]() -> result<bool> {
      for (;;) {  // after the driver has refused memory: creating many pieces in vain takes long
        const result<bool> more = ladder();
        if (!more || !*more || base_.blocks->memory().may_have(what)) return more;
      }
    });
  }
  /// with_relief() of a growth, `attempt(relief_pass&)`. On failure its new memory is released to
  /// the driver, and the error gets its figures. Requires: no lock is held. Errors: the attempt's.
  template <class Attempt>
  [[nodiscard]] status with_others(const std::uint64_t& size_bytes, Attempt&& attempt) {
    const std::uint64_t mark = creation_mark();
    const status done = with_relief(relief_, size_bytes, std::forward<Attempt>(attempt));
    return done ? done : status{end_failed_growth(mark, size_bytes, done.error())};
  }
  [[nodiscard]] std::uint64_t creation_mark() const noexcept;
  /// Releases the memory created since, and returns the error with figures.
  [[nodiscard]] error end_failed(std::uint64_t mark, std::uint64_t size_bytes, const error& why);
  /// The same of a block that should have grown by so much.
  [[nodiscard]] error end_failed_growth(std::uint64_t mark, std::uint64_t added_bytes,
                                        const error& why);

 private:
  static constexpr int recovery_attempts = 2;

  template <class Operation>
  [[nodiscard]] auto with_spill(const creation& what, relief_pass& pass, Operation&& operation) {
    auto outcome = recover(what, pass, operation);
    if (outcome || outcome.error().code != errc::out_of_memory || !base_.options.spill)
      return outcome;
    if (pass.has_stopped) return outcome;
    const relief_pause pause;
    check(base_.blocks != nullptr, "a manager that is not set up is short of memory");
    const spill_permit permit(base_.blocks->memory());
    return operation();
  }
  // The rungs. With a pass wait_for_oldest() stops before it waits.
  [[nodiscard]] bool drain(int& drains_left);
  [[nodiscard]] bool wait_for_oldest(relief_pass* pass);
  [[nodiscard]] std::uint64_t give_idle_back(std::uint64_t wanted_bytes);

  manager_base& base_;
  manager_history& history_;
  range_reuse& ranges_;
  sync::mutex recovery_mutex_;
  relief_member relief_;
};

}  // namespace vmm
