// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: resource counts say what is alive, leaks are named, and misuse is listed with its
// addresses. Method: one object of each kind made, counted and given back; each misuse committed
// once.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::call, vmm::fake::misuse_kind;

using ResourceCounts = Fake;

TEST_F(ResourceCounts, CountsWhatIsAlive) {
  EXPECT_TRUE(driver.resource_counts().empty());
  const auto range = reserved(8 * MiB);
  const auto handle = created(4 * MiB);
  ASSERT_TRUE(driver.map({range.base, 4 * MiB, handle, 0}));
  ASSERT_TRUE(driver.map({range.base + 4 * MiB, 4 * MiB, handle, 0}));
  ASSERT_TRUE(open({range.base, 4 * MiB}));
  const auto counts = driver.resource_counts();
  EXPECT_FALSE(counts.empty());
  EXPECT_EQ(counts.reservations, 1u);
  EXPECT_EQ(counts.reserved_bytes, 8 * MiB);
  EXPECT_EQ(counts.handles, 1u);
  EXPECT_EQ(counts.memories, 1u);
  EXPECT_EQ(counts.memory_bytes, 4 * MiB);
  EXPECT_EQ(counts.mappings, 2u);
  EXPECT_EQ(counts.mapped_bytes, 8 * MiB);
  EXPECT_EQ(counts.accessible_mappings, 1u);
  clear();
  EXPECT_TRUE(driver.resource_counts().empty());
  EXPECT_EQ(driver.resource_counts().memory_bytes_max, 4 * MiB);
  EXPECT_EQ(driver.resource_counts().mapped_bytes_max, 8 * MiB);
  EXPECT_EQ(driver.resource_counts().reserved_bytes_max, 8 * MiB);
}

TEST_F(ResourceCounts, LeaksAreNamedInTheOrderOfTheirMaking) {
  const auto range = reserved(2 * MiB);
  const auto handle = created(2 * MiB);
  ASSERT_TRUE(driver.map({range.base, 2 * MiB, handle, 0}));
  const std::string text = driver.report();
  const auto first = text.find("reservation");
  const auto second = text.find("handle");
  const auto third = text.find("mapping");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(third, std::string::npos);
  EXPECT_TRUE(contains(driver.report(1), "and 2 more"));
  EXPECT_FALSE(driver.check_empty());
  EXPECT_EQ(driver.misuse_count(misuse_kind::leak), 3u);
  EXPECT_EQ(driver.misuses().front().range, range);
}

TEST_F(ResourceCounts, CallsAreCountedByKind) {
  (void)reserved(2 * MiB);
  (void)created(2 * MiB);
  (void)created(2 * MiB);
  EXPECT_EQ(driver.calls(call::create), 2u);
  EXPECT_EQ(driver.calls(call::reserve), 1u);
  EXPECT_EQ(driver.calls(), 3u);
  driver.reset_calls();
  EXPECT_EQ(driver.calls(), 0u);
}

TEST_F(ResourceCounts, StaleTokensAreKnown) {
  const auto handle = driver.create({2 * MiB, driver.home()});
  ASSERT_TRUE(driver.release(*handle));
  EXPECT_EQ(code(driver.release(*handle)), invalid_value);
  const auto next = created(2 * MiB);  // takes the same slot
  EXPECT_NE(next, *handle);
  const auto range = reserved(2 * MiB);
  EXPECT_EQ(code(driver.map({range.base, 2 * MiB, *handle, 0})), invalid_value);
  EXPECT_EQ(code(driver.release(vmm::physical_handle::none)), invalid_value);
  EXPECT_EQ(driver.misuse_count(misuse_kind::stale_handle), 3u);
  EXPECT_EQ(code(driver.free_reservation({range.base, 4 * MiB})), invalid_value);
  EXPECT_EQ(code(driver.free_reservation({range.base + 2 * MiB, 2 * MiB})), invalid_value);
  EXPECT_EQ(driver.misuse_count(misuse_kind::stale_handle), 5u);
}

TEST_F(ResourceCounts, UseAfterUnmapIsReportedWithItsAddress) {
  const auto range = reserved(2 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  ASSERT_TRUE(driver.unmap(range));
  EXPECT_FALSE(driver.read_tag(range.base + 4096));
  ASSERT_EQ(driver.misuse_count(), 1u);
  EXPECT_EQ(driver.misuses()[0].kind, misuse_kind::use_after_unmap);
  EXPECT_EQ(driver.misuses()[0].range.base, range.base + 4096);
  driver.clear_misuses();
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST_F(ResourceCounts, FreeingAReservationWithLiveMappingsIsRefused) {
  const auto range = reserved(2 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  EXPECT_EQ(code(driver.free_reservation(range)), invalid_value);
  EXPECT_EQ(driver.misuse_count(misuse_kind::freed_while_mapped), 1u);
  EXPECT_EQ(driver.resource_counts().reservations, 1u);
}

TEST_F(ResourceCounts, AddressesAreUsedAgainAndNeighboursMerge) {
  std::vector<vmm::address_range> rows;
  for (int i = 0; i < 64; ++i) rows.push_back(*driver.reserve({2 * MiB, 0, {}}));
  const auto lowest = rows.front().base;
  for (std::size_t i = 0; i < rows.size(); i += 2) ASSERT_TRUE(driver.free_reservation(rows[i]));
  for (std::size_t i = 1; i < rows.size(); i += 2) ASSERT_TRUE(driver.free_reservation(rows[i]));
  const auto all = driver.reserve({128 * MiB, 0, {}});
  EXPECT_EQ(all->base, lowest);
  ASSERT_TRUE(driver.free_reservation(*all));
}

TEST(ResourceCountsDeathTest, MisuseMayBeFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child is refused this driver
  vmm::fake_driver driver;
  driver.set_misuse_fatal(true);
  EXPECT_DEATH((void)driver.release(static_cast<vmm::physical_handle>(99)),
               "misuse: stale handle in release");
}

TEST(ResourceCountsOfAMachine, ADriverGivesBackWhatIsLeftOnAMachineThatLivesOn) {
  const auto plays = vmm::fake::profile::cuda();
  vmm::fake::machine machine{plays};
  vmm::fake_driver other{plays, machine};
  const auto before = other.query_memory(vmm::device(0))->free_bytes;
  {
    vmm::fake_driver careless{plays, machine};
    const auto handle = careless.create({4 * MiB, vmm::device(0)});
    const auto range = careless.reserve({4 * MiB, 0, {}});
    ASSERT_TRUE(careless.map({range->base, 4 * MiB, *handle, 0}));
    EXPECT_EQ(other.query_memory(vmm::device(0))->free_bytes, before - 4 * MiB);
  }
  EXPECT_EQ(other.query_memory(vmm::device(0))->free_bytes, before);
}

}  // namespace
}  // namespace fake_test
