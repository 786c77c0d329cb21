// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: arenas change only the time of a call: live and free memory, errors of wrong calls, memory
// held, and the order of streams stay the same.
// Method: pools whose streams have arenas from the first growth on, on the fake driver, which
// reports memory handed out while unfinished work may use it; threads for the rule that requires
// contention, which is played at the lock. Random calls with arenas are model_test.cpp's.
#include "fake_pool.hpp"

import vmm.backend;
import vmm.base;
import vmm.observe;

namespace {

using vmm::address, vmm::errc, vmm::arena_rule, vmm::pool_region_kind, vmm::stream_handle;

struct Arena : FakePool {
  [[nodiscard]] static vmm::pool_options with(arena_rule rule) {
    vmm::pool_options options;
    options.stream_arenas = rule;
    return options;
  }
  void open_with_arenas() { open(with(arena_rule::always)); }
  void TearDown() override {
    if (managed != nullptr) {
      expect_agreement();
      free_all();
      expect_agreement();
    }
    FakePool::TearDown();
  }
  // So that the next blocks of the stream come from its arena.
  void warm(stream_handle stream) {
    const address first = allocate(64 * KiB, stream);
    free(first, stream);
    const address second = allocate(4 * KiB, stream);
    EXPECT_EQ(managed->statistics().arena_count, 1u);
    EXPECT_GT(managed->statistics().arena_bytes, 0u);
    free(second, stream);
  }
  // A warm arena of the first stream, with so many free blocks of 100 KiB.
  void fill(std::size_t count) {
    open_with_arenas();
    warm(a);
    for (const address each : allocate_each(count, 100 * KiB, a)) free(each, a);
  }
  // The locks that a call takes, in its order.
  template <class Call>
  [[nodiscard]] static std::vector<const void*> locks_of(Call&& call) {
    class list final : public vmm::sync::schedule_observer {
     public:
      void reach(vmm::sync::step what, const void* object) noexcept override {
        if (what == vmm::sync::step::lock) taken.push_back(object);
      }
      std::vector<const void*> taken;
    } seen;
    vmm::sync::set_schedule_observer(&seen);
    call();
    vmm::sync::set_schedule_observer(nullptr);
    return seen.taken;
  }
  // What statistics say against what regions() lists.
  void expect_agreement() {
    const vmm::pool_statistics now = managed->statistics();
    const auto listed = *managed->regions();
    std::uint64_t live_bytes = 0;
    std::uint64_t live_count = 0;
    std::uint64_t free_bytes = 0;
    for (const vmm::pool_region& each : listed) {
      if (each.kind == pool_region_kind::live) live_bytes += each.range.size_bytes, ++live_count;
      if (each.kind == pool_region_kind::free) free_bytes += each.range.size_bytes;
    }
    EXPECT_EQ(live_bytes, now.live_bytes);
    EXPECT_EQ(live_count, now.live_count);
    EXPECT_EQ(free_bytes, now.reusable_bytes);
    EXPECT_EQ(now.mapped_bytes, now.live_bytes + now.reusable_bytes);
    EXPECT_LE(now.arena_bytes, now.reusable_bytes);
    EXPECT_GE(now.peak_live_bytes, now.live_bytes);
  }
};

// ---- which streams have one ----------------------------------------------------------

TEST_F(Arena, NoneWhileOneThreadCalls) {
  std::vector<address> blocks;
  for (std::uint64_t i = 0; i < 500; ++i) blocks.push_back(allocate(i * 700 + 1, i % 2 ? a : b));
  for (std::size_t i = 0; i < blocks.size(); ++i) free(blocks[i], i % 2 ? a : b);
  EXPECT_EQ(managed->statistics().arena_count, 0u);
  EXPECT_EQ(managed->statistics().arena_bytes, 0u);
}

TEST_F(Arena, NoneWhereTheyAreNotWanted) {
  open(with(arena_rule::never));
  free(allocate(4 * KiB, a), a);
  EXPECT_EQ(managed->statistics().arena_count, 0u);
  vmm::pool_options early = with(arena_rule::always);
  early.policy = vmm::pool_policy::vpmm();
  open(early);
  free(allocate(4 * KiB, a), a);
  EXPECT_EQ(managed->statistics().arena_count, 0u);
}

TEST_F(Arena, OneForEachStreamUpToItsPlaces) {
  open_with_arenas();
  std::vector<stream_handle> streams;
  for (int i = 0; i < 100; ++i) streams.push_back(*driver.create_stream());
  std::vector<address> blocks;
  for (const stream_handle each : streams) blocks.push_back(allocate(4 * KiB, each));
  EXPECT_GT(managed->statistics().arena_count, 16u);
  EXPECT_LE(managed->statistics().arena_count, 64u);
  for (std::size_t i = 0; i < streams.size(); ++i) free(blocks[i], streams[i]);
  for (const stream_handle each : streams) fine(managed->forget(each));
  EXPECT_EQ(managed->statistics().arena_count, 0u);
  for (const stream_handle each : streams) EXPECT_TRUE(driver.destroy_stream(each));
}

// Without arenas: each is identified without a lock.
TEST_F(Arena, AWarmRequestOnEachOfManyStreamsTakesOneLock) {
  if (!vmm::sync::has_schedule_points) GTEST_SKIP() << "locks do not announce themselves here";
  std::vector<stream_handle> streams(100);
  for (stream_handle& each : streams) each = *driver.create_stream();
  std::vector<address> apart;  // so that what a stream frees stays its own
  std::vector<address> blocks;
  for (const stream_handle each : streams) {
    blocks.push_back(allocate(4 * KiB, each));
    apart.push_back(allocate(4 * KiB, each));
  }
  for (std::size_t i = 0; i < streams.size(); ++i) free(blocks[i], streams[i]);
  std::size_t locks = 0;
  for (std::size_t i = 0; i < streams.size(); ++i)
    locks += locks_of([&] { blocks[i] = allocate(4 * KiB, streams[i]); }).size();
  EXPECT_EQ(locks, streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    free(blocks[i], streams[i]);
    free(apart[i], streams[i]);
    fine(managed->forget(streams[i]));
    EXPECT_TRUE(driver.destroy_stream(streams[i]));
  }
}

// ---- misuse --------------------------------------------------------------------------

TEST_F(Arena, WrongAddressesAnswerAsWithoutArenas) {
  std::array<std::vector<errc>, 2> answers;
  for (const arena_rule rule : {arena_rule::never, arena_rule::always}) {
    open(with(rule));
    if (rule == arena_rule::always) warm(a);
    const address block = allocate(8 * KiB, a);
    const address other = allocate(8 * KiB, a);
    std::vector<errc>& seen = answers[rule == arena_rule::always ? 1 : 0];
    const auto note = [&](const vmm::status& answer) {
      seen.push_back(answer ? errc::none : answer.error().code);
    };
    for (const std::uint64_t at : {block.value + 512, block.value + 1, block.value - 1,
                                   block.value + (std::uint64_t{1} << 50), std::uint64_t{16}}) {
      note(managed->free(address{at}, a));
      note(managed->free(address{at}, b));
      note(managed->free(address{at}));
      note(managed->pin(address{at}));
    }
    free(block, a);
    note(managed->free(block, a));
    note(managed->free(block, b));
    note(managed->free(block));
    note(managed->free(block + 512, a));
    note(managed->free(block + 1, a));
    note(managed->pin(block));
    note(managed->unpin(block));
    note(managed->unpin(other));
    note(managed->set_access(block, {}));
    free(other, a);
    note(managed->free(other, b));
    expect_agreement();
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0][0], errc::invalid_argument);
}

