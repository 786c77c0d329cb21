// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a request that fails holds nothing afterwards that was not held before, fails before its
// first driver call where the budget or the device rules it out, creates memory in vain at most
// once, and its error has what was requested, used and allowed. Method: requests of pools, managers
// and growable ranges on a small device that exceed the device, the budget, or what others leave;
// the driver's own counts before and after.
#include "fixture.hpp"

namespace {

using relief::fine_pool, relief::keep, relief::stream, vmm::address, vmm::errc;

const vmm::manager_policy caching = vmm::manager_policy::virtual_caching();

struct FailedCalls : relief::OneDevice {
  // The error, after a call that leaves the driver's counts as they were.
  template <class Call>
  vmm::error expect_unchanged(Call&& call) {
    const auto before = driver.resource_counts();
    const auto answer = call();
    EXPECT_FALSE(answer);
    if (answer) return {};
    const auto after = driver.resource_counts();
    EXPECT_EQ(after.memory_bytes, before.memory_bytes);
    EXPECT_EQ(after.handles, before.handles);
    EXPECT_EQ(after.mappings, before.mappings);
    return answer.error();
  }
  void fail(vmm::call where, std::uint64_t nth = 1, bool for_ever = false) {
    driver.fail({where, nth, for_ever, driver.possible_errors(where).front()});
  }
  // The same of one whose only driver call is the query of its size.
  template <class Call>
  vmm::error expect_at_once(Call&& call) {
    const std::uint64_t before = driver.calls() - driver.calls(vmm::call::memory_info);
    const vmm::error why = expect_unchanged(call);
    EXPECT_EQ(driver.calls() - driver.calls(vmm::call::memory_info), before);
    return why;
  }
};

// ---- pools

TEST_F(FailedCalls, APoolAsksForMoreThanTheDevice) {
  vmm::stream_pool pool(driver, fine_pool());
  const auto live = pool.allocate(64 * MiB, stream);
  ASSERT_TRUE(live);
  const vmm::error why = expect_at_once([&] { return pool.allocate(5 * GiB, stream); });
  EXPECT_EQ(why.code, errc::out_of_memory);
  EXPECT_EQ(pool.last_shortage().request_bytes, 5 * GiB);
  EXPECT_EQ(pool.statistics().held_bytes, held_bytes());
}

// More than a segment holds: the device or the budget is the reason where it is smaller still.
TEST_F(FailedCalls, APoolAsksForMoreThanASegment) {
  vmm::pool_options options = fine_pool();
  options.reservation_bytes = 64 * MiB;
  vmm::stream_pool pool(driver, options);
  ASSERT_TRUE(pool.allocate(MiB, stream));
  for (const std::uint64_t size_bytes : {5 * GiB, 600 * GiB, std::uint64_t{1} << 60}) {
    const vmm::error why = expect_at_once([&] { return pool.allocate(size_bytes, stream); });
    EXPECT_EQ(why.code, errc::out_of_memory);
    EXPECT_EQ(why.figures.requested_bytes, size_bytes);
    EXPECT_EQ(why.figures.limit_bytes, GiB);
    EXPECT_EQ(vmm::describe(why).find("out of memory: request of "), 0u) << vmm::describe(why);
  }
  const vmm::error narrow = expect_at_once([&] { return pool.allocate(100 * MiB, stream); });
  EXPECT_EQ(narrow.code, errc::out_of_addresses);
  EXPECT_EQ(narrow.figures.requested_bytes, 100 * MiB);
  EXPECT_TRUE(contains(vmm::describe(narrow), "reservation_bytes"));
  vmm::stream_pool limited(driver, fine_pool(256 * MiB));
  const vmm::error over = expect_unchanged([&] { return limited.allocate(600 * GiB, stream); });
  EXPECT_EQ(over.code, errc::over_budget);
  EXPECT_EQ(over.figures.limit_bytes, 256 * MiB);
}

TEST_F(FailedCalls, APoolAsksForMoreThanLiveBlocksLeave) {
  vmm::stream_pool pool(driver, fine_pool());
  ASSERT_TRUE(pool.allocate(600 * MiB, stream));
  EXPECT_EQ(expect_unchanged([&] { return pool.allocate(500 * MiB, stream); }).code,
            errc::out_of_memory);
  EXPECT_EQ(expect_at_once([&] { return pool.allocate(600 * MiB, stream); }).code,
            errc::out_of_memory);
}

TEST_F(FailedCalls, APoolAsksForMoreThanItsBudget) {
  vmm::stream_pool pool(driver, fine_pool(256 * MiB));
  ASSERT_TRUE(pool.allocate(64 * MiB, stream));
  relief::keep(pool, 100 * MiB);
  const vmm::error why = expect_at_once([&] { return pool.allocate(224 * MiB, stream); });
  EXPECT_EQ(why.code, errc::over_budget) << "live blocks leave 192 MiB; what is kept stays";
  EXPECT_EQ(why.figures.requested_bytes, 224 * MiB);
  EXPECT_EQ(why.figures.limit_bytes, 256 * MiB);
  EXPECT_EQ(why.figures.held_bytes, held_bytes());
}

TEST_F(FailedCalls, APoolFindsTheDeviceTakenByOthers) {
  vmm::stream_pool pool(driver, fine_pool());
  ASSERT_TRUE(pool.allocate(64 * MiB, stream));
  const auto other = *driver.create({.size_bytes = 512 * MiB, .where = driver.home()});
  const std::uint64_t made = created();
  const vmm::error why = expect_unchanged([&] { return pool.allocate(700 * MiB, stream); });
  EXPECT_EQ(why.code, errc::out_of_memory);
  EXPECT_LE(created() - made, 448 / 2 + 3) << "what there is, once, and the creates that fail";
  EXPECT_EQ(why.figures.limit_bytes, GiB);
  EXPECT_EQ(why.figures.used_bytes, 576 * MiB);
  ASSERT_TRUE(driver.release(other));
  EXPECT_TRUE(pool.allocate(700 * MiB, stream));
}

TEST_F(FailedCalls, WhatAPoolCreatedForAMappingThatFailsGoes) {
  vmm::stream_pool pool(driver, fine_pool());
  ASSERT_TRUE(pool.allocate(4 * MiB, stream));
  for (const vmm::call where : {vmm::call::map, vmm::call::set_access}) {
    fail(where);
    EXPECT_NE(expect_unchanged([&] { return pool.allocate(64 * MiB, stream); }).code, errc::none);
  }
  EXPECT_TRUE(pool.allocate(64 * MiB, stream));
}

TEST_F(FailedCalls, MemoryThatAPoolKeptStaysWhereAMappingFails) {
  vmm::stream_pool pool(driver, fine_pool());
  relief::keep(pool, 32 * MiB);
  fail(vmm::call::map);
  (void)expect_unchanged([&] { return pool.allocate(64 * MiB, stream); });
  EXPECT_EQ(pool.statistics().reusable_bytes, 32 * MiB);
}

TEST_F(FailedCalls, AnAnnouncementThatCannotBeKeptCreatesNothing) {
  vmm::stream_pool pool(driver, fine_pool());
  ASSERT_TRUE(pool.allocate(MiB, stream));
  const std::uint64_t before = held_bytes();
  EXPECT_EQ(pool.preallocate(5 * GiB, stream).failure.code, errc::out_of_memory);
  EXPECT_EQ(held_bytes(), before);
  const auto other = *driver.create({.size_bytes = 900 * MiB, .where = driver.home()});
  vmm::pool_options roomy = fine_pool();
  roomy.policy.headroom = 100;
  vmm::stream_pool second(driver, roomy);
  const vmm::preallocate_report report = second.preallocate(512 * MiB, stream);
  EXPECT_EQ(report.failure.code, errc::out_of_memory);
  EXPECT_EQ(report.created_bytes, 0u);
  EXPECT_EQ(second.statistics().held_bytes, 0u);
  ASSERT_TRUE(driver.release(other));
}

// ---- managers

// Its addresses show another block's memory until it is freed.
TEST_F(FailedCalls, AManagersLostBlockDoesNotCountAsMemoryInUse) {
  vmm::manager manager(driver);
  const address source = manager.allocate(384 * MiB).value();
  const address target = manager.allocate(384 * MiB).value();
  fail(vmm::call::set_access, 1, true);
  fail(vmm::call::unmap, 2, true);
  const auto moved = manager.copy({target, source, 384 * MiB, stream}, vmm::copy_mode::move);
  driver.clear_faults();
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, errc::device_lost) << text(moved.error());
  EXPECT_EQ(manager.statistics().mapped_bytes, 768 * MiB);
  const auto next = manager.allocate(512 * MiB);
  ASSERT_TRUE(next) << text(next.error());
  for (const address each : {source, target, *next}) EXPECT_TRUE(manager.free(each));
}

