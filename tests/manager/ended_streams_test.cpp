// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the streams of a manager's blocks and of a growable range may be destroyed before the
// memory goes. Calls that do not name a stream never name it to the driver, wait for its work, and
// give everything back. Method: streams that are destroyed under running kernels, on a fake
// driver that ends the process at a use of a destroyed stream and of memory in use; random
// programs.
#include "fake_manager.hpp"

import vmm.optimizer;

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::stream_handle;

struct EndedManager : FakeManager {
  // The live block of a stream that is destroyed while a kernel uses the block.
  address block_of_ended(std::uint64_t size_bytes) {
    const stream_handle gone = *driver.create_stream();
    const address at = allocate(size_bytes, gone);
    use(at, size_bytes, gone);
    EXPECT_TRUE(driver.destroy_stream(gone));
    return at;
  }
  [[nodiscard]] static bool clears(vmm::contents_rule rule) {
    return rule == vmm::contents_rule::zero_on_acquire || rule == vmm::contents_rule::poison;
  }

  stream_handle& lasting = streams[0];
};

TEST_F(EndedManager, EndsWithALiveBlockAndGivesEverythingBack) {
  const address other = allocate(64 * MiB, lasting);
  block_of_ended(2 * MiB);
  ASSERT_TRUE(managed->free(other));
  managed.reset();
  EXPECT_EQ(driver.resource_counts().memory_bytes, 0u);
  EXPECT_EQ(driver.resource_counts().reservations, 0u);
}

// Also behind a copy on another stream than the blocks'.
TEST_F(EndedManager, EndsBehindACopy) {
  for (const vmm::contents_rule rule :
       {vmm::contents_rule::none, vmm::contents_rule::zero_on_release}) {
    for (const bool has_event : {true, false}) {
      for (const bool is_forgotten : {false, true}) {
        vmm::manager_options options;
        options.contents = rule;
        options.streams_forgotten = is_forgotten;
        open(options, has_event ? vmm::fake::profile::cuda() : without_record_all());
        const address to = allocate(64 * MiB, stream_handle::default_stream);
        const address from = allocate(64 * MiB, stream_handle::default_stream);
        ASSERT_TRUE(driver.finish_all());
        ASSERT_TRUE(driver.launch(lasting, {.name = "slow", .duration_us = 1e6}));
        ASSERT_TRUE(managed->copy({to, from, 64 * MiB, lasting}));
        managed.reset();
        EXPECT_EQ(driver.resource_counts().memory_bytes, 0u);
      }
    }
  }
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
    free(again);
    (void)managed->trim(0);
  }
}

TEST_F(EndedManager, ABlockOfALastingStreamServesItAgainWithoutAWait) {
  open(vmm::manager_policy::keep_mapped());
  const address at = allocate(8 * MiB, lasting);
  use(at, 8 * MiB, lasting);
  ASSERT_TRUE(managed->free(at));
  EXPECT_EQ(allocate(8 * MiB, lasting), at);
  EXPECT_EQ(driver.calls(call::wait_event), 0u);
}

// As on CUDA, the handle is given again while work of the earlier stream runs. The new stream's
// kernel is a misuse where it does not come behind that work.
TEST_F(EndedManager, ANewStreamOfTheSameHandleWaitsForItsWork) {
  for (const bool is_freed_on_it : {true, false}) {
    open(vmm::manager_policy::keep_mapped(), with_handles_again());
    const stream_handle first = *driver.create_stream();
    const address at = allocate(8 * MiB, first);
    use(at, 8 * MiB, first);
    if (is_freed_on_it) ASSERT_TRUE(managed->free(at, first));
    ASSERT_TRUE(driver.destroy_stream(first));
    if (!is_freed_on_it) ASSERT_TRUE(managed->free(at));
    const stream_handle second = *driver.create_stream();
    ASSERT_EQ(second, first);
    const address again = allocate(8 * MiB, second);
    use(again, 8 * MiB, second);
    ASSERT_TRUE(managed->free(again, second));
    ASSERT_TRUE(driver.destroy_stream(second));
  }
}

// Memory that a later stream of the block's handle still uses is not that of the block's stream.
TEST_F(EndedManager, ItsBlockGrowsIntoMemoryOfANewStreamOfTheSameHandle) {
  for (const bool is_freed_on_it : {true, false}) {
    vmm::manager_options options;
    options.budget_bytes = 24 * MiB;
    open(options, with_handles_again());
    const stream_handle first = *driver.create_stream();
    const address at = allocate(8 * MiB, first, 64 * MiB);
    ASSERT_TRUE(driver.destroy_stream(first));
    const stream_handle second = *driver.create_stream();
    ASSERT_EQ(second, first);
    const address other = allocate(16 * MiB, second);
    use(other, 16 * MiB, second);
    ASSERT_TRUE(is_freed_on_it ? managed->free(other, second) : managed->free(other));
    ASSERT_TRUE(managed->resize({.at = at, .size_bytes = 24 * MiB, .may_move = false}));
    use(at + 8 * MiB, 16 * MiB, lasting);
    ASSERT_TRUE(managed->free(at, lasting));
    ASSERT_TRUE(driver.destroy_stream(second));
  }
}

