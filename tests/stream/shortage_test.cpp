// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: where memory is short, everything that has finished is found before a request fails, and
// what can never be served costs nothing. Method: a budget that is spent, and no waiting for work.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::call, vmm::errc;

vmm::pool_options impatient(std::uint64_t budget_bytes) {
  vmm::pool_options options;
  options.budget_bytes = budget_bytes;
  options.wait_when_short = false;
  return options;
}

constexpr vmm::fake::native_error none_left{errc::out_of_memory, 2, "CUDA_ERROR_OUT_OF_MEMORY"};

class Shortage : public FakePool {};

TEST_F(Shortage, WhatAnyOfManyStreamsFinishedServes) {
  constexpr std::size_t stream_count = 80;
  open(impatient(192 * MiB));
  std::vector<vmm::stream_handle> streams;
  for (std::size_t i = 0; i < stream_count; ++i) {
    streams.push_back(*driver.create_stream());
    free(allocate(512, streams.back()), streams.back());
  }
  const vmm::stream_handle far = streams[stream_count - 5];
  free(allocate_each(3, 60 * MiB, far)[1], far);
  EXPECT_TRUE(allocate(60 * MiB, streams[0]));
  free_all();
  for (const vmm::stream_handle each : streams) {
    fine(managed->forget(each));
    fine(driver.destroy_stream(each));
  }
}

// Other streams' memory is left alone: the request is served by new memory, or refused.
TEST_F(Shortage, ADriverThatRefusesEventsAsNotSupportedLosesNoStream) {
  for (const call kind : {call::create_event, call::record_event, call::record_all}) {
    open(moving());
    const address used = allocate(16 * MiB, a);
    allocate(2 * MiB, b);
    run_and_free(a, {used, 16 * MiB});
    driver.fail({kind, 1, true, {errc::not_supported, 801, "INJECTED"}});
    const auto more = managed->allocate(16 * MiB, b);
    if (!more) EXPECT_EQ(more.error().code, errc::not_supported) << vmm::name_of(kind);
    driver.clear_faults();
    if (more) free(*more, b);
    free(allocate(16 * MiB, b), b);
  }
}

TEST_F(Shortage, AFreeOfNoBlockDoesNotBringAStreamBack) {
  const address block = allocate(MiB, b);
  free(block, b);
  fine(managed->forget(b));
  const std::uint64_t known = managed->statistics().stream_count;
  const vmm::status again = managed->free(block, b);
  EXPECT_EQ(again.error().code, errc::not_allocated);
  EXPECT_EQ(managed->statistics().stream_count, known);
}

TEST_F(Shortage, WhatNoStretchOfAddressesCanTakeReservesNone) {
  vmm::pool_options options;
  options.page_bytes = 6 * MiB;
  options.reservation_bytes = 512 * MiB;
  open(options);
  free(allocate(MiB, a), a);
  const std::uint64_t before = managed->statistics().reserved_bytes;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(managed->allocate(511 * MiB, a).error().code, errc::out_of_addresses);
  EXPECT_EQ(managed->statistics().reserved_bytes, before);
}

// Every second block is free, which no handle may keep from a larger one.
TEST_F(Shortage, NearABudgetLittleStrands) {
  open(impatient(256 * MiB));
  std::vector<address> blocks = allocate_each(40, 6 * MiB, a);
  for (std::size_t i = 0; i < blocks.size(); i += 2) free(blocks[i], a);
  EXPECT_TRUE(allocate(120 * MiB, a));
}

// The same if the driver has the limit, and the pool expects it; and nothing of it without.
TEST_F(Shortage, HandlesGetSmallerTowardsALimitThatIsExpected) {
  vmm::pool_options options;
  options.policy.handle_bytes_max = 128 * MiB;
  options.policy.tuning.small_handle_bytes = 0;
  open(options);
  const auto handles_for = [&](std::uint64_t limit_bytes) {
    managed->expect_memory_limit(limit_bytes);
    const std::uint64_t before = managed->statistics().created_count;
    const address block = allocate(512 * MiB, a);
    const std::uint64_t made = managed->statistics().created_count - before;
    free(block, a);
    EXPECT_EQ(managed->trim(0).failure.code, errc::none);
    return made;
  };
  const std::uint64_t plain = handles_for(0);
  EXPECT_GT(handles_for(1024 * MiB), 4 * plain);
  EXPECT_EQ(handles_for(std::uint64_t{1} << 40), plain);
  EXPECT_EQ(handles_for(0), plain);
}

