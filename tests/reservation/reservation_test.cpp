// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: address space comes from few large reservations, further ones only when none has room, and
// goes back whole. Method: a space on the fake driver, whose calls and resource counts are
// counted and whose refusals are planned.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.optimizer;
import vmm.va;

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::extent;

constexpr std::uint64_t TiB = std::uint64_t{1} << 40;

struct Reservation : testing::Test {
  using space_type = vmm::reservation_space;

  void open(std::uint64_t reservation_bytes, std::uint64_t granularity_bytes = 2 * MiB) {
    space.emplace(driver, vmm::reservation_options{reservation_bytes, granularity_bytes});
  }
  void TearDown() override {
    driver.clear_faults();
    EXPECT_TRUE(space->validate());
    for (const extent& each : live) space->free(each);
    EXPECT_TRUE(space->close());
    space.reset();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
  extent allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes = 0) {
    const auto found = space->allocate({size_bytes, alignment_bytes});
    EXPECT_TRUE(found) << (found ? "" : vmm::describe(found.error()));
    if (found) live.push_back(*found);
    return found.value_or(extent{});
  }
  void fail(call where, errc code, std::uint64_t nth = 1, bool forever = false) {
    driver.fail({where, nth, forever, {code, 1, "INJECTED"}});
  }

  vmm::fake_driver driver;
  std::optional<space_type> space;
  std::vector<extent> live;
};

// ---- few reservations

TEST_F(Reservation, ReservesOnFirstUseAndOnce) {
  open(8 * TiB);
  EXPECT_EQ(driver.calls(), 0u);
  for (int i = 0; i < 100; ++i) allocate(64 * MiB);
  EXPECT_EQ(driver.calls(call::reserve), 1u);
  EXPECT_EQ(driver.resource_counts().reserved_bytes, 8 * TiB);
}

TEST_F(Reservation, ReservesAgainOnlyWhenNoneHasRoom) {
  open(64 * MiB);
  allocate(32 * MiB);
  allocate(32 * MiB);
  EXPECT_EQ(driver.calls(call::reserve), 1u);
  allocate(2 * MiB);
  EXPECT_EQ(driver.calls(call::reserve), 2u);
  space->free(live.front());
  live.erase(live.begin());
  allocate(32 * MiB);
  EXPECT_EQ(driver.calls(call::reserve), 2u) << "the first has room again";
}

TEST_F(Reservation, ARequestLargerThanAReservationGetsItsOwn) {
  open(64 * MiB);
  allocate(100 * MiB);
  EXPECT_EQ(driver.resource_counts().reserved_bytes, 100 * MiB);
}

TEST_F(Reservation, ALargeRequestMayBeAlignedBelowTheGranularity) {
  open(64 * MiB);
  allocate(100 * MiB, 4096);
  EXPECT_EQ(driver.resource_counts().reserved_bytes, 100 * MiB);
}

TEST_F(Reservation, ALargeAlignmentIsKeptInAFreshReservation) {
  open(64 * MiB);
  allocate(2 * MiB);
  const extent aligned = allocate(64 * MiB, 64 * MiB);
  EXPECT_EQ(aligned.range.base.value % (64 * MiB), 0u);
}

TEST_F(Reservation, AReservationBeginsOnTheGranularity) {
  vmm::fake::profile plays = vmm::fake::profile::host();
  driver = vmm::fake_driver(plays);  // whose own addresses are multiples of 4 KiB only
  ASSERT_TRUE(driver.reserve({4096, 0, {}}));
  const address odd = driver.reserve({4096, 0, {}}).value().base;
  ASSERT_NE((odd.value + 4096) % (2 * MiB), 0u);
  open(64 * MiB, 2 * MiB);
  EXPECT_EQ(allocate(2 * MiB).range.base.value % (2 * MiB), 0u);
  ASSERT_TRUE(driver.free_reservation({odd, 4096}));
  ASSERT_TRUE(driver.free_reservation({address{odd.value - 4096}, 4096}));
}

// ---- a driver with less room

TEST_F(Reservation, HalvesTheWishUntilTheDriverHasIt) {
  open(512 * TiB);  // the driver gives 64 TiB at most
  allocate(2 * MiB);
  EXPECT_EQ(driver.resource_counts().reserved_bytes, 64 * TiB);
  EXPECT_EQ(driver.calls(call::reserve), 4u);
}

TEST_F(Reservation, HalvesDownToWhatIsNeededAndNoFurther) {
  open(64 * MiB);
  fail(call::reserve, errc::out_of_addresses, 1, true);
  EXPECT_EQ(space->allocate({24 * MiB, 0}).error().code, errc::out_of_addresses);
  EXPECT_EQ(driver.calls(call::reserve), 3u) << "64, 32 and 24 MiB";
  EXPECT_EQ(space->statistics().reserved_bytes, 0u);
  driver.clear_faults();
  allocate(24 * MiB);
}

TEST_F(Reservation, AnotherRefusalIsNotAskedAgain) {
  open(64 * MiB);
  fail(call::reserve, errc::not_permitted, 1, true);
  const auto refused = space->allocate({2 * MiB, 0});
  EXPECT_EQ(refused.error().code, errc::not_permitted);
  EXPECT_EQ(driver.calls(call::reserve), 1u);
}