// In place, elsewhere and to less, with memory that another stream's unfinished work still uses.
// What is new may be used at once by any stream.
TEST_F(EndedManager, ItsBlockIsResized) {
  for (const vmm::contents_rule rule :
       {vmm::contents_rule::none, vmm::contents_rule::zero_on_acquire, vmm::contents_rule::poison,
        vmm::contents_rule::zero_on_release}) {
    for (const vmm::alias_level alias : {vmm::alias_level::coherent, vmm::alias_level::none}) {
      vmm::manager_options options;
      options.contents = rule;
      open(options, cuda_with([&](auto& plays) { plays.can.alias = alias; }));
      const address at = block_of_ended(8 * MiB);
      const address other = allocate(16 * MiB, lasting);
      use(other, 16 * MiB, lasting);
      ASSERT_TRUE(managed->free(other));
      const auto more = managed->resize({.at = at, .size_bytes = 20 * MiB, .may_move = false});
      ASSERT_FALSE(more) << "the addresses behind it are taken";
      ASSERT_EQ(more.error().code, errc::out_of_addresses);
      const auto moved = managed->resize({.at = at, .size_bytes = 20 * MiB});
      const bool moves = rule == vmm::contents_rule::none;
      ASSERT_EQ(moved.has_value(), moves);
      const address now = moves ? *moved : at;
      if (moves) use(now + 8 * MiB, 12 * MiB, lasting);
      ASSERT_TRUE(managed->resize({.at = now, .size_bytes = 3 * MiB}));
      const auto again = *managed->resize({.at = now, .size_bytes = 4 * MiB});
      if (clears(rule)) use(again + 3 * MiB, MiB, lasting);
    }
  }
}

TEST_F(EndedManager, ItsBlockGrowsInPlaceIntoMemoryInUse) {
  for (const vmm::contents_rule rule :
       {vmm::contents_rule::none, vmm::contents_rule::zero_on_acquire}) {
    vmm::manager_options options;
    options.contents = rule;
    options.budget_bytes = 24 * MiB;
    open(options);
    const stream_handle gone = *driver.create_stream();
    const address at = allocate(8 * MiB, gone, 64 * MiB);
    use(at, 8 * MiB, gone);
    ASSERT_TRUE(driver.destroy_stream(gone));
    const address other = allocate(16 * MiB, lasting);
    use(other, 16 * MiB, lasting);
    ASSERT_TRUE(managed->free(other));
    const auto grown = managed->resize({.at = at, .size_bytes = 24 * MiB, .may_move = false});
    ASSERT_TRUE(grown);
    const stream_handle next = *driver.create_stream();
    use(at + 8 * MiB, 16 * MiB, next);
    ASSERT_TRUE(driver.destroy_stream(next));
  }
}

// With the stream's name the caller does not wait: the stream does.
TEST_F(EndedManager, AResizeThatNamesALastingStreamDoesNotWait) {
  vmm::manager_options options;
  options.budget_bytes = 24 * MiB;
  open(options);
  const address at = allocate(8 * MiB, lasting, 64 * MiB);
  const address used = allocate(16 * MiB, streams[1]);
  use(used, 16 * MiB, streams[1]);
  ASSERT_TRUE(managed->free(used, streams[1]));
  ASSERT_TRUE(
      managed->resize({.at = at, .size_bytes = 24 * MiB, .may_move = false, .names_stream = true}));
  EXPECT_EQ(driver.calls(call::wait_event), 1u);
  EXPECT_EQ(driver.calls(call::synchronize_event), 0u);
  EXPECT_GT(driver.resource_counts().pending_work, 0u);
  use(at, 24 * MiB, lasting);
  ASSERT_TRUE(managed->resize({.at = at, .size_bytes = 2 * MiB, .names_stream = true}));
  EXPECT_EQ(driver.calls(call::record_all), 0u);
}

// The target's own stream is not the copy's.
TEST_F(EndedManager, ACopyByRemappingOntoItsBlock) {
  const address to = block_of_ended(16 * MiB);
  const address from = allocate(8 * MiB, lasting);
  use(from, 8 * MiB, lasting);
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(managed->copy({to, from, 8 * MiB, lasting}, vmm::copy_mode::move));
  EXPECT_EQ(managed->statistics().remapped_copy_count, 1u);
  use(to, 16 * MiB, lasting);
}

