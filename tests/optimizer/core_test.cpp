// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a core is planned with the rights, the granularity and the limits that the options and the
// driver say, and is given back whole, also when the driver refuses once or twice. Method: cores on
// fake drivers; refusals planned for each call of the end; the driver's resource counts afterwards.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.optimizer;
import vmm.physical;
import vmm.timeline;
import vmm.va;

namespace {

using vmm::call, vmm::errc;

constexpr std::array<std::uint64_t, 2> two_sizes{1, GiB};

vmm::result<vmm::core_plan> plan_on(vmm::fake_driver& driver, const vmm::memory_options& options) {
  return vmm::plan_core(*vmm::driver_ref(driver), options, {}, two_sizes);
}

// ---- planning

TEST(CorePlan, RightsGoToTheHomeAndToThePlacement) {
  vmm::fake_driver driver;
  vmm::memory_options options;
  const auto at_home = *plan_on(driver, options);
  EXPECT_EQ(at_home.options.physical.like.where, driver.home());
  ASSERT_EQ(at_home.options.grants.all().size(), 1u);
  EXPECT_EQ(at_home.options.grants.all()[0].grantee, driver.home());
  for (const vmm::location where : {vmm::host(), vmm::host_node(0)}) {
    options.placement = where;
    const auto away = *plan_on(driver, options);
    EXPECT_EQ(away.options.physical.like.where, where);
    ASSERT_EQ(away.options.grants.all().size(), 2u);
    EXPECT_EQ(away.options.grants.all()[0].grantee, driver.home());
    EXPECT_EQ(away.options.grants.all()[1].grantee, where);
    for (const vmm::access_grant& grant : away.options.grants.all())
      EXPECT_EQ(grant.rights, vmm::access::read_write);
  }
  options.placement = driver.home();
  EXPECT_EQ(plan_on(driver, options)->options.grants.all().size(), 1u) << "one place, one right";
}

TEST(CorePlan, LimitsAreTheOptions) {
  vmm::fake_driver driver;
  vmm::memory_options options;
  options.reservation_bytes = 3 * GiB;
  options.budget_bytes = 5 * MiB;
  const auto plan = *plan_on(driver, options);
  EXPECT_EQ(plan.options.reservation.reservation_bytes, 3 * GiB);
  EXPECT_EQ(plan.options.physical.budget_bytes, 5 * MiB);
}

TEST(CorePlan, PropertiesOfTheMemoryAreKept) {
  vmm::fake_driver driver;
  vmm::physical_request like;
  like.compressible = true;
  like.shareable = vmm::share_kind::posix_fd;
  const auto plan = *vmm::plan_core(*vmm::driver_ref(driver), {}, like, two_sizes);
  EXPECT_TRUE(plan.options.physical.like.compressible);
  EXPECT_EQ(plan.options.physical.like.shareable, vmm::share_kind::posix_fd);
}

TEST(CorePlan, TheCoarsestGranularityOfTheSizesCounts) {
  vmm::fake_driver driver{vmm::fake::profile::level_zero()};  // finer for small sizes
  std::uint64_t coarsest = 0;
  std::uint64_t finest = ~std::uint64_t{0};
  for (const std::uint64_t size : two_sizes) {
    const auto unit = driver.query_granularity({.size_bytes = size, .where = driver.home()});
    coarsest = std::max(coarsest, unit.value().recommended_bytes);
    finest = std::min(finest, unit.value().recommended_bytes);
  }
  ASSERT_LT(finest, coarsest) << "else this shows nothing";
  driver.reset_calls();
  EXPECT_EQ(plan_on(driver, {})->unit.recommended_bytes, coarsest);
  EXPECT_EQ(driver.calls(call::query_granularity), two_sizes.size());
}

TEST(CorePlan, ARefusedQueryIsTheAnswer) {
  for (const std::uint64_t nth : {1u, 2u}) {
    vmm::fake_driver driver;
    driver.fail({call::query_granularity, nth, false, {errc::not_permitted, 1, "INJECTED"}});
    const auto plan = plan_on(driver, {});
    ASSERT_FALSE(plan) << nth;
    EXPECT_EQ(plan.error().code, errc::not_permitted);
    EXPECT_EQ(plan.error().where, call::query_granularity);
  }
}

TEST(CorePlanDeathTest, WithoutASizeEndsTheProcess) {
  vmm::fake_driver driver;
  EXPECT_DEATH((void)vmm::plan_core(*vmm::driver_ref(driver), {}, {}, {}), "without a size");
}

// ---- closing

struct Core : testing::Test {
  void SetUp() override {
    vmm::core_options options = plan_on(driver, {})->options;
    options.physical.granularity_bytes = 2 * MiB;
    options.physical.chunk_bytes = 4 * MiB;
    options.reservation = {64 * MiB, 2 * MiB};
    core.emplace(driver, options);
    space = core->space.allocate({16 * MiB, 0}).value();
    ASSERT_TRUE(core->memory.acquire(16 * MiB, pieces));
    ASSERT_TRUE(core->remaps.map(plan()).result);
    ASSERT_TRUE(core->validate());
  }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(core->validate());
    EXPECT_TRUE(close());
    core.reset();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
  vmm::mapping_plan plan() { return {space.range.base, pieces}; }
  // What an allocator does: what is mapped goes, whatever a former attempt has left of it.
  vmm::status empty() {
    ++empty_count;
    if (pieces.empty()) return {};
    const vmm::remap_outcome undone = core->remaps.unmap(plan());
    if (!undone.result) return undone.result;
    core->memory.give_back(pieces, 0);
    core->space.free(space);
    return {};
  }
  vmm::status close() {
    return vmm::close_core(*core, [this] { return empty(); });
  }
  void fail(call where, std::uint64_t times) {
    for (std::uint64_t nth = 1; nth <= times; ++nth)
      driver.fail({where, nth, false, {errc::internal, 1, "INJECTED"}});
  }

