// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: ranges that wait to be unmapped are polled oldest first, one thread each, are counted until
// they are gone, and those that stay do not delay the others. Method: a queue of ranges whose
// results the test chooses; random programs against a naive model; threads that look while another
// polls.
#include <deque>

#include "../support/test.h"

import vmm.backend;
import vmm.optimizer;

namespace {

using vmm::unmap_answer, vmm::unmap_entry;

struct range : unmap_entry {
  int number = 0;
  unmap_answer answer = unmap_answer::waits;
};

struct UnmapQueue : testing::Test {
  void SetUp() override {
    ranges.resize(6);
    for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i].number = static_cast<int>(i);
  }
  void push(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) queue.push(ranges[i], 1 + i);
  }
  std::size_t reap(std::size_t count_max) {
    asked.clear();
    gone.clear();
    const std::size_t count = queue.reap(
        count_max,
        [this](unmap_entry& entry) {
          asked.push_back(static_cast<range&>(entry).number);
          return static_cast<range&>(entry).answer;
        },
        [this](unmap_entry& entry) {
          EXPECT_EQ(entry.is, unmap_entry::place::outside) << "it may be ended now";
          gone.push_back(static_cast<range&>(entry).number);
        });
    EXPECT_EQ(count, gone.size());
    EXPECT_TRUE(queue.validate());
    return count;
  }
  using numbers = std::vector<int>;

  std::deque<range> ranges;
  vmm::unmap_queue queue;
  numbers asked;
  numbers gone;
};

TEST_F(UnmapQueue, AsksOldestFirstAndCountsWhatWaits) {
  push(4);
  EXPECT_EQ(queue.size(), 4u);
  EXPECT_EQ(queue.size_bytes(), 10u);
  for (range& each : ranges) each.answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(3), 3u);
  EXPECT_EQ(gone, (numbers{0, 1, 2}));
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.size_bytes(), 4u);
  EXPECT_EQ(reap(3), 1u);
  EXPECT_EQ(reap(3), 0u);
  EXPECT_EQ(queue.size_bytes(), 0u);
}

TEST_F(UnmapQueue, OneThatStaysGoesToTheEndAndIsAskedAgainLater) {
  push(3);
  ranges[1].answer = ranges[2].answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(9), 2u) << "the first does not hold up the others";
  EXPECT_EQ(asked, (numbers{0, 1, 2})) << "each once";
  EXPECT_EQ(reap(9), 0u);
  EXPECT_EQ(asked, (numbers{0}));
  ranges[0].answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(9), 1u);
}

TEST_F(UnmapQueue, TakesUpWhereItStopped) {
  push(5);
  reap(2);
  EXPECT_EQ(asked, (numbers{0, 1}));
  reap(2);
  EXPECT_EQ(asked, (numbers{2, 3}));
  reap(2);
  EXPECT_EQ(asked, (numbers{4, 0}));
  reap(0);
  EXPECT_TRUE(asked.empty());
  for (range& each : ranges) each.answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(9), 5u);
}

TEST_F(UnmapQueue, RefusalsAreCountedAndTriedAgain) {
  push(2);
  ranges[0].answer = unmap_answer::refused;
  EXPECT_EQ(reap(9), 0u);
  EXPECT_EQ(queue.refused_count(), 1u);
  EXPECT_EQ(reap(9), 0u);
  EXPECT_EQ(queue.refused_count(), 2u);
  queue.count_refusal();
  EXPECT_EQ(queue.refused_count(), 3u);
  ranges[0].answer = ranges[1].answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(9), 2u);
  EXPECT_EQ(queue.refused_count(), 3u);
}

TEST_F(UnmapQueue, ARangeThatWentMayWaitAgain) {
  push(1);
  ranges[0].answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(1), 1u);
  queue.push(ranges[0], 7);
  EXPECT_EQ(queue.size_bytes(), 7u);
  EXPECT_EQ(reap(1), 1u);
}

TEST_F(UnmapQueue, TheOldestCanBeLookedAtAndDeferred) {
  const auto number_of_oldest = [this] {
    int number = -1;
    const auto look = [&](unmap_entry& entry) { number = static_cast<range&>(entry).number; };
    return queue.look_at_oldest(look) ? number : -1;
  };
  EXPECT_EQ(number_of_oldest(), -1);
  push(3);
  EXPECT_EQ(number_of_oldest(), 0);
  const auto is_second = [](const unmap_entry& entry) {
    return static_cast<const range&>(entry).number == 1;
  };
  queue.defer_oldest(is_second);
  EXPECT_EQ(number_of_oldest(), 0) << "not the one that was meant";
  queue.defer_oldest([](const unmap_entry&) { return true; });
  EXPECT_EQ(number_of_oldest(), 1);
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_TRUE(queue.validate());
  for (range& each : ranges) each.answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(9), 3u);
  EXPECT_EQ(gone, (numbers{1, 2, 0}));
}

// ---- threads