// ---- memory held ---------------------------------------------------------------------

TEST_F(Arena, WhatAnArenaKeepsServesOthersBeforeThePoolGrows) {
  fill(40);
  const vmm::pool_statistics full = managed->statistics();
  EXPECT_GT(full.arena_bytes, 3 * MiB);
  allocate(full.reusable_bytes - MiB, b);
  EXPECT_EQ(managed->statistics().mapped_bytes, full.mapped_bytes);
  EXPECT_LT(managed->statistics().arena_bytes, MiB);
}

// A block of whole mappings is made of free memory if no other is left.
TEST_F(Arena, WhatAnArenaKeepsServesABlockOfWholeMappings) {
  open(with(arena_rule::always), &vmm::pool_options::budget_bytes, 32 * MiB);
  warm(a);
  std::vector<address> blocks = allocate_each(14, 2 * MiB, a);
  for (const address each : blocks) free(each, a);
  free(allocate(4 * KiB, a), a);
  EXPECT_GT(managed->statistics().arena_bytes, 20 * MiB);
  const auto whole = managed->allocate_dedicated(32 * MiB, b);
  ASSERT_TRUE(whole) << vmm::describe(whole.error());
  expect_agreement();
  EXPECT_EQ(managed->allocate_dedicated(2 * MiB, b).error().code, errc::over_budget);
}