TEST_F(Reservation, MoreThanThereIsIsRefused) {
  open(64 * MiB);
  EXPECT_EQ(space->allocate({128 * TiB, 0}).error().code, errc::out_of_addresses);
  EXPECT_EQ(space->allocate({std::uint64_t{1} << 60, 0}).error().code, errc::out_of_addresses);
  EXPECT_EQ(space->allocate({3 * MiB, 0}).error().code, errc::invalid_argument);
  EXPECT_EQ(driver.resource_counts().reservations, 0u);
}

// ---- extents

TEST_F(Reservation, ExtentsGrowShrinkAndSplit) {
  open(64 * MiB);
  extent one = allocate(8 * MiB);
  ASSERT_TRUE(space->grow(one, 64 * MiB));
  EXPECT_EQ(one.range.size_bytes, 64 * MiB);
  EXPECT_EQ(space->grow(one, 66 * MiB).error().code, errc::out_of_addresses);
  EXPECT_EQ(one.range.size_bytes, 64 * MiB);
  ASSERT_TRUE(space->shrink(one, 16 * MiB));
  EXPECT_EQ(one.range.size_bytes, 16 * MiB);
  const auto rest = *space->split(one, 6 * MiB);
  EXPECT_EQ(one.range.size_bytes, 6 * MiB);
  EXPECT_EQ(rest.range, (vmm::address_range{one.range.end(), 10 * MiB}));
  live = {one, rest};
  EXPECT_EQ(space->statistics().live_bytes, 16 * MiB);
  EXPECT_EQ(space->statistics().live_extents, 2u);
}

TEST_F(Reservation, KnowsItsAddresses) {
  open(64 * MiB);
  EXPECT_FALSE(space->contains(address{2 * MiB}));
  const extent one = allocate(8 * MiB);
  EXPECT_TRUE(space->contains(one.range.base));
  EXPECT_TRUE(space->contains(one.range.base + (64 * MiB - 1))) << "free, but ours";
  EXPECT_FALSE(space->contains(one.range.base + 64 * MiB));
  EXPECT_FALSE(space->contains(address{one.range.base.value - 1}));
}

TEST_F(Reservation, VisitsExtentsAndHolesInAddressOrder) {
  open(64 * MiB);
  for (int i = 0; i < 3; ++i) allocate(8 * MiB);
  space->free(live[1]);
  live.erase(live.begin() + 1);
  std::vector<std::pair<std::uint64_t, bool>> seen;
  space->visit([&seen](vmm::address_range range, bool is_live) {
    seen.emplace_back(range.size_bytes / MiB, is_live);
  });
  EXPECT_EQ(seen, (std::vector<std::pair<std::uint64_t, bool>>{
                      {8, true}, {8, false}, {8, true}, {40, false}}));
}

// ---- the end

TEST_F(Reservation, CloseGivesEveryRangeBack) {
  open(64 * MiB);
  for (int i = 0; i < 5; ++i) allocate(64 * MiB);
  EXPECT_EQ(driver.resource_counts().reservations, 5u);
  for (const extent& each : live) space->free(each);
  live.clear();
  ASSERT_TRUE(space->close());
  EXPECT_EQ(driver.resource_counts().reservations, 0u);
  allocate(2 * MiB);  // and it can be used again
}

TEST_F(Reservation, ARefusedCloseKeepsTheRestUsable) {
  open(64 * MiB);
  for (int i = 0; i < 3; ++i) allocate(64 * MiB);
  for (const extent& each : live) space->free(each);
  live.clear();
  fail(call::free_reservation, errc::internal, 2);
  const vmm::status refused = space->close();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, call::free_reservation);
  EXPECT_EQ(driver.resource_counts().reservations, 2u);
  EXPECT_EQ(space->statistics().reserved_bytes, 128 * MiB);
  driver.reset_calls();
  allocate(64 * MiB);
  allocate(64 * MiB);
  EXPECT_EQ(driver.calls(call::reserve), 0u);
}

TEST(ReservationDeathTest, ClosingWithExtentsInUseEndsTheProcess) {
  vmm::fake_driver driver;
  vmm::reservation_space space(driver, {64 * MiB, 2 * MiB});
  const extent one = space.allocate({2 * MiB, 0}).value();
  EXPECT_DEATH((void)space.close(), "with live extents is released");
  space.free(one);
  EXPECT_TRUE(space.close());
}

// ---- threads

// Small reservations: threads keep meeting in the code that reserves a further one. None may run
// out of addresses, even if another takes the range that it has reserved.
TEST_F(Reservation, ThreadsThatReserveTogetherAllGetTheirs) {
  open(4 * MiB);
  std::vector<std::vector<extent>> found(3);
  std::vector<std::thread> threads;
  for (std::vector<extent>& own : found) {
    threads.emplace_back([this, &own] {
      for (int i = 0; i < 200; ++i) {
        const auto one = space->allocate({4 * MiB, 0});
        ASSERT_TRUE(one) << vmm::describe(one.error());
        own.push_back(*one);
        if (i % 2 == 1) {
          space->free(own.back());
          own.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint64_t> bases;
  for (const std::vector<extent>& own : found) {
    for (const extent& each : own) {
      bases.insert(each.range.base.value);
      live.push_back(each);
    }
  }
  EXPECT_EQ(bases.size(), 300u) << "no address is handed out twice";
}

}  // namespace
