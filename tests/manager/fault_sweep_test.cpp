// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever driver call fails, with whatever code, once, for ever, or a second time while the
// first failure is being undone, the manager reports the injected error or succeeds all the same,
// every allocation and its contents are as before, and nothing leaks.
// Method: each scenario is run once to count its driver calls, then once for every call, code and
// way of failing, on drivers that differ in what they can do with mappings. The driver's resource
// counts are zero and its list of misuses is empty after each.
#include "../support/fault_sweep.h"
#include "scenarios.h"

namespace {

using B = vmm::fake_driver;
using world = scenarios::world<B>;
using scenario = scenarios::scenario<B>;
using sweeps::fault_list, sweeps::outcome;

struct FaultSweep : testing::Test {
  // Does the operation in a fresh world with these faults planned; checks all there is to check.
  outcome inject(const scenario& one, const scenarios::variant& on, const fault_list& faults) {
    world w(B(on.plays), scenarios::options_for(one));
    one.prepare(w);
    const vmm::manager_statistics before = w.managed->statistics();
    const std::vector<scenarios::slot> slots_before = w.slots;
    const sweeps::held held_before = sweeps::held_of(w.fake());
    outcome seen = sweeps::run_under(w.fake(), faults, [&] { return one.operation(w); });
    const std::string what = std::string(one.name) + " on " + on.name + sweeps::describe(faults);
    if (!seen.result) {
      sweeps::expect_no_more(held_before, w.fake(), faults, what);
      expect_injected(one, seen.result.error(), faults, what);
      if (seen.result.error().code == vmm::errc::device_lost && seen.result.error().native == 0) {
        forget_lost(w);
      } else {
        expect_same(before, w.managed->statistics(), what);
        EXPECT_EQ(w.slots.size(), slots_before.size()) << what;
        w.expect_intact(what);
        const vmm::status again = one.operation(w);
        EXPECT_TRUE(again) << what << ": " << (again ? "" : vmm::describe(again.error()));
      }
    }
    w.expect_intact(what);
    w.finish(what);
    return seen;
  }

  static void expect_injected(const scenario& one, const vmm::error& seen, const fault_list& faults,
                              const std::string& what) {
    const bool injected = sweeps::is_injected(seen, faults);
    const bool lost = one.may_lose && seen.code == vmm::errc::device_lost && seen.native == 0 &&
                      (faults.size() > 1 || faults.front().forever);
    const bool short_of_memory = one.is_short && seen.code == vmm::errc::out_of_memory;
    EXPECT_TRUE(injected || lost || short_of_memory) << what << " reports " << vmm::describe(seen);
  }

  static void expect_same(const vmm::manager_statistics& before,
                          const vmm::manager_statistics& after, const std::string& what) {
    EXPECT_EQ(after.live_count, before.live_count) << what;
    EXPECT_EQ(after.user_bytes, before.user_bytes) << what;
    // A growth whose undoing failed leaves its mappings with the block.
    EXPECT_GE(after.mapped_bytes, before.mapped_bytes) << what;
  }

  // What could not be put back can only be freed.
  static void forget_lost(world& w) {
    for (auto lost = w.slots.begin(); lost != w.slots.end();) {
      const auto info = w.managed->find(lost->at);
      if (info && info->sizes.user_bytes > 0) {
        ++lost;
        continue;
      }
      EXPECT_TRUE(w.managed->free(lost->at));
      lost = w.slots.erase(lost);
    }
  }

  void sweep_all(const scenarios::variant& on) {
    sweeps::sweep_scenarios(
        on.name, on.plays, scenarios::all<B>(),
        [&](const scenario& one, const fault_list& faults) { return inject(one, on, faults); });
  }
};

TEST_F(FaultSweep, Cuda) { sweep_all(scenarios::variants().at(0)); }
TEST_F(FaultSweep, WithoutAliases) { sweep_all(scenarios::variants().at(1)); }
TEST_F(FaultSweep, WithoutSpanningUnmap) { sweep_all(scenarios::variants().at(2)); }
TEST_F(FaultSweep, WithNeither) { sweep_all(scenarios::variants().at(3)); }
TEST_F(FaultSweep, LevelZero) { sweep_all(scenarios::variants().at(4)); }
TEST_F(FaultSweep, Host) { sweep_all(scenarios::variants().at(5)); }

}  // namespace
