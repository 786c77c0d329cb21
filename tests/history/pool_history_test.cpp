// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what a pool's history says is what the pool did: blocks, mappings and bytes worked out from
// the events are those of the pool's own statistics, whatever it was made to do. Method: programs
// on the fake driver, and a replica that reads only the events. Random ones are model_test.cpp's.
#include "../stream/fake_pool.hpp"
#include "replica.hpp"

namespace {

using vmm::address, vmm::history_kind;

struct PoolHistory : FakePool {
  void record(vmm::pool_options options = {}, const vmm::history_options& how = {}) {
    ring = *vmm::history_ring::make(how);
    options.recorder = ring.get();
    open(options);
  }
  vmm::history take() {
    auto taken = managed->history().take();
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().detail);
    return taken ? std::move(*taken) : vmm::history{};
  }
  // The events, the recorded layout, and the statistics agree.
  vmm::history compare() {
    vmm::history taken = take();
    const vmm::pool_statistics now = managed->statistics();
    const replica seen(taken);
    EXPECT_EQ(taken.lost_count, 0u);
    EXPECT_EQ(seen.live_bytes(), now.live_bytes);
    EXPECT_EQ(seen.live.size(), now.live_count);
    EXPECT_EQ(fact(taken, "live_bytes"), now.live_bytes);
    EXPECT_EQ(fact(taken, "held_bytes"), seen.held_bytes);
    compare_mappings(taken, seen, now);
    std::uint64_t live_bytes = 0;
    for (const vmm::history_region& each : taken.regions) {
      if (each.kind != vmm::history_region_kind::live) continue;
      live_bytes += each.where.size_bytes;
      const auto found = seen.live.find(each.where.base.value);
      EXPECT_TRUE(found != seen.live.end() && found->second == each.where.size_bytes);
    }
    EXPECT_EQ(live_bytes, now.live_bytes);
    return taken;
  }
  void TearDown() override {
    FakePool::TearDown();
    ring.reset();
  }

  std::unique_ptr<vmm::history_ring> ring;

 private:
  static void compare_mappings(const vmm::history& taken, const replica& seen,
                               const vmm::pool_statistics& now) {
    std::uint64_t mapped_bytes = 0;
    std::size_t stale_count = 0;
    for (const vmm::history_mapping& each : taken.mappings) {
      if (each.is_stale) ++stale_count;
      if (!each.is_stale) mapped_bytes += each.where.size_bytes;
      const auto& in = each.is_stale ? seen.stale : seen.current;
      const auto found = in.find(each.where.base.value);
      EXPECT_TRUE(found != in.end() && found->second == each.where.size_bytes);
    }
    EXPECT_EQ(mapped_bytes, now.mapped_bytes);
    EXPECT_EQ(stale_count, now.stale_count);
    EXPECT_EQ(seen.stale.size(), now.stale_count);
  }
};

TEST_F(PoolHistory, NothingIsRecordedWithoutARing) {
  free(allocate(MiB, a), a);
  EXPECT_EQ(managed->history().take().error().code, vmm::errc::invalid_argument);
}

TEST_F(PoolHistory, BlocksAreThereInOrder) {
  record();
  const address first = allocate(1000, a);
  const address second = allocate(2 * MiB, b);
  free(first, a);
  const vmm::history taken = compare();
  std::vector<vmm::history_event> blocks;
  for (const auto& each : taken.events) {
    if (each.kind == history_kind::allocated || each.kind == history_kind::freed)
      blocks.push_back(each);
  }
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].at, first);
  EXPECT_EQ(blocks[0].size_bytes, 1024u);
  EXPECT_EQ(blocks[0].detail, 1000u);
  EXPECT_EQ(blocks[0].stream, static_cast<std::uint64_t>(a));
  EXPECT_EQ(blocks[1].at, second);
  EXPECT_EQ(blocks[1].stream, static_cast<std::uint64_t>(b));
  EXPECT_EQ(blocks[2].kind, history_kind::freed);
  EXPECT_EQ(blocks[2].at, first);
  EXPECT_EQ(blocks[2].size_bytes, 1024u);
  free(second, b);
}

TEST_F(PoolHistory, PinsAndCapturesCount) {
  vmm::pool_options options;
  options.capture = vmm::capture_rule::private_memory;
  record(options);
  const address pinned = allocate(MiB, a);
  fine(managed->pin(pinned));
  free(pinned, a);
  vmm::history taken = compare();
  EXPECT_EQ(replica(taken).counts[history_kind::free_pinned], 1u);
  EXPECT_EQ(replica(taken).counts[history_kind::freed], 0u);
  fine(managed->unpin(pinned));
  taken = compare();
  EXPECT_EQ(replica(taken).counts[history_kind::freed], 1u);

  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  const std::uint64_t number = managed->captures().number(a).value_or(0);
  const address in_graph = allocate(MiB, a);
  const address stays = allocate(MiB, a);
  free(in_graph, a);
  taken = compare();
  EXPECT_EQ(replica(taken).counts[history_kind::captured], 2u);
  EXPECT_EQ(replica(taken).counts[history_kind::kept], 1u);
  const auto graph = *driver.end_capture(a);
  fine(managed->captures().release(number, a));
  free(stays, a);
  taken = compare();
  EXPECT_EQ(replica(taken).counts[history_kind::graph_ended], 1u);
  EXPECT_TRUE(driver.destroy_graph(graph));
}

