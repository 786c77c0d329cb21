// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: idle memory of a pool, manager or growable range serves another allocator of the same
// driver that is short of device memory, at most as much as it needs where that is enough, and
// never one that is short of its own budget. Neither two that are short at once nor one that is
// destroyed meanwhile stop a thread. Method: two allocators on a device of 1 GiB, one of which
// retains most of it, in all pairs of kinds; then threads, callbacks, observers and suspensions.
#include "../support/silent_observer.hpp"
#include "fixture.hpp"

import vmm.optimizer;
import vmm.suspend;

namespace {

using relief::fine_pool, relief::keep, relief::stream, vmm::errc;

std::unique_ptr<vmm::stream_pool> pool_on(vmm::fake_driver& driver) {
  return std::make_unique<vmm::stream_pool>(driver, fine_pool());
}

struct Relief : relief::OneDevice {
  std::unique_ptr<vmm::stream_pool> one = pool_on(driver);
  std::unique_ptr<vmm::stream_pool> other = pool_on(driver);
  vmm::manager blocks{driver};
  vmm::manager other_blocks{driver};
  vmm::growable_range range{blocks, {.segment_bytes_max = 2 * GiB}};
  vmm::growable_range other_range{other_blocks, {.segment_bytes_max = 2 * GiB}};
};

TEST_F(Relief, APoolServesAPool) {
  keep(*one, 700 * MiB);
  EXPECT_TRUE(other->allocate(700 * MiB, stream));
  EXPECT_LT(one->statistics().held_bytes, 400 * MiB);
}

// Another thread may take what was released, and retain it.
TEST_F(Relief, WhatOthersTakeMeanwhileIsReleasedAgain) {
  vmm::relief_member requesting;
  vmm::relief_member idle;
  const vmm::relief_key key{&driver, driver.home()};
  std::uint64_t idle_bytes = 0;
  const auto give_back = [](void* of, std::uint64_t) noexcept {
    return std::exchange(*static_cast<std::uint64_t*>(of), 0);
  };
  requesting.enter(key, {&idle_bytes, give_back});
  idle.enter(key, {&idle_bytes, give_back});
  for (const int stolen_count : {0, 1, 2, 5, 1000}) {
    idle_bytes = MiB;
    int attempt_count = 0;
    const vmm::status outcome = vmm::with_relief(requesting, MiB, [&](vmm::relief_pass&) {
      const bool has_memory = idle_bytes == 0 && attempt_count > stolen_count;
      if (idle_bytes == 0) idle_bytes = MiB;  // in the other's cache
      ++attempt_count;
      return has_memory ? vmm::status{} : vmm::status{vmm::error{errc::out_of_memory}};
    });
    EXPECT_EQ(outcome.has_value(), stolen_count < 1000);
    EXPECT_LE(attempt_count, 32) << "a shortage has an end";
  }
}

TEST_F(Relief, APoolServesARequestOutsideOfTheRegistry) {
  keep(*one, 700 * MiB);
  EXPECT_EQ(vmm::relieve({nullptr, vmm::device(1)}, 700 * MiB), 0U) << "another device";
  {
    const vmm::relief_pause inside;
    EXPECT_EQ(vmm::relieve({nullptr, vmm::device(0)}, 700 * MiB), 0U)
        << "a thread that holds a lock";
  }
  EXPECT_EQ(vmm::relieve({nullptr, vmm::device(0)}, 100 * MiB), 100 * MiB);
  EXPECT_EQ(vmm::relieve({nullptr, vmm::device(0)}, 700 * MiB), 600 * MiB);
}

TEST_F(Relief, APoolServesAManagerAndARange) {
  keep(*one, 700 * MiB);
  const auto at = blocks.allocate(700 * MiB);
  ASSERT_TRUE(at) << vmm::describe(at.error());
  ASSERT_TRUE(blocks.free(*at));
  EXPECT_EQ(blocks.trim(0).failure.code, errc::none);
  keep(*one, 700 * MiB);
  EXPECT_TRUE(other_range.grow(700 * MiB));
}

TEST_F(Relief, AManagerAndARangeServeAPool) {
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
  keep(*one, 1000 * MiB);
  EXPECT_TRUE(other->allocate(100 * MiB, stream));
  EXPECT_GE(one->statistics().reusable_bytes, 880 * MiB);
  EXPECT_LE(one->statistics().reusable_bytes, 924 * MiB);
}

TEST_F(Relief, LiveBlocksAndUnfinishedWorkAreLeftAlone) {
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
  vmm::stream_pool limited(driver, fine_pool(100 * MiB));
  keep(*one, 700 * MiB);
  ASSERT_TRUE(limited.allocate(60 * MiB, stream));
  EXPECT_EQ(limited.allocate(64 * MiB, stream).error().code, errc::over_budget);
  EXPECT_EQ(one->statistics().reusable_bytes, 700 * MiB);
}

TEST_F(Relief, ARequestForMoreThanTheDeviceTakesNothingOfOthers) {
  keep(*one, 700 * MiB);
  EXPECT_FALSE(other->allocate(5 * GiB, stream));
  EXPECT_EQ(one->statistics().reusable_bytes, 700 * MiB);
}

TEST_F(Relief, OtherDriversAreLeftAlone) {
  vmm::fake_driver elsewhere{relief::small_device()};
  vmm::stream_pool far(elsewhere, fine_pool());
  keep(far, 700 * MiB);
  ASSERT_TRUE(other->allocate(700 * MiB, stream));
  EXPECT_FALSE(other->allocate(512 * MiB, stream));
  EXPECT_EQ(far.statistics().reusable_bytes, 700 * MiB);
}

TEST_F(Relief, APoolThatIsSuspendedServesWhatItHas) {
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
  const auto third = pool_on(driver);
  keep(*one, 800 * MiB);
  allocating_listener hears(*third);
  const auto subscription = *one->remaps().subscribe(hears);
  EXPECT_GT(one->trim(700 * MiB).released_bytes, 0u);
  EXPECT_GT(hears.call_count, 0);
  EXPECT_FALSE(hears.served);
  ASSERT_TRUE(one->remaps().unsubscribe(subscription));
}

TEST_F(Relief, AWatchedPoolIsServedOutsideItsTurn) {
  silent_observer watches;
  vmm::pool_options options = fine_pool();
  options.observer = &watches;
  vmm::stream_pool watched(driver, options);
  keep(*one, 700 * MiB);
  EXPECT_TRUE(watched.allocate(700 * MiB, stream));
}

// ---- random programs

// Four allocators share the device. Each request is served that fits beside all live blocks.
class RandomProgram {
 public:
  RandomProgram(vmm::fake_driver& of, unsigned seed, bool fills) : driver(of), random(seed) {
    pools.push_back(pool_on(driver));
    pools.push_back(pool_on(driver));
    range = std::make_unique<vmm::growable_range>(
        ranges, vmm::growable_options{.segment_bytes_max = 2 * GiB, .zero_new = fills});
  }
  ~RandomProgram() {
    for (std::size_t of = 0; of < member_count; ++of)
      while (live[of] != 0) free_some(of);
    EXPECT_TRUE(range->synchronize(stream));
  }
  // Requests that were refused, and were served after a wait for the stream.
  [[nodiscard]] int play(int rounds) {
    int refused_count = 0;
    for (int round = 0; round < rounds; ++round) {
      const std::size_t of = random() % member_count;
      const std::uint64_t size_bytes = (1 + random() % 200) * 2 * MiB;
      while (live_bytes() + size_bytes > GiB) free_some(random() % member_count);
      if (allocate(of, size_bytes)) continue;
      ++refused_count;
      EXPECT_TRUE(driver.synchronize_stream(stream));
      EXPECT_TRUE(allocate(of, size_bytes)) << "round " << round;
    }
    return refused_count;
  }

