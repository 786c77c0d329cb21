// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an announced request finds its memory: preallocate() creates within the headroom, moves
// free memory without making a stream wait, stops when nothing is left to do, and leaves live
// blocks unchanged; beside captures, suspension, pins, budgets and arenas.
// Method: a pool on the fake driver, whose counts of calls say what a request needed. That every
// failing driver call leaves all as it was is in the sweeps (scenarios.h), that threads may call it
// at any time in tests/threads.
#include "fake_pool.hpp"

import vmm.backend;
import vmm.optimizer;

namespace {

struct Preallocate : FakePool {
  // Calls that make, move or take away memory.
  [[nodiscard]] std::uint64_t memory_calls() const {
    return driver.calls(vmm::call::create) + driver.calls(vmm::call::map) +
           driver.calls(vmm::call::unmap);
  }
  vmm::preallocate_report announce(std::uint64_t size_bytes, vmm::stream_handle stream) {
    const vmm::preallocate_report done = managed->preallocate(size_bytes, stream);
    EXPECT_EQ(done.failure.code, vmm::errc::none) << vmm::describe(done.failure);
    validate();
    return done;
  }
  // Free handles of one page, none beside another.
  void scatter(int count, vmm::stream_handle stream) {
    std::vector<vmm::address> gone;
    for (int i = 0; i < count; ++i) {
      gone.push_back(allocate(2 * MiB, stream));
      allocate(2 * MiB, a);
    }
    for (const vmm::address at : gone) free(at, stream);
  }
};

TEST_F(Preallocate, TheMostThatWillBeLiveIsThere) {
  const vmm::preallocate_report done = announce(GiB, a);
  EXPECT_EQ(done.created_bytes, GiB);
  EXPECT_EQ(done.moved_bytes, 0u);
  EXPECT_EQ(done.left_bytes, 0u);
  EXPECT_EQ(managed->statistics().slow_count, 0u) << "no request has grown";
  const std::uint64_t before = memory_calls();
  allocate_each(8, 128 * MiB, a);
  EXPECT_EQ(memory_calls(), before);
  EXPECT_EQ(managed->statistics().mapped_bytes, GiB);
}

TEST_F(Preallocate, DoesNothingWhereARegionServes) {
  announce(64 * MiB, a);
  const std::uint64_t before = memory_calls();
  const vmm::preallocate_report done = announce(64 * MiB, a);
  EXPECT_EQ(memory_calls(), before);
  EXPECT_EQ(done.created_bytes + done.moved_bytes + done.left_bytes, 0u);
  announce(MiB, b);  // what a's work has finished with serves b
  EXPECT_EQ(memory_calls(), before);
}

TEST_F(Preallocate, MovesWhatIsScatteredWithoutCreating) {
  open(moving());
  scatter(4, a);
  const std::uint64_t mapped_bytes = managed->statistics().mapped_bytes;
  const vmm::preallocate_report done = announce(8 * MiB, a);
  EXPECT_EQ(done.moved_bytes, 6 * MiB) << "behind one that stays";
  EXPECT_EQ(done.created_bytes, 0u);
  EXPECT_EQ(done.left_bytes, 0u);
  EXPECT_EQ(managed->statistics().mapped_bytes, mapped_bytes);
  const std::uint64_t before = memory_calls();
  allocate(8 * MiB, a);
  EXPECT_EQ(memory_calls(), before);
}

TEST_F(Preallocate, MovesNothingWhereThatWouldNotDo) {
  open(moving());
  scatter(3, a);
  const std::uint64_t before = memory_calls();
  const vmm::preallocate_report done = announce(8 * MiB, a);
  EXPECT_EQ(memory_calls(), before) << "8 MiB of 6";
  EXPECT_EQ(done.moved_bytes + done.created_bytes, 0u);
  EXPECT_EQ(done.left_bytes, 6 * MiB);
}

TEST_F(Preallocate, MakesNoStreamWait) {
  driver.set_manual(true);
  open(moving());
  scatter(4, b);
  const vmm::address used = allocate(2 * MiB, b);
  run(b, {used, 2 * MiB});
  free(used, b);  // b's work goes on
  const std::uint64_t before = memory_calls();
  EXPECT_EQ(announce(8 * MiB, a).left_bytes, 8 * MiB);
  EXPECT_EQ(memory_calls(), before);
  EXPECT_EQ(managed->statistics().device_wait_count, 0u);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(announce(8 * MiB, a).left_bytes, 0u);
  EXPECT_EQ(managed->statistics().device_wait_count, 0u);
}

TEST_F(Preallocate, StaysWithinTheHeadroomAndTheBudget) {
  open({}, &vmm::pool_options::budget_bytes, 256 * MiB);
  vmm::preallocate_report done = managed->preallocate(512 * MiB, a);
  EXPECT_EQ(done.failure.code, vmm::errc::over_budget);
  EXPECT_EQ(done.created_bytes, 0u) << "nothing can make room for it";
  EXPECT_EQ(done.left_bytes, 512 * MiB);
  EXPECT_EQ(managed->statistics().held_bytes, 0u);
  done = managed->preallocate(256 * MiB, a);
  EXPECT_EQ(done.failure.code, vmm::errc::none);
  EXPECT_EQ(done.created_bytes, 256 * MiB);
  EXPECT_LE(managed->statistics().mapped_bytes, 256 * MiB);
}

// Memory is mapped behind what a kernel uses; nothing has used it when the next step is refused. An
// arena has the memory before it, or the stream.
TEST_F(Preallocate, ThatIsShortHoldsNoMoreBesideRunningWork) {
  for (const auto arenas : {vmm::arena_rule::never, vmm::arena_rule::always}) {
    vmm::pool_options options;
    options.stream_arenas = arenas;
    options.policy.tuning.growth_gap_bytes = 0;
    open(options);
    const vmm::address at = allocate(8 * MiB, a);
    run_and_free(a, {at, 8 * MiB}, 1e6);
    free(allocate(512, a), a);
    const auto before = driver.resource_counts();
    driver.fail({vmm::call::create, 3, true, {vmm::errc::out_of_memory, 2, "OUT_OF_MEMORY"}});
    const vmm::preallocate_report done = managed->preallocate(GiB, a);
    driver.clear_faults();
    EXPECT_EQ(done.failure.code, vmm::errc::out_of_memory);
    EXPECT_EQ(done.created_bytes, 0u);
    EXPECT_LE(driver.resource_counts().memory_bytes, before.memory_bytes);
    EXPECT_LE(driver.resource_counts().mappings, before.mappings);
  }
}

// Also near what the device has.
TEST_F(Preallocate, MakesSmallHandlesNearTheBudget) {
  for (const bool has_budget : {true, false}) {
    open({}, &vmm::pool_options::budget_bytes, has_budget ? 512 * MiB : 0);
    allocate(384 * MiB, a);
    if (!has_budget) managed->expect_memory_limit(512 * MiB);
    const std::uint64_t before = driver.calls(vmm::call::create);
    EXPECT_EQ(announce(64 * MiB, a).left_bytes, 0u);
    EXPECT_EQ(driver.calls(vmm::call::create) - before, 32u) << "of a page each, " << has_budget;
  }
}

TEST_F(Preallocate, AWholePagePolicySaysWhatIsLeft) {
  open({}, &vmm::pool_options::policy, vmm::pool_policy::vpmm());
  EXPECT_EQ(announce(3 * MiB, a).left_bytes, 4 * MiB) << "no headroom, and pages are whole";
  EXPECT_EQ(memory_calls(), 0u);
}

TEST_F(Preallocate, FillsASegmentThatHasNoMoreThanTheRequest) {
  open({}, &vmm::pool_options::reservation_bytes, 512 * MiB);
  EXPECT_EQ(announce(384 * MiB, a).left_bytes, 0u);
  EXPECT_EQ(driver.calls(vmm::call::reserve), 1u);
  const std::uint64_t before = memory_calls();
  allocate(384 * MiB, a);
  EXPECT_EQ(memory_calls(), before);
  EXPECT_EQ(announce(448 * MiB, a).left_bytes, 0u);
  EXPECT_EQ(driver.calls(vmm::call::reserve), 2u) << "the first has no room";
}

TEST_F(Preallocate, CreatesNothingBeyondThePeak) {
  free(allocate(512 * MiB, a), a);
  allocate(MiB, a);  // lies before the rest
  const std::uint64_t mapped_bytes = managed->statistics().mapped_bytes;
  const vmm::preallocate_report done = announce(512 * MiB, a);
  const vmm::pool_statistics now = managed->statistics();
  EXPECT_LE(now.mapped_bytes, mapped_bytes + mapped_bytes / 50 + 4 * MiB);
  EXPECT_EQ(done.left_bytes == 0, done.created_bytes + done.moved_bytes != 0);
}

TEST_F(Preallocate, RefusesWhatAllocateRefuses) {
  EXPECT_EQ(managed->preallocate(0, a).failure.code, vmm::errc::invalid_argument);
  EXPECT_EQ(managed->preallocate(std::uint64_t{1} << 60, a).failure.code, vmm::errc::out_of_memory);
  EXPECT_EQ(memory_calls(), 0u);
}

TEST_F(Preallocate, RefusesASuspendedPool) {
  allocate(4 * MiB, a);
  vmm::suspension_list parts;
  ASSERT_TRUE(managed->suspension().begin_suspend({}, parts));
  const std::uint64_t before = memory_calls();
  EXPECT_EQ(managed->preallocate(64 * MiB, a).failure.code, vmm::errc::in_use);
  EXPECT_EQ(memory_calls(), before);
  managed->suspension().end_suspend(parts, false);
  EXPECT_EQ(announce(64 * MiB, a).left_bytes, 0u) << "it goes on";
}

TEST_F(Preallocate, SpoilsNoCapture) {
  vmm::pool_options options = moving();
  options.streams_forgotten = true;  // streams are queried for unannounced captures
  options.capture = vmm::capture_rule::private_memory;
  open(options);
  scatter(4, a);
  ASSERT_TRUE(driver.begin_capture(b, vmm::capture_mode::any_thread));
  EXPECT_EQ(announce(8 * MiB, a).left_bytes, 0u);
  EXPECT_EQ(managed->preallocate(4 * MiB, b).failure.code, vmm::errc::none);
  end_capture(b);
}

TEST_F(Preallocate, LeavesWhatArenasHave) {
  open({}, &vmm::pool_options::stream_arenas, vmm::arena_rule::always);
  allocate(4 * MiB, a);
  const std::uint64_t in_arenas = managed->statistics().arena_bytes;
  EXPECT_EQ(announce(256 * MiB, a).left_bytes, 0u);
  EXPECT_EQ(managed->statistics().arena_bytes, in_arenas);
}

TEST_F(Preallocate, UnmapsWhatRequestsWouldHaveTo) {
  vmm::pool_options options = moving();
  options.policy.tuning.stale_count_max = 4;
  open(options);
  scatter(8, a);
  EXPECT_EQ(announce(16 * MiB, a).unmapped_count, 5u) << "of seven; a half of four stays";
  EXPECT_EQ(managed->statistics().stale_count, 2u);
}

// An open arena counts its own live blocks: they are live for the headroom all the same.
TEST_F(Preallocate, SeesWhatIsLiveInArenas) {
  for (const vmm::arena_rule rule : {vmm::arena_rule::never, vmm::arena_rule::always}) {
    open({}, &vmm::pool_options::stream_arenas, rule);
    free(allocate(512 * MiB, a), a);
    allocate_each(128, 4 * MiB, a);
    const vmm::preallocate_report done = announce(64 * MiB, a);
    EXPECT_EQ(done.left_bytes, 0u) << "a request of it would create as much";
    const std::uint64_t before = memory_calls();
    allocate(64 * MiB, a);
    EXPECT_EQ(memory_calls(), before);
  }
}

}  // namespace