TEST_F(Arena, TheRichestServesAnotherStreamAndStaysOpen) {
  fill(40);
  free(allocate(4 * KiB, b), b);  // b has an arena from here on
  allocate_each(8, 100 * KiB, b);
  const vmm::pool_statistics now = managed->statistics();
  EXPECT_EQ(now.arena_count, 2u);
  EXPECT_EQ(now.other_stream_count, 8u);  // 4 KiB, and all but the first block
  allocate(100 * KiB, a);
  EXPECT_EQ(managed->statistics().arena_bytes, now.arena_bytes - 100 * KiB);  // nothing was lent
  EXPECT_EQ(managed->statistics().mapped_bytes, now.mapped_bytes);
}

// Memory of an arena whose stream has unfinished work belongs to that stream until it has finished.
TEST_F(Arena, TheRichestServesNobodyWhileItsStreamWorks) {
  driver.set_manual(true);
  open_with_arenas();
  warm(a);
  std::vector<address> blocks = allocate_each(30, 100 * KiB, a);
  for (const address each : blocks) run(a, {each, 100 * KiB});
  for (const address each : blocks) free(each, a);
  const std::uint64_t foreign = managed->statistics().other_stream_count;
  for (int i = 0; i < 10; ++i) run(b, {allocate(100 * KiB, b), 100 * KiB});
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_GE(managed->statistics().other_stream_count, foreign);
}

// Also where some of its work has finished: what it freed since then has not.
TEST_F(Arena, TheRichestServesNobodyWhileItsLaterWorkRuns) {
  driver.set_manual(true);
  open_with_arenas();
  std::vector<address> blocks = allocate_each(40, 100 * KiB, a);
  for (const address each : blocks) free(each, a);
  EXPECT_TRUE(driver.finish_all());
  fine(managed->synchronize());
  for (address& each : blocks) each = allocate(100 * KiB, a);  // of its arena, all of them
  for (const address each : blocks) run(a, {each, 100 * KiB});
  for (const address each : blocks) free(each, a);
  for (int i = 0; i < 60; ++i) run(b, {allocate(100 * KiB, b), 100 * KiB});
  EXPECT_EQ(driver.misuse_count(), 0u);
}

// No event can be recorded in it that says how far it has come, and none spoils the capture.
TEST_F(Arena, TheRichestServesNobodyWhileItsStreamIsCaptured) {
  fill(30);
  free(allocate(4 * KiB, b), b);
  const std::uint64_t foreign = managed->statistics().other_stream_count;
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  const address at = allocate(100 * KiB, b);
  EXPECT_EQ(managed->statistics().other_stream_count, foreign);
  end_capture(a);
  free(at, b);
  allocate(200 * KiB, b);
  EXPECT_GT(managed->statistics().other_stream_count, foreign);
}

// A request that another arena serves takes the lock of the pool's state to search its own memory,
// to choose the arena, and to transfer its memory.
TEST_F(Arena, AMissTakesTheStatesLockThreeTimes) {
  if (!vmm::sync::has_schedule_points) GTEST_SKIP() << "locks do not announce themselves here";
  fill(40);
  free(allocate(4 * KiB, b), b);
  allocate(100 * KiB, b);  // of what the pool's lists had
  for (int left = 4; left > 0; --left) {
    const std::uint64_t foreign = managed->statistics().other_stream_count;
    const std::vector<const void*> taken = locks_of([&] { allocate(100 * KiB, b); });
    const void* const of_state = locks_of([&] { (void)managed->last_shortage(); }).front();
    EXPECT_EQ(managed->statistics().other_stream_count, foreign + 1);
    EXPECT_EQ(std::count(taken.begin(), taken.end(), of_state), 3);
  }
}

