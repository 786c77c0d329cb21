// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a plan claims what it says, and commit, commit_free and abandon leave the state whole.
// Method: a unit of vmm.stream, which reaches what the module does not export. The state of a pool
// without a driver: pieces of memory are plain objects, mapped by saying so. After each step the
// whole state is validated; what is abandoned leaves the list of regions as it was.
module;
#include "../support/failing_new.h"
#include "../support/test.h"

module vmm.stream;

import vmm.backend;
import vmm.physical;
import vmm.va;

namespace vmm {
namespace {

constexpr std::uint32_t MiB_granules = static_cast<std::uint32_t>(MiB / granule_bytes);
constexpr address base{std::uint64_t{1} << 40};

pool_setup setup_with(std::uint64_t segment_bytes, std::uint64_t handle_bytes) {
  pool_setup how;
  how.policy.tuning.growth_gap_bytes = 0;
  how.policy.handle_bytes_max = handle_bytes;
  how.policy.headroom = 0;
  how.policy.tuning.slack_bytes = 0;
  how.policy.tuning.min_move_share = 0;
  how.unit_bytes = 2 * MiB;
  how.page_bytes = 2 * MiB;
  how.segment_bytes = segment_bytes;
  return how;
}

struct creation {
  std::uint32_t granules = 0;
  std::uint32_t handle_granules = 0;
};
// How much a new pool would create for a MiB, and in handles of which size.
creation created_for_a_mib(const pool_setup& how, const growth_effort& effort) {
  pool_state state{how};
  EXPECT_TRUE(state.add_segment({{}, {base, how.segment_bytes}}));
  const std::uint32_t stream = *stream_memory(state).add_stream(static_cast<stream_handle>(1));
  growth_planner planner(state);
  auto plan = *planner.plan({MiB_granules, stream}, effort);
  const creation created{plan.create_granules, plan.handle_granules};
  growth_commit(state).abandon(plan, 0);
  EXPECT_TRUE(state_audit(state).validate());
  state_end(state).release_all();
  return created;
}

struct PlannerTest : testing::Test {
  explicit PlannerTest(std::uint64_t handle_bytes = 2 * MiB)
      : state(setup_with(64 * MiB, handle_bytes)) {}

  void SetUp() override {
    ASSERT_TRUE(state.add_segment({{}, {base, 64 * MiB}}));
    a = *stream_memory(state).add_stream(static_cast<stream_handle>(1));
    b = *stream_memory(state).add_stream(static_cast<stream_handle>(2));
  }
  void TearDown() override {
    vmm::state_end(state).release_all();
    while (mapping* const gone = state.records().take_oldest_stale())
      idle_handles(state).stale_unmapped(*gone);
    free_handle_walk walk = idle_handles(state).begin_walk(64 * MiB);
    std::vector<handle_record*> idle;
    ASSERT_TRUE(idle_handles(state).claim_idle(walk, 1000, idle));
    for (handle_record* each : idle) (void)idle_handles(state).handle_unmapped(*each);
    EXPECT_EQ(state_report(state).statistics().mapped_bytes, 0u);
  }

