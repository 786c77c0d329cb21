// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: if any host allocation inside the library fails, a growable range returns
// out_of_host_memory or succeeds all the same, every size and every byte is as before, and nothing
// leaks. Method: operator new is replaced; each scenario is run once to count the library's own
// allocations (an observer leaves the driver's out), then once for each of them failing, and once
// with all from it on failing.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "../support/failing_new.h"
#include "scenarios.hpp"

import vmm.backend;
import vmm.fake;
import vmm.manager;

namespace {

using failing_new::plan;

struct pause_in_driver {
  vmm::status before(const vmm::call_record&) noexcept {
    ++plan.paused_count;
    return {};
  }
  void after(const vmm::call_record&) noexcept { --plan.paused_count; }
};

using B = vmm::observed_backend<vmm::fake_driver, pause_in_driver>;
using world = growth::world<B>;
using scenario = growth::scenario<B>;

// Returns the number of allocations that the operation made, or 0 if the planned one was not
// reached.
std::uint64_t run(const scenario& one, const scenarios::variant& on, std::uint64_t fail_at,
                  bool forever) {
  world w(B(vmm::fake_driver(on.plays), std::make_shared<pause_in_driver>()), one.budget_bytes);
  one.prepare(w);
  plan = {.armed = true, .fail_at = fail_at, .forever = forever};
  const vmm::status done = one.operation(w);
  plan.armed = false;
  const std::uint64_t seen_count = plan.seen_count;
  const bool struck = plan.struck_count > 0;
  const std::string what = std::string(one.name) + " on " + on.name + ", allocation " +
                           std::to_string(fail_at) + (forever ? " and all behind it" : "");
  w.expect_intact(what);
  if (!done) {
    EXPECT_EQ(done.error().code, vmm::errc::out_of_host_memory)
        << what << ": " << vmm::describe(done.error());
    const vmm::status again = one.operation(w);
    EXPECT_TRUE(again) << what << ": " << (again ? "" : vmm::describe(again.error()));
    w.expect_intact(what);
  }
  w.finish(what);
  return fail_at == 0 || struck ? seen_count : 0;
}

void sweep(const scenarios::variant& on) {
  std::uint64_t failed_count = 0;
  for (const scenario& one : growth::all<B>()) {
    const std::uint64_t made_count = run(one, on, 0, false);
    for (std::uint64_t nth = 1; nth <= made_count; ++nth) {
      for (const bool forever : {false, true}) {
        EXPECT_GT(run(one, on, nth, forever), 0u) << one.name << ", allocation " << nth;
        ++failed_count;
      }
    }
    if (testing::Test::HasFailure()) break;
  }
  std::printf("%s: %llu failing allocations\n", on.name,
              static_cast<unsigned long long>(failed_count));
  EXPECT_GT(failed_count, 50u);
}

TEST(GrowableHostMemory, Cuda) { sweep(scenarios::variants().at(0)); }
TEST(GrowableHostMemory, WithoutAliases) { sweep(scenarios::variants().at(1)); }

}  // namespace