TEST_F(PoolHistory, AShortageSaysWhyAndIsWritten) {
  vmm::pool_options options;
  options.budget_bytes = 64 * MiB;
  vmm::history_options how;
  how.shortage_path = testing::TempDir() + "vmm_shortage_history" + std::to_string(::getpid());
  how.shortage_count_max = 1;
  record(options, how);
  const address block = allocate(40 * MiB, a);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(managed->allocate(40 * MiB, a));
  const vmm::history taken = compare();
  const replica seen(taken);
  EXPECT_EQ(seen.counts.at(history_kind::short_of_memory), 2u);
  for (const auto& each : taken.events) {
    if (each.kind == history_kind::short_of_memory) {
      EXPECT_EQ(each.size_bytes, 40 * MiB);
      EXPECT_EQ(each.at.value, static_cast<std::uint64_t>(vmm::errc::over_budget));
      EXPECT_EQ(each.detail, 64 * MiB);
    }
    if (each.kind == history_kind::short_live) EXPECT_EQ(each.size_bytes, 40 * MiB);
  }
  std::ifstream file(how.shortage_path + ".0", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto written = vmm::decode_history(std::as_bytes(std::span(text)));
  ASSERT_TRUE(written) << written.error().detail;
  EXPECT_EQ(replica(*written).counts.at(history_kind::short_of_memory), 1u);
  EXPECT_FALSE(std::filesystem::exists(how.shortage_path + ".1")) << "one is wanted at most";
  std::filesystem::remove(how.shortage_path + ".0");
  free(block, a);
}

TEST_F(PoolHistory, AShortageOfAGraphIsOneToo) {
  vmm::pool_options options;
  options.budget_bytes = 64 * MiB;
  options.capture = vmm::capture_rule::private_memory;
  record(options);
  free(allocate(MiB, b), b);
  ASSERT_TRUE(driver.begin_capture(a, vmm::capture_mode::any_thread));
  const std::uint64_t number = managed->captures().number(a).value_or(0);
  free(allocate(2 * MiB, a), a);
  EXPECT_FALSE(managed->allocate(100 * MiB, a));
  replica seen(take());
  EXPECT_EQ(seen.counts[history_kind::short_of_memory], 1u);
  EXPECT_EQ(seen.counts[history_kind::grow], seen.counts[history_kind::served]);
  EXPECT_EQ(seen.counts[history_kind::grow], 2u) << "the first pages, and what failed";
  EXPECT_EQ(managed->last_shortage().request_bytes, 100 * MiB);
  EXPECT_EQ(managed->last_shortage().stream, a);
  const auto graph = *driver.end_capture(a);
  fine(managed->captures().release(number, a));
  EXPECT_TRUE(driver.destroy_graph(graph));
}

TEST_F(PoolHistory, ThreadsAllocateWhileItStartsAndStops) {
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      for (int step = 0; step < 400; ++step) {
        const auto at = *managed->allocate(1 + random() % (3 * MiB), i == 0 ? a : b);
        ASSERT_TRUE(managed->free(at, i == 0 ? a : b));
      }
    });
  }
  for (int turn = 0; turn < 20; ++turn) {
    ASSERT_TRUE(managed->history().start({}));
    (void)managed->history().take();
    ASSERT_TRUE(managed->history().stop());
  }
  for (std::thread& each : others) each.join();
}

TEST_F(PoolHistory, WhoStandsOnAPoolThatIsNotSetUpRecordsNothing) {
  record();
  managed->history().record({history_kind::suspended, {{4096}, 512}});
  free(allocate(MiB, a), a);
  managed->history().record({history_kind::resumed, {{4096}, 512}});
  const replica seen(take());
  EXPECT_FALSE(seen.counts.contains(history_kind::suspended));
  EXPECT_EQ(seen.counts.at(history_kind::resumed), 1u);
}

TEST_F(PoolHistory, ASynchronizeIsAWaitOfTheCaller) {
  record();
  free(allocate(MiB, a), a);
  ASSERT_TRUE(managed->synchronize());
  const replica seen(take());
  EXPECT_EQ(seen.counts.at(history_kind::blocked), 1u);
  EXPECT_EQ(seen.counts.at(history_kind::passed), 1u);
}

TEST_F(PoolHistory, ASecondPoolOnTheSameRingIsRefused) {
  record();
  free(allocate(MiB, a), a);
  vmm::pool_options options;
  options.recorder = ring.get();
  vmm::stream_pool other(driver, options);
  EXPECT_EQ(other.allocate(MiB, a).error().code, vmm::errc::bad_option);
}

}  // namespace