// The report says what the failed request did, not what the options allow.
TEST_F(Shortage, TheReportSaysWhatWasDone) {
  open({}, &vmm::pool_options::budget_bytes, 64 * MiB);
  allocate(60 * MiB, a);
  EXPECT_FALSE(managed->allocate(64 * MiB, a));
  vmm::shortage_report report = managed->last_shortage();
  EXPECT_EQ(report.failure, errc::over_budget);
  EXPECT_FALSE(report.trimmed) << "nothing was cached";
  EXPECT_FALSE(report.waited) << "no stream had unfinished work";
  const address other = allocate(2 * MiB, b);
  run_and_free(b, {other, 2 * MiB}, 500);
  EXPECT_FALSE(managed->allocate(64 * MiB, a));
  EXPECT_FALSE(managed->last_shortage().waited) << "no wait makes room for it";
  driver.fail({call::create, 1, true, none_left});
  EXPECT_FALSE(managed->allocate(4 * MiB, a));
  driver.clear_faults();
  report = managed->last_shortage();
  EXPECT_EQ(report.failure, errc::out_of_memory);
  EXPECT_TRUE(report.waited) << "the caller waited for b";
  EXPECT_EQ(report.request_bytes, 4 * MiB);
}

// A budget that a cached piece fills, and then a device that has nothing: the first try makes no
// driver call.
TEST_F(Shortage, TheAnswerIsThatOfTheLastTry) {
  vmm::pool_options options = impatient(34 * MiB);
  options.policy.tuning.growth_share = 0;  // one handle, near the budget too
  open(options);
  free(allocate(32 * MiB, a), a);
  fail(call::release);
  ASSERT_NE(managed->trim(0).failure.code, errc::none) << "what the driver refuses is cached";
  ASSERT_EQ(managed->statistics().held_bytes, 32 * MiB);
  driver.fail({call::create, 1, true, none_left});
  const auto none = managed->allocate(4 * MiB, a);
  driver.clear_faults();
  EXPECT_EQ(none.error().code, errc::out_of_memory);
  EXPECT_EQ(none.error().where, vmm::call::create);
  const vmm::shortage_report report = managed->last_shortage();
  EXPECT_EQ(report.failure, errc::out_of_memory);
  EXPECT_TRUE(report.trimmed) << "the cached piece went first";
  EXPECT_EQ(report.held_bytes, 0u);
}

// A growth wishes for as much again as there is. If that finds no hole, and addresses are
// exhausted, the request is served by what it needs.
TEST_F(Shortage, AWishGivesWayWhereAddressesAreShort) {
  vmm::pool_options options;
  options.reservation_bytes = 128 * MiB;
  options.policy.tuning.growth_gap_bytes = 0;
  options.policy.headroom = 100;
  options.policy.handle_bytes_max = 128 * MiB;
  options.policy.tuning.growth_share = 1;
  open(options);
  allocate_each(2, 40 * MiB, a);
  ASSERT_EQ(managed->statistics().mapped_bytes, 80 * MiB) << "48 MiB of addresses are left";
  driver.fail({call::reserve, 1, true, {errc::out_of_addresses, 2, "CUDA_ERROR_OUT_OF_MEMORY"}});
  allocate(4 * MiB, a);
  EXPECT_EQ(managed->statistics().mapped_bytes, 84 * MiB);
  EXPECT_EQ(managed->statistics().reserved_bytes, 128 * MiB);
  const auto none = managed->allocate(64 * MiB, a);
  ASSERT_FALSE(none) << "what is needed fits no hole either";
  EXPECT_EQ(none.error().where, vmm::call::reserve) << "the reason is that of the driver";
  driver.clear_faults();
}

struct ShortageWithoutAliases : FakePool {
  ShortageWithoutAliases()
      : FakePool(cuda_with([](auto& plays) { plays.can.alias = vmm::alias_level::none; })) {}
};

TEST_F(ShortageWithoutAliases, IdleMemoryIsAskedAboutBeforeARequestFails) {
  open(impatient(256 * MiB));
  std::vector<address> blocks = allocate_each(4, 64 * MiB, a);
  free(blocks[0], a);
  free(blocks[2], a);
  EXPECT_TRUE(allocate(128 * MiB, a));
}

}  // namespace
