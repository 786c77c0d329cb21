// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a planned fault strikes the call that it is planned for, with the requested code, and
// nothing else changes.
// Method: plans of each form against calls that would succeed, and the resource counts before and
// after.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::call, vmm::fake::native_error;

constexpr native_error oom{vmm::errc::out_of_memory, 2, "CUDA_ERROR_OUT_OF_MEMORY"};
constexpr native_error unknown{vmm::errc::internal, 999, "CUDA_ERROR_UNKNOWN"};

using Faults = Fake;

TEST_F(Faults, TheNthCallOfAKindFailsOnce) {
  driver.fail({call::create, 2, false, oom});
  (void)created(2 * MiB);
  (void)reserved(2 * MiB);  // another kind does not count
  const auto struck = driver.create({2 * MiB, driver.home()});
  EXPECT_EQ(struck.error().code, vmm::errc::out_of_memory);
  EXPECT_EQ(struck.error().where, call::create);
  EXPECT_STREQ(struck.error().native_name, "CUDA_ERROR_OUT_OF_MEMORY");
  (void)created(2 * MiB);
  EXPECT_EQ(driver.resource_counts().handles, 2u);
  EXPECT_EQ(driver.faults_struck(), 1u);
  EXPECT_EQ(driver.calls(call::create), 3u);
}

TEST_F(Faults, AFaultMayLastForever) {
  driver.fail({call::create, 2, true, oom});
  (void)created(2 * MiB);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(code(driver.create({2 * MiB, driver.home()})), out_of_memory);
  driver.clear_faults();
  (void)created(2 * MiB);
}

TEST_F(Faults, EveryCallAfterACountFails) {
  const auto range = reserved(2 * MiB);
  const auto handle = created(2 * MiB);
  driver.fail({call::none, 2, true, unknown});
  EXPECT_EQ(code(driver.map({range.base, 2 * MiB, handle, 0})), success);
  EXPECT_EQ(code(open(range)), 999);
  EXPECT_EQ(code(driver.unmap(range)), 999);
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
}

TEST_F(Faults, ASecondFaultMayStrikeTheRollback) {
  const auto range = reserved(2 * MiB);
  const auto handle = created(2 * MiB);
  driver.fail({call::set_access, 1, false, oom});
  driver.fail({call::unmap, 1, false, unknown});
  ASSERT_EQ(code(driver.map({range.base, 2 * MiB, handle, 0})), success);
  EXPECT_EQ(code(open(range)), out_of_memory);
  EXPECT_EQ(code(driver.unmap(range)), 999);
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
  EXPECT_EQ(code(driver.unmap(range)), success);
  EXPECT_EQ(driver.faults_struck(), 2u);
}

TEST_F(Faults, TwoFaultsForOneCallStrikeOneAfterTheOther) {
  driver.fail({call::create, 1, false, oom});
  driver.fail({call::none, 1, true, unknown});
  EXPECT_EQ(code(driver.create({2 * MiB, driver.home()})), out_of_memory);
  EXPECT_EQ(code(driver.create({2 * MiB, driver.home()})), 999);
}

TEST_F(Faults, AStruckCallChangesNothing) {
  const auto range = reserved(4 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  const auto spare = created(2 * MiB);
  ASSERT_TRUE(driver.write_tag({range.base, 2 * MiB}, 5));
  const auto before = driver.resource_counts();
  driver.fail({call::none, 1, true, unknown});
  EXPECT_FALSE(driver.reserve({2 * MiB, 0, {}}));
  EXPECT_FALSE(driver.free_reservation(range));
  EXPECT_FALSE(driver.create({2 * MiB, driver.home()}));
  EXPECT_FALSE(driver.release(spare));
  EXPECT_FALSE(driver.map({range.base + 2 * MiB, 2 * MiB, spare, 0}));
  EXPECT_FALSE(driver.unmap({range.base, 2 * MiB}));
  EXPECT_FALSE(open({range.base, 2 * MiB}, vmm::access::none));
  EXPECT_FALSE(driver.retain(range.base));
  driver.clear_faults();
  const auto after = driver.resource_counts();
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  EXPECT_EQ(*driver.read_tag(range.base), 5u);
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(Faults, EveryCallSaysWhatItMayAnswer) {
  for (const auto& plays :
       {vmm::fake::profile::cuda(), vmm::fake::profile::level_zero(), vmm::fake::profile::host()}) {
    vmm::fake_driver each{plays};
    EXPECT_TRUE(each.possible_errors(call::none).empty());
    for (std::size_t i = 1; i < vmm::call_count; ++i) {
      const auto where = static_cast<call>(i);
      EXPECT_FALSE(each.possible_errors(where).empty()) << plays.name << ' ' << vmm::name_of(where);
      for (const native_error& failure : each.possible_errors(where)) {
        EXPECT_NE(failure.code, vmm::errc::none);
        EXPECT_NE(failure.native, 0);
        EXPECT_FALSE(std::string_view{failure.native_name}.empty());
      }
    }
  }
}

}  // namespace
}  // namespace fake_test