// A little more memory, never above a budget: transfers become rare, or go on.
TEST_F(Arena, TransfersThatRecurBecomeRareByMemoryWithinTheBudget) {
  std::uint64_t budget_bytes = 0;
  for (const bool has_budget : {false, true}) {
    open(with(arena_rule::always), &vmm::pool_options::budget_bytes, has_budget ? budget_bytes : 0);
    std::mt19937 random(1);
    std::array<stream_handle, 16> streams{};
    std::array<std::array<address, 128>, 16> blocks{};
    for (stream_handle& each : streams) each = *driver.create_stream();
    const auto replace = [&](std::size_t stream, address& at) {
      if (at) free(at, streams[stream]);
      at = allocate((512ull << random() % 7) + random() % 512, streams[stream]);
    };
    for (std::size_t i = 0; i < streams.size(); ++i)
      for (address& each : blocks[i]) replace(i, each);
    const auto transfers_of = [&](int rounds) {
      const std::uint64_t before = managed->statistics().other_stream_count;
      for (int i = 0; i < rounds; ++i)
        for (std::size_t s = 0; s < streams.size(); ++s) replace(s, blocks[s][random() % 128]);
      return managed->statistics().other_stream_count - before;
    };
    const std::uint64_t at_first = transfers_of(2000);
    const std::uint64_t later = transfers_of(2000);
    const vmm::pool_statistics now = managed->statistics();
    if (!has_budget) budget_bytes = now.held_bytes - 2 * MiB;
    EXPECT_EQ(later * 8 < at_first, !has_budget) << at_first << " " << later;
    EXPECT_LE(now.held_bytes, has_budget ? budget_bytes : now.peak_live_bytes * 3 / 2 + 2 * MiB);
    expect_agreement();
    close();
    for (const stream_handle each : streams) EXPECT_TRUE(driver.destroy_stream(each));
  }
}

// Free neighbours of two arenas, each too small, are coalesced before the pool grows.
TEST_F(Arena, NeighboursOfSeveralArenasAreJoinedBeforeThePoolGrows) {
  open_with_arenas();
  warm(a);
  free(allocate(64 * KiB, b), b);
  std::vector<std::pair<address, stream_handle>> blocks;
  const std::uint64_t mapped = managed->statistics().mapped_bytes;
  for (int i = 0; managed->statistics().reusable_bytes >= 64 * KiB; ++i) {
    const stream_handle whose = i % 2 ? a : b;
    blocks.emplace_back(allocate(64 * KiB, whose), whose);
  }
  ASSERT_EQ(managed->statistics().mapped_bytes, mapped);
  for (const auto& [at, whose] : blocks) free(at, whose);
  allocate(mapped / 2, a);
  EXPECT_EQ(managed->statistics().mapped_bytes, mapped);
}

TEST_F(Arena, UnfinishedWorkOfItsStreamIsWaitedFor) {
  driver.set_manual(true);
  open_with_arenas();
  warm(a);
  const address block = allocate(100 * KiB, a);
  EXPECT_GT(managed->statistics().arena_bytes, 0u);
  run_and_free(a, {block, 100 * KiB});
  const address again = allocate(100 * KiB, a);  // behind that work, in its stream
  run_and_free(a, {again, 100 * KiB});
  const address foreign = allocate(managed->statistics().reusable_bytes, b);
  run_and_free(b, {foreign, 100 * KiB});
  EXPECT_EQ(driver.misuse_count(), 0u);
}

// Also if all memory freed in the arena is live again.
TEST_F(Arena, SynchronizeWaitsForTheWorkBeforeEveryFree) {
  driver.set_manual(true);
  for (const arena_rule rule : {arena_rule::never, arena_rule::always}) {
    open(with(rule));
    free(allocate(64 * KiB, a), a);
    if (rule == arena_rule::always) warm(a);
    fine(managed->synchronize());
    const std::uint64_t size_bytes = managed->statistics().reusable_bytes;
    const address first = allocate(size_bytes, a);
    run(a, {first, size_bytes});
    const vmm::event_handle after = *driver.create_event();
    fine(driver.record_event(after, a));
    free(first, a);
    allocate(size_bytes, a);
    EXPECT_EQ(managed->statistics().reusable_bytes, 0u);
    fine(managed->synchronize());
    EXPECT_TRUE(*driver.query_event(after));
    fine(driver.destroy_event(after));
  }
}

TEST_F(Arena, TrimAndSynchronizeTakeBackEverything) {
  open_with_arenas();
  warm(a);
  const address block = allocate(100 * KiB, a);
  free(block, a);
  EXPECT_GT(managed->statistics().arena_bytes, 0u);
  fine(managed->synchronize());
  EXPECT_EQ(managed->statistics().arena_bytes, 0u);
  free(allocate(4 * KiB, a), a);
  EXPECT_GT(managed->statistics().arena_bytes, 0u);
  EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  EXPECT_EQ(managed->statistics().mapped_bytes, 0u);
}

