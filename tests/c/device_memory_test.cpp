// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a block that other streams were recorded for is handed out again only when their work has
// finished; what is freed in a capture waits for its end and spoils nothing; what waits is waited
// for before memory is called short.
// Method: one device on the simulated driver, which finishes work when the test says so and reports
// each hazard; the table of blocks beside std::map, and their counts beside each level by itself.
#include "device_memory.hpp"
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.stream;

namespace {

using vmm::stream_handle, vmm_c::block_counts, vmm_c::block_index, vmm_c::device_memory,
    vmm_c::live_block;

struct DeviceMemory : testing::Test {
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
    EXPECT_STREQ(memory->find_broken(), nullptr);
    return got ? got->value : 0;
  }
  void give(std::uint64_t at, bool captures = false) {
    const auto done = memory->free(at, captures);
    ASSERT_TRUE(done && *done);
    EXPECT_STREQ(memory->find_broken(), nullptr);
  }
  void use(stream_handle stream, std::uint64_t at, std::uint64_t size_bytes) {
    const vmm::address_range range{{at}, size_bytes};
    ASSERT_TRUE(fake->launch(stream, {.name = "use", .duration_us = 10, .writes = {&range, 1}}));
  }
  void end_capture(stream_handle captured) {
    const auto graph = fake->end_capture(captured);
    ASSERT_TRUE(graph) << "the capture was spoiled";
    EXPECT_TRUE(fake->destroy_graph(*graph));
  }
  vmm_allocator_statistics now() {
    vmm_allocator_statistics out{};
    memory->write_statistics(out);
    return out;
  }
  std::int64_t active() { return now().active[VMM_LEVEL_ALL].current; }
  void expect_all_collected() {
    memory->collect(false);
    ASSERT_TRUE(fake->finish_all());
    memory->collect(false);
    EXPECT_EQ(active(), 0);
  }
  // A block that the side stream uses, freed.
  std::uint64_t give_used(std::uint64_t size_bytes = 4 * MiB) {
    const std::uint64_t at = take(size_bytes);
    use(side, at, size_bytes);
    EXPECT_TRUE(memory->record(at, side));
    give(at);
    return at;
  }

  vmm::fake_driver* fake = nullptr;
  std::unique_ptr<device_memory> memory;
  stream_handle side{};
  stream_handle other{};

 private:
  vmm::result<vmm::any_backend> opened_;
};

TEST_F(DeviceMemory, ARecordedStreamKeepsTheBlock) {
  const std::uint64_t at = take(4 * MiB);
  use(side, at, 4 * MiB);
  ASSERT_TRUE(memory->record(at, side));
  ASSERT_TRUE(memory->record(at, side));  // twice is once
  give(at);
  EXPECT_EQ(now().allocations[VMM_LEVEL_ALL].current, 0);
  EXPECT_EQ(active(), 1);
  const std::uint64_t next = take(4 * MiB);
  EXPECT_NE(next, at);
  EXPECT_TRUE(fake->finish_all());
  const std::uint64_t again = take(4 * MiB);
  EXPECT_EQ(again, at);
  EXPECT_EQ(active(), 2);
  give(next);
  give(again);
}

// A block that the pool does not have, live or waiting, is found.
TEST_F(DeviceMemory, ABlockThatThePoolHasLostIsFound) {
  const std::uint64_t at = take(4 * MiB);
  const std::uint64_t waits = give_used();
  for (const std::uint64_t each : {at, waits}) {
    ASSERT_TRUE(memory->pool().free({each}, {}));
    const char* const broken = memory->find_broken();
    ASSERT_NE(broken, nullptr);
    EXPECT_EQ(std::string(broken).find("device_memory I1"), 0U) << broken;
    EXPECT_EQ(*memory->pool().allocate(4 * MiB, {}), vmm::address{each});
    EXPECT_STREQ(memory->find_broken(), nullptr);
  }
  give(at);
}

TEST_F(DeviceMemory, OfTwoStreamsTheLaterOneCounts) {
  const std::uint64_t at = take(4 * MiB);
  use(side, at, 4 * MiB);
  ASSERT_TRUE(memory->record(at, side));
  ASSERT_TRUE(memory->record(at, other));
  give(at);
  memory->collect(false);
  EXPECT_EQ(active(), 1);
  ASSERT_TRUE(fake->finish_all());
  memory->collect(false);
  EXPECT_EQ(active(), 0);
}

TEST_F(DeviceMemory, ItsOwnStreamIsNotRecorded) {
  const std::uint64_t at = take(4 * MiB, side);
  ASSERT_TRUE(memory->record(at, side));
  give(at);
  EXPECT_EQ(active(), 0);
  EXPECT_EQ(take(4 * MiB, side), at);
  give(at);
}

TEST_F(DeviceMemory, WhatWaitsIsWaitedForBeforeMemoryIsShort) {
  fake->set_manual(false);
  memory->set_limit(64 * MiB);
  give_used(48 * MiB);
  const std::uint64_t next = take(48 * MiB);
  EXPECT_EQ(now().retry_count, 1U);
  EXPECT_EQ(now().short_count, 0U);
  give(next);
}

