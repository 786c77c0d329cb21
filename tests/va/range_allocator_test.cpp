// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each operation of the range allocator does what its comment says, at its boundaries too,
// and misuse ends the process.
// Method: small ranges whose layout is worked out by hand.
#include "../support/test.h"

import vmm.va;

namespace {

using vmm::block_id, vmm::errc, vmm::granule_range, vmm::range_allocator;

range_allocator make_range(std::uint32_t count_granules) {
  return range_allocator::create({.count_granules = count_granules}).value();
}

block_id take(range_allocator& range, std::uint32_t count, std::uint32_t alignment = 1) {
  return range.allocate({count, alignment}).value();
}

/// "3 -2 5": sizes in address order, free ones with a minus.
std::string layout(const range_allocator& range) {
  std::string text;
  range.visit([&](const vmm::block_info& block) {
    if (!text.empty()) text += ' ';
    if (!block.live) text += '-';
    text += std::to_string(block.where.count);
  });
  return text;
}

errc code(const vmm::result<block_id>& answer) { return answer ? errc::none : answer.error().code; }
errc code(const vmm::status& answer) { return answer ? errc::none : answer.error().code; }

TEST(RangeAllocator, RefusesRangesItCannotDescribe) {
  EXPECT_EQ(range_allocator::create({.count_granules = 0}).error().code, errc::invalid_argument);
  EXPECT_EQ(range_allocator::create({.count_granules = vmm::max_range_granules + 1}).error().code,
            errc::invalid_argument);
  EXPECT_TRUE(range_allocator::create({.count_granules = vmm::max_range_granules}));
}

TEST(RangeAllocator, HandsOutTheWholeRangeAndTakesItBack) {
  range_allocator range = make_range(10);
  EXPECT_EQ(layout(range), "-10");
  const block_id all = take(range, 10);
  EXPECT_EQ(layout(range), "10");
  EXPECT_EQ(range.where(all), (granule_range{0, 10}));
  EXPECT_EQ(code(range.allocate({1})), errc::out_of_addresses);
  EXPECT_EQ(range.largest_free(), 0u);
  range.free(all);
  EXPECT_EQ(layout(range), "-10");
  EXPECT_TRUE(range.validate());
}

TEST(RangeAllocator, RefusesWhatNoRangeCanHold) {
  range_allocator range = make_range(10);
  EXPECT_EQ(code(range.allocate({0})), errc::invalid_argument);
  EXPECT_EQ(code(range.allocate({0, 2})), errc::invalid_argument);
  EXPECT_EQ(code(range.allocate({1, 3})), errc::invalid_argument);
  EXPECT_STREQ(range.allocate({1, 3}).error().detail,
               "an alignment in granules is a power of two; not '3'");
  EXPECT_EQ(code(range.allocate({1, 0})), errc::invalid_argument);
  EXPECT_EQ(code(range.allocate({11})), errc::out_of_addresses);
  EXPECT_EQ(code(range.allocate({~0u})), errc::out_of_addresses);
  EXPECT_EQ(code(range.allocate({~0u, 1u << 31})), errc::out_of_addresses);
  EXPECT_EQ(layout(range), "-10");
}

TEST(RangeAllocator, TakesTheSmallestHoleThatFitsAndTheEndLast) {
  range_allocator range = make_range(100);
  std::vector<block_id> blocks;
  for (const std::uint32_t count : {5u, 1u, 3u, 1u, 4u, 1u}) blocks.push_back(take(range, count));
  for (const int hole : {0, 2, 4}) range.free(blocks[static_cast<std::size_t>(hole)]);
  EXPECT_EQ(layout(range), "-5 1 -3 1 -4 1 -85");
  EXPECT_EQ(range.where(take(range, 4)).offset, 10u);  // exact
  EXPECT_EQ(range.where(take(range, 2)).offset, 6u);   // 3 is the smallest left that fits
  EXPECT_EQ(range.where(take(range, 6)).offset, 15u);  // nothing but the end
  EXPECT_EQ(layout(range), "-5 1 2 -1 1 4 1 6 -79");
}

// Address ranges are reused exact size first, then by growing a smaller one.
TEST(RangeAllocator, ReusesTheRangeFreedLastAmongEquals) {
  range_allocator range = make_range(1000);
  std::vector<block_id> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(range, 10));
  range.free(blocks[2]);
  range.free(blocks[5]);
  EXPECT_EQ(range.where(take(range, 10)).offset, 50u);
  EXPECT_EQ(range.where(take(range, 10)).offset, 20u);
}

