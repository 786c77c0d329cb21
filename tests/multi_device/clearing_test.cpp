// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what a policy of contents promises holds at every reuse: a byte of the block before is
// never seen where it says so, in managers and in pools.
// Method: 1,000 blocks of changing sizes, each looked at from end to end when it comes and filled
// with a byte of its own before it goes, on the fake driver, whose memory keeps what was written.
#include "../support/fake_fixture.h"
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace {

using sizes::MiB;
using vmm::address;
using vmm::contents_rule;
using vmm::errc;

constexpr int reuse_count = 1000;
constexpr std::uint64_t every_byte = 0x0101'0101'0101'0101U;
constexpr std::uint64_t poisoned = vmm::poison_byte * every_byte;

// The word at both ends and at each granule between: what a fill or a tag leaves is uniform.
bool reads_as(vmm::fake_driver& driver, vmm::address_range range, std::uint64_t word) {
  for (std::uint64_t at = 0; at < range.size_bytes; at += 2 * MiB) {
    if (*driver.read_tag(range.base + at) != word) return false;
  }
  return *driver.read_tag(range.base + (range.size_bytes - 8)) == word;
}

void soil(vmm::fake_driver& driver, vmm::address_range range, int round) {
  const auto value = static_cast<std::uint8_t>(1 + round % 200);
  ASSERT_TRUE(driver.fill({range, value, {}}));
  ASSERT_TRUE(driver.finish_all());
}

constexpr std::array<std::uint64_t, 5> block_bytes{2 * MiB, 6 * MiB, 64 * MiB, 4 * MiB, 30 * MiB};

// Seen on acquire, over `reuse_count` blocks, two of them live at a time.
template <class Allocate, class Free>
std::uint64_t count_old(vmm::fake_driver& driver, std::uint64_t word, Allocate allocate,
                        Free free) {
  std::uint64_t old_count = 0;
  vmm::address_range before{};
  for (int round = 0; round < reuse_count; ++round) {
    const std::uint64_t size_bytes = block_bytes[static_cast<std::size_t>(round) % 5];
    const vmm::address_range now{allocate(size_bytes), size_bytes};
    EXPECT_TRUE(driver.finish_all());
    if (!reads_as(driver, now, word)) ++old_count;
    soil(driver, now, round);
    if (!before.empty()) free(before.base);
    before = now;
  }
  free(before.base);
  return old_count;
}

std::uint64_t old_in_manager(contents_rule rule, std::uint64_t word, const vmm::policy& rules) {
  vmm::fake_driver driver;
  std::uint64_t seen = 0;
  {
    vmm::manager managed(driver, {{.contents = rule}, rules});
    seen = count_old(
        driver, word, [&](std::uint64_t size) { return *managed.allocate(size); },
        [&](address at) { EXPECT_TRUE(managed.free(at)); });
  }
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.check_empty());
  return seen;
}

std::uint64_t old_in_pool(contents_rule rule, std::uint64_t word) {
  vmm::fake_driver driver;
  std::uint64_t seen = 0;
  {
    vmm::stream_pool pool(driver, {{.contents = rule}});
    seen = count_old(
        driver, word, [&](std::uint64_t size) { return *pool.allocate(size, {}); },
        [&](address at) { EXPECT_TRUE(pool.free(at, {})); });
  }
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.check_empty());
  return seen;
}

TEST(Contents, OldBytesAreSeenWhereNothingIsPromised) {
  EXPECT_GT(old_in_manager(contents_rule::none, 0, vmm::policy::va_pool()), 0u)
      << "or the other tests could not fail";
  EXPECT_GT(old_in_pool(contents_rule::none, 0), 0u);
}

TEST(Contents, ZeroOnAcquireShowsNoOldByteIn1000Reuses) {
  for (const vmm::policy& rules :
       {vmm::policy::va_pool(), vmm::policy::keep_mapped(), vmm::policy::virtual_caching()})
    EXPECT_EQ(old_in_manager(contents_rule::zero_on_acquire, 0, rules), 0u) << rules.name;
  EXPECT_EQ(old_in_pool(contents_rule::zero_on_acquire, 0), 0u);
}

// Fresh memory of the fake reads as zero, so that a reuse alone could show an old byte.
TEST(Contents, ZeroOnReleaseLeavesNoByteToTheNext) {
  for (const vmm::policy& rules : {vmm::policy::va_pool(), vmm::policy::keep_mapped()})
    EXPECT_EQ(old_in_manager(contents_rule::zero_on_release, 0, rules), 0u) << rules.name;
  EXPECT_EQ(old_in_pool(contents_rule::zero_on_release, 0), 0u);
}

TEST(Contents, PoisonIsReadBeforeTheFirstWrite) {
  EXPECT_EQ(old_in_manager(contents_rule::poison, poisoned, vmm::policy::va_pool()), 0u);
  EXPECT_EQ(old_in_pool(contents_rule::poison, poisoned), 0u);
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