TEST_F(Arena, BlocksOfAForgottenStreamAreFreedOnAnother) {
  open_with_arenas();
  warm(a);
  std::vector<address> blocks = allocate_each(10, 4 * KiB, a);
  free(blocks[3], a);
  fine(managed->forget(a));
  EXPECT_EQ(managed->statistics().live_count, 9u);
  validate();
  for (int i = 0; i < 10; ++i) {
    const errc seen = i == 3 ? errc::not_allocated : errc::none;
    const vmm::status freed = managed->free(blocks[static_cast<std::size_t>(i)], b);
    EXPECT_EQ(freed ? errc::none : freed.error().code, seen);
  }
  EXPECT_EQ(managed->statistics().live_bytes, 0u);
}

TEST_F(Arena, HistoryHasEveryBlockFromItsStartOn) {
  open_with_arenas();
  warm(a);
  const address before = allocate(4 * KiB, a);
  fine(managed->history().start({}));
  EXPECT_EQ(managed->statistics().arena_bytes, 0u);
  const address inside = allocate(8 * KiB, a);
  free(inside, a);
  free(before, a);
  const auto taken = *managed->history().stop();
  std::vector<std::pair<vmm::history_kind, std::uint64_t>> seen;
  for (const vmm::history_event& each : taken.events) {
    if (each.kind == vmm::history_kind::allocated || each.kind == vmm::history_kind::freed)
      seen.emplace_back(each.kind, each.at.value);
  }
  const std::vector<std::pair<vmm::history_kind, std::uint64_t>> wanted{
      {vmm::history_kind::allocated, inside.value},
      {vmm::history_kind::freed, inside.value},
      {vmm::history_kind::freed, before.value}};
  EXPECT_EQ(seen, wanted);
  free(allocate(4 * KiB, a), a);
  EXPECT_GT(managed->statistics().arena_bytes, 0u);  // and again without one
}

// ---- threads -------------------------------------------------------------------------

// Each thread on a stream of its own, some blocks handed to the next one, while one looks, trims
// and synchronises.
TEST_F(Arena, ThreadsAndOneThatLooks) {
  open_with_arenas();
  constexpr std::size_t thread_count = 4;
  std::vector<stream_handle> streams;
  for (std::size_t i = 0; i < thread_count; ++i) streams.push_back(*driver.create_stream());
  std::array<std::atomic<std::uint64_t>, thread_count> handed_over{};
  std::atomic<bool> wrong = false;
  std::atomic<std::size_t> running = thread_count;
  const auto work = [&](std::size_t number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::vector<address> live;
    for (int step = 0; step < 4000 && !wrong; ++step) {
      const std::size_t pick = live.empty() ? 0 : random() % live.size();
      if (live.size() < 40) {
        const auto at = managed->allocate(1 + random() % (64 * KiB), streams[number]);
        if (!at) wrong = true;
        if (at) live.push_back(*at);
      } else {
        std::swap(live[pick], live.back());
        address gone = live.back();
        live.pop_back();
        if (random() % 16 == 0)
          gone = address{handed_over[(number + 1) % thread_count].exchange(gone.value)};
        if (gone && !managed->free(gone, streams[number])) wrong = true;
      }
    }
    for (const address each : live)
      if (!managed->free(each, streams[number])) wrong = true;
    --running;
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < thread_count; ++i) threads.emplace_back(work, i);
  while (running != 0) {
    const vmm::pool_statistics now = managed->statistics();
    if (now.live_bytes + now.reusable_bytes > now.mapped_bytes) wrong = true;
    if (!managed->validate() || !managed->synchronize() || !managed->regions()) wrong = true;
    (void)managed->trim(MiB);
  }
  for (std::thread& each : threads) each.join();
  EXPECT_FALSE(wrong);
  for (std::size_t i = 0; i < thread_count; ++i) {
    if (handed_over[i] != 0) free(address{handed_over[i]}, streams[i]);
  }
  EXPECT_EQ(managed->statistics().live_bytes, 0u);
  EXPECT_GT(managed->statistics().arena_count, 0u);
  for (const stream_handle each : streams) {
    fine(managed->forget(each));
    EXPECT_TRUE(driver.destroy_stream(each));
  }
}

}  // namespace