TEST_F(FailedCalls, AManagerAsksForMoreThanItsBudget) {
  vmm::manager blocks(driver, {{.budget_bytes = 256 * MiB}, caching});
  ASSERT_TRUE(blocks.allocate(60 * MiB));
  relief::keep(blocks, 100 * MiB);
  const vmm::error why = expect_at_once([&] { return blocks.allocate(224 * MiB); });
  EXPECT_EQ(why.code, errc::over_budget);
  EXPECT_EQ(why.figures.requested_bytes, 224 * MiB);
  EXPECT_EQ(blocks.statistics().retained_mapped_bytes, 100 * MiB) << "what is kept stays";
}

TEST_F(FailedCalls, AManagersChunksGoWhereTheDeviceIsShort) {
  vmm::manager blocks(driver, {.policy = caching});
  const auto block = *blocks.allocate(60 * MiB);
  (void)expect_unchanged([&] { return blocks.allocate(1000 * MiB); });
  (void)expect_unchanged(
      [&] { return blocks.resize({.at = block, .size_bytes = 1200 * MiB, .may_move = true}); });
  fail(vmm::call::map);
  (void)expect_unchanged([&] { return blocks.resize({.at = block, .size_bytes = 100 * MiB}); });
}

// ---- growable ranges

TEST_F(FailedCalls, ARangeGrowsToMoreThanTheDevice) {
  vmm::manager blocks(driver);
  vmm::growable_range range(blocks, {.segment_bytes_max = 8 * GiB});
  ASSERT_TRUE(range.grow(64 * MiB));
  const vmm::error why = expect_at_once([&] { return range.grow(5 * GiB); });
  EXPECT_EQ(why.code, errc::out_of_memory);
  EXPECT_EQ(why.figures.requested_bytes, 5 * GiB - 64 * MiB) << "what was to be created";
  EXPECT_EQ(range.size_bytes(0).value_or(0), 64 * MiB);
}

