// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which a sweep makes host allocations fail: an operation is run once to count the
// allocations of the library (not those of the driver), then once for each of them failing, and
// once with all from it on failing. What is run, and what must hold after it, is the caller's. For
// one source file of a program that vmm_allocation_test makes. It imports what it uses, so it is
// the last include except others with imports.
#pragma once

#include "failing_new.h"
#include "test.h"

import vmm.backend;
import vmm.fake;

namespace sweeps {

struct pause_in_driver {
  vmm::status before(const vmm::call_record&) noexcept {
    ++failing_new::plan.paused_count;
    return {};
  }
  void after(const vmm::call_record&) noexcept { --failing_new::plan.paused_count; }
};
using paused_driver = vmm::observed_backend<vmm::fake_driver, pause_in_driver>;

inline paused_driver paused(const vmm::fake::profile& plays) {
  return paused_driver(vmm::fake_driver(plays), std::make_shared<pause_in_driver>());
}

/// Which allocation of an operation fails; 0: none.
struct planned_failure {
  std::uint64_t nth = 0;
  bool forever = false;
};

inline std::string describe(planned_failure planned) {
  return ", allocation " + std::to_string(planned.nth) +
         (planned.forever ? " and all after it" : "");
}

class allocation_sweep {
 public:
  /// Runs `operation`, in which the planned allocation fails.
  template <class Operation>
  vmm::status run_under(planned_failure planned, Operation&& operation) {
    using failing_new::plan;
    plan = {.armed = true, .fail_at = planned.nth, .forever = planned.forever};
    const vmm::status done = operation();
    plan.armed = false;
    seen_count_ = plan.seen_count;
    if (planned.nth != 0) ++possible_count_;
    if (planned.nth != 0 && plan.struck_count > 0) ++injected_count_;
    return done;
  }
  /// All failures of one operation, which `run` does once in a fresh world, by run_under().
  /// Returns its number of allocations.
  template <class Run>
  std::uint64_t sweep(Run&& run) {
    run(planned_failure{});
    const std::uint64_t created_count = seen_count_;
    for (std::uint64_t nth = 1; nth <= created_count; ++nth) {
      run(planned_failure{nth, false});
      run(planned_failure{nth, true});
    }
    return created_count;
  }
  /// Every planned failure was met, and there were more than `least_count`.
  void expect_complete(const char* name, std::uint64_t least_count = 50) const {
    std::printf("%s: failed %llu of %llu possible host allocations\n", name,
                static_cast<unsigned long long>(injected_count_),
                static_cast<unsigned long long>(possible_count_));
    EXPECT_EQ(injected_count_, possible_count_) << name;
    EXPECT_GT(injected_count_, least_count) << name;
  }

 private:
  std::uint64_t seen_count_ = 0;
  std::uint64_t possible_count_ = 0;
  std::uint64_t injected_count_ = 0;
};

/// A call that failed for want of host memory; it succeeds when it is made again.
template <class Operation>
void expect_repeatable(const vmm::error& failed, Operation&& operation, const std::string& what) {
  EXPECT_EQ(failed.code, vmm::errc::out_of_host_memory) << what << ": " << vmm::describe(failed);
  const vmm::status again = operation();
  EXPECT_TRUE(again) << what << ": " << (again ? "" : vmm::describe(again.error()));
}

}  // namespace sweeps