TEST(RangeAllocator, MergesWithFreeNeighboursOnBothSides) {
  range_allocator range = make_range(9);
  std::vector<block_id> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(take(range, 2));
  range.free(blocks[0]);
  EXPECT_EQ(layout(range), "-2 2 2 2 -1");
  range.free(blocks[2]);
  EXPECT_EQ(layout(range), "-2 2 -2 2 -1");
  range.free(blocks[1]);
  EXPECT_EQ(layout(range), "-6 2 -1");
  range.free(blocks[3]);
  EXPECT_EQ(layout(range), "-9");
}

TEST(RangeAllocator, AlignsFromItsOrigin) {
  auto made = range_allocator::create({.count_granules = 64, .origin_granules = 5});
  range_allocator& range = made.value();
  EXPECT_EQ(range.where(take(range, 4, 8)).offset, 3u);
  EXPECT_EQ(layout(range), "-3 4 -57");
  EXPECT_EQ(range.where(take(range, 1, 16)).offset, 11u);
  EXPECT_EQ(layout(range), "-3 4 -4 1 -52");
  EXPECT_EQ(range.where(take(range, 3)).offset, 0u);  // the edge that was freed
}

// A hole of count + alignment - 1 granules takes the block wherever it begins; one less does not.
TEST(RangeAllocator, AnAlignedBlockNeedsRoomForItsWorstPlace) {
  range_allocator range = make_range(64);
  (void)take(range, 1);
  const block_id hole = take(range, 5 + 4 - 2);
  const block_id wall = take(range, 1);
  range.free(hole);
  ASSERT_EQ(layout(range), "1 -7 1 -55") << "its first aligned granule is its fourth";
  const granule_range where = range.where(take(range, 5, 4));
  EXPECT_EQ(where.offset, 12u) << "behind the wall";
  EXPECT_EQ(range.where(wall), (granule_range{8, 1}));
  EXPECT_TRUE(range.validate());
}

TEST(RangeAllocator, FindsTheOneAlignedHoleAmongMany) {
  range_allocator range = make_range(1 << 16);
  std::vector<block_id> holes;
  for (std::uint32_t i = 0; i < 40; ++i) {
    holes.push_back(take(range, 300));
    (void)take(range, i == 20 ? 512 - 301 * 21 % 512 : 1);
  }
  const std::uint32_t rest = range.largest_free();
  (void)take(range, rest);
  for (const block_id hole : holes) range.free(hole);
  ASSERT_TRUE(range.validate());
  const auto found = *range.allocate({300, 512});
  EXPECT_EQ(range.where(found).offset % 512, 0u);
  EXPECT_TRUE(range.validate());
}

TEST(RangeAllocator, GrowsIntoTheFreeRightNeighbourOnly) {
  range_allocator range = make_range(20);
  const block_id first = take(range, 4);
  const block_id second = take(range, 4);
  const block_id third = take(range, 4);
  EXPECT_EQ(range.growth_limit(first), 4u);
  EXPECT_EQ(code(range.grow(first, 5)), errc::out_of_addresses);
  range.free(second);
  EXPECT_EQ(range.growth_limit(first), 8u);
  EXPECT_EQ(code(range.grow(first, 9)), errc::out_of_addresses);
  EXPECT_EQ(code(range.grow(first, 3)), errc::invalid_argument);
  EXPECT_EQ(code(range.grow(first, 4)), errc::none);
  EXPECT_EQ(code(range.grow(first, 6)), errc::none);
  EXPECT_EQ(layout(range), "6 -2 4 -8");
  EXPECT_EQ(code(range.grow(first, 8)), errc::none);
  EXPECT_EQ(layout(range), "8 4 -8");
  EXPECT_EQ(code(range.grow(third, 12)), errc::none);  // the end block, all of it
  EXPECT_EQ(layout(range), "8 12");
  EXPECT_EQ(range.free_granules(), 0u);
  EXPECT_EQ(range.high_water_granules(), 20u);
}

TEST(RangeAllocator, ShrinksAndFreesTheTail) {
  range_allocator range = make_range(20);
  const block_id first = take(range, 8);
  const block_id second = take(range, 8);
  EXPECT_EQ(code(range.shrink(first, 0)), errc::invalid_argument);
  EXPECT_EQ(code(range.shrink(first, 9)), errc::invalid_argument);
  EXPECT_EQ(code(range.shrink(first, 8)), errc::none);
  EXPECT_EQ(code(range.shrink(first, 5)), errc::none);  // a new hole
  EXPECT_EQ(layout(range), "5 -3 8 -4");
  EXPECT_EQ(code(range.shrink(first, 1)), errc::none);  // the hole becomes larger
  EXPECT_EQ(code(range.shrink(second, 2)), errc::none);
  EXPECT_EQ(layout(range), "1 -7 2 -10");
  EXPECT_EQ(range.free_granules(), 17u);
  EXPECT_EQ(range.high_water_granules(), 16u);
}

