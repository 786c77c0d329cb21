// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a block that other streams were recorded for is handed out again only when their work has
// finished; what is freed in a capture waits for its end and spoils nothing; what waits is waited
// for before memory is called short; peers may use what is mapped before and after they come.
// Method: one device on the simulated driver, which finishes work when the test says so and reports
// each hazard; the table of blocks beside std::map.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device_memory.hpp"

import vmm.backend;
import vmm.fake;
import vmm.stream;

namespace {

using vmm::stream_handle;
using vmm_c::block_index;
using vmm_c::device_memory;
using vmm_c::live_block;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

class DeviceMemory : public testing::Test {
 protected:
  DeviceMemory() : opened_(vmm::any_backend::own(std::make_unique<vmm::fake_driver>())) {
    fake = opened_->get_if<vmm::fake_driver>();
    fake->set_manual(true);
    vmm::pool_options options;
    options.capture = vmm::capture_rule::private_memory;
    options.wait_when_short = false;
    memory = std::make_unique<device_memory>(std::move(*opened_), options);
    side = *fake->create_stream();
    other = *fake->create_stream();
  }
  ~DeviceMemory() override {
    EXPECT_TRUE(fake->finish_all());
    EXPECT_EQ(fake->misuse_count(), 0U) << fake->report();
    memory.reset();
  }

  std::uint64_t take(std::uint64_t size_bytes, stream_handle stream = {}, bool captures = false) {
    const auto got = memory->allocate(size_bytes, stream, captures);
    EXPECT_TRUE(got) << got.error().detail;
    return got ? got->value : 0;
  }
  void give(std::uint64_t at, bool captures = false) {
    const auto done = memory->free(at, captures);
    ASSERT_TRUE(done && *done);
  }
  void use(stream_handle stream, std::uint64_t at, std::uint64_t size_bytes) {
    const vmm::address_range range{{at}, size_bytes};
    ASSERT_TRUE(fake->launch(stream, {.name = "use", .duration_us = 10, .writes = {&range, 1}}));
  }
  vmm_allocator_statistics now() {
    vmm_allocator_statistics out{};
    memory->write_statistics(out);
    return out;
  }

  vmm::fake_driver* fake = nullptr;
  std::unique_ptr<device_memory> memory;
  stream_handle side{};
  stream_handle other{};

 private:
  vmm::result<vmm::any_backend> opened_;
};

TEST_F(DeviceMemory, ARecordedStreamKeepsTheBlock) {
  const std::uint64_t at = take(4 * mib);
  use(side, at, 4 * mib);
  ASSERT_TRUE(memory->record(at, side));
  ASSERT_TRUE(memory->record(at, side));  // twice is once
  give(at);
  EXPECT_EQ(now().allocations[VMM_LEVEL_ALL].current, 0);
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 1);
  const std::uint64_t next = take(4 * mib);
  EXPECT_NE(next, at);
  EXPECT_TRUE(fake->finish_all());
  const std::uint64_t again = take(4 * mib);
  EXPECT_EQ(again, at);
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 2);
  give(next);
  give(again);
}

TEST_F(DeviceMemory, OfTwoStreamsTheLaterOneCounts) {
  const std::uint64_t at = take(4 * mib);
  use(side, at, 4 * mib);
  ASSERT_TRUE(memory->record(at, side));
  ASSERT_TRUE(memory->record(at, other));
  give(at);
  memory->collect(false, false);
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 1);
  ASSERT_TRUE(fake->finish_all());
  memory->collect(false, false);
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 0);
}

TEST_F(DeviceMemory, ItsOwnStreamIsNotRecorded) {
  const std::uint64_t at = take(4 * mib, side);
  ASSERT_TRUE(memory->record(at, side));
  give(at);
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 0);
  EXPECT_EQ(take(4 * mib, side), at);
  give(at);
}

TEST_F(DeviceMemory, WhatWaitsIsWaitedForBeforeMemoryIsShort) {
  fake->set_manual(false);
  memory->driver().set_limit(64 * mib);
  const std::uint64_t at = take(48 * mib);
  use(side, at, 48 * mib);
  ASSERT_TRUE(memory->record(at, side));
  give(at);
  const std::uint64_t next = take(48 * mib);
  EXPECT_EQ(now().retry_count, 1U);
  EXPECT_EQ(now().short_count, 0U);
  give(next);
}

TEST_F(DeviceMemory, ALimitIsNeverExceeded) {
  memory->driver().set_limit(64 * mib);
  const std::uint64_t at = take(40 * mib);
  EXPECT_FALSE(memory->allocate(40 * mib, {}, false));
  EXPECT_EQ(now().short_count, 1U);
  EXPECT_LE(now().held_bytes.peak, static_cast<std::int64_t>(64 * mib));
  give(at);
}

TEST_F(DeviceMemory, AFreeInACaptureWaitsForItsEnd) {
  const std::uint64_t own = take(4 * mib, side);
  const std::uint64_t recorded = take(4 * mib);
  const std::uint64_t beside = take(4 * mib);
  ASSERT_TRUE(memory->record(recorded, side));
  ASSERT_TRUE(fake->begin_capture(side, vmm::capture_mode::any_thread));
  give(own, true);
  give(recorded, true);
  give(beside, true);  // of no stream that is being captured: at once
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 2);
  EXPECT_EQ(take(4 * mib, {}, true), beside);
  give(beside, true);
  const auto graph = fake->end_capture(side);
  ASSERT_TRUE(graph) << "the capture was spoiled";
  memory->collect(true, false);
  ASSERT_TRUE(fake->finish_all());
  memory->collect(false, false);
  EXPECT_EQ(now().active[VMM_LEVEL_ALL].current, 0);
  EXPECT_TRUE(fake->destroy_graph(*graph));
}

TEST_F(DeviceMemory, AnUnannouncedCaptureIsNotSpoiledEither) {
  const std::uint64_t at = take(4 * mib);
  ASSERT_TRUE(fake->begin_capture(side, vmm::capture_mode::any_thread));
  const std::uint64_t inside = take(4 * mib, side);
  give(inside);
  const auto graph = fake->end_capture(side);
  ASSERT_TRUE(graph) << "the capture was spoiled";
  give(at);
  EXPECT_TRUE(fake->destroy_graph(*graph));
}

TEST(BlockIndex, IsAMap) {
  block_index index;
  std::map<std::uint64_t, std::uint64_t> naive;
  std::mt19937_64 dice(11);
  for (int step = 0; step < 50'000; ++step) {
    // Few addresses, side by side: long runs in the table, and holes in them.
    const std::uint64_t at = (1 + dice() % 3000) * 512;
    live_block* const found = index.find(at);
    ASSERT_EQ(found != nullptr, naive.contains(at));
    if (found != nullptr) {
      const live_block taken = index.take(found);
      ASSERT_EQ(taken.requested_bytes, naive[at]);
      naive.erase(at);
    } else {
      ASSERT_TRUE(index.make_room());
      live_block made;
      made.at = at;
      made.requested_bytes = dice() % 5000;
      naive[at] = made.requested_bytes;
      index.add(std::move(made));
    }
    ASSERT_EQ(index.count(), naive.size());
  }
  std::set<std::uint64_t> seen;
  index.for_each([&](const live_block& each) { seen.insert(each.at); });
  EXPECT_EQ(seen.size(), naive.size());
}

}  // namespace
