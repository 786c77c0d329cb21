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

}  // namespace