TEST_F(FailedCalls, SegmentsGrowAllOrNoneWithinABudget) {
  vmm::manager blocks(driver, {{.budget_bytes = 256 * MiB}});
  vmm::growable_range range(blocks, {.segment_bytes_max = GiB, .segment_count = 4});
  ASSERT_TRUE(range.grow(2 * MiB));
  EXPECT_EQ(expect_at_once([&] { return range.grow(80 * MiB); }).code, errc::over_budget);
  EXPECT_TRUE(range.grow(64 * MiB)) << "all of the budget";
}

TEST_F(FailedCalls, SegmentsGrowAllOrNoneOnADeviceThatOthersUse) {
  vmm::manager blocks(driver);
  vmm::growable_range range(blocks, {.segment_bytes_max = GiB, .segment_count = 4});
  ASSERT_TRUE(range.grow(2 * MiB));
  const auto other = *driver.create({.size_bytes = 512 * MiB, .where = driver.home()});
  const std::uint64_t made = created();
  EXPECT_EQ(expect_unchanged([&] { return range.grow(200 * MiB); }).code, errc::out_of_memory);
  EXPECT_LE(created() - made, 512 / 2 + 3) << "what there is, once";
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(range.size_bytes(i).value_or(0), 2 * MiB);
  ASSERT_TRUE(driver.release(other));
  EXPECT_TRUE(range.grow(200 * MiB));
}