TEST(RangeAllocator, SplitsLiveBlocks) {
  range_allocator range = make_range(20);
  const block_id left = take(range, 8);
  EXPECT_EQ(code(range.split(left, 0)), errc::invalid_argument);
  EXPECT_EQ(code(range.split(left, 8)), errc::invalid_argument);
  const block_id right = range.split(left, 3).value();
  EXPECT_EQ(layout(range), "3 5 -12");
  EXPECT_EQ(range.where(right), (granule_range{3, 5}));
  EXPECT_EQ(range.live_blocks(), 2u);
  const block_id tail = range.split(right, 2).value();
  EXPECT_EQ(layout(range), "3 2 3 -12");
  range.free(left);
  EXPECT_EQ(layout(range), "-3 2 3 -12");
  range.free(tail);
  EXPECT_EQ(layout(range), "-3 2 -15");
  range.free(right);
  EXPECT_EQ(layout(range), "-20");
}

TEST(RangeAllocator, RunningOutOfRecordsIsAnErrorThatChangesNothing) {
  auto made = range_allocator::create({.count_granules = 100, .max_blocks = 3});
  range_allocator& range = made.value();
  const block_id first = take(range, 10);
  const block_id second = take(range, 10);
  const std::string before = layout(range);
  EXPECT_EQ(code(range.allocate({10})), errc::out_of_host_memory);
  EXPECT_EQ(code(range.allocate({8, 64})), errc::out_of_host_memory);
  EXPECT_EQ(code(range.shrink(first, 5)), errc::out_of_host_memory);
  EXPECT_EQ(code(range.split(first, 5)), errc::out_of_host_memory);
  EXPECT_EQ(layout(range), before);
  EXPECT_TRUE(range.validate());
  EXPECT_EQ(code(range.shrink(second, 5)), errc::none);  // moves a border: no record
  EXPECT_EQ(code(range.grow(second, 20)), errc::none);
  EXPECT_EQ(code(range.allocate({70})), errc::none);  // exact: no record
  range.free(first);
  EXPECT_EQ(code(range.allocate({10})), errc::none);
  EXPECT_TRUE(range.validate());
}

TEST(RangeAllocator, CountsWhatItHolds) {
  range_allocator range = make_range(100);
  const block_id first = take(range, 30);
  (void)take(range, 20);
  (void)take(range, 10);
  range.free(first);
  const vmm::range_statistics all = range.statistics();
  EXPECT_EQ(all.count_granules, 100u);
  EXPECT_EQ(all.live_granules, 30u);
  EXPECT_EQ(all.free_granules, 70u);
  EXPECT_EQ(all.largest_free_granules, 40u);
  EXPECT_EQ(all.high_water_granules, 60u);
  EXPECT_EQ(all.live_blocks, 2u);
  EXPECT_EQ(all.free_blocks, 2u);
}

TEST(RangeAllocator, MovesWithItsBlocks) {
  range_allocator range = make_range(100);
  const block_id block = take(range, 30);
  range_allocator other = std::move(range);
  EXPECT_EQ(other.where(block).count, 30u);
  range = make_range(5);
  range = std::move(other);
  range.free(block);
  EXPECT_EQ(layout(range), "-100");
  EXPECT_TRUE(range.validate());
}

TEST(RangeAllocatorDeathTest, MisuseEndsTheProcess) {
  range_allocator range = make_range(100);
  const block_id first = take(range, 10);
  const block_id second = take(range, 10);
  (void)take(range, 10);
  EXPECT_DEATH(range.free(block_id::none), "not a live block");
  EXPECT_DEATH(range.free(static_cast<block_id>(77)), "not a block of this allocator");
  EXPECT_DEATH(range.free(static_cast<block_id>(~0u)), "not a block of this allocator");
  range.free(second);
  EXPECT_DEATH(range.free(second), "not a live block");
  EXPECT_DEATH((void)range.where(second), "not a live block");
  EXPECT_DEATH((void)range.grow(second, 20), "not a live block");
  range.free(first);  // merges: the record of one of the two becomes spare
  EXPECT_DEATH(range.free(second), "not a live block");
  EXPECT_DEATH(range.free(first), "not a live block");
}

}  // namespace
