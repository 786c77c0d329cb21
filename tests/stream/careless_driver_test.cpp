// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the hazard checker of the pool's proofs detects each kind of bug that they exclude: a
// skipped wait, a stale mapping unmapped early, memory of two streams coalesced or handed across
// without waiting, a host that does not block. Method: a driver that belies one kind of ordering,
// under the same operations twice: with the bug there is a misuse of the expected kind, without it
// no misuse. Then random schedules until each bug has shown itself.
#include "careless_driver.h"
#include "program.hpp"
#include "scenarios.h"

namespace {

using pool_scenarios::two_gaps, vmm::fake::misuse_kind;
using world = pool_scenarios::world<careless_driver>;

struct bug_case {
  const char* name;
  driver_bug which;
  misuse_kind seen_as;
  vmm::pool_options options;
  std::function<void(world&)> operations;
};

void freed_by_b(world& w) {
  ASSERT_TRUE(w.add_used(16 * MiB, w.b));
  ASSERT_TRUE(w.add_used(2 * MiB, w.a));
  ASSERT_TRUE(w.remove(0));
}
void reuse_behind_a_wait(world& w) {
  freed_by_b(w);
  ASSERT_TRUE(w.add_used(16 * MiB, w.a));
}
void move_behind_a_wait(world& w) {
  two_gaps<careless_driver>(1)(w);
  ASSERT_TRUE(w.add_used(8 * MiB, w.c));
}
void reap_stale(world& w) {
  two_gaps<careless_driver>(0)(w);
  ASSERT_TRUE(w.add_used(8 * MiB, w.a));
  ASSERT_TRUE(w.add_used(MiB, w.a));
}
void trim_under_work(world& w) {
  two_gaps<careless_driver>(1)(w);
  (void)w.pool->trim(0);
}
// Neighbours that two streams have freed.
void merge_streams(world& w) {
  ASSERT_TRUE(w.add_used(4 * MiB, w.a));
  ASSERT_TRUE(w.add_used(2 * MiB, w.a));
  ASSERT_TRUE(w.add_used(2 * MiB, w.a));
  w.finish_work();
  w.slots[1].stream = w.b;
  w.use_all();
  ASSERT_TRUE(w.remove(0));
  ASSERT_TRUE(w.add_used(2 * MiB, w.c));  // queries whether a's half has passed, and takes some of
                                          // it
  ASSERT_TRUE(w.remove(0));
  ASSERT_TRUE(w.add_used(4 * MiB, w.b));
}
void block_when_short(world& w) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(w.add_used(2 * MiB, w.a));
  w.finish_work();
  w.slots[1].stream = w.b;
  w.use(1);
  w.use(2);
  ASSERT_TRUE(w.remove(2));
  ASSERT_TRUE(w.remove(1));
  ASSERT_TRUE(w.add_used(4 * MiB, w.c));
}
void close_under_work(world& w) {
  ASSERT_TRUE(w.add_used(4 * MiB, w.a));
  w.slots.clear();
  w.pool.reset();
}
// The second mark of one event.
void reuse_twice(world& w) {
  reuse_behind_a_wait(w);
  w.finish_work();
  ASSERT_TRUE(w.remove(1));
  ASSERT_TRUE(w.add_used(16 * MiB, w.c));  // finds that it has passed: the event is free again
  ASSERT_TRUE(w.remove(1));
  ASSERT_TRUE(w.add_used(16 * MiB, w.b));
}

vmm::pool_options halves() {
  vmm::pool_options options = pool_scenarios::budgeted(pool_scenarios::moving(), 16 * MiB);
  options.policy.handle_bytes_max = 4 * MiB;
  options.page_count = 8;
  return options;
}

