// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each profile plays its driver, traps included.
// Method: for each trap, the call that runs into it on the profile that has it, and the same call
// on one that has not.
#include "bench.h"

namespace fake_test {
namespace {

using vmm::fake::misuse_kind, vmm::fake::profile;

struct LevelZero : ::testing::Test, workbench {
  LevelZero() : workbench(profile::level_zero()) {}
  void TearDown() override { clear(); }
};

struct Linux : ::testing::Test, workbench {
  Linux() : workbench(profile::host()) {}
  void TearDown() override { clear(); }
};

TEST_F(LevelZero, ACutUnmapReportsSuccessAndSkips) {
  const auto range = reserved(8 * MiB);
  mapped(range.base, created(4 * MiB), 4 * MiB);
  mapped(range.base + 4 * MiB, created(4 * MiB), 4 * MiB);
  EXPECT_TRUE(driver.unmap({range.base, 2 * MiB}));
  EXPECT_TRUE(driver.unmap({range.base + 2 * MiB, 4 * MiB}));
  EXPECT_EQ(driver.resource_counts().mappings, 2u);
  EXPECT_TRUE(driver.unmap({range.base, 6 * MiB}));
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
  EXPECT_EQ(driver.misuse_count(misuse_kind::cut_mapping), 3u);
}

TEST_F(LevelZero, RightsAreKeptPerReservation) {
  const auto range = reserved(4 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  mapped(range.base + 2 * MiB, created(2 * MiB), 2 * MiB);
  ASSERT_TRUE(open({range.base, 2 * MiB}, vmm::access::none));
  EXPECT_EQ(*driver.get_access(range.base + 2 * MiB, driver.home()), vmm::access::none);
}

TEST_F(LevelZero, TheHintIsIgnored) {
  const auto range = reserved(4 * MiB);
  const vmm::address wish = range.base + 1 * GiB;
  const auto other = *driver.reserve({4 * MiB, 0, wish});
  ranges.push_back(other);
  EXPECT_NE(other.base, wish);
}

TEST_F(LevelZero, ChangingRightsMapsTheMemoryAnewFromItsStart) {
  const auto range = reserved(8 * MiB);
  const auto handle = created(4 * MiB);
  mapped(range.base, handle, 4 * MiB);
  ASSERT_TRUE(driver.write_tag({range.base, 2 * MiB}, 1));
  ASSERT_TRUE(driver.write_tag({range.base + 2 * MiB, 2 * MiB}, 2));
  ASSERT_TRUE(driver.unmap({range.base, 4 * MiB}));
  ASSERT_TRUE(driver.map({range.base, 2 * MiB, handle, 2 * MiB}));
  ASSERT_TRUE(open({range.base, 2 * MiB}));
  EXPECT_EQ(*driver.read_tag(range.base), 1u);  // not the 2 that was mapped there
}

TEST_F(LevelZero, OnlyAnEqualStartIsSeenAsOverlap) {
  const auto range = reserved(8 * MiB);
  mapped(range.base, created(4 * MiB), 4 * MiB);
  const auto other = created(4 * MiB);
  EXPECT_FALSE(driver.map({range.base, 4 * MiB, other, 0}));
  EXPECT_TRUE(driver.map({range.base + 2 * MiB, 4 * MiB, other, 0}));
  EXPECT_EQ(driver.misuse_count(misuse_kind::double_map), 2u);
}

TEST_F(LevelZero, GranularityDependsOnTheSize) {
  EXPECT_EQ(driver.query_granularity({64 * KiB, driver.home()})->minimum_bytes, 64 * KiB);
  EXPECT_EQ(driver.query_granularity({2 * MiB, driver.home()})->minimum_bytes, 2 * MiB);
  (void)created(192 * KiB);
  const auto odd = driver.create({2 * MiB + 64 * KiB, driver.home()});
  ASSERT_FALSE(odd);
  EXPECT_STREQ(odd.error().native_name, "ZE_RESULT_ERROR_UNSUPPORTED_SIZE");
}

TEST_F(LevelZero, MemoryIsReleasedWhileMappedWithoutAWord) {
  const auto range = reserved(2 * MiB);
  const auto handle = driver.create({2 * MiB, driver.home()});
  mapped(range.base, *handle, 2 * MiB);
  EXPECT_TRUE(driver.release(*handle));
  EXPECT_EQ(driver.misuse_count(misuse_kind::released_while_mapped), 1u);
}

TEST_F(LevelZero, EveryLocationHasTheSameRights) {
  const auto range = reserved(2 * MiB);
  ASSERT_TRUE(driver.map({range.base, 2 * MiB, created(2 * MiB), 0}));
  const vmm::access_grant differing[] = {{vmm::device(0), vmm::access::read_write},
                                         {vmm::host(), vmm::access::read}};
  EXPECT_EQ(code(driver.set_access(range, differing)), 0x78000003);
  ASSERT_TRUE(open(range));
  EXPECT_EQ(*driver.get_access(range.base, vmm::host()), vmm::access::read_write);
}

TEST_F(LevelZero, ReadOnlyIsAHint) {
  const auto range = reserved(2 * MiB);
  mapped(range.base, created(2 * MiB), 2 * MiB);
  ASSERT_TRUE(open(range, vmm::access::read));
  EXPECT_TRUE(driver.write_tag(range, 3));
  EXPECT_EQ(*driver.read_tag(range.base), 3u);
  EXPECT_GT(driver.misuse_count(misuse_kind::no_access), 0u);
}

TEST_F(Linux, MapOverAMappingReplacesItSilently) {
  const auto range = reserved(16 * KiB);
  const auto first = created(16 * KiB);
  const auto second = created(8 * KiB);
  mapped(range.base, first, 16 * KiB);
  ASSERT_TRUE(driver.write_tag(range, 1));
  EXPECT_TRUE(driver.map({range.base + 4 * KiB, 8 * KiB, second, 0}));
  ASSERT_TRUE(open(range));
  EXPECT_EQ(*driver.read_tag(range.base), 1u);
  EXPECT_EQ(*driver.read_tag(range.base + 4 * KiB), 0u);
  EXPECT_EQ(*driver.read_tag(range.base + 12 * KiB), 1u);
  EXPECT_EQ(driver.resource_counts().mappings, 3u);
  EXPECT_EQ(driver.misuse_count(misuse_kind::double_map), 1u);
}

TEST_F(Linux, MappingPastTheEndSucceedsAndFaultsWhenUsed) {
  const auto range = reserved(16 * KiB);
  const auto handle = created(8 * KiB);
  ASSERT_TRUE(driver.map({range.base, 16 * KiB, handle, 0}));
  ASSERT_TRUE(open(range));
  EXPECT_TRUE(driver.read_tag(range.base + 4 * KiB));
  EXPECT_FALSE(driver.read_tag(range.base + 8 * KiB));
  EXPECT_EQ(driver.misuse_count(misuse_kind::past_the_end), 1u);
}

TEST_F(Linux, SetAccessOverAHoleSucceeds) {
  const auto range = reserved(16 * KiB);
  ASSERT_TRUE(driver.map({range.base + 8 * KiB, 4 * KiB, created(4 * KiB), 0}));
  EXPECT_TRUE(open(range));
  EXPECT_EQ(*driver.get_access(range.base + 8 * KiB, driver.home()), vmm::access::read_write);
  EXPECT_GT(driver.misuse_count(misuse_kind::access_over_hole), 0u);
}

TEST(LinuxTrap, ARefusedSetAccessHasChangedWhatCameBeforeTheBadPlace) {
  auto plays = profile::host();
  plays.traps.access_over_hole = false;
  workbench bench{plays};
  const auto range = bench.reserved(12 * KiB);
  ASSERT_TRUE(bench.driver.map({range.base, 4 * KiB, bench.created(4 * KiB), 0}));
  ASSERT_TRUE(bench.driver.map({range.base + 8 * KiB, 4 * KiB, bench.created(4 * KiB), 0}));
  EXPECT_FALSE(bench.open(range));
  EXPECT_EQ(*bench.driver.get_access(range.base, vmm::host()), vmm::access::read_write);
  EXPECT_EQ(*bench.driver.get_access(range.base + 8 * KiB, vmm::host()), vmm::access::none);
  bench.clear();
}

TEST_F(Linux, FreeingAReservationUnmapsIt) {
  const auto range = driver.reserve({16 * KiB, 0, {}});
  const auto handle = driver.create({16 * KiB, driver.home()});
  mapped(range->base, *handle, 16 * KiB);
  EXPECT_TRUE(driver.release(*handle));
  EXPECT_TRUE(driver.free_reservation(*range));
  EXPECT_EQ(driver.misuse_count(misuse_kind::freed_while_mapped), 1u);
  EXPECT_TRUE(driver.resource_counts().empty());
}

TEST(LinuxLimit, MappingsRunOut) {
  auto plays = profile::host();
  plays.can.max_mapping_count = 3;
  workbench bench{plays};
  const auto range = bench.reserved(32 * KiB);
  const auto handle = bench.created(4 * KiB);
  for (std::uint64_t i = 0; i < 3; ++i) bench.mapped(range.base + i * 8 * KiB, handle, 4 * KiB);
  const auto answer = bench.driver.map({range.base + 24 * KiB, 4 * KiB, handle, 0});
  EXPECT_EQ(answer.error().code, vmm::errc::out_of_mappings);
  EXPECT_STREQ(answer.error().native_name, "ENOMEM");
  bench.clear();
}

TEST(Profiles, WhatAProfileSaysIsWhatTheDriverHas) {
  auto plays = profile::cuda();
  plays.device_memory_bytes = 16 * MiB;
  plays.home = vmm::device(1);
  plays.device_count = 2;
  plays.can.offset_map = true;
  plays.can.short_map = true;
  workbench bench{plays};
  EXPECT_EQ(bench.driver.name(), std::string_view{"fake-cuda"});
  EXPECT_EQ(bench.driver.home(), vmm::device(1));
  const auto handle = bench.created(16 * MiB);
  EXPECT_EQ(code(bench.driver.create({2 * MiB, vmm::device(1)})), out_of_memory);
  const auto elsewhere = bench.driver.create({2 * MiB, vmm::device(0)});
  EXPECT_TRUE(elsewhere);
  bench.handles.push_back(*elsewhere);
  const auto range = bench.reserved(4 * MiB);
  EXPECT_EQ(code(bench.driver.map({range.base, 4 * MiB, handle, 8 * MiB})), success);
  EXPECT_EQ(code(bench.driver.create({2 * MiB, vmm::device(2)})), 101);
  bench.clear();
}

}  // namespace
}  // namespace fake_test
