// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever host allocation inside the library fails, the manager reports out_of_host_memory
// or succeeds all the same, every allocation and its contents are as before, and nothing leaks.
// Method: the allocation sweep (../support/allocation_sweep.hpp) over the manager's scenarios.
#include "../support/allocation_sweep.hpp"
#include "scenarios.h"

namespace {

using B = sweeps::paused_driver;

void sweep_all(const scenarios::variant& on) {
  sweeps::allocation_sweep all;
  for (const scenarios::scenario<B>& one : scenarios::all<B>()) {
    all.sweep([&](sweeps::planned_failure planned) {
      scenarios::world<B> w(sweeps::paused(on.plays), scenarios::options_for(one));
      one.prepare(w);
      const vmm::manager_statistics before = w.managed->statistics();
      const vmm::status done = all.run_under(planned, [&] { return one.operation(w); });
      const std::string what = std::string(one.name) + " on " + on.name + sweeps::describe(planned);
      if (!done) {
        EXPECT_EQ(w.managed->statistics().user_bytes, before.user_bytes) << what;
        EXPECT_EQ(w.managed->statistics().mapped_bytes, before.mapped_bytes) << what;
        w.expect_intact(what);
        sweeps::expect_repeatable(done.error(), [&] { return one.operation(w); }, what);
      }
      w.expect_intact(what);
      w.finish(what);
    });
    if (testing::Test::HasFailure()) break;
  }
  all.expect_complete(on.name);
}

TEST(HostMemory, Cuda) { sweep_all(scenarios::variants().at(0)); }
TEST(HostMemory, WithoutAliases) { sweep_all(scenarios::variants().at(1)); }
TEST(HostMemory, Host) { sweep_all(scenarios::variants().at(5)); }

}  // namespace
