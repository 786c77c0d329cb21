// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a manager's history says what became of its blocks. Method: allocate, resize, run short and
// free on the fake driver, and compare what the events add up to with the manager's statistics.
#include "replica.hpp"

import vmm.fake;
import vmm.manager;

namespace {

using vmm::history_kind;

TEST(ManagerHistory, BlocksAddUpToTheStatistics) {
  vmm::fake_driver driver;
  const auto ring = *vmm::history_ring::make({});
  vmm::manager_options options;
  options.recorder = ring.get();
  options.budget_bytes = 64 * MiB;
  {
    vmm::manager blocks(driver, options);
    const vmm::address first = *blocks.allocate(3 * MiB);
    const vmm::address second = *blocks.allocate(8 * MiB);
    ASSERT_TRUE(blocks.free(first));
    EXPECT_FALSE(blocks.allocate(100 * MiB));
    vmm::history taken = *blocks.history().take();
    replica seen(taken);
    EXPECT_EQ(seen.live_bytes, blocks.statistics().mapped_bytes);
    EXPECT_EQ(seen.held_bytes, fact(taken, "held_bytes"));
    EXPECT_EQ(seen.counts[history_kind::short_of_memory], 1u);
    ASSERT_EQ(seen.live.size(), 1u);
    EXPECT_EQ(seen.live.begin()->second, 8 * MiB);

    const auto grown = *blocks.resize({.at = second, .size_bytes = 20 * MiB});
    taken = *blocks.history().take();
    const vmm::history_event* resized = nullptr;
    for (const auto& each : taken.events)
      if (each.kind == history_kind::resized) resized = &each;
    ASSERT_NE(resized, nullptr);
    EXPECT_EQ(resized->at, grown);
    EXPECT_EQ(resized->size_bytes, 20 * MiB);
    EXPECT_EQ(resized->detail, second.value);
    ASSERT_TRUE(blocks.free(grown));
  }
  EXPECT_TRUE(driver.check_empty());
}

TEST(ManagerHistory, GrowthsWaitsPinsAndRemappedCopiesAreToldFromStartToStop) {
  vmm::fake_driver driver;
  vmm::manager_options options;
  options.shareable = vmm::share_kind::posix_fd;
  {
    vmm::manager blocks(driver, options);
    const vmm::address before = *blocks.allocate(2 * MiB);
    ASSERT_TRUE(blocks.history().start({}));
    EXPECT_EQ(blocks.history().start({}).error().code, vmm::errc::in_use);
    const vmm::address source = *blocks.allocate(4 * MiB);
    const vmm::address target = *blocks.allocate(4 * MiB);
    ASSERT_TRUE(blocks.synchronize(source));
    ASSERT_TRUE(blocks.copy({.target = target, .source = source, .size_bytes = 4 * MiB},
                            vmm::copy_mode::alias));
    ASSERT_TRUE(blocks.exports().begin(before, vmm::export_rule::pinned));
    ASSERT_TRUE(blocks.exports().end(before));
    blocks.history().record({history_kind::suspended, {target, 4 * MiB}});
    blocks.history().record({history_kind::resumed, {target, 4 * MiB}});
    const vmm::history taken = *blocks.history().stop();
    const replica seen(taken);
    for (const history_kind each :
         {history_kind::grow, history_kind::served, history_kind::blocked, history_kind::passed,
          history_kind::pinned, history_kind::unpinned, history_kind::suspended,
          history_kind::resumed})
      EXPECT_TRUE(seen.counts.contains(each)) << vmm::name_of(each);
    EXPECT_EQ(fact(taken, "live_count"), 3u);
    const std::uint64_t copied = blocks.statistics().remapped_copy_count;
    EXPECT_EQ(seen.counts.contains(history_kind::remapped) ? 1u : 0u, copied);
    EXPECT_EQ(blocks.history().take().error().code, vmm::errc::invalid_argument) << "it has ended";
    for (const vmm::address each : {before, source, target}) ASSERT_TRUE(blocks.free(each));
  }
  EXPECT_TRUE(driver.check_empty());
}

TEST(ManagerHistory, WhoStandsOnAManagerThatIsNotSetUpRecordsNothing) {
  vmm::fake_driver driver;
  const auto ring = *vmm::history_ring::make({});
  vmm::manager_options options;
  options.recorder = ring.get();
  vmm::manager blocks(driver, options);
  blocks.history().record({history_kind::suspended, {{4096}, 512}});
  EXPECT_EQ(ring->event_count(), 0u) << "the ring may be another's until then";
}

// Memory that was drained for it is gone, and the history says so.
TEST(ManagerHistory, AResizeThatIsShortOfMemoryIsAShortage) {
  vmm::fake_driver driver;
  vmm::history_options how;
  how.shortage_path = testing::TempDir() + "vmm_resize_history" + std::to_string(::getpid());
  how.shortage_count_max = 1;
  const auto ring = *vmm::history_ring::make(how);
  vmm::manager_options options;
  options.recorder = ring.get();
  options.budget_bytes = 64 * MiB;
  {
    vmm::manager blocks(driver, options);
    const vmm::address block = *blocks.allocate(8 * MiB);
    const vmm::address other = *blocks.allocate(16 * MiB);
    ASSERT_TRUE(blocks.free(other));
    ASSERT_FALSE(blocks.resize({.at = block, .size_bytes = 100 * MiB}));
    const vmm::history taken = *blocks.history().take();
    replica seen(taken);
    EXPECT_EQ(seen.counts[history_kind::short_of_memory], 1u);
    EXPECT_EQ(seen.held_bytes, fact(taken, "held_bytes"));
    EXPECT_TRUE(std::filesystem::remove(how.shortage_path + ".0"));
    EXPECT_FALSE(blocks.resize({.at = block, .size_bytes = 0}));
    EXPECT_EQ(replica(*blocks.history().take()).counts[history_kind::short_of_memory], 1u);
    ASSERT_TRUE(blocks.free(block));
  }
  EXPECT_TRUE(driver.check_empty());
}

// What is listed is what the events before it leave, whatever others do meanwhile.
TEST(ManagerHistory, ALookBesideWorkingThreadsIsOfOneMoment) {
  vmm::fake_driver driver;
  {
    vmm::manager blocks(driver);
    ASSERT_TRUE(blocks.set_up());
    ASSERT_TRUE(blocks.history().start({}));
    std::atomic<int> working_count = 2;
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 2; ++seed) {
      threads.emplace_back([&blocks, &working_count, seed] {
        std::mt19937 random(seed);
        vmm::address own = *blocks.allocate(MiB);
        for (int i = 0; i < 150; ++i) {
          const std::uint64_t size = 1 + random() % (9 * MiB);
          if (const auto at = blocks.resize({.at = own, .size_bytes = size})) own = *at;
          if (random() % 4 != 0) continue;
          EXPECT_TRUE(blocks.free(own));
          own = *blocks.allocate(1 + random() % (5 * MiB));
        }
        EXPECT_TRUE(blocks.free(own));
        --working_count;
      });
    }
    std::vector<vmm::history> looks;
    do looks.push_back(*blocks.history().take());
    while (working_count != 0);
    for (std::thread& each : threads) each.join();
    looks.push_back(*blocks.history().stop());
    for (const vmm::history& each : looks) {
      const replica seen(each);
      std::map<std::uint64_t, std::uint64_t> live;
      for (const vmm::history_region& region : each.regions) {
        if (region.kind == vmm::history_region_kind::live)
          live[region.where.base.value] = region.where.size_bytes;
      }
      ASSERT_EQ(std::vector(live.begin(), live.end()),
                std::vector(seen.live.begin(), seen.live.end()));
      ASSERT_EQ(fact(each, "live_bytes"), seen.live_bytes);
      ASSERT_EQ(fact(each, "held_bytes"), seen.held_bytes);
      ASSERT_TRUE(vmm::decode_history(*vmm::encode_history(each)));
    }
  }
  EXPECT_TRUE(driver.check_empty());
}

}  // namespace