TEST_F(FailedCalls, WhatARangeCreatedForAFillThatFailsGoes) {
  vmm::manager blocks(driver);
  vmm::growable_range range(blocks, {.segment_bytes_max = GiB, .segment_count = 2});
  ASSERT_TRUE(range.grow(2 * MiB));
  fail(vmm::call::fill);
  (void)expect_unchanged([&] { return range.grow(64 * MiB); });
}

// ---- contents

TEST_F(FailedCalls, WhatWasCreatedForAFillThatFailsGoes) {
  vmm::pool_options options = fine_pool();
  options.contents = vmm::contents_rule::zero_on_acquire;
  vmm::stream_pool pool(driver, options);
  vmm::manager blocks(driver, {{.contents = vmm::contents_rule::zero_on_acquire}});
  ASSERT_TRUE(pool.set_up());
  const auto at = blocks.allocate({.size_bytes = 2 * MiB, .growth_bytes = 128 * MiB});
  ASSERT_TRUE(at);
  ASSERT_TRUE(driver.finish_all());
  const auto expect_refused = [&](auto&& call, const char* what) {
    const std::uint64_t before = held_bytes();
    fail(vmm::call::fill);
    EXPECT_FALSE(call()) << what;
    EXPECT_EQ(held_bytes(), before) << what;
  };
  expect_refused([&] { return pool.allocate(64 * MiB, stream); }, "a pool's block");
  expect_refused([&] { return pool.allocate_dedicated(64 * MiB, stream); }, "a whole block");
  expect_refused([&] { return blocks.allocate(64 * MiB); }, "a manager's block");
  expect_refused([&] { return blocks.resize({.at = *at, .size_bytes = 64 * MiB}); }, "a resize");
}

TEST_F(FailedCalls, WhatARangeCreatedForASecondFillThatFailsGoes) {
  vmm::manager blocks(driver);
  vmm::growable_range range(blocks, {.segment_bytes_max = GiB, .segment_count = 2});
  ASSERT_TRUE(range.grow(2 * MiB));
  ASSERT_TRUE(driver.finish_all());
  const std::uint64_t before = held_bytes();
  fail(vmm::call::fill, 2);
  EXPECT_FALSE(range.grow(64 * MiB));
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(range.synchronize());
  EXPECT_EQ(held_bytes(), before) << "all work has finished";
}

// ---- a budget, and then the device

// Pieces that are too small for the request count against the budget until they have gone back. The
// device is short then, after the first refusal.
TEST_F(FailedCalls, AManagerAtItsBudgetHasTheIdleMemoryOfOthers) {
  vmm::stream_pool pool(driver, fine_pool());
  vmm::manager blocks(driver, {{.budget_bytes = 256 * MiB}});
  std::array<address, 4> small{};
  for (address& each : small) each = *blocks.allocate(32 * MiB);
  for (const address each : small) ASSERT_TRUE(blocks.free(each));
  keep(pool, 890 * MiB);
  ASSERT_TRUE(driver.finish_all());
  const auto at = blocks.allocate(256 * MiB);
  EXPECT_TRUE(at) << vmm::describe(at.error());
  const auto again = blocks.allocate(256 * MiB);
  EXPECT_EQ(again.has_value(), !at) << "the second call";
}

