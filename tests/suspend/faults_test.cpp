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

namespace {

using sweeps::fault_list, sweeps::outcome, vmm::address;

// Two regions with contents, of several handles.
struct scene {
  explicit scene(vmm::backup_tier tier) {
    vmm::pool_options of_pool;
    of_pool.policy.handle_bytes_max = 2 * MiB;
    pool = std::make_unique<vmm::stream_pool>(driver, of_pool);
    vmm::manager_options of_blocks;
    of_blocks.policy.chunk_bytes = 2 * MiB;
    blocks = std::make_unique<vmm::manager>(driver, of_blocks);
    sleeper = std::make_unique<vmm::suspender>(vmm::suspend_options{.tier = tier});
    EXPECT_TRUE(sleeper->add(*pool, {"kv", vmm::suspend_contents::keep}));
    EXPECT_TRUE(sleeper->add(*blocks, {"weights", vmm::suspend_contents::keep}));
    stream = *driver.create_stream();
    in_kv = *pool->allocate(6 * MiB, stream);
    gone = *pool->allocate(2 * MiB, stream);
    weight = *blocks->allocate({.size_bytes = 4 * MiB, .stream = stream});
    EXPECT_TRUE(driver.write_tag({in_kv, 6 * MiB}, 11));
    EXPECT_TRUE(driver.write_tag({weight, 4 * MiB}, 12));
    EXPECT_TRUE(pool->free(gone, stream));
    vmm::fake::kernel work{"writer", 100};
    EXPECT_TRUE(driver.launch(stream, work));
  }
  scene(const scene&) = delete;
  scene& operator=(const scene&) = delete;
  ~scene() = default;

  [[nodiscard]] vmm::status suspend() {
    const auto report = sleeper->suspend();
    return report ? vmm::status{} : vmm::status{report.error()};
  }
  [[nodiscard]] bool is_suspended(const char* tag) const { return *sleeper->is_suspended(tag); }
  void expect_contents(const std::string& what) {
    for (std::uint64_t at = 0; at < 6 * MiB; at += MiB)
      ASSERT_EQ(driver.read_tag(in_kv + at).value_or(0), 11u) << what;
    for (std::uint64_t at = 0; at < 4 * MiB; at += MiB)
      ASSERT_EQ(driver.read_tag(weight + at).value_or(0), 12u) << what;
  }
  void expect_valid(const std::string& what) {
    const vmm::status one = pool->validate();
    ASSERT_TRUE(one) << what << ": " << one.error().detail;
    ASSERT_TRUE(blocks->validate()) << what;
  }
  void finish(const std::string& what) {
    EXPECT_TRUE(driver.finish_all());
    sleeper.reset();
    pool.reset();
    blocks.reset();
    EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << what << driver.report();
    for (const auto& misuse : driver.misuses()) ADD_FAILURE() << what << ": " << misuse.detail;
  }

  vmm::fake_driver driver;
  vmm::stream_handle stream{};
  address in_kv{}, gone{}, weight{};
  std::unique_ptr<vmm::stream_pool> pool;
  std::unique_ptr<vmm::manager> blocks;
  std::unique_ptr<vmm::suspender> sleeper;
};

struct SuspendFaults : testing::TestWithParam<vmm::backup_tier> {
  // A suspension that fails leaves both as they were, or suspended with their contents.
  outcome inject_suspend(const fault_list& faults) {
    scene s(GetParam());
    const std::string what = "suspend" + sweeps::describe(faults);
    outcome seen = sweeps::run_under(s.driver, faults, [&] { return s.suspend(); });
    s.expect_valid(what);
    if (seen.result) {
      EXPECT_TRUE(s.is_suspended("kv") && s.is_suspended("weights")) << what;
    } else {
      expect_honest(seen.result.error(), faults, what);
      const bool any = s.is_suspended("kv") || s.is_suspended("weights");
      if (faults.size() == 1 && !faults.front().forever) EXPECT_FALSE(any) << what;
      if (!any) {
        s.expect_contents(what);
        EXPECT_TRUE(s.suspend()) << what;
      }
    }
    const vmm::status back = s.sleeper->resume();
    EXPECT_TRUE(back) << what << ": " << (back ? "" : vmm::describe(back.error()));
    s.expect_contents(what);
    s.expect_valid(what);
    s.finish(what);
    return seen;
  }

  outcome inject_resume(const fault_list& faults) {
    scene s(GetParam());
    const std::string what = "resume" + sweeps::describe(faults);
    EXPECT_TRUE(s.suspend());
    outcome seen = sweeps::run_under(s.driver, faults, [&] { return s.sleeper->resume(); });
    s.expect_valid(what);
    if (!seen.result) {
      expect_honest(seen.result.error(), faults, what);
      EXPECT_TRUE(s.is_suspended("kv") && s.is_suspended("weights")) << what;
      const vmm::status back = s.sleeper->resume();
      EXPECT_TRUE(back) << what << ": " << (back ? "" : vmm::describe(back.error()));
    }
    s.expect_contents(what);
    s.expect_valid(what);
    s.finish(what);
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
  void fail(vmm::call where, std::uint64_t nth, bool forever) {
    driver.fail({where, nth, forever, driver.possible_errors(where).front()});
  }
  vmm::address weight{};
};

TEST_F(SuspendWaits, OfAResumptionFailAndNothingIsUnmappedThatIsInUse) {
  suspend();
  fail(vmm::call::synchronize_stream, 1, false);
  EXPECT_FALSE(sleeper->resume());
  EXPECT_EQ(driver.misuse_count(), 0u);
  driver.clear_faults();
  resume();
  expect_tag(weight, 12);
}

TEST_F(SuspendWaits, OfASuspensionFailAndNoCopyIsLeftBehind) {
  for (std::uint64_t nth = 1; nth < 6; ++nth) {
    fail(vmm::call::synchronize_stream, nth, false);
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
  for (const auto each : {vmm::call::synchronize_stream, vmm::call::synchronize_all})
    fail(each, 1, true);
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
  const auto refuse_waits = [&](bool with_events) {
    for (const auto each : {vmm::call::synchronize_stream, vmm::call::synchronize_all})
      fail(each, 1, true);
    if (with_events) fail(vmm::call::synchronize_event, 1, true);
  };
  const auto leave_copies = [&] {
    suspend();
    refuse_waits(false);
    EXPECT_FALSE(sleeper->resume());
    driver.clear_faults();
    EXPECT_NE(driver.resource_counts().pending_work, 0u);
  };
  leave_copies();
  refuse_waits(true);
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
  sleeper = std::make_unique<vmm::suspender>();
  fine(sleeper->add(*pool, {"kv"}));
  fine(sleeper->add(*blocks, {"weights"}));
  fine(pool->free(in_kv, a));
  refuse_waits(false);
  EXPECT_FALSE(sleeper->resume());
  EXPECT_EQ(driver.misuse_count(), 0u);
  driver.clear_faults();
  fine(blocks->free(weight));
  resume();
}

TEST_F(SuspendWaits, OfASuspensionFailForeverAndTheBackupStays) {
  for (const auto each : {vmm::call::synchronize_stream, vmm::call::synchronize_all})
    fail(each, 1, true);
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