  memory_list fresh(std::uint32_t granules) {
    memory_list list;
    if (granules == 0) return list;
    pieces.push_back(std::make_unique<physical_memory>());
    pieces.back()->size_bytes = granules * granule_bytes;
    list.push_back(pieces.back().get());
    return list;
  }
  // A growth that the driver carries out.
  address grow(std::uint64_t size_bytes, std::uint32_t stream, const growth_effort& effort) {
    growth_planner planner(state);
    auto plan = planner.plan({granules_in(size_bytes), stream}, effort);
    if (!plan) return {};
    EXPECT_TRUE(growth_commit(state).prepare(*plan, fresh(plan->create_granules)));
    const auto at = growth_commit(state).commit(*plan);
    EXPECT_TRUE(state_audit(state).validate());
    return at ? *at : address{};
  }
  std::vector<pool_region> regions() {
    std::vector<pool_region> out;
    EXPECT_TRUE(state_report(state).list_regions(out));
    return out;
  }
  // All that has passed is a's, found by looking at so many regions at a time; how many there were.
  template <class Between>
  std::uint64_t gather(std::uint32_t looks_max, Between&& between) {
    region_walk walk{.looks_max = looks_max};
    for (bool goes_on = true; goes_on;) {
      const std::uint64_t before = walk.seen_count;
      goes_on = stream_memory(state).reclaim_finished(a, walk);
      EXPECT_LE(walk.seen_count - before, looks_max);
      if (goes_on) EXPECT_EQ(walk.seen_count - before, looks_max);
      if (goes_on) between();
    }
    return walk.seen_count;
  }
  std::uint64_t gather(std::uint32_t looks_max) {
    return gather(looks_max, [] {});
  }
  // What was free memory of b's before a walk and is after it, and was not taken meanwhile.
  std::vector<pool_region> left_out(const std::vector<pool_region>& before,
                                    const std::vector<address_range>& taken) {
    std::vector<pool_region> out;
    for (const pool_region& now : regions()) {
      if (now.kind != pool_region_kind::free || now.stream != static_cast<stream_handle>(2))
        continue;
      const bool was_there = std::any_of(before.begin(), before.end(), [&](const auto& each) {
        return each.range == now.range && each.kind == now.kind && each.stream == now.stream;
      });
      const bool was_taken = std::any_of(
          taken.begin(), taken.end(), [&](const auto& each) { return each.overlaps(now.range); });
      if (was_there && !was_taken) out.push_back(now);
    }
    return out;
  }
  static bool same(const std::vector<pool_region>& x, const std::vector<pool_region>& y) {
    if (x.size() != y.size()) return false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i].range != y[i].range || x[i].kind != y[i].kind || x[i].stream != y[i].stream)
        return false;
    }
    return true;
  }

  pool_state state;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::vector<std::unique_ptr<physical_memory>> pieces;
};

TEST_F(PlannerTest, CreatesWhatIsMissingInPages) {
  growth_planner planner(state);
  auto plan = *planner.plan({MiB_granules, a}, {});
  EXPECT_EQ(plan.create_granules, 2 * MiB_granules);
  EXPECT_EQ(plan.moved_granules, 0u);
  EXPECT_EQ(plan.at, base);
  EXPECT_FALSE(state_audit(state).validate()) << "a region is claimed";
  ASSERT_TRUE(growth_commit(state).prepare(plan, fresh(plan.create_granules)));
  const auto at = *growth_commit(state).commit(plan);
  EXPECT_EQ(at, base);
  EXPECT_TRUE(state_audit(state).validate());
  const pool_statistics now = state_report(state).statistics();
  EXPECT_EQ(now.mapped_bytes, 2 * MiB);
  EXPECT_EQ(now.live_bytes, MiB);
  EXPECT_EQ(now.reusable_bytes, MiB);
  EXPECT_EQ(now.created_count, 1u);
  EXPECT_EQ(now.slow_count, 1u);
}

TEST_F(PlannerTest, AFreeThatIsPutOffIsDoneBeforeTheNextOne) {
  const address first = grow(MiB, a, {});
  bool starved = false;
  const address second = state.try_allocate({MiB_granules / 2, a}, starved);
  ASSERT_TRUE(second);
  ASSERT_TRUE(state.free_deferring(first, a));
  EXPECT_FALSE(state_audit(state).validate()) << "a block that is in no table";
  EXPECT_EQ(state.records().live_granules(), MiB_granules + MiB_granules / 2);
  ASSERT_TRUE(state.free_deferring(second, a)) << "which ends the first";
  EXPECT_EQ(state.records().live_granules(), MiB_granules / 2);
  state.finish_deferred_free();
  EXPECT_EQ(state_report(state).statistics().live_bytes, 0u);
  EXPECT_TRUE(state_audit(state).validate());
  ASSERT_EQ(regions().size(), 2u) << "all that is mapped, and the hole behind it";
  EXPECT_EQ(regions().front().range.size_bytes, 2 * MiB);
  EXPECT_EQ(state.free_deferring(first, a).error().code, errc::not_allocated);
}

TEST_F(PlannerTest, AmongManyBlocksASecondFreeIsRefusedWhileTheFirstIsPutOff) {
  (void)grow(MiB, a, {});
  std::vector<address> blocks(64);
  bool starved = false;
  for (address& each : blocks) each = state.try_allocate({2, a}, starved);
  for (std::size_t i = 0; i < 20; ++i) ASSERT_TRUE(state.free_deferring(blocks[i], a));
  EXPECT_GT(state.records().live_granules(), MiB_granules + std::uint64_t{2} * 44);
  EXPECT_EQ(state.free_deferring(blocks[19], a).error().code, errc::not_allocated);
  EXPECT_EQ(state.records().live_granules(), MiB_granules + std::uint64_t{2} * 44);
  EXPECT_EQ(state.free_deferring(blocks[20] + granule_bytes, a).error().code,
            errc::invalid_argument);
  ASSERT_TRUE(state.free_deferring(blocks[20], a));
  state.finish_deferred_free();
  EXPECT_TRUE(state_audit(state).validate());
}