TEST_F(EndedManager, SuspensionWaitsForItsWork) {
  block_of_ended(8 * MiB);
  vmm::suspension_list parts;
  ASSERT_TRUE(managed->suspension().begin_suspend({}, parts));
  EXPECT_EQ(driver.resource_counts().pending_work, 0u);
  managed->suspension().end_suspend(parts, false);
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
    (void)managed->trim(0);
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
  block_of_ended(8 * MiB);
  managed.reset();
  EXPECT_EQ(driver.misuse_count(), driver.misuse_count(vmm::fake::misuse_kind::stale_handle));
}

struct EndedAtRandom : EndedManager {
  struct block {
    address at;
    std::uint64_t size_bytes;
    stream_handle stream;    // of its allocation
    vmm::event_handle done;  // behind all submitted work that uses it
  };

  // Orders the block's own stream behind all of its work, unless that stream is gone.
  bool order_own(const block& of) {
    const bool lives = std::count(streams.begin(), streams.end(), of.stream) != 0;
    if (lives) EXPECT_TRUE(driver.wait_event(of.stream, of.done));
    return lives;
  }
  void make(std::uint64_t size_bytes, stream_handle stream) {
    blocks.push_back({allocate(size_bytes, stream), size_bytes, stream, *driver.create_event()});
    use(blocks.back().at, size_bytes, stream);
    ASSERT_TRUE(driver.record_event(blocks.back().done, stream));
  }
  // What is new is used by `user`, which is ordered behind the block's work.
  void resize(block& changed, std::uint64_t size_bytes, stream_handle user) {
    const bool lives = order_own(changed);
    const auto at = managed->resize(
        {.at = changed.at, .size_bytes = size_bytes, .names_stream = lives && random() % 2 == 0});
    if (!at) {
      ASSERT_EQ(at.error().code, errc::out_of_addresses) << "only a block that is filled";
      ASSERT_NE(managed->options().contents, vmm::contents_rule::none);
      return;
    }
    const std::uint64_t before_bytes = std::exchange(changed.size_bytes, size_bytes);
    changed.at = *at;
    if (size_bytes <= before_bytes) return;
    if (user != changed.stream) ASSERT_TRUE(managed->synchronize(*at));  // its stream may be gone
    if (lives) ASSERT_TRUE(driver.record_event(changed.done, changed.stream));
    ASSERT_TRUE(driver.wait_event(user, changed.done));
    use(*at + before_bytes, size_bytes - before_bytes, user);
    ASSERT_TRUE(driver.record_event(changed.done, user));
  }
  void free(std::size_t index) {
    (void)order_own(blocks[index]);
    ASSERT_TRUE(managed->free(blocks[index].at));
    ASSERT_TRUE(driver.destroy_event(blocks[index].done));
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void step(vmm::growable_range& range) {
    if (streams.size() < 3) streams.push_back(*driver.create_stream());
    const std::size_t which = random() % streams.size();
    const std::uint64_t choice = random() % 24;
    const std::uint64_t size_bytes = (random() % 8 + 1) * MiB;
    if (choice < 8) {
      make(size_bytes, streams[which]);
    } else if (choice < 13 && !blocks.empty()) {
      free(random() % blocks.size());
    } else if (choice < 15) {
      ASSERT_TRUE(driver.destroy_stream(streams[which]));
      streams.erase(streams.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (choice < 20 && choice != 15 && !blocks.empty()) {
      resize(blocks[random() % blocks.size()], size_bytes, streams[which]);
    } else if (choice >= 20) {  // ordered behind all that has used it
      ASSERT_TRUE(driver.finish_all());
      ASSERT_TRUE(range.resize({.size_bytes = size_bytes, .stream = streams[which]}));
      use(*range.segment(0), size_bytes, streams[which]);
    } else {
      (void)managed->trim(0);
      ASSERT_TRUE(driver.advance_us(5e4));
    }
  }

  std::mt19937_64 random;
  std::vector<stream_handle> streams;
  std::vector<block> blocks;
};

TEST_F(EndedAtRandom, EachCall) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    random.seed(seed);
    vmm::manager_options options;
    if (seed % 3 == 0) options.policy = vmm::manager_policy::keep_mapped();
    if (seed % 3 == 1) options.policy = vmm::manager_policy::virtual_caching();
    if (seed % 4 == 0) options.contents = vmm::contents_rule::zero_on_release;
    open(options);
    {
      vmm::growable_range range(*managed, {.segment_bytes_max = 64 * MiB});
      for (int left = 400; left > 0 && !HasFatalFailure(); --left) step(range);
      for (const stream_handle each : streams) ASSERT_TRUE(driver.destroy_stream(each));
      for (const block& each : blocks) ASSERT_TRUE(driver.destroy_event(each.done));
      streams.clear();
      blocks.clear();
    }
    managed.reset();  // with live blocks
  }
}

}  // namespace
