// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever driver call fails, with whatever code, once, for ever, or a second time while the
// first failure is being undone, the pool reports the injected error or succeeds all the same,
// every block and its contents are as before, no memory is used too early, and nothing leaks. [R1,
// R14, R15]
// Method: each scenario is run once to count its driver calls, then once for every call, code and
// way of failing, on drivers that differ in what they can do with mappings. Work is unfinished
// throughout. The driver's resource counts are zero and its list of misuses is empty after each.

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/lsan_interface.h>
#endif
#endif

#include "../support/fault_sweep.h"
#include "scenarios.h"

namespace {

using B = vmm::fake_driver;
using world = pool_scenarios::world<B>;
using scenario = pool_scenarios::scenario<B>;
using pool_scenarios::variant, sweeps::fault_list, sweeps::outcome;

/// A driver that takes nothing back leaves the pool's records with the process, by design.
struct leaks_allowed {
  leaks_allowed() {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
    __lsan_disable();
#endif
#endif
  }
  ~leaks_allowed() {
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
    __lsan_enable();
#endif
#endif
  }
  leaks_allowed(const leaks_allowed&) = delete;
  leaks_allowed& operator=(const leaks_allowed&) = delete;
};

[[nodiscard]] bool runs_short(vmm::errc code) {
  return code == vmm::errc::out_of_memory || code == vmm::errc::over_budget;
}

/// What an operation makes of the pool's counts.
struct way {
  const char* scenario;
  std::uint64_t moved_count = 0;
  std::uint64_t other_stream_count = 0;
  std::uint64_t device_wait_count = 0;
  std::uint64_t host_wait_count = 0;
  std::uint64_t reaped_count = 0;  // stale mappings fewer than before
};
constexpr std::array ways{
    way{.scenario = "grow in place"},
    way{.scenario = "move own handles", .moved_count = 4},
    way{.scenario = "move own handles, as the source", .moved_count = 4},
    way{.scenario = "move another stream's handles", .moved_count = 4, .device_wait_count = 1},
    way{.scenario = "move another stream's handles, as the source",
        .moved_count = 4,
        .device_wait_count = 1},
    way{.scenario = "move and create", .moved_count = 4, .device_wait_count = 1},
    way{.scenario = "move what two streams used", .moved_count = 3, .device_wait_count = 2},
    way{.scenario = "reuse what another stream has finished", .other_stream_count = 1},
    way{.scenario = "reuse a part of it", .other_stream_count = 1},
    way{.scenario = "reuse behind a wait", .other_stream_count = 1, .device_wait_count = 1},
    way{.scenario = "reuse a part behind a wait", .other_stream_count = 1, .device_wait_count = 1},
    way{.scenario = "stale mappings go first", .other_stream_count = 1, .reaped_count = 4},
    way{.scenario = "stale mappings make space for a window", .reaped_count = 2},
    way{.scenario = "short, moving serves", .moved_count = 8, .device_wait_count = 2},
    way{.scenario = "short, waiting serves", .host_wait_count = 2},
    way{.scenario = "short of device memory", .moved_count = 10, .device_wait_count = 1},
    way{.scenario = "nothing serves", .host_wait_count = 2},
    way{.scenario = "nothing can serve"},
    way{.scenario = "trim stale mappings", .reaped_count = 4},
    way{.scenario = "synchronize", .host_wait_count = 2},
    way{.scenario = "reuse what was freed after everything", .other_stream_count = 1},
    way{.scenario = "grow beside what was freed after everything"},
    way{.scenario = "move what was freed after everything", .moved_count = 4},
    way{.scenario = "short, the device waits for everything",
        .moved_count = 4,
        .device_wait_count = 2},
    way{.scenario = "short, all of it serves", .other_stream_count = 1, .device_wait_count = 1},
    way{.scenario = "synchronize with everything", .host_wait_count = 3},
    way{.scenario = "announce, own handles move", .moved_count = 4},
    way{.scenario = "announce, what another stream has finished moves", .moved_count = 4},
    way{.scenario = "announce, another stream's work goes on"},
};

// A scenario that no longer does what its name says leaves a hole in the sweeps.
TEST(PoolScenarios, TakeTheWaysThatTheyAreNamedAfter) {
  const auto scenarios = pool_scenarios::all<B>();
  for (const way& expected : ways) {
    const auto one = std::find_if(scenarios.begin(), scenarios.end(), [&](const scenario& each) {
      return std::string(each.name) == expected.scenario;
    });
    ASSERT_NE(one, scenarios.end()) << expected.scenario;
    world w(B(pool_scenarios::variants().front().plays), one->options);
    one->prepare(w);
    const vmm::pool_statistics before = w.pool->statistics();
    EXPECT_EQ(one->operation(w).has_value(), !one->is_refused) << one->name;
    const vmm::pool_statistics after = w.pool->statistics();
    EXPECT_EQ(after.moved_count - before.moved_count, expected.moved_count) << one->name;
    EXPECT_EQ(after.other_stream_count - before.other_stream_count, expected.other_stream_count)
        << one->name;
    EXPECT_EQ(after.device_wait_count - before.device_wait_count, expected.device_wait_count)
        << one->name;
    EXPECT_EQ(after.host_wait_count - before.host_wait_count, expected.host_wait_count)
        << one->name;
    const std::uint64_t fewer =
        before.stale_count > after.stale_count ? before.stale_count - after.stale_count : 0;
    EXPECT_EQ(fewer, expected.reaped_count) << one->name;
    w.finish(one->name);
  }
}

struct PoolFaults : testing::Test {
  // Does the operation in a fresh world with these faults planned; checks all there is to check.
  outcome inject(const scenario& one, const variant& on, const fault_list& faults) {
    world w(B(on.plays), pool_scenarios::options_on(on, one.options));
    one.prepare(w);
    const vmm::pool_statistics before = w.pool->statistics();
    const std::size_t live_before = w.slots.size();
    const std::string what = std::string(one.name) + " on " + on.name + sweeps::describe(faults);
    w.expect_valid(what);
    sweeps::held held_before = sweeps::held_of(w.fake());
    // What an announcement has moved before it fails stays, with the mapping that it has left.
    if (std::string_view(one.name).starts_with("announce")) held_before.mappings += 4;
    outcome seen = sweeps::run_under(w.fake(), faults, [&] { return one.operation(w); });
    w.expect_valid(what);
    if (!seen.result) sweeps::expect_no_more(held_before, w.fake(), faults, what);
    if (seen.result)
      EXPECT_EQ(w.pool->statistics().held_bytes, w.fake().resource_counts().memory_bytes) << what;
    w.use_all();
    if (!seen.result) {
      const vmm::error& why = seen.result.error();
      EXPECT_TRUE(sweeps::is_injected(why, faults) || (one.is_short && runs_short(why.code)))
          << what << " reports " << vmm::describe(why);
      EXPECT_EQ(w.slots.size(), live_before) << what;
      // Without aliases memory moves by way of the cache, which is drained before a shortage.
      const bool drained = on.plays.can.alias == vmm::alias_level::none && runs_short(why.code);
      expect_same(before, w.pool->statistics(), one.gives_back || drained, what);
      const vmm::status again = one.operation(w);
      EXPECT_EQ(again.has_value(), !one.is_refused)
          << what << ", again: " << (again ? "" : vmm::describe(again.error()));
      w.expect_valid(what);
      w.use_all();
    }
    w.finish(what);
    return seen;
  }

