// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: if any host allocation inside the library fails, a growable range returns
// out_of_host_memory or succeeds all the same, every size and every byte is as before, and nothing
// leaks.
// Method: the allocation sweep (../support/allocation_sweep.hpp) over the scenarios of growth.
#include "../support/allocation_sweep.hpp"
#include "scenarios.hpp"

namespace {

using B = sweeps::paused_driver;

void sweep(const scenarios::variant& on) {
  sweeps::allocation_sweep all;
  for (const growth::scenario<B>& one : growth::all<B>()) {
    all.sweep([&](sweeps::planned_failure planned) {
      growth::world<B> w(sweeps::paused(on.plays), one.budget_bytes);
      one.prepare(w);
      const vmm::status done = all.run_under(planned, [&] { return one.operation(w); });
      const std::string what = std::string(one.name) + " on " + on.name + sweeps::describe(planned);
      w.expect_intact(what);
      if (!done) {
        sweeps::expect_repeatable(done.error(), [&] { return one.operation(w); }, what);
        w.expect_intact(what);
      }
      w.finish(what);
    });
    if (testing::Test::HasFailure()) break;
  }
  all.expect_complete(on.name);
}

TEST(GrowableHostMemory, Cuda) { sweep(scenarios::variants().at(0)); }
TEST(GrowableHostMemory, WithoutAliases) { sweep(scenarios::variants().at(1)); }

}  // namespace