TEST_F(DeviceMemory, ALimitIsNeverExceeded) {
  memory->set_limit(64 * MiB);
  const std::uint64_t at = take(40 * MiB);
  EXPECT_FALSE(memory->allocate(40 * MiB, {}, false));
  EXPECT_EQ(now().short_count, 1U);
  EXPECT_LE(now().held_bytes.peak, static_cast<std::int64_t>(64 * MiB));
  give(at);
}

// Every second block of 6 MiB is free, which no handle may keep from a larger one.
TEST_F(DeviceMemory, NearALimitLittleStrands) {
  fake->set_manual(false);
  memory->set_limit(256 * MiB);
  std::vector<std::uint64_t> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(take(6 * MiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) give(blocks[i]);
  const std::uint64_t large = take(120 * MiB);
  EXPECT_NE(large, 0U);
  give(large);
  for (std::size_t i = 1; i < blocks.size(); i += 2) give(blocks[i]);
}

TEST_F(DeviceMemory, AFreeInACaptureWaitsForItsEnd) {
  const std::uint64_t own = take(4 * MiB, side);
  const std::uint64_t recorded = take(4 * MiB);
  const std::uint64_t beside = take(4 * MiB);
  ASSERT_TRUE(memory->record(recorded, side));
  ASSERT_TRUE(fake->begin_capture(side, vmm::capture_mode::any_thread));
  give(own, true);
  give(recorded, true);
  give(beside, true);  // of no stream that is being captured: at once
  EXPECT_EQ(active(), 2);
  EXPECT_EQ(take(4 * MiB, {}, true), beside);
  give(beside, true);
  end_capture(side);
  expect_all_collected();
}

TEST_F(DeviceMemory, AnUnannouncedCaptureIsNotSpoiledEither) {
  const std::uint64_t at = take(4 * MiB);
  ASSERT_TRUE(fake->begin_capture(side, vmm::capture_mode::any_thread));
  const std::uint64_t inside = take(4 * MiB, side);
  give(inside);
  end_capture(side);
  give(at);
}

// As a program that frees a tensor with a recorded stream and then captures by itself.
TEST_F(DeviceMemory, AFreeThatWaitsSpoilsNoUnannouncedCapture) {
  give_used();
  ASSERT_TRUE(fake->begin_capture(other, vmm::capture_mode::any_thread));
  const std::uint64_t inside = take(4 * MiB, other);
  end_capture(other);
  give(inside);
}

TEST_F(DeviceMemory, AShortageSpoilsNoUnannouncedCapture) {
  fake->set_manual(false);
  memory->set_limit(64 * MiB);
  give_used(48 * MiB);
  ASSERT_TRUE(fake->begin_capture(other, vmm::capture_mode::any_thread));
  give(take(48 * MiB));
  end_capture(other);
}

// The event of a free would be part of the graph, and could never be queried.
TEST_F(DeviceMemory, ABlockOfAnUnannouncedCaptureWaitsForItsEnd) {
  const std::uint64_t at = take(4 * MiB);
  ASSERT_TRUE(memory->record(at, side));
  ASSERT_TRUE(fake->begin_capture(side, vmm::capture_mode::any_thread));
  give(at);
  memory->collect(false);
  EXPECT_EQ(active(), 1);
  end_capture(side);
  expect_all_collected();
}

TEST_F(DeviceMemory, WhatIsRequestedIsCountedUntilTheFreeIsComplete) {
  const std::uint64_t at = take(1000);
  use(side, at, 1000);
  ASSERT_TRUE(memory->record(at, side));
  give(at);
  EXPECT_EQ(now().requested_bytes[VMM_LEVEL_ALL].current, 1000);
  EXPECT_EQ(now().host_wait_count, 0U);
  EXPECT_TRUE(fake->finish_all());
  EXPECT_TRUE(memory->wait_for_frees(false));
  EXPECT_EQ(now().requested_bytes[VMM_LEVEL_ALL].current, 0);
  EXPECT_EQ(now().host_wait_count, 1U);
}

TEST(BlockIndex, IsAMap) {
  struct known {
    std::uint64_t requested_bytes = 0;
    std::uint64_t stream = 0;
    std::vector<std::uint64_t> users;
  };
  block_index index;
  const auto any = [](std::size_t) { return true; };
  std::map<std::uint64_t, known> naive;
  std::mt19937_64 dice(11);
  for (int step = 0; step < 50'000; ++step) {
    // Few addresses, side by side: long runs in the table, and holes in them. More streams than
    // there are numbers for.
    const std::uint64_t at = (1 + dice() % 3000) * 512;
    live_block found;
    ASSERT_EQ(index.find(at, found), naive.contains(at));
    if (!naive.contains(at)) {
      ASSERT_EQ(index.take(at, found, any), block_index::take_outcome::absent);
      ASSERT_FALSE(index.add_user(at, 5));
      ASSERT_TRUE(index.make_room());
      const std::uint64_t stream = dice() % 4 != 0 ? 0 : dice() % 400;
      naive[at] = {dice() % 5000, stream, {}};
      ASSERT_TRUE(index.add(at, naive[at].requested_bytes, stream));
    } else if (dice() % 4 == 0) {
      const std::uint64_t user = 1000 + dice() % 3;
      ASSERT_TRUE(index.add_user(at, user));
      auto& users = naive[at].users;
      if (std::find(users.begin(), users.end(), user) == users.end()) users.push_back(user);
    } else {
      ASSERT_EQ(found.stream, naive[at].stream);
      ASSERT_TRUE(index.add_user(at, found.stream));  // its own is none
      live_block taken;
      const auto none = [&](std::size_t users) {
        EXPECT_EQ(users, naive[at].users.size());
        return false;
      };
      ASSERT_EQ(index.take(at, taken, none), block_index::take_outcome::refused);
      ASSERT_EQ(index.take(at, taken, any), block_index::take_outcome::taken);
      ASSERT_EQ(taken.requested_bytes, naive[at].requested_bytes);
      ASSERT_EQ(taken.stream, naive[at].stream);
      ASSERT_EQ(taken.users == nullptr, naive[at].users.empty());
      if (taken.users != nullptr) ASSERT_EQ(*taken.users, naive[at].users);
      naive.erase(at);
    }
    ASSERT_EQ(index.count(), naive.size());
  }
  std::map<std::uint64_t, std::uint64_t> seen;
  index.for_each([&](const live_block& each) { seen[each.at] = each.stream; });
  ASSERT_EQ(seen.size(), naive.size());
  for (const auto& [at, block] : naive) EXPECT_EQ(seen[at], block.stream);
}

// Each level by itself, as its words in vmm_allocator.h say.
struct plain_levels {
  vmm_allocator_statistics out{};

  static void raise(vmm_level& level, std::int64_t by) {
    level.current += by;
    level.added += by;
    level.peak = std::max(level.peak, level.current);
  }
  static void lower(vmm_level& level, std::int64_t by) {
    level.current -= by;
    level.removed += by;
  }
  template <class Change>
  void change(const block_counts::sizes& block, bool is_live, bool is_active, Change&& how) {
    const auto size = static_cast<std::int64_t>(block.size_bytes);
    for (const int level : {VMM_LEVEL_ALL, size <= 1 << 20 ? VMM_LEVEL_SMALL : VMM_LEVEL_LARGE}) {
      if (is_live) {
        how(out.allocations[level], 1);
        how(out.allocated_bytes[level], size);
      }
      if (is_active) {
        how(out.active[level], 1);
        how(out.active_bytes[level], size);
        how(out.requested_bytes[level], static_cast<std::int64_t>(block.requested_bytes));
      }
    }
  }
  template <class Visit>
  void for_each(Visit&& visit) {
    for (auto* levels : {&out.allocations, &out.allocated_bytes, &out.active, &out.active_bytes,
                         &out.requested_bytes}) {
      for (vmm_level& each : *levels) visit(each);
    }
  }
};

TEST(BlockCounts, AreTheLevelsOfEach) {
  block_counts counts;
  plain_levels plain;
  std::vector<block_counts::sizes> live;
  std::vector<block_counts::sizes> waiting;
  std::mt19937_64 dice(3);
  const auto take_any = [&](std::vector<block_counts::sizes>& from) {
    std::swap(from[dice() % from.size()], from.back());
    const block_counts::sizes taken = from.back();
    from.pop_back();
    return taken;
  };
  for (int step = 0; step < 30'000; ++step) {
    const bool grows = step / 3000 % 2 == 0;  // up to a peak, down, and to another one
    const auto choice = dice() % 100;
    if (choice < (grows ? 55U : 45U)) {
      const std::uint64_t requested = dice() % 3 != 0 ? 1 + dice() % 3000 : 1 + dice() % 4'000'000;
      live.push_back({(requested + 511) / 512 * 512, requested});
      counts.add(live.back());
      plain.change(live.back(), true, true, plain_levels::raise);
    } else if (choice < 90 && !live.empty()) {
      const block_counts::sizes gone = take_any(live);
      const bool waits = dice() % 5 == 0;
      counts.remove(gone, waits);
      plain.change(gone, true, !waits, plain_levels::lower);
      if (waits) waiting.push_back(gone);
    } else if (choice < 99 && !waiting.empty()) {
      const block_counts::sizes gone = take_any(waiting);
      counts.end_wait(gone);
      plain.change(gone, false, true, plain_levels::lower);
    } else if (dice() % 20 == 0) {
      counts.reset_peaks();
      plain.for_each([](vmm_level& each) { each.peak = each.current; });
    } else if (dice() % 20 == 0) {
      counts.reset_counts();
      plain.for_each([](vmm_level& each) { each.added = each.removed = 0; });
    }
    vmm_allocator_statistics now{};
    counts.write(now);
    ASSERT_EQ(std::memcmp(&now, &plain.out, sizeof(now)), 0) << "after step " << step;
  }
}

}  // namespace