  vmm::fake_driver driver;
  std::optional<vmm::device_core> core;
  vmm::extent space{};
  vmm::memory_list pieces;
  int empty_count = 0;
};

TEST_F(Core, GivesEverythingBackAtOnce) {
  EXPECT_EQ(driver.resource_counts().reservations, 1u);
  ASSERT_TRUE(close());
  EXPECT_EQ(empty_count, 1);
  EXPECT_TRUE(driver.check_empty()) << driver.report();
}

TEST_F(Core, OutlivesFaultsThatStrikeLessOftenThanItTries) {
  const std::array<call, 3> ends{call::unmap, call::release, call::free_reservation};
  for (const call where : ends) {
    for (std::uint64_t times = 1; times < vmm::close_attempts; ++times) {
      fail(where, times);
      empty_count = 0;
      ASSERT_TRUE(close()) << vmm::name_of(where) << " refused " << times << " times";
      EXPECT_EQ(empty_count, static_cast<int>(times) + 1) << vmm::name_of(where);
      EXPECT_TRUE(driver.check_empty()) << driver.report();
      driver.clear_faults();
      core.reset();
      SetUp();
    }
  }
}

TEST_F(Core, AnswersAFaultThatStaysAndGoesOnLater) {
  const std::array<call, 3> ends{call::unmap, call::release, call::free_reservation};
  for (const call where : ends) {
    driver.fail({where, 1, true, {errc::internal, 1, "INJECTED"}});
    empty_count = 0;
    const vmm::status closed = close();
    ASSERT_FALSE(closed) << vmm::name_of(where);
    EXPECT_EQ(closed.error().where, where);
    EXPECT_EQ(empty_count, vmm::close_attempts) << vmm::name_of(where);
    EXPECT_TRUE(core->validate());
    driver.clear_faults();
    ASSERT_TRUE(close()) << vmm::name_of(where);
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    core.reset();
    SetUp();
  }
}

TEST_F(Core, ReleasesWhatIsCachedAlsoWhereTheRestStays) {
  vmm::memory_list more;
  ASSERT_TRUE(core->memory.acquire(8 * MiB, more));
  core->memory.give_back(more, 0);
  driver.fail({call::unmap, 1, true, {errc::internal, 1, "INJECTED"}});
  EXPECT_FALSE(close());
  EXPECT_EQ(core->memory.statistics().cached_bytes, 0u);
  EXPECT_EQ(core->memory.statistics().held_bytes, 16 * MiB);
}

TEST(CoreReport, NamesTheOwnerTheCodeAndTheReason) {
  testing::internal::CaptureStderr();
  vmm::report_unclosed("manager", vmm::refuse(errc::in_use, "a reason"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "vmm: a manager could not release everything: in use, a reason; the rest stays with "
            "the process\n");
}

// ---- trying again

struct tries {
  std::vector<vmm::status> answers;  // of the operation, one after the other
  std::size_t operations = 0;
  std::size_t relieved = 0;

  vmm::status run(std::size_t relief_max, vmm::result<bool> last = false) {
    const auto operation = [this] { return answers.at(operations++); };
    return vmm::retry_while_short(operation(), operation, [&]() -> vmm::result<bool> {
      if (relieved == relief_max) return last;
      ++relieved;
      return true;
    });
  }
};

TEST(RetryWhileShort, GoesOnUntilItSucceedsOrNothingIsLeft) {
  const vmm::status is_short = vmm::refuse(errc::out_of_memory, "");
  const vmm::status spent = vmm::refuse(errc::over_budget, "");
  const vmm::status lost = vmm::refuse(errc::device_lost, "");

  tries good{{vmm::status{}}};
  EXPECT_TRUE(good.run(5));
  EXPECT_EQ(good.relieved, 0u) << "nothing to relieve";

  tries third{{is_short, spent, vmm::status{}}};
  EXPECT_TRUE(third.run(5));
  EXPECT_EQ(third.relieved, 2u);

  tries other{{is_short, lost}};
  EXPECT_EQ(other.run(5).error().code, errc::device_lost) << "no shortage";
  EXPECT_EQ(other.relieved, 1u);

  tries never{{is_short, is_short, spent}};
  EXPECT_EQ(never.run(2).error().code, errc::over_budget) << "the last answer";
  EXPECT_EQ(never.operations, 3u);

  tries broken{{is_short, is_short}};
  EXPECT_EQ(broken.run(1, vmm::refuse(errc::not_permitted, "")).error().code, errc::not_permitted);
}

}  // namespace
