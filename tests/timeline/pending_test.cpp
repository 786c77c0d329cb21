// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: frees that wait come back once, when their last point has passed, oldest first. Method:
// points are numbers, of which the test says which have passed.
#include "../support/test.h"

import vmm.timeline;

namespace {

using frees = vmm::pending_frees<int, int>;

struct Pending : testing::Test {
  void push(int block, const std::vector<int>& points) {
    frees::owner one = frees::make(points.size()).value();
    one->block = block;
    one->points = points;
    list.push(std::move(one));
  }
  [[nodiscard]] std::vector<int> take(std::size_t misses_max) {
    frees::list taken =
        list.take_finished(misses_max, [&](int point) { return passed.contains(point); });
    std::vector<int> blocks;
    for (frees::owner each = taken.take_first(); each != nullptr; each = taken.take_first())
      blocks.push_back(each->block);
    return blocks;
  }

  std::atomic<bool> has_pending = false;
  frees list{has_pending};
  std::set<int> passed;
};

TEST_F(Pending, ComesBackWhenAllPointsHavePassedOldestFirst) {
  push(1, {10, 11});
  push(2, {20});
  push(3, {30});
  EXPECT_EQ(take(8), std::vector<int>{});
  passed = {11, 20};
  EXPECT_EQ(take(1), std::vector<int>{}) << "the first one missed, and no other was looked at";
  EXPECT_EQ(take(2), std::vector<int>{2});
  passed.insert(10);
  EXPECT_EQ(take(8), std::vector<int>{1});
  EXPECT_TRUE(has_pending);
  passed.insert(30);
  EXPECT_EQ(take(8), std::vector<int>{3});
  EXPECT_FALSE(has_pending);
}

TEST_F(Pending, PointsOfTheOldestEntry) {
  EXPECT_EQ(list.oldest_points().value(), std::vector<int>{});
  push(1, {10, 11});
  push(2, {20});
  EXPECT_EQ(list.oldest_points().value(), (std::vector<int>{10, 11}));
  EXPECT_EQ(list.points().value(), (std::vector<int>{10, 11, 20}));
}

// As where a context ends: no point of it is named again, wherever it stands in an entry.
TEST_F(Pending, DroppedPointsAreNotNamedAgain) {
  push(1, {10, 11, 12});
  push(2, {11});
  push(3, {30});
  list.drop_points([](int point) { return point == 11; });
  EXPECT_EQ(list.points().value(), (std::vector<int>{10, 12, 30}));
  EXPECT_EQ(take(8), std::vector<int>{2}) << "it waits for nothing any more";
  passed = {10, 12};
  EXPECT_EQ(take(8), std::vector<int>{1});
}

}  // namespace
