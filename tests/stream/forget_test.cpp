// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a stream that is forgotten leaves its free memory to everyone when its work has finished
// and not before; a new stream with its number starts with nothing; records are used again. Method:
// kernels left running on streams that are destroyed, on a driver that gives numbers out again.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::stream_handle;

struct Forgotten : FakePool {
  Forgotten() : FakePool(with_handles_again()) {}
  void destroy_a() {
    ASSERT_TRUE(driver.destroy_stream(a));
    a = stream_handle::default_stream;
  }
};

TEST_F(Forgotten, ANewStreamWithItsNumberInheritsNothing) {
  open(moving());
  const stream_handle number = a;
  const address at = allocate(8 * MiB, a);
  run_and_free(a, {at, 8 * MiB}, 1e6);
  fine(managed->forget(a));
  destroy_a();
  a = *driver.create_stream();
  ASSERT_EQ(a, number);
  const address fresh = allocate(8 * MiB, a);
  EXPECT_EQ(driver.calls(call::wait_event), 1u) << "the old stream's memory comes behind a wait";
  run(a, {fresh, 8 * MiB}, 10);  // a misuse where it was taken as the stream's own
}

TEST_F(Forgotten, ItsMemoryIsEveryonesWhenItsWorkHasFinished) {
  const address at = allocate(64 * MiB, a);
  run_and_free(a, {at, 64 * MiB}, 1e6);
  fine(managed->forget(a));
  destroy_a();
  EXPECT_EQ(managed->statistics().stream_count, 0u);
  EXPECT_EQ(managed->trim(0).released_bytes, 0u) << "the kernel still runs";
  ASSERT_TRUE(driver.finish_all());
  const std::uint64_t records = driver.calls(call::record_event);
  const std::uint64_t waits = driver.calls(call::wait_event);
  EXPECT_EQ(allocate(64 * MiB, b), at);
  EXPECT_EQ(driver.calls(call::record_event), records) << "a stream that is gone is not touched";
  EXPECT_EQ(driver.calls(call::wait_event), waits);
}

TEST_F(Forgotten, APinnedBlockThatItFreedWaitsForItsWork) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  fine(managed->pin(at));
  free(allocate(2 * MiB, a), a);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(managed->trim(0).released_bytes, 2 * MiB) << "a's last ordinary free has passed";
  run_and_free(a, {at, 8 * MiB}, 500);
  run(a, {at, 8 * MiB}, 500);  // the pin's owner may use it beside the pool
  fine(managed->forget(a));
  destroy_a();
  fine(managed->unpin(at));
  const address other = allocate(8 * MiB, b);
  run(b, {other, 8 * MiB}, 10);  // a misuse where b does not wait
}

TEST_F(Forgotten, AStreamWhoseWorkIsDoneLeavesItsMemoryAtOnce) {
  const address at = allocate(64 * MiB, a);
  free(at, a);
  fine(managed->forget(a));
  destroy_a();
  EXPECT_EQ(managed->trim(0).released_bytes, 64 * MiB);
}

TEST_F(Forgotten, LiveBlocksStay) {
  const address at = allocate(4 * MiB, a);
  ASSERT_TRUE(driver.write_tag({at, 4 * MiB}, 9));
  fine(managed->forget(a));
  destroy_a();
  EXPECT_EQ(driver.read_tag(at).value_or(0), 9u);
}

TEST_F(Forgotten, WhatIsPinnedFollows) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  fine(managed->pin(at));
  free(at, a);
  run(a, {at, 8 * MiB}, 1e6);
  fine(managed->forget(a));
  destroy_a();
  ASSERT_TRUE(driver.finish_all());
  validate();
  EXPECT_NE(allocate(8 * MiB, b), at);
  fine(managed->unpin(at));
  EXPECT_EQ(allocate(8 * MiB, b), at);
}