  static void expect_same(const vmm::pool_statistics& before, const vmm::pool_statistics& after,
                          bool may_give_back, const std::string& what) {
    EXPECT_EQ(after.live_bytes, before.live_bytes) << what;
    if (may_give_back) {
      EXPECT_LE(after.mapped_bytes, before.mapped_bytes) << what;
    } else {
      EXPECT_EQ(after.mapped_bytes, before.mapped_bytes) << what;
    }
  }

  void sweep_all(const variant& on) {
    sweeps::sweep_scenarios(
        on.name, on.plays, pool_scenarios::all<B>(),
        [&](const scenario& one, const fault_list& faults) { return inject(one, on, faults); });
  }
};

struct PoolCloseFaults : testing::Test {
  // Blocks that are live, free, moved and stale, with unfinished work on all streams.
  static void prepare(world& w) {
    pool_scenarios::two_gaps<B>(1)(w);
    ASSERT_TRUE(w.add_used(8 * MiB, w.c));
    ASSERT_TRUE(w.add_used(512, w.b));
    ASSERT_TRUE(w.remove(1));
    ASSERT_TRUE(w.add_used(4 * MiB, w.c));
    ASSERT_TRUE(w.remove_unordered(w.slots.size() - 1));
  }

  // Whether the driver was made to say, for ever, that a stream is none.
  static bool denies_streams(const fault_list& faults) {
    return std::any_of(faults.begin(), faults.end(), [](const vmm::fake::fault& planned) {
      return planned.forever && planned.failure.code == vmm::errc::invalid_argument;
    });
  }

  outcome inject(const variant& on, const fault_list& faults) {
    const bool forever =
        std::any_of(faults.begin(), faults.end(), [](const auto& each) { return each.forever; });
    const leaks_allowed by_design;
    vmm::pool_options options = pool_scenarios::moving();
    options.leak_hook.hook = nullptr;  // blocks are live at the end on purpose
    world w(B(on.plays), options);
    prepare(w);
    const std::string what = std::string("close on ") + on.name + sweeps::describe(faults);
    testing::internal::CaptureStderr();
    const outcome seen = sweeps::run_under(w.fake(), faults, [&] {
      w.pool.reset();
      return vmm::status{};
    });
    const std::string said = testing::internal::GetCapturedStderr();
    w.finish_work();
    w.destroy_streams();
    const bool is_empty = w.fake().resource_counts().empty();
    EXPECT_TRUE(is_empty || forever) << what << '\n' << w.fake().report();
    const vmm::fake::resource_counts left = w.fake().resource_counts();
    EXPECT_EQ(said.empty(), left.handles == 0 && left.reservations == 0)
        << what << ": " << said << w.fake().report();
    if (!denies_streams(faults)) w.expect_no_misuse(what);
    return seen;
  }

  void sweep_all(const variant& on) {
    const outcome clean = inject(on, {});
    B any(on.plays);
    sweeps::totals sums;
    sweeps::sweep_calls(
        any, clean, [&](const fault_list& faults) { return inject(on, faults); }, sums);
    sweeps::expect_complete(on.name, sums);
  }
};

TEST_F(PoolCloseFaults, EveryDriver) {
  for (const variant& on : pool_scenarios::variants()) sweep_all(on);
}

TEST_F(PoolFaults, Cuda) { sweep_all(pool_scenarios::variants().at(0)); }
TEST_F(PoolFaults, WithoutAliases) { sweep_all(pool_scenarios::variants().at(1)); }
TEST_F(PoolFaults, WithoutSpanningUnmap) { sweep_all(pool_scenarios::variants().at(2)); }
TEST_F(PoolFaults, WithNeither) { sweep_all(pool_scenarios::variants().at(3)); }
TEST_F(PoolFaults, LevelZero) { sweep_all(pool_scenarios::variants().at(4)); }
TEST_F(PoolFaults, Arenas) { sweep_all(pool_scenarios::variants().at(6)); }
TEST_F(PoolFaults, Host) { sweep_all(pool_scenarios::variants().at(5)); }

}  // namespace
