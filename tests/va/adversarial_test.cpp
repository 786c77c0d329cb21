// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what breaks other allocators does not break this one: nothing is refused that a hole can
// hold, however many holes crowd one bin, and holes that are too small are not in the way.
// Method: layouts on which allocators without an exact fit are known to refuse or to scan.
#include <numeric>

#include "../support/test.h"

import vmm.va;

namespace {

vmm::range_allocator make(std::uint32_t count_granules) {
  return vmm::range_allocator::create({.count_granules = count_granules}).value();
}

struct sizes {
  std::uint32_t low;
  std::uint32_t high;
};

class ExactRefill : public testing::TestWithParam<sizes> {};

// Blocks fill a range exactly; every other one is freed, and its size requested again in another
// order. An exact fit serves every request.
TEST_P(ExactRefill, ServesEveryRequest) {
  constexpr std::size_t block_count = 60'000;
  const auto [low, high] = GetParam();
  std::mt19937_64 random(7);
  std::vector<std::uint32_t> counts(block_count);
  for (std::uint32_t& count : counts)
    count = low + static_cast<std::uint32_t>(random() % (high - low + 1));
  vmm::range_allocator range = make(std::accumulate(counts.begin(), counts.end(), 0u));
  std::vector<vmm::block_id> blocks;
  for (const std::uint32_t count : counts) blocks.push_back(range.allocate({count}).value());
  ASSERT_EQ(range.free_granules(), 0u);
  std::vector<std::uint32_t> again;
  for (std::size_t i = 0; i < block_count; i += 2) {
    range.free(blocks[i]);
    again.push_back(counts[i]);
  }
  std::shuffle(again.begin(), again.end(), random);
  std::size_t refused = 0;
  for (const std::uint32_t count : again) refused += range.allocate({count}) ? 0 : 1;
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(range.free_granules(), 0u);
  EXPECT_TRUE(range.validate());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExactRefill,
                         testing::Values(sizes{4096, 4127}, sizes{64, 127}, sizes{300, 3000}));

TEST(DeadHoles, StayOutOfTheWay) {
  constexpr std::uint32_t hole_count = 50'000;
  vmm::range_allocator range = make(hole_count * 10);
  std::vector<vmm::block_id> blocks;
  for (std::uint32_t i = 0; i < 2 * hole_count; ++i) {
    blocks.push_back(range.allocate({4}).value());
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) range.free(blocks[i]);
  for (std::uint32_t i = 0; i < hole_count / 5; ++i) {
    EXPECT_GE(range.where(range.allocate({5}).value()).offset, 8 * hole_count);
  }
  EXPECT_EQ(range.high_water_granules(), 9 * hole_count);
  EXPECT_TRUE(range.validate());
}

TEST(DeadHoles, OfOneSizeShortAreRefusedAndStayWhole) {
  constexpr std::uint32_t hole_count = 4'096;
  vmm::range_allocator range = make(hole_count * 1025);
  std::vector<vmm::block_id> holes;
  for (std::uint32_t i = 0; i < hole_count; ++i) {
    holes.push_back(range.allocate({1024}).value());
    (void)range.allocate({1}).value();
  }
  for (const vmm::block_id hole : holes) range.free(hole);
  EXPECT_EQ(range.allocate({1025}).error().code, vmm::errc::out_of_addresses);
  EXPECT_EQ(range.largest_free(), 1024u);
  EXPECT_EQ(range.statistics().free_blocks, hole_count);
  EXPECT_TRUE(range.validate());
}

}  // namespace
