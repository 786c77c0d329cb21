// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever driver call fails in suspend() and resume(), with whatever code, once, for ever,
// or a second time while the first failure is being undone: all regions are as before, or the same
// call done again finishes the change; contents are never lost, nothing leaks.
// Method: each operation is run once to count its driver calls, then once for every call, code and
// way of failing.
#include "../support/fault_sweep.h"
#include "regions.hpp"
//
#include "scene.hpp"

namespace {

using sweeps::fault_list, sweeps::outcome, vmm::address;

struct SuspendFaults : testing::TestWithParam<vmm::backup_tier> {
  using world = scene<vmm::fake_driver>;
  // A suspension that fails leaves both as they were, or suspended with their contents.
  outcome inject_suspend(const fault_list& faults) {
    world w(vmm::fake_driver{}, {.tier = GetParam()});
    const std::string what = "suspend" + sweeps::describe(faults);
    outcome seen = sweeps::run_under(w.driver, faults, [&] { return w.suspend(); });
    w.expect_whole(what);
    if (seen.result) {
      EXPECT_TRUE(w.is_suspended("kv") && w.is_suspended("weights")) << what;
    } else {
      expect_honest(seen.result.error(), faults, what);
      if (faults.size() == 1 && !faults.front().forever) EXPECT_FALSE(w.is_any_suspended()) << what;
      if (!w.is_any_suspended()) EXPECT_TRUE(w.suspend()) << what;
    }
    w.finish(what);
    return seen;
  }

  outcome inject_resume(const fault_list& faults) {
    world w(vmm::fake_driver{}, {.tier = GetParam()});
    const std::string what = "resume" + sweeps::describe(faults);
    EXPECT_TRUE(w.suspend());
    outcome seen = sweeps::run_under(w.driver, faults, [&] { return w.sleeper->resume(); });
    w.expect_whole(what);
    if (!seen.result) {
      expect_honest(seen.result.error(), faults, what);
      EXPECT_TRUE(w.is_suspended("kv") && w.is_suspended("weights")) << what;
    } else {
      EXPECT_FALSE(w.is_any_suspended()) << what;
    }
    w.finish(what);
    return seen;
  }

  static void expect_honest(const vmm::error& seen, const fault_list& faults,
                            const std::string& what) {
    // An unused mapping that could not be undone is in use.
    const bool is_honest =
        sweeps::is_injected(seen, faults) || (seen.native == 0 && seen.code == vmm::errc::in_use);
    EXPECT_TRUE(is_honest) << what << " reports " << vmm::describe(seen);
  }

  template <class Inject>
  void sweep(Inject&& inject) {
    vmm::fake_driver any;
    const outcome clean = inject({});
    ASSERT_TRUE(clean.result) << vmm::describe(clean.result.error());
    sweeps::totals sums;
    sweeps::sweep_calls(any, clean, inject, sums);
    sweeps::expect_complete("suspender", sums);
  }
};

struct SuspendWaits : Regions {
  void SetUp() override {
    Regions::SetUp();
    driver.set_manual(true);
    open(contents::keep, contents::keep, {.tier = vmm::backup_tier::pinned});
    weight = in_blocks(8 * MiB);
    write(weight, 8 * MiB, 12);
  }
  void refuse_waits() {
    for (const auto each : {vmm::call::synchronize_stream, vmm::call::synchronize_all})
      fail(each, 1, true);
  }
  vmm::address weight{};
};

TEST_F(SuspendWaits, OfAResumptionFailAndNothingIsUnmappedThatIsInUse) {
  suspend();
  fail(vmm::call::synchronize_stream);
  EXPECT_FALSE(sleeper->resume());
  EXPECT_EQ(driver.misuse_count(), 0u);
  driver.clear_faults();
  resume();
  expect_tag(weight, 12);
}

TEST_F(SuspendWaits, OfASuspensionFailAndNoCopyIsLeftBehind) {
  for (std::uint64_t nth = 1; nth < 6; ++nth) {
    fail(vmm::call::synchronize_stream, nth);
    const bool is_done = sleeper->suspend().has_value();
    driver.clear_faults();
    if (is_done) break;
    EXPECT_EQ(driver.resource_counts().pending_work, 0u) << "wait " << nth;
  }
  if (*sleeper->is_suspended("weights")) resume();
  expect_tag(weight, 12);
}

// Neither the stream of copies nor the device can be waited for.
TEST_F(SuspendWaits, OfAResumptionFailForeverAndTheMemoryStays) {
  suspend();
  refuse_waits();
  EXPECT_FALSE(sleeper->resume());
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(*sleeper->is_suspended("weights"));
  driver.clear_faults();
  resume();
  expect_tag(weight, 12);
}

// The block can be freed, or another suspender resume it, once the copies are known to have
// finished.
TEST_F(SuspendWaits, OfAResumptionFailForeverAndNothingIsUnmappedByOthers) {
  const auto leave_copies = [&] {
    suspend();
    refuse_waits();
    EXPECT_FALSE(sleeper->resume());
    driver.clear_faults();
    EXPECT_NE(driver.resource_counts().pending_work, 0u);
  };
  leave_copies();
  refuse_waits();
  fail(vmm::call::synchronize_event, 1, true);
  EXPECT_FALSE(blocks->free(weight));
  driver.clear_faults();
  fine(blocks->free(weight));
  resume();
  EXPECT_EQ(driver.misuse_count(), 0u);
  weight = in_blocks(8 * MiB);
  const address in_kv = in_pool(2 * MiB);
  write(weight, 8 * MiB, 12);
  write(in_kv, 2 * MiB, 13);
  leave_copies();
  change_suspender();
  fine(pool->free(in_kv, a));
  refuse_waits();
  EXPECT_FALSE(sleeper->resume());
  EXPECT_EQ(driver.misuse_count(), 0u);
  driver.clear_faults();
  fine(blocks->free(weight));
  resume();
}

TEST_F(SuspendWaits, OfASuspensionFailForeverAndTheBackupStays) {
  refuse_waits();
  EXPECT_FALSE(sleeper->suspend());
  EXPECT_TRUE(*sleeper->is_suspended("weights"));
  EXPECT_TRUE(sleeper->return_backups());
  EXPECT_EQ(driver.misuse_count(), 0u) << "a backup goes that a copy writes to";
  driver.clear_faults();
  resume();
  expect_tag(weight, 12);
}

TEST_P(SuspendFaults, OfSuspend) {
  sweep([this](const fault_list& faults) { return inject_suspend(faults); });
}
TEST_P(SuspendFaults, OfResume) {
  sweep([this](const fault_list& faults) { return inject_resume(faults); });
}

INSTANTIATE_TEST_SUITE_P(Tiers, SuspendFaults,
                         testing::Values(vmm::backup_tier::pinned, vmm::backup_tier::pageable));

}  // namespace
