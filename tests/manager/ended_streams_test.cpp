// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the streams of a manager's blocks and of a growable range may be destroyed before the
// memory goes. Calls that do not name a stream never name it to the driver, wait for its work, and
// give everything back. [R18] Method: streams that are destroyed under running kernels, on a fake
// driver that ends the process at a use of a destroyed stream and of memory in use; random
// programs.
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "../support/fake_fixture.h"

import vmm.backend;
import vmm.fake;
import vmm.growable;
import vmm.manager;
import vmm.optimizer;

namespace {

using sizes::MiB;
using vmm::address;
using vmm::call;
using vmm::errc;
using vmm::stream_handle;

class EndedManager : public testing::Test {
 protected:
  void open(vmm::manager_options options = {},
            const vmm::fake::profile& plays = vmm::fake::profile::cuda()) {
    driver = vmm::fake_driver(plays);
    driver.set_misuse_fatal(true);
    driver.set_gone_streams_undefined(true);
    options.at_end.hook = nullptr;
    managed = std::make_unique<vmm::manager>(driver, options);
    lasting = *driver.create_stream();
  }
  void TearDown() override {
    managed.reset();
    EXPECT_TRUE(driver.destroy_stream(lasting));
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  [[nodiscard]] address allocate(std::uint64_t size_bytes, stream_handle stream) {
    const auto at = managed->allocate({size_bytes, 0, 0, stream});
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(address{});
  }
  void use(address at, std::uint64_t size_bytes, stream_handle stream) {
    const vmm::address_range range{at, size_bytes};
    ASSERT_TRUE(driver.launch(stream, {.name = "use", .duration_us = 1e5, .writes = {&range, 1}}));
  }
  // The live block of a stream that is destroyed while a kernel uses the block.
  [[nodiscard]] address block_of_ended(std::uint64_t size_bytes) {
    const stream_handle gone = *driver.create_stream();
    const address at = allocate(size_bytes, gone);
    use(at, size_bytes, gone);
    EXPECT_TRUE(driver.destroy_stream(gone));
    return at;
  }

  vmm::fake_driver driver;
  stream_handle lasting{};
  std::unique_ptr<vmm::manager> managed;
};

TEST_F(EndedManager, EndsWithALiveBlockAndGivesEverythingBack) {
  open();
  const address other = allocate(64 * MiB, lasting);
  (void)block_of_ended(2 * MiB);
  ASSERT_TRUE(managed->free(other));
  managed.reset();
  EXPECT_EQ(driver.resource_counts().memory_bytes, 0u);
  EXPECT_EQ(driver.resource_counts().reservations, 0u);
}

TEST_F(EndedManager, ItsBlockIsFreedAndServesOthersBehindItsWork) {
  for (const vmm::contents_rule rule : {vmm::contents_rule::none, vmm::contents_rule::poison}) {
    vmm::manager_options options;
    options.contents = rule;
    open(options);
    const address at = block_of_ended(8 * MiB);
    ASSERT_TRUE(managed->free(at));
    const address again = allocate(8 * MiB, lasting);
    use(again, 8 * MiB, lasting);
    ASSERT_TRUE(managed->free(again));
    (void)managed->drain();
    managed.reset();
    ASSERT_TRUE(driver.destroy_stream(lasting));
    ASSERT_TRUE(driver.finish_all());
    lasting = *driver.create_stream();
  }
}

TEST_F(EndedManager, ABlockOfALastingStreamServesItAgainWithoutAWait) {
  vmm::manager_options options;
  options.rules = vmm::policy::keep_mapped();
  open(options);
  const address at = allocate(8 * MiB, lasting);
  use(at, 8 * MiB, lasting);
  ASSERT_TRUE(managed->free(at));
  EXPECT_EQ(allocate(8 * MiB, lasting), at);
  EXPECT_EQ(driver.calls(call::wait_event), 0u);
}

TEST_F(EndedManager, SuspensionWaitsForItsWork) {
  open();
  const address at = block_of_ended(8 * MiB);
  vmm::suspension_list parts;
  ASSERT_TRUE(managed->begin_suspend({}, parts));
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  managed->end_suspend(parts, false);
  ASSERT_TRUE(managed->free(at));
}

TEST_F(EndedManager, AGrowableRangeEndsWithItsStream) {
  for (const vmm::contents_rule rule : {vmm::contents_rule::none, vmm::contents_rule::poison}) {
    vmm::manager_options options;
    options.contents = rule;
    open(options);
    {
      const stream_handle gone = *driver.create_stream();
      vmm::growable_range range(*managed, {.segment_bytes_max = 64 * MiB});
      ASSERT_TRUE(range.grow(8 * MiB, gone));
      use(range.segment(0).value(), 8 * MiB, gone);
      ASSERT_TRUE(driver.destroy_stream(gone));
    }
    (void)managed->drain();
    managed.reset();
    EXPECT_EQ(driver.resource_counts().memory_bytes, 0u);
    ASSERT_TRUE(driver.destroy_stream(lasting));
    ASSERT_TRUE(driver.finish_all());
    lasting = *driver.create_stream();
  }
}

// The same where streams are to be forgotten: what the driver refuses is covered all the same.
TEST_F(EndedManager, WhereStreamsAreNamedARefusalIsCovered) {
  vmm::manager_options options;
  options.streams_forgotten = true;
  open(options);
  driver.set_misuse_fatal(false);
  const address at = block_of_ended(8 * MiB);
  ASSERT_TRUE(managed->free(at));
  EXPECT_EQ(driver.calls(call::record_all), 1u);
  (void)block_of_ended(8 * MiB);
  managed.reset();
  EXPECT_EQ(driver.misuse_count(), driver.misuse_count(vmm::fake::misuse_kind::stale_handle));
}

TEST_F(EndedManager, AtRandom) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    vmm::manager_options options;
    if (seed % 3 == 0) options.rules = vmm::policy::keep_mapped();
    if (seed % 3 == 1) options.rules = vmm::policy::virtual_caching();
    if (seed % 4 == 0) options.contents = vmm::contents_rule::zero_on_release;
    open(options);
    std::vector<stream_handle> streams;
    struct block {
      address at;
      std::uint64_t size_bytes;
    };
    std::vector<block> blocks;
    for (int step = 0; step < 300; ++step) {
      if (streams.size() < 3) streams.push_back(*driver.create_stream());
      const std::size_t which = random() % streams.size();
      const std::uint64_t choice = random() % 16;
      if (choice < 8) {
        const std::uint64_t size_bytes = (random() % 8 + 1) * MiB;
        blocks.push_back({allocate(size_bytes, streams[which]), size_bytes});
        use(blocks.back().at, size_bytes, streams[which]);
      } else if (choice < 13 && !blocks.empty()) {
        const std::size_t gone = random() % blocks.size();
        ASSERT_TRUE(managed->free(blocks[gone].at));
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(gone));
      } else if (choice < 15) {
        ASSERT_TRUE(driver.destroy_stream(streams[which]));
        streams.erase(streams.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        (void)managed->drain();
        ASSERT_TRUE(driver.advance_us(5e4));
      }
    }
    ASSERT_TRUE(managed->validate());
    managed.reset();
    for (const stream_handle each : streams) ASSERT_TRUE(driver.destroy_stream(each));
    ASSERT_TRUE(driver.destroy_stream(lasting));
    ASSERT_TRUE(driver.finish_all());
    ASSERT_TRUE(driver.check_empty()) << driver.report();
    lasting = *driver.create_stream();
  }
}

TEST_F(EndedManager, TheStreamOfEachThreadIsRefused) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.can.stream_per_thread = 2;
  open({}, plays);
  constexpr stream_handle per_thread{2};
  constexpr errc wrong = errc::invalid_argument;
  const address at = allocate(8 * MiB, lasting);
  EXPECT_EQ(managed->allocate({MiB, 0, 0, per_thread}).error().code, wrong);
  EXPECT_EQ(managed->free(at, per_thread).error().code, wrong);
  EXPECT_EQ(managed->mark(per_thread).error().code, wrong);
  vmm::growable_range range(*managed, {.segment_bytes_max = 64 * MiB});
  ASSERT_TRUE(range.grow(8 * MiB, lasting));
  EXPECT_EQ(range.grow(16 * MiB, per_thread).error().code, wrong);
  EXPECT_EQ(range.shrink(MiB, per_thread).error().code, wrong);
  EXPECT_EQ(range.settle(per_thread).error().code, wrong);
  EXPECT_EQ(range.close(per_thread).error().code, wrong);
  EXPECT_EQ(range.size_bytes(0).value_or(0), 8 * MiB);
  ASSERT_TRUE(range.close(lasting));
  ASSERT_TRUE(managed->free(at));
}

}  // namespace
