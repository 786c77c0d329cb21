// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a pool aligns blocks to any power of two up to 2 MiB, holds no memory for it, and memory
// beside an aligned block stays free. Method: on the fake driver; created memory is counted, and
// the free memory around aligned blocks is allocated to its last granule. Random alignments are
// model_test.cpp's, prove_schedules' and fuzz_stream's.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::call, vmm::errc;

struct Aligned : FakePool {
  address allocate_at(std::uint64_t alignment_bytes, std::uint64_t size_bytes,
                      vmm::stream_handle stream) {
    const auto at = managed->allocate(size_bytes, alignment_bytes, stream);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    if (at) EXPECT_EQ(at->value % alignment_bytes, 0u);
    return at.value_or(address{});
  }
  [[nodiscard]] std::uint64_t held_bytes() const { return driver.resource_counts().memory_bytes; }
};

TEST_F(Aligned, MemoryBesideABlockStaysFree) {
  open(moving());
  const address first = allocate(512, a);
  const address page = allocate_at(4 * KiB, 100, a);
  const address wide = allocate_at(64 * KiB, 64 * KiB, a);
  EXPECT_EQ(page - first, 4 * KiB);
  EXPECT_EQ(wide - first, 64 * KiB);
  const vmm::pool_statistics now = managed->statistics();
  EXPECT_EQ(now.live_bytes, 512 + 512 + 64 * KiB);
  EXPECT_EQ(now.peak_live_bytes, now.live_bytes) << "the search for a place counts as live";
  EXPECT_EQ(now.live_bytes + now.reusable_bytes, 2 * MiB);
  const address head = allocate(4 * KiB - 512, a);
  const address middle = allocate(60 * KiB - 512, a);
  EXPECT_EQ(head - first, 512u);
  EXPECT_EQ(middle - page, 512u);
  EXPECT_EQ(held_bytes(), 2 * MiB);
  for (const address at : {first, page, wide, head, middle}) free(at, a);
  EXPECT_EQ(managed->regions()->front().range.size_bytes, 2 * MiB);  // all of it
}

TEST_F(Aligned, NewMemoryIsNoMoreThanForAnyBlock) {
  open(moving(), &vmm::pool_options::budget_bytes, 8 * MiB);
  for (int i = 0; i < 4; ++i) allocate_at(2 * MiB, 2 * MiB, a);
  EXPECT_EQ(held_bytes(), 8 * MiB);
  EXPECT_EQ(managed->allocate(512, 2 * MiB, a).error().code, errc::over_budget);
  EXPECT_EQ(managed->last_shortage().request_bytes, 512u);
}

// The free memory that a growth would continue begins off the alignment, and the budget has no page
// for that.
TEST_F(Aligned, TheLastPageOfABudgetServes) {
  open(moving(), &vmm::pool_options::budget_bytes, 4 * MiB);
  allocate(MiB + 512, a);
  allocate_at(2 * MiB, 2 * MiB, a);
  EXPECT_EQ(held_bytes(), 4 * MiB);
}

TEST_F(Aligned, AWarmRequestMakesNoDriverCall) {
  free(allocate(8 * MiB, a), a);
  const std::uint64_t before = driver.calls();
  for (int i = 0; i < 100; ++i) {
    const address small = allocate(512, a);
    const address page = allocate_at(4 * KiB, 10 * KiB, a);
    const address wide = allocate_at(2 * MiB, 3 * MiB, a);
    for (const address at : {small, page, wide}) free(at, a);
  }
  EXPECT_EQ(driver.calls(), before);
  EXPECT_EQ(managed->statistics().live_bytes, 0u);
}

TEST_F(Aligned, MemoryOfAnotherStreamServesAndItsRestStaysThatStreams) {
  open(moving());
  const address whole = allocate(6 * MiB, a);
  free(whole, a);
  allocate(512, a);
  ASSERT_TRUE(driver.finish_all());
  const address at = allocate_at(64 * KiB, MiB, b);
  EXPECT_EQ(at - whole, 64 * KiB);
  EXPECT_EQ(held_bytes(), 6 * MiB);
  EXPECT_EQ(allocate(64 * KiB - 512, a) - whole, 512u);
}

TEST_F(Aligned, BesideArenasToo) {
  open({}, &vmm::pool_options::stream_arenas, vmm::arena_rule::always);
  std::vector<address> blocks;
  for (int i = 0; i < 32; ++i) {
    blocks.push_back(allocate(1000, a));
    blocks.push_back(allocate_at(std::uint64_t{512} << i % 13, 1000, a));
  }
  for (const address at : blocks) free(at, a);
  EXPECT_EQ(managed->statistics().live_bytes, 0u);
}

TEST_F(Aligned, BlocksOfACapturedGraphToo) {
  open(moving(), &vmm::pool_options::capture, vmm::capture_rule::private_memory);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  const std::uint64_t number = managed->captures().number(a).value_or(0);
  const address small = allocate(512, a);
  const address at = allocate_at(64 * KiB, MiB, a);
  EXPECT_EQ(at - small, 64 * KiB);
  free(at, a);
  EXPECT_EQ(allocate_at(64 * KiB, MiB, a), at) << "within a capture memory is used again";
  free(at, a);
  free(small, a);
  const auto graph = *driver.end_capture(a);
  validate();
  fine(managed->captures().release(number, a));
  ASSERT_TRUE(driver.destroy_graph(graph));
}

TEST_F(Aligned, UnderThePolicyOfTheSourceToo) {
  open({}, &vmm::pool_options::policy, vmm::pool_policy::vpmm());
  for (const std::uint64_t size_bytes : {std::uint64_t{512}, 2 * MiB, 3 * MiB, 64 * KiB, 5 * MiB})
    allocate_at(2 * MiB, size_bytes, a);
}

TEST_F(Aligned, WhatCannotBeIsRefusedAndChangesNothing) {
  for (const std::uint64_t none : {std::uint64_t{0}, std::uint64_t{3}, 2 * MiB + 1})
    EXPECT_EQ(managed->allocate(512, none, a).error().code, errc::invalid_argument) << none;
  for (const std::uint64_t much : {4 * MiB, std::uint64_t{1} << 63}) {
    const auto refused = managed->allocate(512, much, a);
    EXPECT_EQ(refused.error().code, errc::not_supported);
    EXPECT_TRUE(contains(refused.error().detail, "2 MiB"));
  }
  EXPECT_EQ(managed->allocate(0, 4 * KiB, a).error().code, errc::invalid_argument);
  const std::uint64_t huge = ~std::uint64_t{0};
  EXPECT_EQ(managed->allocate(huge, 2 * MiB, a).error().code, errc::out_of_memory);
  EXPECT_EQ(managed->statistics().live_count, 0u);
  EXPECT_EQ(held_bytes(), 0u);
}

// The bytes of the block are filled, and none beside it.
TEST_F(Aligned, AFillTakesTheBlockAlone) {
  open(moving(), &vmm::pool_options::contents, vmm::contents_rule::zero_on_acquire);
  allocate(512, a);
  const std::uint64_t before = driver.calls(call::fill);
  allocate_at(4 * KiB, 4 * KiB, a);
  EXPECT_EQ(driver.calls(call::fill), before + 1);
}

}  // namespace