 private:
  static constexpr std::size_t member_count = 4;  // two pools, a manager, a range
  static constexpr std::size_t of_manager = 2;

  [[nodiscard]] std::uint64_t live_bytes() const { return live[0] + live[1] + live[2] + live[3]; }
  [[nodiscard]] bool allocate(std::size_t of, std::uint64_t size_bytes) {
    if (of > of_manager) {
      if (!range->grow(live[of] + size_bytes)) return false;
    } else {
      const auto at =
          of == of_manager ? blocks.allocate(size_bytes) : pools[of]->allocate(size_bytes, stream);
      if (!at) return false;
      made[of].emplace_back(*at, size_bytes);
    }
    live[of] += size_bytes;
    return true;
  }
  void free_some(std::size_t of) {
    if (live[of] == 0) return;
    if (of > of_manager) {
      EXPECT_TRUE(range->shrink(0));
      live[of] = 0;
      return;
    }
    std::swap(made[of][random() % made[of].size()], made[of].back());
    const auto [at, size_bytes] = made[of].back();
    made[of].pop_back();
    live[of] -= size_bytes;
    EXPECT_TRUE(of == of_manager ? blocks.free(at) : pools[of]->free(at, stream));
  }

  vmm::fake_driver& driver;
  std::minstd_rand random;
  std::vector<std::unique_ptr<vmm::stream_pool>> pools;
  vmm::manager blocks{driver};
  vmm::manager ranges{driver};
  std::unique_ptr<vmm::growable_range> range;
  std::array<std::vector<std::pair<vmm::address, std::uint64_t>>, member_count> made;
  std::array<std::uint64_t, member_count> live{};
};

TEST_F(Relief, RandomRequestsThatFitAreServed) {
  for (unsigned seed = 1; seed <= 4; ++seed)
    EXPECT_EQ(RandomProgram(driver, seed, false).play(200), 0) << seed;
}

// Zeroing a range is work of the stream: what is freed on it meanwhile is idle when that is done.
TEST_F(Relief, RandomRequestsBesideFillsAreServedAfterAWait) {
  int refused_count = 0;
  for (unsigned seed = 1; seed <= 20; ++seed)
    refused_count += RandomProgram(driver, seed, true).play(200);
  EXPECT_GT(refused_count, 0);
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
  take_turns(
      [&] {
        const auto gone = pool_on(driver);
        const auto at = gone->allocate(600 * MiB, stream);
        if (at) EXPECT_TRUE(gone->free(*at, stream));
      },
      [&] {
        const auto at = other->allocate(600 * MiB, stream);
        if (at) EXPECT_TRUE(other->free(*at, stream));
      });
  const auto at = other->allocate(1000 * MiB, stream);
  EXPECT_TRUE(at);
}

}  // namespace