TEST_F(Forgotten, StaleMappingsGoWhenItsWorkHasFinished) {
  open(moving());
  const address first = allocate(4 * MiB, a);
  allocate(2 * MiB, a);
  const address second = allocate(4 * MiB, a);
  run_and_free(a, {first, 4 * MiB}, 1e6);
  free(second, a);
  allocate(8 * MiB, a);
  EXPECT_EQ(managed->statistics().stale_bytes, 4 * MiB);
  fine(managed->forget(a));
  destroy_a();
  ASSERT_TRUE(driver.finish_all());
  (void)managed->trim(0);
  EXPECT_EQ(managed->statistics().stale_bytes, 0u);
}

TEST_F(Forgotten, RecordsAreUsedAgain) {
  open(moving());
  for (int i = 0; i < 10'000; ++i) {
    const stream_handle stream = *driver.create_stream();
    const address at = allocate(4 * MiB, stream);
    if (i % 64 == 0) run(stream, {at, 4 * MiB}, 3);
    free(at, stream);
    fine(managed->forget(stream));
    ASSERT_TRUE(driver.destroy_stream(stream));
  }
  EXPECT_EQ(managed->statistics().stream_count, 0u);
  EXPECT_LE(driver.resource_counts().memory_bytes_max, 16 * MiB);
}

TEST_F(Forgotten, TooManyAtATimeAreRefused) {
  const auto named = [](std::uint64_t number) { return static_cast<stream_handle>(number << 40); };
  free(allocate(512, a), a);
  allocate(512, a);
  std::uint64_t number = 1;
  for (; number < 5000; ++number) {
    const auto at = managed->allocate(512, named(number));
    if (at) {
      free(*at, a);
      continue;
    }
    EXPECT_EQ(at.error().code, errc::in_use);
    EXPECT_TRUE(contains(at.error().detail, "max_streams"));
    break;
  }
  EXPECT_EQ(number, 4000u);
  validate();
  for (std::uint64_t gone = 1; gone < number; ++gone) fine(managed->forget(named(gone)));
  EXPECT_EQ(managed->statistics().stream_count, 1u);
}

// What forgotten streams and captured graphs keep counts for none of those in use.
TEST_F(Forgotten, AsManyAtATimeAfterOthersWereForgotten) {
  open(moving());
  for (int i = 0; i < 16; ++i) {
    const stream_handle stream = *driver.create_stream();
    const address at = allocate(4 * MiB, stream);
    run_and_free(stream, {at, 4 * MiB}, 1e6);
    fine(managed->forget(stream));
    ASSERT_TRUE(driver.destroy_stream(stream));
  }
  std::vector<stream_handle> streams;
  std::vector<address> blocks;
  while (blocks.size() < pool::max_streams) {
    streams.push_back(*driver.create_stream());
    const auto at = managed->allocate(512, streams.back());
    ASSERT_TRUE(at) << blocks.size() << ": " << at.error().detail;
    blocks.push_back(*at);
  }
  EXPECT_EQ(managed->statistics().stream_count, pool::max_streams);
  EXPECT_EQ(managed->allocate(512, a).error().code, errc::in_use);
  ASSERT_TRUE(driver.finish_all());
  for (const address block : blocks) free(block, streams.back());
  for (const stream_handle stream : streams) {
    fine(managed->forget(stream));
    ASSERT_TRUE(driver.destroy_stream(stream));
  }
  free(allocate(512, a), a);
  EXPECT_EQ(managed->statistics().stream_count, 1u);
  ASSERT_TRUE(driver.finish_all());
}

TEST_F(Forgotten, UnknownStreamsAreNoError) {
  fine(managed->forget(a));
  free(allocate(512, a), a);
  fine(managed->forget(b));
  EXPECT_EQ(managed->statistics().stream_count, 1u);
}

TEST_F(Forgotten, AFailedMarkLeavesTheStream) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  run_and_free(a, {at, 8 * MiB}, 1e6);
  driver.fail({call::record_event, 1, false, {errc::internal, 77, "INJECTED"}});
  EXPECT_EQ(managed->forget(a).error().code, errc::internal);
  EXPECT_EQ(managed->statistics().stream_count, 1u);
  EXPECT_EQ(allocate(8 * MiB, a), at) << "it is still the stream's own";
}

}  // namespace
