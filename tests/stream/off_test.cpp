// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: under the policy "off" each block is driver memory of its own and goes back to the driver
// when the work before its free has finished. Method: on the fake driver, whose memory and
// handles are counted; kernels are left running over what is freed.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::call;

struct PoolOff : FakePool {
  void open_off(const vmm::pool_options& options = {}) {
    open(options, &vmm::pool_options::policy, vmm::pool_policy::off());
  }
  [[nodiscard]] std::uint64_t held_bytes() const { return driver.resource_counts().memory_bytes; }
};

TEST_F(PoolOff, EachBlockIsAHandleOfItsOwnAndGoesBackAtItsFree) {
  open_off();
  for (int round = 1; round <= 3; ++round) {
    const address small = allocate(100, a);
    const address large = allocate(301 * MiB, b);
    EXPECT_EQ(driver.calls(call::create), static_cast<std::uint64_t>(2 * round));
    EXPECT_EQ(held_bytes(), 304 * MiB);
    EXPECT_EQ(managed->statistics().live_count, 2u);
    free(large, b);
    EXPECT_EQ(held_bytes(), 2 * MiB);
    free(small, a);
    EXPECT_EQ(held_bytes(), 0u);
  }
}

TEST_F(PoolOff, UnfinishedWorkKeepsItsMemory) {
  open_off();
  const address used = allocate(8 * MiB, a);
  run_and_free(a, {used, 8 * MiB});
  EXPECT_EQ(held_bytes(), 8 * MiB);
  const address other = allocate(4 * MiB, b);
  EXPECT_EQ(held_bytes(), 12 * MiB) << "no memory serves a second block";
  ASSERT_TRUE(driver.finish_all());
  const address next = allocate(2 * MiB, a);
  EXPECT_EQ(held_bytes(), 6 * MiB);
  free(other, b);
  free(next, a);
  EXPECT_EQ(held_bytes(), 0u);
}

TEST_F(PoolOff, FreedAfterEverythingAndAlignedToo) {
  open_off();
  const address at = *managed->allocate(3 * MiB, 2 * MiB, a);
  EXPECT_EQ(at.value % (2 * MiB), 0u);
  EXPECT_EQ(held_bytes(), 4 * MiB);
  run(b, {at, 3 * MiB});
  fine(managed->free(at));
  ASSERT_TRUE(driver.finish_all());
  allocate(512, a);
  EXPECT_EQ(held_bytes(), 2 * MiB);
}

TEST_F(PoolOff, ABudgetHoldsAndWaitsForWorkBeforeItIsShort) {
  vmm::pool_options options;
  options.budget_bytes = 8 * MiB;
  open_off(options);
  const address used = allocate(8 * MiB, a);
  run_and_free(a, {used, 8 * MiB});
  allocate(8 * MiB, b);
  EXPECT_EQ(held_bytes(), 8 * MiB);
  EXPECT_EQ(managed->allocate(512, b).error().code, vmm::errc::over_budget);
  EXPECT_EQ(managed->last_shortage().failure, vmm::errc::over_budget);
}

}  // namespace