std::vector<bug_case> all_bug_cases() {
  using enum driver_bug;
  using enum misuse_kind;
  const vmm::pool_options moving = pool_scenarios::moving();
  const vmm::pool_options vpmm = pool_scenarios::options_with(vmm::pool_policy::vpmm());
  return {
      {"hand out across streams, no wait", skip_wait, unordered, moving, reuse_behind_a_wait},
      {"hand out, the wrong stream waits", wait_on_other_stream, unordered, moving,
       reuse_behind_a_wait},
      {"hand out, taken as finished", believe_finished, unordered, moving, reuse_behind_a_wait},
      {"hand out, the wrong stream is marked", mark_other_stream, unordered, moving,
       reuse_behind_a_wait},
      {"hand out behind an old mark", keep_old_mark, unordered, moving, reuse_twice},
      {"move, no wait", skip_wait, unordered, moving, move_behind_a_wait},
      {"move, the wrong stream waits", wait_on_other_stream, unordered, moving, move_behind_a_wait},
      {"move, taken as finished", believe_finished, unordered, moving, move_behind_a_wait},
      {"unmap a stale mapping early", believe_finished, in_flight, vpmm, reap_stale},
      {"unmap a stale mapping behind a wrong mark", mark_other_stream, in_flight, vpmm, reap_stale},
      {"trim what is in use", believe_finished, in_flight, moving, trim_under_work},
      {"merge streams, taken as finished", believe_finished, unordered, moving, merge_streams},
      {"merge streams, wrong mark", mark_other_stream, unordered, moving, merge_streams},
      {"short of memory, not blocking", do_not_block, unordered, halves(), block_when_short},
      {"close without waiting", do_not_block, in_flight, moving, close_under_work},
      {"close behind a wrong mark", mark_other_stream, in_flight, moving, close_under_work},
  };
}

// The misuses of the expected kind, and of all.
std::pair<std::uint64_t, std::uint64_t> misuses(const bug_case& one, driver_bug which) {
  world w(careless_driver(pool_scenarios::variants().front().plays, which), one.options);
  one.operations(w);
  const std::uint64_t of_kind = w.fake().misuse_count(one.seen_as);
  const std::uint64_t all = w.fake().misuse_count();
  w.driver.set_bug(driver_bug::none);
  w.finish_work();
  w.slots.clear();
  w.pool.reset();
  w.destroy_streams();
  EXPECT_TRUE(w.fake().resource_counts().empty()) << one.name << '\n' << w.fake().report();
  return {of_kind, all};
}

TEST(CarelessDriver, EachIsSeenAndOnlyIt) {
  for (const bug_case& one : all_bug_cases()) {
    EXPECT_EQ(misuses(one, driver_bug::none).second, 0u) << one.name << ", without the bug";
    EXPECT_GT(misuses(one, one.which).first, 0u) << one.name;
  }
}

// How many operations of a random schedule it took until there was a misuse; none when there was
// none. The schedules are those that schedule_test runs.
std::optional<std::uint64_t> found_after(std::uint64_t seed, driver_bug which) {
  using program = basic_stream_program<careless_driver>;
  const std::vector<std::uint8_t> bytes = random_program(seed);
  program tried{byte_source{bytes}, which};
  if (tried.run() != program::saw_misuse) return std::nullopt;
  return tried.operations();
}

TEST(CarelessDriver, RandomSchedulesFindEach) {
  constexpr std::uint64_t schedules_max = 100;
  for (const driver_bug which : all_driver_bugs) {
    std::uint64_t found_count = 0;
    std::uint64_t operations = 0;
    for (std::uint64_t seed = 1; seed <= schedules_max; ++seed) {
      const std::optional<std::uint64_t> after = found_after(seed, which);
      if (!after) continue;
      ++found_count;
      operations += *after;
    }
    // The policy that keeps nothing, which some schedules play, makes no stream wait.
    EXPECT_GE(found_count, schedules_max / 2) << name_of(which);
    std::printf("%s: found in %llu of %llu schedules, after %llu operations on average\n",
                name_of(which), static_cast<unsigned long long>(found_count),
                static_cast<unsigned long long>(schedules_max),
                static_cast<unsigned long long>(operations / std::max(found_count, 1ul)));
  }
  for (std::uint64_t seed = 1; seed <= schedules_max; ++seed)
    EXPECT_FALSE(found_after(seed, driver_bug::none)) << seed;
}

}  // namespace