TEST_F(PlannerTest, CreatesNoMoreThanIsNeededWhereThatIsAsked) {
  pool_setup how = setup_with(64 * MiB, 64 * MiB);
  how.policy.headroom = 100;
  how.policy.tuning.growth_share = 1;
  growth_effort effort{.held_bytes = 32 * MiB};
  EXPECT_EQ(created_for_a_mib(how, effort).granules, 32 * MiB_granules) << "as much again";
  effort.needed_only = true;
  EXPECT_EQ(created_for_a_mib(how, effort).granules, 2 * MiB_granules) << "a page";
}

TEST_F(PlannerTest, ContinuesFreeMemoryAtTheEnd) {
  ASSERT_EQ(grow(3 * MiB, a, {}), base);
  growth_planner planner(state);
  auto plan = *planner.plan({2 * MiB_granules, a}, {.may_move = false});
  EXPECT_NE(plan.start, region_id::none) << "1 MiB is free there";
  EXPECT_EQ(plan.create_granules, 2 * MiB_granules);
  EXPECT_EQ(plan.at, base + 4 * MiB);
  growth_commit(state).abandon(plan, 0);
  EXPECT_TRUE(state_audit(state).validate());
  EXPECT_EQ(grow(2 * MiB, a, {.may_move = false}), base + 3 * MiB);
}

// By memory held: at least a 32nd within the headroom, a 96th beyond it while live bytes grow, in
// handles of a 64th, from half of the policy's largest to all of it; of half where free memory is
// scattered.
TEST(Planner, CreatesMoreAndInLargerHandlesTheMoreIsThere) {
  struct row {
    std::uint64_t footprint_mib;
    bool has_headroom;
    bool is_short;
    std::uint32_t create_mib;
    std::uint32_t handle_mib;
  };
  for (const row& each :
       {row{0, true, false, 2, 8}, row{320, true, false, 10, 8}, row{640, true, false, 16, 10},
        row{2048, true, false, 16, 16}, row{96, false, false, 2, 8}, row{480, false, false, 4, 8},
        row{2048, false, false, 16, 8}, row{2048, false, true, 2, 8}}) {
    SCOPED_TRACE(each.footprint_mib);
    pool_setup how = setup_with(1024 * MiB, 16 * MiB);
    how.policy.tuning.small_handle_bytes = 0;
    how.policy.tuning.slack_bytes = each.has_headroom ? 4096 * MiB : 0;
    const creation created = created_for_a_mib(
        how, {.use_all_free = each.is_short, .held_bytes = each.footprint_mib * MiB});
    EXPECT_EQ(created.granules, each.create_mib * MiB_granules);
    EXPECT_EQ(created.handle_granules, each.handle_mib * MiB_granules);
  }
}

// While a pool is small: a 12th of the memory held with the new memory, a 32nd where free memory is
// scattered, from 8 MiB on; as without the rule from its bound on.
TEST(Planner, CreatesSmallHandlesWhileLittleIsHeld) {
  struct row {
    std::uint64_t footprint_mib;
    bool is_scattered;
    std::uint32_t handle_mib;
  };
  for (const row& each :
       {row{0, false, 8}, row{94, false, 8}, row{238, false, 20}, row{502, false, 42},
        row{510, false, 64}, row{94, true, 8}, row{382, true, 12}, row{510, true, 24}}) {
    SCOPED_TRACE(each.footprint_mib);
    pool_setup how = setup_with(1024 * MiB, 128 * MiB);
    how.policy.tuning.slack_bytes = each.is_scattered ? 0 : 4096 * MiB;
    how.policy.tuning.growth_share = 1024;
    how.policy.tuning.small_handle_bytes = 24 * MiB;
    const creation created = created_for_a_mib(how, {.held_bytes = each.footprint_mib * MiB});
    EXPECT_EQ(created.granules, 2 * MiB_granules);
    EXPECT_EQ(created.handle_granules, each.handle_mib * MiB_granules);
  }
}

