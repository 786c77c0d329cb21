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
