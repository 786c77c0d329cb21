// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever host allocation inside the library fails, the pool reports out_of_host_memory or
// succeeds all the same, every block and its contents are as before, and nothing leaks.
// Method: the allocation sweep (../support/allocation_sweep.hpp) over the pool's scenarios.
#include <deque>

#include "../support/allocation_sweep.hpp"
#include "scenarios.h"

import vmm.base;

namespace {

using failing_new::plan;
using B = sweeps::paused_driver;
using pool_scenarios::variant;

void run(const pool_scenarios::scenario<B>& one, const variant& on, sweeps::allocation_sweep& all,
         sweeps::planned_failure planned) {
  pool_scenarios::world<B> w(sweeps::paused(on.plays), pool_scenarios::options_on(on, one.options));
  one.prepare(w);
  const vmm::pool_statistics before = w.pool->statistics();
  const std::size_t live_before = w.slots.size();
  const vmm::status done = all.run_under(planned, [&] { return one.operation(w); });
  const std::string what = std::string(one.name) + " on " + on.name + sweeps::describe(planned);
  w.expect_valid(what);
  w.use_all();
  if (!done) {
    const bool honest = one.is_refused && done.error().code == vmm::errc::over_budget;
    EXPECT_TRUE(honest || done.error().code == vmm::errc::out_of_host_memory) << what;
    EXPECT_EQ(w.slots.size(), live_before) << what;
    EXPECT_EQ(w.pool->statistics().live_bytes, before.live_bytes) << what;
    EXPECT_EQ(one.operation(w).has_value(), !one.is_refused) << what;
    w.expect_valid(what);
    w.use_all();
  }
  w.finish(what);
}

void sweep_all(const variant& on) {
  sweeps::allocation_sweep all;
  const auto scenarios = pool_scenarios::all<B>();
  // Objects created once per process, like the list of fork listeners, exist afterwards.
  run(scenarios.front(), on, all, {});
  for (const pool_scenarios::scenario<B>& one : scenarios) {
    all.sweep([&](sweeps::planned_failure planned) { run(one, on, all, planned); });
    if (testing::Test::HasFailure()) break;
  }
  all.expect_complete(on.name);
}

// Lists grow in doublings: a further stream costs its own two records and little more.
TEST(PoolHostMemoryGrowth, StreamsCostWhatTheyNeed) {
  constexpr std::uint64_t stream_count = 1000;
  B driver = sweeps::paused(vmm::fake::profile::cuda());
  vmm::stream_pool managed(driver);
  const auto named = [](std::uint64_t number) {
    return static_cast<vmm::stream_handle>(number << 40);
  };
  std::vector<vmm::address> blocks;
  for (std::uint64_t i = 0; i <= stream_count; ++i)
    blocks.push_back(*managed.allocate(512, vmm::stream_handle::default_stream));
  ASSERT_TRUE(managed.free(blocks.back(), named(stream_count + 1)));
  plan = {.armed = true};
  for (std::uint64_t i = 0; i < stream_count; ++i)
    ASSERT_TRUE(managed.free(blocks[i], named(i + 1)));
  plan.armed = false;
  EXPECT_LT(plan.seen_count, 2 * stream_count + 100);
}

struct idle_listener final : vmm::fork_listener {
  ~idle_listener() { stop(); }
  void forked() noexcept override {}
};

// With every place for a listener taken, listening needs memory too.
TEST(PoolHostMemorySetUp, MapsTheFirstPagesOnce) {
  std::deque<idle_listener> listeners;
  const auto take_all_places = [&] {
    for (bool has_place = true; has_place;) {
      listeners.emplace_back();
      plan = {.armed = true, .fail_at = 1, .forever = true};
      has_place = listeners.back().listen();
      plan.armed = false;
    }
  };
  vmm::pool_options options;
  options.page_count = 4;
  bool is_over = false;
  for (std::uint64_t nth = 1; !is_over; ++nth) {
    take_all_places();
    B driver = sweeps::paused(vmm::fake::profile::cuda());
    vmm::stream_pool managed(driver, options);
    plan = {.armed = true, .fail_at = nth};
    const vmm::status first = managed.set_up();
    plan.armed = false;
    is_over = plan.struck_count == 0;
    if (!first) EXPECT_EQ(first.error().code, vmm::errc::out_of_host_memory) << nth;
    ASSERT_TRUE(managed.set_up()) << nth;
    EXPECT_EQ(managed.statistics().mapped_bytes, std::uint64_t{8} << 20) << nth;
  }
}

TEST(PoolHostMemory, Cuda) { sweep_all(pool_scenarios::variants().at(0)); }
TEST(PoolHostMemory, WithoutAliases) { sweep_all(pool_scenarios::variants().at(1)); }
TEST(PoolHostMemory, Arenas) { sweep_all(pool_scenarios::variants().at(6)); }
TEST(PoolHostMemory, Host) { sweep_all(pool_scenarios::variants().at(5)); }

}  // namespace
