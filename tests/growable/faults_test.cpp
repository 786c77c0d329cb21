// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever driver call fails, with whatever code, once, for ever, or a second time while the
// first failure is being undone, a growable range returns the injected error or succeeds all the
// same, every size and every byte is as before, and the same call succeeds afterwards.
// Method: each scenario is run once to count its driver calls, then once for every call, code and
// way of failing, on drivers that differ in what they can do with mappings.
#include "../support/fault_sweep.h"
#include "scenarios.hpp"

namespace {

using B = vmm::fake_driver;
using world = growth::world<B>;
using scenario = growth::scenario<B>;
using sweeps::fault_list, sweeps::outcome;

struct GrowableFaults : testing::Test {
  outcome inject(const scenario& one, const scenarios::variant& on, const fault_list& faults) {
    world w(B(on.plays), one.budget_bytes);
    one.prepare(w);
    const std::uint64_t physical_before = w.ranges[1]->statistics().physical_bytes;
    sweeps::held held_before = sweeps::held_of(w.fake());
    // Addresses that unfinished work may use stay mapped until it has finished.
    if (std::string_view(one.name).ends_with("in use")) held_before.mappings += 1000;
    outcome seen = sweeps::run_under(w.fake(), faults, [&] { return one.operation(w); });
    const std::string what = std::string(one.name) + " on " + on.name + sweeps::describe(faults);
    if (!seen.result) sweeps::expect_no_more(held_before, w.fake(), faults, what);
    w.expect_intact(what);
    EXPECT_EQ(w.ranges[1]->statistics().physical_bytes, physical_before) << what;
    if (!seen.result) {
      expect_injected(seen.result.error(), faults, what);
      const vmm::status again = one.operation(w);
      EXPECT_TRUE(again) << what << ": " << (again ? "" : vmm::describe(again.error()));
      w.expect_intact(what);
    }
    w.finish(what);
    return seen;
  }

  static void expect_injected(const vmm::error& seen, const fault_list& faults,
                              const std::string& what) {
    const bool injected = sweeps::is_injected(seen, faults);
    // What a fault keeps from being unmapped or waited for is short, or still in use.
    const bool is_honest = seen.native == 0 &&
                           (seen.code == vmm::errc::in_use || seen.code == vmm::errc::over_budget ||
                            seen.code == vmm::errc::out_of_memory);
    EXPECT_TRUE(injected || is_honest) << what << " reports " << vmm::describe(seen);
  }

  void sweep_all(const scenarios::variant& on) {
    sweeps::sweep_scenarios(
        on.name, on.plays, growth::all<B>(),
        [&](const scenario& one, const fault_list& faults) { return inject(one, on, faults); });
  }
};

TEST_F(GrowableFaults, Cuda) { sweep_all(scenarios::variants().at(0)); }
TEST_F(GrowableFaults, WithoutAliases) { sweep_all(scenarios::variants().at(1)); }
TEST_F(GrowableFaults, WithNeither) { sweep_all(scenarios::variants().at(3)); }
TEST_F(GrowableFaults, LevelZero) { sweep_all(scenarios::variants().at(4)); }
TEST_F(GrowableFaults, Host) { sweep_all(scenarios::variants().at(5)); }

}  // namespace