TEST_F(FailedCalls, ARangeAtItsBudgetHasTheIdleMemoryOfOthers) {
  vmm::stream_pool pool(driver, fine_pool());
  vmm::manager blocks(driver, {{.budget_bytes = 256 * MiB}});
  vmm::growable_range range(blocks, {.segment_bytes_max = GiB, .handle_bytes = vmm::few_handles});
  std::array<address, 4> small{};
  for (address& each : small) each = *blocks.allocate(32 * MiB);
  for (const address each : small) ASSERT_TRUE(blocks.free(each));
  keep(pool, 890 * MiB);
  ASSERT_TRUE(driver.finish_all());
  const vmm::status grown = range.grow(256 * MiB);
  EXPECT_TRUE(grown) << vmm::describe(grown.error());
}

TEST_F(FailedCalls, APoolAtItsBudgetHasTheIdleMemoryOfOthers) {
  vmm::stream_pool other(driver, fine_pool());
  vmm::stream_pool pool(driver, fine_pool(256 * MiB));
  keep(pool, 64 * MiB);
  keep(other, 900 * MiB);
  ASSERT_TRUE(driver.finish_all());
  const auto at = pool.allocate(256 * MiB, stream);
  EXPECT_TRUE(at) << vmm::describe(at.error());
}

// ---- texts

TEST_F(FailedCalls, ErrorsSayHowMuch) {
  vmm::stream_pool pool(driver, fine_pool(256 * MiB));
  ASSERT_TRUE(pool.allocate(201 * MiB, stream));
  const auto none = pool.allocate(100 * MiB, stream);
  ASSERT_FALSE(none);
  EXPECT_EQ(text(none.error()),
            "over budget: request of 100 MiB exceeds the budget: 202 of 256 MiB in use, largest "
            "free block 1 MiB. Free or trim memory, or raise budget_bytes.");
}

// With what is added, not with the size that the block would have.
TEST_F(FailedCalls, AGrowthSaysByHowMuch) {
  vmm::manager managed(driver, {{.budget_bytes = 8 * MiB}});
  const auto block = managed.allocate(6 * MiB);
  ASSERT_TRUE(block);
  const auto none = managed.resize({.at = *block, .size_bytes = 10 * MiB});
  ASSERT_FALSE(none);
  EXPECT_EQ(text(none.error()),
            "over budget: growth by 4 MiB exceeds the budget: 6 of 8 MiB in use, largest free "
            "block 0 bytes. Free or trim memory, or raise budget_bytes.");
  vmm::growable_range range(managed, {.segment_bytes_max = 64 * MiB, .segment_count = 3});
  const auto grown = range.resize({.size_bytes = 2 * MiB});
  ASSERT_FALSE(grown);
  EXPECT_EQ(text(grown.error()),
            "over budget: growth by 6 MiB exceeds the budget: 6 of 8 MiB in use, largest free "
            "block 0 bytes. Free or trim memory, or raise budget_bytes.");
}

TEST(Figures, AreWrittenInTheUnitOfTheLimit) {
  vmm::error why = vmm::refuse(errc::over_budget, "Free memory.");
  EXPECT_EQ(vmm::describe(why), "over budget: Free memory.");
  why.figures = {512 * MiB, 9195 * MiB, 9 * GiB, 12 * MiB, 9195 * MiB};
  EXPECT_EQ(vmm::describe(why),
            "over budget: request of 512 MiB exceeds the budget: 8.98 of 9 GiB in use, largest "
            "free block 12 MiB. Free memory.");
  why.code = errc::out_of_memory;
  why.figures.held_bytes = 64 * MiB;
  EXPECT_EQ(vmm::describe(why),
            "out of memory: request of 512 MiB exceeds the available memory: 8.98 of 9 GiB in use, "
            "64 MiB held here, largest free block 12 MiB. Free memory.");
  why.code = errc::out_of_addresses;
  why.figures = {std::uint64_t{2} << 40, 0, 0, 0, 0};
  EXPECT_EQ(vmm::describe(why),
            "out of addresses: request of 2 TiB finds no free addresses: 0 bytes held here, "
            "largest free block 0 bytes. Free memory.");
}

}  // namespace
