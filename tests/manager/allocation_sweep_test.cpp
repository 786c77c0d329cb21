// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever host allocation inside the library fails, the manager reports out_of_host_memory
// or succeeds all the same, every allocation and its contents are as before, and nothing leaks.
// Method: operator new is replaced; each scenario is run once to count the library's own
// allocations (the driver's are left out: an observer pauses the count during its calls), then once
// for each of them failing, and once with all from it on failing.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../support/failing_new.h"
#include "scenarios.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;

namespace {

using failing_new::plan;

/// The driver's own allocations are not the library's.
struct pause_in_driver {
  vmm::status before(const vmm::call_record&) noexcept {
    ++plan.paused_count;
    return {};
  }
  void after(const vmm::call_record&) noexcept { --plan.paused_count; }
};

using B = vmm::observed_backend<vmm::fake_driver, pause_in_driver>;
using world = scenarios::world<B>;
using scenario = scenarios::scenario<B>;

class HostMemory : public testing::Test {
 protected:
  // Returns how many allocations the operation made, or 0 when the failure was not reached.
  std::uint64_t run(const scenario& one, const scenarios::variant& on, std::uint64_t fail_at,
                    bool forever) {
    world w(B(vmm::fake_driver(on.plays), std::make_shared<pause_in_driver>()),
            scenarios::options_for(one));
    one.prepare(w);
    const vmm::manager_statistics before = w.managed->statistics();
    plan = {.armed = true, .fail_at = fail_at, .forever = forever};
    const vmm::status done = one.operation(w);
    plan.armed = false;
    const std::uint64_t seen_count = plan.seen_count;
    const std::string what = std::string(one.name) + " on " + on.name + ", allocation " +
                             std::to_string(fail_at) + (forever ? " and all after it" : "");
    if (fail_at != 0) {
      ++possible_count;
      if (plan.struck_count > 0) ++injected_count;
    }
    if (!done) {
      EXPECT_EQ(done.error().code, vmm::errc::out_of_host_memory) << what;
      EXPECT_EQ(w.managed->statistics().user_bytes, before.user_bytes) << what;
      EXPECT_EQ(w.managed->statistics().mapped_bytes, before.mapped_bytes) << what;
      w.expect_intact(what);
      EXPECT_TRUE(one.operation(w)) << what;
    }
    w.expect_intact(what);
    w.finish(what);
    return seen_count;
  }

  void sweep_all(const scenarios::variant& on) {
    for (const scenario& one : scenarios::all<B>()) {
      const std::uint64_t allocation_count = run(one, on, 0, false);
      for (std::uint64_t nth = 1; nth <= allocation_count; ++nth) {
        run(one, on, nth, false);
        run(one, on, nth, true);
      }
      if (HasFailure()) break;
    }
    std::printf("%s: failed %llu of %llu possible host allocations\n", on.name,
                static_cast<unsigned long long>(injected_count),
                static_cast<unsigned long long>(possible_count));
    EXPECT_EQ(injected_count, possible_count);
    EXPECT_GT(injected_count, 0u);
  }

  std::uint64_t possible_count = 0;
  std::uint64_t injected_count = 0;
};

TEST_F(HostMemory, Cuda) { sweep_all(scenarios::variants().at(0)); }
TEST_F(HostMemory, WithoutAliases) { sweep_all(scenarios::variants().at(1)); }
TEST_F(HostMemory, Host) { sweep_all(scenarios::variants().at(5)); }

}  // namespace