TEST_F(UnmapQueue, WhatOneThreadAsksAboutIsCountedAndNoOtherAsks) {
  push(2);
  int asked_by_other = -1;
  std::size_t size_seen = 0;
  const auto nothing = [](unmap_entry&) {};
  const unmap_answer first = queue.reap_one(
      [&](unmap_entry& mine) {
        std::thread other([&] {
          size_seen = queue.size();
          (void)queue.reap_one(
              [&](unmap_entry& entry) {
                asked_by_other = static_cast<range&>(entry).number;
                return unmap_answer::waits;
              },
              nothing);
        });
        other.join();
        EXPECT_EQ(static_cast<range&>(mine).number, 0);
        return unmap_answer::unmapped;
      },
      nothing);
  EXPECT_EQ(first, unmap_answer::unmapped);
  EXPECT_EQ(size_seen, 2u) << "no thread sees the queue too short";
  EXPECT_EQ(asked_by_other, 1);
  ranges[1].answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(9), 1u);
}

TEST_F(UnmapQueue, WithOneRangeAskedAboutAnotherThreadFindsNoneToAsk) {
  push(1);
  (void)queue.reap_one(
      [&](unmap_entry&) {
        std::thread other([&] {
          EXPECT_EQ(queue.size(), 1u);
          EXPECT_FALSE(queue.look_at_oldest([](unmap_entry&) {}));
          EXPECT_EQ(
              queue.reap(
                  5, [](unmap_entry&) { return unmap_answer::unmapped; }, [](unmap_entry&) {}),
              0u);
        });
        other.join();
        return unmap_answer::waits;
      },
      [](unmap_entry&) {});
  ranges[0].answer = unmap_answer::unmapped;
  EXPECT_EQ(reap(1), 1u) << "it was put back";
}

TEST_F(UnmapQueue, WaitingForWhatOthersAskEndsWhenItIsGone) {
  for (int i = 0; i < 50; ++i) {
    push(1);
    bool is_gone = false;  // behind the queue's locks
    std::thread other;
    (void)queue.reap_one(
        [&](unmap_entry&) {
          other = std::thread([&] {
            queue.wait_for_asked();
            EXPECT_TRUE(is_gone);
          });
          return unmap_answer::unmapped;
        },
        [&](unmap_entry&) { is_gone = true; });
    other.join();
  }
}

// ---- the list, against a model

TEST(UnmapList, BehavesAsItsModel) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<range> ranges(32);
    for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i].number = static_cast<int>(i);
    vmm::unmap_list list;
    std::deque<range*> listed;
    std::vector<range*> asked;
    for (int step = 0; step < 2000; ++step) {
      range& any = ranges[random() % ranges.size()];
      switch (random() % 4) {
        case 0:
          if (any.is != unmap_entry::place::outside) break;
          list.push(any, 1 + random() % 9);
          listed.push_back(&any);
          break;
        case 1: {
          unmap_entry* const taken = list.take_oldest();
          ASSERT_EQ(taken, listed.empty() ? nullptr : listed.front());
          if (taken == nullptr) break;
          asked.push_back(listed.front());
          listed.pop_front();
          break;
        }
        case 2:
          if (asked.empty()) break;
          list.put_back(*asked.back());
          listed.push_back(asked.back());
          asked.pop_back();
          break;
        default:
          if (any.is == unmap_entry::place::outside) break;
          list.remove(any);
          std::erase(listed, &any);
          std::erase(asked, &any);
      }
      std::uint64_t sum_bytes = 0;
      for (const range* each : listed) sum_bytes += each->waiting_bytes;
      for (const range* each : asked) sum_bytes += each->waiting_bytes;
      ASSERT_EQ(list.size(), listed.size() + asked.size()) << seed << ", " << step;
      ASSERT_EQ(list.asked_count(), asked.size());
      ASSERT_EQ(list.size_bytes(), sum_bytes);
      ASSERT_EQ(list.oldest(), listed.empty() ? nullptr : listed.front());
      ASSERT_TRUE(list.validate());
    }
  }
}

TEST(UnmapList, ValidateFindsWhatIsBroken) {
  range one;
  range two;
  vmm::unmap_list list;
  list.push(one, 3);
  list.push(two, 4);
  ASSERT_TRUE(list.validate());
  one.waiting_bytes = 4;
  EXPECT_EQ(list.validate().error().code, vmm::errc::internal) << "bytes";
  one.waiting_bytes = 3;
  two.before = nullptr;
  EXPECT_FALSE(list.validate()) << "links";
  two.before = &one;
  two.is = unmap_entry::place::asked;
  EXPECT_FALSE(list.validate()) << "a polled range is on no list";
  two.is = unmap_entry::place::listed;
  one.after = nullptr;
  EXPECT_FALSE(list.validate()) << "count";
  one.after = &two;
  EXPECT_TRUE(list.validate());
}

TEST(UnmapListDeathTest, AWrongUseEndsTheProcess) {
  range one;
  vmm::unmap_list list;
  EXPECT_DEATH(list.remove(one), "not on");
  EXPECT_DEATH(list.put_back(one), "not taken");
  EXPECT_DEATH(list.push(one, 0), "without addresses");
  list.push(one, 1);
  EXPECT_DEATH(list.push(one, 1), "waits twice");
}

}  // namespace
