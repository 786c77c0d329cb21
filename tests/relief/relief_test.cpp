// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: idle memory of a pool, manager or growable range serves another allocator of the same
// driver that is short of device memory, at most as much as it needs where that is enough, and
// never one that is short of its own budget. Neither two that are short at once nor one that is
// destroyed meanwhile stop a thread. Method: two allocators on a device of 1 GiB, one of which
// retains most of it, in all pairs of kinds; then threads, callbacks, observers and suspensions.
#include "fixture.hpp"

import vmm.optimizer;
import vmm.suspend;

namespace {

using relief::fine_pool, relief::keep, relief::stream, vmm::errc;

class Relief : public relief::OneDevice {
 protected:
  vmm::manager blocks{driver};
  vmm::manager other_blocks{driver};
  vmm::growable_range range{blocks, {.segment_bytes_max = 2 * GiB}};
  vmm::growable_range other_range{other_blocks, {.segment_bytes_max = 2 * GiB}};
};

// A pool's work is enough for a test of its own.
std::unique_ptr<vmm::stream_pool> pool_on(vmm::fake_driver& driver) {
  return std::make_unique<vmm::stream_pool>(driver, fine_pool());
}

TEST_F(Relief, APoolServesAPool) {
  const auto one = pool_on(driver);
  const auto other = pool_on(driver);
  keep(*one, 700 * MiB);
  EXPECT_TRUE(other->allocate(700 * MiB, stream));
  EXPECT_LT(one->statistics().held_bytes, 400 * MiB);
}

TEST_F(Relief, APoolServesARequestOutsideOfTheRegistry) {
  const auto one = pool_on(driver);
  keep(*one, 700 * MiB);
  EXPECT_EQ(vmm::relieve(vmm::device(1), 700 * MiB), 0U) << "another device";
  {
    const vmm::relief_pause inside;
    EXPECT_EQ(vmm::relieve(vmm::device(0), 700 * MiB), 0U) << "a thread that holds a lock";
  }
  EXPECT_EQ(vmm::relieve(vmm::device(0), 100 * MiB), 100 * MiB);
  EXPECT_EQ(vmm::relieve(vmm::device(0), 700 * MiB), 600 * MiB);
}

TEST_F(Relief, APoolServesAManagerAndARange) {
  const auto one = pool_on(driver);
  keep(*one, 700 * MiB);
  const auto at = blocks.allocate(700 * MiB);
  ASSERT_TRUE(at) << vmm::describe(at.error());
  ASSERT_TRUE(blocks.free(*at));
  EXPECT_EQ(blocks.trim(0).failure.code, errc::none);
  keep(*one, 700 * MiB);
  EXPECT_TRUE(other_range.grow(700 * MiB));
}

TEST_F(Relief, AManagerAndARangeServeAPool) {
  const auto one = pool_on(driver);
  keep(blocks, 700 * MiB);
  const auto at = *one->allocate(700 * MiB, stream);
  ASSERT_TRUE(one->free(at, stream));
  EXPECT_GT(one->trim(0).released_count, 0u);
  keep(other_range, 700 * MiB);
  EXPECT_TRUE(one->allocate(700 * MiB, stream));
}

TEST_F(Relief, ManagersAndRangesServeOneAnother) {
  keep(blocks, 700 * MiB);
  keep(other_blocks, 700 * MiB);
  keep(range, 700 * MiB);
  keep(other_range, 700 * MiB);
  keep(blocks, 700 * MiB);
  const auto small = *blocks.allocate(MiB);
  keep(other_blocks, 700 * MiB);
  EXPECT_TRUE(blocks.resize({.at = small, .size_bytes = 700 * MiB}));
}

TEST_F(Relief, NoMoreIsTakenThanIsNeeded) {
  const auto one = pool_on(driver);
  const auto other = pool_on(driver);
  keep(*one, 1000 * MiB);
  EXPECT_TRUE(other->allocate(100 * MiB, stream));
  EXPECT_GE(one->statistics().reusable_bytes, 880 * MiB);
  EXPECT_LE(one->statistics().reusable_bytes, 924 * MiB);
}

TEST_F(Relief, LiveBlocksAndUnfinishedWorkAreLeftAlone) {
  const auto one = pool_on(driver);
  const auto other = pool_on(driver);
  const auto busy = *driver.create_stream();
  driver.set_manual(true);
  const auto live = one->allocate(300 * MiB, stream);
  const auto used = one->allocate(300 * MiB, busy);
  ASSERT_TRUE(live && used);
  const vmm::address_range whole{*used, 300 * MiB};
  ASSERT_TRUE(driver.launch(busy, {.duration_us = 10, .writes = {&whole, 1}}));
  ASSERT_TRUE(one->free(*used, busy));
  const std::uint64_t before = held_bytes();
  EXPECT_FALSE(other->allocate(700 * MiB, stream));
  EXPECT_EQ(held_bytes(), before);
  EXPECT_FALSE(other->allocate(500 * MiB, stream)) << "its own waits end no work of another's";
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(other->allocate(500 * MiB, stream));
  ASSERT_TRUE(one->forget(busy));
  EXPECT_TRUE(driver.destroy_stream(busy));
}

TEST_F(Relief, ABudgetThatIsSpentTakesNothingOfOthers) {
  const auto one = pool_on(driver);
  vmm::stream_pool other(driver, fine_pool(100 * MiB));
  keep(*one, 700 * MiB);
  ASSERT_TRUE(other.allocate(60 * MiB, stream));
  EXPECT_EQ(other.allocate(64 * MiB, stream).error().code, errc::over_budget);
  EXPECT_EQ(one->statistics().reusable_bytes, 700 * MiB);
}

TEST_F(Relief, ARequestForMoreThanTheDeviceTakesNothingOfOthers) {
  const auto one = pool_on(driver);
  const auto other = pool_on(driver);
  keep(*one, 700 * MiB);
  EXPECT_FALSE(other->allocate(5 * GiB, stream));
  EXPECT_EQ(one->statistics().reusable_bytes, 700 * MiB);
}

TEST_F(Relief, OtherDriversAreLeftAlone) {
  vmm::fake_driver elsewhere{relief::small_device()};
  vmm::stream_pool one(elsewhere, fine_pool());
  keep(one, 700 * MiB);
  const auto other = pool_on(driver);
  ASSERT_TRUE(other->allocate(700 * MiB, stream));
  EXPECT_FALSE(other->allocate(512 * MiB, stream));
  EXPECT_EQ(one.statistics().reusable_bytes, 700 * MiB);
}

TEST_F(Relief, APoolThatIsSuspendedServesWhatItHas) {
  const auto one = pool_on(driver);
  const auto other = pool_on(driver);
  ASSERT_TRUE(one->allocate(300 * MiB, stream));
  keep(*one, 600 * MiB);
  vmm::suspender suspends;
  ASSERT_TRUE(suspends.add(*one, {.tag = "one", .contents = vmm::suspend_contents::discard}));
  ASSERT_TRUE(suspends.suspend());
  const auto block = *other->allocate(1000 * MiB, stream);
  EXPECT_FALSE(other->allocate(100 * MiB, stream)) << "trims of a suspended pool change nothing";
  EXPECT_FALSE(suspends.resume()) << "the device is full";
  ASSERT_TRUE(other->free(block, stream));
  EXPECT_TRUE(suspends.resume()) << "what the other pool keeps serves the resumption";
  ASSERT_TRUE(suspends.remove(*one));
}

struct allocating_listener final : vmm::remap_listener {
  explicit allocating_listener(vmm::stream_pool& from) : pool(from) {}
  void before_change(const vmm::remap_notice&) noexcept override {
    ++call_count;
    served = pool.allocate(500 * MiB, stream).has_value();
  }
  vmm::stream_pool& pool;
  int call_count = 0;
  bool served = false;
};

// The third pool would trim the first one, whose lock of growth the thread has.
TEST_F(Relief, ACallbacksRequestsAreServedByTheirOwnPoolAlone) {
  const auto one = pool_on(driver);
  const auto third = pool_on(driver);
  keep(*one, 800 * MiB);
  allocating_listener hears(*third);
  const auto subscription = *one->remaps().subscribe(hears);
  EXPECT_GT(one->trim(700 * MiB).released_bytes, 0u);
  EXPECT_GT(hears.call_count, 0);
  EXPECT_FALSE(hears.served);
  ASSERT_TRUE(one->remaps().unsubscribe(subscription));
}

struct silent_observer final : vmm::block_observer {
  void reserved(vmm::address_range) noexcept override {}
  void unreserved(vmm::address_range) noexcept override {}
  void mapped(vmm::address_range) noexcept override {}
  void unmapped(vmm::address_range) noexcept override {}
  void allocated(vmm::address_range) noexcept override {}
  void freed(vmm::address) noexcept override {}
};

TEST_F(Relief, AWatchedPoolIsServedOutsideItsTurn) {
  silent_observer watches;
  const auto one = pool_on(driver);
  vmm::pool_options options = fine_pool();
  options.observer = &watches;
  vmm::stream_pool other(driver, options);
  keep(*one, 700 * MiB);
  EXPECT_TRUE(other.allocate(700 * MiB, stream));
}

// ---- threads

// Each keeps memory that the other one is short of, over and over.
template <class One, class Other>
void take_turns(One&& one, Other&& other) {
  constexpr int rounds = 40;
  std::thread first([&] {
    for (int i = 0; i < rounds; ++i) one();
  });
  std::thread second([&] {
    for (int i = 0; i < rounds; ++i) other();
  });
  first.join();
  second.join();
}

TEST_F(Relief, TwoThatAreShortAtOnceBothGoOn) {
  const auto one = pool_on(driver);
  const auto other = pool_on(driver);
  std::atomic<int> served = 0;
  const auto use = [&](vmm::stream_pool& pool) {
    if (const auto at = pool.allocate(600 * MiB, stream)) {
      ++served;
      EXPECT_TRUE(pool.free(*at, stream));
    }
  };
  take_turns([&] { use(*one); }, [&] { use(*other); });
  EXPECT_GT(served, 0);
  EXPECT_TRUE(one->validate());
  EXPECT_TRUE(other->validate());
}

TEST_F(Relief, APoolAManagerAndARangeAreShortAtOnce) {
  const auto one = pool_on(driver);
  std::atomic<int> served = 0;
  std::thread third([&] {
    for (int i = 0; i < 40; ++i) {
      if (other_range.grow(600 * MiB)) ++served;
      EXPECT_TRUE(other_range.shrink(0));
    }
  });
  take_turns(
      [&] {
        const auto at = one->allocate(600 * MiB, stream);
        if (!at) return;
        ++served;
        EXPECT_TRUE(one->free(*at, stream));
      },
      [&] {
        const auto at = blocks.allocate(600 * MiB);
        if (!at) return;
        ++served;
        EXPECT_TRUE(blocks.free(*at));
      });
  third.join();
  EXPECT_GT(served, 0);
}

TEST_F(Relief, OneThatIsDestroyedMeanwhileIsNoLongerAsked) {
  const auto other = pool_on(driver);
  take_turns(
      [&] {
        const auto one = pool_on(driver);
        const auto at = one->allocate(600 * MiB, stream);
        if (at) EXPECT_TRUE(one->free(*at, stream));
      },
      [&] {
        const auto at = other->allocate(600 * MiB, stream);
        if (at) EXPECT_TRUE(other->free(*at, stream));
      });
  const auto at = other->allocate(1000 * MiB, stream);
  EXPECT_TRUE(at);
}

}  // namespace