// In the mean of the last 200,000 events: nothing up to the budget, all of it from twice that on.
TEST(MoveBudget, RaisesTheHeadroomBetweenABudgetAndTwiceThat) {
  constexpr std::uint64_t span = move_budget::span_events;
  move_budget spent;
  struct step {
    std::uint64_t move_count;  // of 12.5 us each
    std::uint64_t events;
    double mean_ns;
    double part;
  };
  constexpr std::uint64_t move_ns = 12'500;
  constexpr std::uint64_t count = span / move_ns;  // 1 ns an event
  for (const step& each :
       {step{0, 0, 0, 0}, step{50 * count, 0, 50, 0}, step{25 * count, 0, 75, 0.5},
        step{0, 0, 75, 0.5}, step{25 * count, 0, 100, 1}, step{100 * count, 0, 200, 1},
        step{0, span, 100, 1}, step{0, 2 * span, 50, 0}, step{25 * count, 2 * span, 75, 0.5}}) {
    spent.add(each.move_count, move_ns, each.events);
    EXPECT_DOUBLE_EQ(spent.mean_ns(each.events), each.mean_ns);
    EXPECT_DOUBLE_EQ(spent.raise(each.events, 50), each.part * move_budget::raise_max);
  }
}

// Neither a driver that is slow for a time nor a process that is stopped while it maps costs memory
// for good.
TEST(MoveBudget, AMoveCostsAtMostWhatAnIdleDriverTakes) {
  for (const std::uint64_t move_ns : {17'501ull, 40'000ull, 3'600'000'000'000ull}) {
    move_budget spent;
    spent.add(2, move_ns, 0);
    EXPECT_DOUBLE_EQ(spent.mean_ns(0), 35e3 / move_budget::span_events);
  }
}

struct LargeHandles : PlannerTest {
  LargeHandles() : PlannerTest(32 * MiB) {}
};

TEST_F(LargeHandles, BelowThePeakNothingIsCreatedInAdvance) {
  ASSERT_TRUE(state.free(grow(16 * MiB, a, {}), a));
  growth_planner planner(state);
  for (const auto& [asked_mib, create_mib] : {std::pair{15u, 16u}, std::pair{17u, 20u}}) {
    auto plan =
        *planner.plan({asked_mib * MiB_granules, b}, {.may_move = false, .held_bytes = 1920 * MiB});
    EXPECT_EQ(plan.create_granules, create_mib * MiB_granules);
    growth_commit(state).abandon(plan, 0);
  }
  EXPECT_TRUE(state_audit(state).validate());
}

TEST_F(PlannerTest, MovesFreeHandlesAndWaitsForTheirStream) {
  const address first = grow(4 * MiB, b, {});
  const address between = grow(2 * MiB, b, {});
  ASSERT_TRUE(state.free(first, b));
  growth_planner planner(state);
  auto plan = *planner.plan({6 * MiB_granules, a}, {.use_all_free = true});
  EXPECT_EQ(plan.moved.size(), 1u);
  EXPECT_EQ(plan.moved_granules, 4 * MiB_granules);
  EXPECT_EQ(plan.create_granules, 2 * MiB_granules);
  ASSERT_EQ(plan.waits.size(), 1u);
  EXPECT_EQ(plan.waits[0].stream, b);
  ASSERT_TRUE(growth_commit(state).prepare(plan, fresh(plan.create_granules)));
  EXPECT_EQ(plan.memories.size(), 2u);
  const auto at = *growth_commit(state).commit(plan);
  EXPECT_TRUE(state_audit(state).validate());
  EXPECT_EQ(state_report(state).statistics().stale_bytes, 4 * MiB) << "the old mapping stands";
  EXPECT_EQ(state_report(state).statistics().moved_count, 1u);
  ASSERT_TRUE(state.free(at, a));
  ASSERT_TRUE(state.free(between, b));
  EXPECT_TRUE(state_audit(state).validate());
}

// Handles of 8 and 4 MiB that are free together, and of 2 and 4: of the smaller region first, each
// time from its end.
TEST_F(PlannerTest, MovesTheHandlesOfTheSmallestRegionFirst) {
  std::vector<address> blocks;
  for (const std::uint64_t size_mib : {8u, 4u, 2u, 2u, 4u, 2u})
    blocks.push_back(grow(size_mib * MiB, a, {}));
  for (const std::size_t freed : {0u, 1u, 3u, 4u}) ASSERT_TRUE(state.free(blocks[freed], a));
  growth_planner planner(state);
  auto plan = *planner.plan({14 * MiB_granules, a}, {});
  EXPECT_EQ(plan.create_granules, 0u);
  std::vector<std::uint64_t> offsets_mib;
  for (const handle_record* each : plan.moved)
    offsets_mib.push_back(each->current->offset / MiB_granules);
  EXPECT_EQ(offsets_mib, (std::vector<std::uint64_t>{16, 14, 8, 0}));
  growth_commit(state).abandon(plan, 0);
  EXPECT_TRUE(state_audit(state).validate());
  for (const std::size_t kept : {2u, 5u}) ASSERT_TRUE(state.free(blocks[kept], a));
}

