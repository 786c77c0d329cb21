// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a freed block is poisoned at once, a grown one is zero where it grew, and a refused fill
// changes nothing. Reuses are old_bytes_test.cpp's.
// Method: each once, on the fake driver, whose memory keeps what was written.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace {

using vmm::address, vmm::contents_rule, vmm::errc;

constexpr std::uint64_t every_byte = 0x0101'0101'0101'0101U;
constexpr std::uint64_t poisoned = vmm::poison_byte * every_byte;

// The word at both ends and at each granule between: what a fill or a tag leaves is uniform.
bool reads_as(vmm::fake_driver& driver, vmm::address_range range, std::uint64_t word) {
  for (std::uint64_t at = 0; at < range.size_bytes; at += 2 * MiB)
    if (*driver.read_tag(range.base + at) != word) return false;
  return *driver.read_tag(range.base + (range.size_bytes - 8)) == word;
}

void soil(vmm::fake_driver& driver, vmm::address_range range, int round) {
  const auto value = static_cast<std::uint8_t>(1 + round % 200);
  ASSERT_TRUE(driver.fill({range, value, {}}));
  ASSERT_TRUE(driver.finish_all());
}

TEST(Contents, PoisonIsReadAfterTheFree) {
  vmm::fake_driver driver;
  vmm::stream_pool pool(driver, {{.contents = contents_rule::poison}});
  const address at = *pool.allocate(4 * MiB, {});
  soil(driver, {at, 4 * MiB}, 1);
  ASSERT_TRUE(pool.free(at, {}));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(reads_as(driver, {at, 4 * MiB}, poisoned)) << "it is mapped still";
}

TEST(Contents, AGrownBlockIsZeroWhereItGrew) {
  vmm::fake_driver driver;
  vmm::manager managed(driver, {{.contents = contents_rule::zero_on_acquire}});
  const address dirty = *managed.allocate(64 * MiB);
  soil(driver, {dirty, 64 * MiB}, 3);
  ASSERT_TRUE(managed.free(dirty));
  const address at = *managed.allocate({.size_bytes = 8 * MiB, .growth_bytes = 64 * MiB});
  soil(driver, {at, 8 * MiB}, 4);
  ASSERT_TRUE(managed.resize({at, 48 * MiB}));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_TRUE(reads_as(driver, {at, 8 * MiB}, 5 * every_byte));
  EXPECT_TRUE(reads_as(driver, {at + 8 * MiB, 40 * MiB}, 0));
  const address fence = *managed.allocate(2 * MiB);
  EXPECT_EQ(managed.resize({at, 8192 * MiB}).error().code, errc::out_of_addresses)
      << "it grows in place only";
  ASSERT_TRUE(managed.free(at));
  ASSERT_TRUE(managed.free(fence));
}

TEST(Contents, AFillThatIsRefusedLeavesEverythingAsItWas) {
  vmm::fake_driver driver;
  const auto failure = driver.possible_errors(vmm::call::fill).front();
  {
    vmm::manager managed(driver, {{.contents = contents_rule::zero_on_acquire}});
    driver.fail({vmm::call::fill, 1, false, failure});
    EXPECT_EQ(managed.allocate(8 * MiB).error().native, failure.native);
    EXPECT_EQ(managed.statistics().live_count, 0u);
    const address at = *managed.allocate({.size_bytes = 8 * MiB, .growth_bytes = 8 * MiB});
    driver.fail({vmm::call::fill, 1, false, failure});
    EXPECT_EQ(managed.resize({at, 16 * MiB}).error().native, failure.native);
    EXPECT_EQ(managed.find(at)->sizes.user_bytes, 8 * MiB);
    ASSERT_TRUE(managed.free(at));
    vmm::stream_pool pool(driver, {{.contents = contents_rule::poison}});
    driver.fail({vmm::call::fill, 1, false, failure});
    EXPECT_EQ(pool.allocate(8 * MiB, {}).error().native, failure.native);
    EXPECT_EQ(pool.statistics().live_count, 0u);
    const address kept = *pool.allocate(8 * MiB, {});
    driver.fail({vmm::call::fill, 1, false, failure});
    EXPECT_EQ(pool.free(kept, {}).error().native, failure.native);
    EXPECT_EQ(pool.statistics().live_count, 1u);
    EXPECT_EQ(pool.free(kept).error().code, errc::not_supported) << "a fill needs a stream";
    ASSERT_TRUE(pool.pin(kept));
    EXPECT_EQ(pool.free(kept, {}).error().code, errc::in_use);
    ASSERT_TRUE(pool.unpin(kept));
    ASSERT_TRUE(pool.free(kept, {}));
    EXPECT_EQ(pool.free(kept, {}).error().code, errc::not_allocated);
  }
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.check_empty()) << driver.report();
}

}  // namespace
