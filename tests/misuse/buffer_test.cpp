// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: deallocate, which returns no error, ends the process for a wrong address and for nothing
// else, and an allocator destroyed before its buffers is reported.
// Method: each wrong use in a child that must end with a text; in a forked child, where blocks are
// the parent's, and on a captured stream the call must not end it.
#include "fixture.hpp"

import vmm.containers;
import vmm.host;

namespace misuse {

using vmm::address, vmm::device_buffer;

using PoolDeallocateMisuseDeathTest = PoolMisuse;
using ManagerDeallocateMisuseDeathTest = ManagerMisuse;

TEST_F(PoolDeallocateMisuseDeathTest, WrongAddress) {
  const std::string text = check_failed(
      "deallocate of an address that is not a live block of this stream pool, or on a stream");
  open();
  const address at = allocate(4 * KiB, a);
  EXPECT_DEATH(pool->deallocate(at + 512, 4 * KiB, 256, a), text) << "inside a block";
  EXPECT_DEATH(pool->deallocate(address{4096}, 4 * KiB, 256, a), text) << "unknown";
  EXPECT_DEATH(pool->deallocate(address{}, 4 * KiB, 256, a), text) << "null";
  pool->deallocate(at, 4 * KiB, 256, a);
  EXPECT_DEATH(pool->deallocate(at, 4 * KiB, 256, a), text) << "twice";
}

TEST_F(ManagerDeallocateMisuseDeathTest, WrongAddress) {
  const std::string text = check_failed(
      "deallocate of an address that is not a live block of this manager, or on a stream");
  const address at = allocate(4 * MiB);
  EXPECT_DEATH(manager->deallocate(at + 512, 4 * MiB, 256, a), text) << "inside a block";
  EXPECT_DEATH(manager->deallocate(address{4096}, 4 * MiB, 256, a), text) << "unknown";
  EXPECT_DEATH(manager->deallocate(address{}, 4 * MiB, 256, a), text) << "null";
  EXPECT_DEATH(manager->deallocate(at, 4 * MiB, 256, vmm::stream_handle{0x7777}), text)
      << "a stream that never was";
  reports_gone_streams = true;
  manager->deallocate(at, 4 * MiB, 256, a);
  EXPECT_DEATH(manager->deallocate(at, 4 * MiB, 256, a), text) << "twice";
}

TEST_F(ManagerDeallocateMisuseDeathTest, BlockInUse) {
  const std::string text = check_failed("deallocate of a block that another thread is changing");
  vmm::manager memory(driver, {.shareable = vmm::share_kind::posix_fd});
  const address at = memory.allocate({.size_bytes = 4 * MiB, .stream = a}).value();
  ASSERT_TRUE(memory.exports().begin(at, vmm::export_rule::pinned));
  EXPECT_DEATH(memory.deallocate(at, 4 * MiB, 256, a), text) << "exported";
  EXPECT_EQ(code_of(memory.free(at, a)), vmm::errc::in_use) << "free returns an error";
  ASSERT_TRUE(memory.exports().end(at));
  memory.deallocate(at, 4 * MiB, 256, a);
  EXPECT_EQ(memory.statistics().live_count, 0u);
}

// A capture is often made by other code: the block stays live, and can be freed later.
TEST_F(PoolMisuse, DeallocatedOnACapturedStream) {
  open();
  const address at = allocate(4 * KiB, a);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::relaxed));
  pool->deallocate(at, 4 * KiB, 256, a);
  EXPECT_EQ(pool->statistics().live_count, 1u);
  const auto graph = driver.end_capture(a);
  ASSERT_TRUE(graph) << "the capture is not spoiled";
  ASSERT_TRUE(driver.destroy_graph(*graph));
  pool->deallocate(at, 4 * KiB, 256, a);
  EXPECT_EQ(pool->statistics().live_count, 0u);
}

TEST_F(PoolMisuse, BuffersDestroyedAfterAFork) {
  open();
  std::optional<device_buffer> of_pool = device_buffer::allocate(*pool, MiB, a).value();
  vmm::manager memory(driver);
  std::optional<device_buffer> of_manager = device_buffer::allocate(memory, MiB, a).value();
  const int code = code_of_child([&] {
    of_pool->reset();
    of_pool.reset();
    of_manager.reset();
    return 7;
  });
  EXPECT_EQ(code, 7);
  EXPECT_EQ(pool->statistics().live_count + memory.statistics().live_count, 2u);
}

// ---- lifetimes -----------------------------------------------------------------------

TEST_F(PoolDeallocateMisuseDeathTest, PoolDestroyedBeforeItsBuffer) {
  const std::string text =
      check_failed("a stream pool is destroyed while a buffer uses it: destroy the buffers first");
  open();
  auto buffer = std::make_unique<device_buffer>(*pool, a);
  EXPECT_DEATH(pool.reset(), text) << "an empty one would reach it by growing";
  *buffer = device_buffer::allocate(*pool, 4 * KiB, a).value();
  EXPECT_DEATH(pool.reset(), text);
  const device_buffer taken = std::move(*buffer);
  buffer.reset();
  EXPECT_DEATH(pool.reset(), text) << "the one that it was moved to";
}

TEST_F(ManagerDeallocateMisuseDeathTest, ManagerDestroyedBeforeItsBuffer) {
  const std::string text =
      check_failed("a manager is destroyed while a vector or buffer uses it: destroy those first");
  const auto buffer = device_buffer::allocate(*manager, MiB, a).value();
  EXPECT_DEATH(manager.reset(), text);
}

TEST(ResourceMisuseDeathTest, PoolDestroyedBeforeItsMemoryResource) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto driver = vmm::host_driver::open().value();
  std::optional<vmm::stream_pool> pool(std::in_place, driver);
  const auto resource = vmm::host_memory_resource::open(*pool).value();
  EXPECT_DEATH(pool.reset(), check_failed("a stream pool is destroyed while a buffer uses it"));
}

}  // namespace misuse