// Looking at all regions is paid for by frees: without one in between it is not done again.
TEST_F(PlannerTest, GathersAgainAfterAFree) {
  const address first = grow(4 * MiB, b, {});
  const address second = grow(4 * MiB, b, {});
  std::array<stream_point, 4> others;
  EXPECT_EQ(stream_memory(state).others_to_reclaim(a, others), 0u) << "nothing is free";
  ASSERT_TRUE(state.free(first, b));
  ASSERT_EQ(stream_memory(state).others_to_reclaim(a, others), 1u);
  EXPECT_EQ(others[0].stream, b);
  EXPECT_EQ(others[0].epoch, state.progress().last_epoch(b));
  gather(1024);
  EXPECT_TRUE(state_audit(state).validate());
  EXPECT_EQ(stream_memory(state).others_to_reclaim(a, others), 0u);
  bool starved = false;
  EXPECT_EQ(state.try_allocate({MiB_granules, a}, starved), address{}) << "its work goes on";
  ASSERT_TRUE(state.free(second, b));
  ASSERT_EQ(stream_memory(state).others_to_reclaim(a, others), 1u);
  state.progress().note_passed(others[0]);
  gather(1024);
  EXPECT_TRUE(state_audit(state).validate());
  EXPECT_EQ(state.try_allocate({8 * MiB_granules, a}, starved), base);
  ASSERT_TRUE(state.free(base, a));
}

// A walk over all regions releases the lock in between, without effect if no other call comes
// between.
TEST_F(PlannerTest, GathersInParts) {
  ASSERT_TRUE(state.free(grow(4 * MiB, b, {}), b));
  std::vector<address> blocks;
  bool starved = false;
  while (const address at = state.try_allocate({MiB_granules / 16, b}, starved))
    blocks.push_back(at);
  ASSERT_EQ(blocks.size(), 64u);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (i % 3 != 0) ASSERT_TRUE(state.free(blocks[i], b));
  state.progress().note_passed(state.progress().last_point(b));
  EXPECT_EQ(gather(4), 44u) << "22 live blocks, with free memory between them, and a hole";
  EXPECT_TRUE(state_audit(state).validate());
  for (const pool_region& each : regions())
    if (each.kind == pool_region_kind::free) EXPECT_EQ(each.stream, static_cast<stream_handle>(1));
  for (std::size_t i = 0; i < blocks.size(); i += 3) ASSERT_TRUE(state.free(blocks[i], a));
  EXPECT_EQ(state.try_allocate({4 * MiB_granules, a}, starved), base);
  ASSERT_TRUE(state.free(base, a));
}

// Whatever others allocate and free between two parts.
TEST_F(PlannerTest, GathersInPartsBetweenOtherCalls) {
  ASSERT_TRUE(state.free(grow(8 * MiB, b, {}), b));
  std::mt19937 random(11);
  std::vector<address> live;
  std::vector<address_range> taken;  // since the walk began, some of it freed again
  const auto call = [&] {
    const std::uint32_t stream = random() % 2 == 0 ? a : b;
    bool starved = false;
    if (live.size() < 8 || random() % 2 == 0) {
      const auto count = static_cast<std::uint32_t>(1 + random() % (MiB_granules / 4));
      const address at = state.try_allocate({count, stream}, starved);
      if (at) live.push_back(at);
      if (at) taken.push_back({at, count * granule_bytes});
    } else {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(state.free(live.back(), stream));
      live.pop_back();
    }
    if (random() % 4 == 0) state.progress().note_passed(state.progress().last_point(b));
  };
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 10; ++i) call();
    const bool all_passed = random() % 2 == 0;
    if (all_passed) state.progress().note_passed(state.progress().last_point(b));
    const std::vector<pool_region> before = regions();
    taken.clear();
    (void)gather(static_cast<std::uint32_t>(1 + random() % 4), call);
    ASSERT_TRUE(state_audit(state).validate()) << "round " << round;
    if (!all_passed) continue;
    for (const pool_region& each : left_out(before, taken))
      ADD_FAILURE() << "round " << round << ": " << each.range.size_bytes << " bytes are left out";
  }
  for (const address each : live) ASSERT_TRUE(state.free(each, b));
  state.progress().note_passed(state.progress().last_point(b));
  (void)gather(3);
  bool starved = false;
  EXPECT_EQ(state.try_allocate({8 * MiB_granules, a}, starved), base) << "all joins again";
  ASSERT_TRUE(state.free(base, a));
}

TEST_F(PlannerTest, WhatIsAbandonedIsAsItWas) {
  const address first = grow(4 * MiB, b, {});
  ASSERT_NE(grow(2 * MiB, b, {}), address{});
  const address last = grow(3 * MiB, a, {});
  ASSERT_TRUE(state.free(first, b));
  const auto before = regions();
  growth_planner planner(state);
  for (const bool prepared : {false, true}) {
    auto plan = *planner.plan({8 * MiB_granules, a}, {.use_all_free = true});
    if (prepared) ASSERT_TRUE(growth_commit(state).prepare(plan, fresh(plan.create_granules)));
    EXPECT_FALSE(same(regions(), before));
    growth_commit(state).abandon(plan, 0);
    EXPECT_TRUE(state_audit(state).validate());
    EXPECT_TRUE(same(regions(), before));
  }
  ASSERT_TRUE(state.free(last, a));
}

// The block's fill is queued before its record is made.
TEST_F(PlannerTest, ABlockWithoutARecordIsMemoryThatAFillUses) {
  growth_planner planner(state);
  auto announced = *planner.plan({2 * MiB_granules, a}, {});
  announced.made_for = 1;
  ASSERT_TRUE(growth_commit(state).prepare(announced, fresh(announced.create_granules)));
  growth_commit(state).commit_free(announced);
  EXPECT_EQ(state_report(state).statistics().slow_count, 0u) << "no request has grown";
  auto plan = *planner.plan({4 * MiB_granules, a}, {.may_move = false});
  ASSERT_NE(plan.start, region_id::none) << "behind the announced memory";
  ASSERT_TRUE(growth_commit(state).prepare(plan, fresh(plan.create_granules)));
  failing_new::plan = {.armed = true, .fail_at = 1};
  const auto refused = growth_commit(state).commit(plan);
  failing_new::plan = {};
  ASSERT_EQ(refused.error().code, errc::out_of_host_memory);
  free_handle_walk walk = idle_handles(state).begin_walk(64 * MiB, announced.made_for);
  std::vector<handle_record*> unused;
  ASSERT_TRUE(idle_handles(state).claim_idle(walk, 1000, unused));
  EXPECT_TRUE(unused.empty());
  EXPECT_TRUE(state_audit(state).validate());
}

TEST_F(PlannerTest, WhatTheDriverLeftMappedIsStale) {
  growth_planner planner(state);
  auto plan = *planner.plan({4 * MiB_granules, a}, {});
  ASSERT_TRUE(growth_commit(state).prepare(plan, fresh(plan.create_granules)));
  growth_commit(state).abandon(plan, 1);
  EXPECT_TRUE(state_audit(state).validate());
  EXPECT_EQ(state_report(state).statistics().stale_bytes, 4 * MiB);
  EXPECT_EQ(state_report(state).statistics().mapped_bytes, 0u);
}

TEST_F(PlannerTest, ARequestThatNoHoleTakesIsRefused) {
  growth_planner planner(state);
  const auto before = regions();
  EXPECT_EQ(planner.plan({65 * MiB_granules, a}, {}).error().code, errc::out_of_addresses);
  EXPECT_TRUE(same(regions(), before));
  EXPECT_TRUE(state_audit(state).validate());
}

TEST_F(PlannerTest, FirstPagesAreFreeForTheirStream) {
  growth_planner planner(state);
  auto plan = *planner.plan({6 * MiB_granules, b}, {.may_move = false});
  ASSERT_TRUE(growth_commit(state).prepare(plan, fresh(plan.create_granules)));
  growth_commit(state).commit_free(plan);
  EXPECT_TRUE(state_audit(state).validate());
  EXPECT_EQ(state_report(state).statistics().reusable_bytes, 6 * MiB);
  bool starved = false;
  EXPECT_EQ(state.try_allocate({MiB_granules, a}, starved), address{});
  EXPECT_EQ(state.try_allocate({MiB_granules, b}, starved), base);
}

}  // namespace
}  // namespace vmm
