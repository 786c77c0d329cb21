// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever host allocation inside the library fails, the pool reports out_of_host_memory or
// succeeds all the same, every block and its contents are as before, and nothing leaks.
// Method: operator new is replaced; each scenario is run once to count the library's own
// allocations (the driver's are left out: an observer pauses the count during its calls), then once
// for each of them failing, and once with all from it on failing.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "../support/failing_new.h"
#include "scenarios.h"

import vmm.backend;
import vmm.fake;
import vmm.stream;
import vmm.support;

namespace {

using failing_new::plan;

/// The driver's own allocations are not the library's.
struct pause_in_driver {
  vmm::status before(const vmm::call_record&) noexcept {
    ++plan.paused_count;
    return {};
  }
  void after(const vmm::call_record&) noexcept { --plan.paused_count; }
};

using B = vmm::observed_backend<vmm::fake_driver, pause_in_driver>;
using world = pool_scenarios::world<B>;
using scenario = pool_scenarios::scenario<B>;
using pool_scenarios::variant;

class PoolHostMemory : public testing::Test {
 protected:
  // Returns how many allocations the operation made.
  std::uint64_t run(const scenario& one, const variant& on, std::uint64_t fail_at, bool forever) {
    world w(B(vmm::fake_driver(on.plays), std::make_shared<pause_in_driver>()),
            on.change(one.options));
    one.prepare(w);
    const vmm::pool_statistics before = w.pool->statistics();
    const std::size_t live_before = w.slots.size();
    plan = {.armed = true, .fail_at = fail_at, .forever = forever};
    const vmm::status done = one.operation(w);
    plan.armed = false;
    const std::uint64_t seen_count = plan.seen_count;
    const std::string what = std::string(one.name) + " on " + on.name + ", allocation " +
                             std::to_string(fail_at) + (forever ? " and all after it" : "");
    if (fail_at != 0) {
      ++possible_count;
      if (plan.struck_count > 0) ++injected_count;
    }
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
    return seen_count;
  }

  void sweep_all(const variant& on) {
    // Objects created once per process, like the list of fork listeners, exist afterwards.
    (void)run(pool_scenarios::all<B>().front(), on, 0, false);
    for (const scenario& one : pool_scenarios::all<B>()) {
      const std::uint64_t allocation_count = run(one, on, 0, false);
      for (std::uint64_t nth = 1; nth <= allocation_count; ++nth) {
        run(one, on, nth, false);
        run(one, on, nth, true);
      }
      if (HasFailure()) break;
    }
    std::printf("%s: failed %llu of %llu possible host allocations\n", on.name,
                static_cast<unsigned long long>(injected_count),
                static_cast<unsigned long long>(possible_count));
    EXPECT_EQ(injected_count, possible_count);
    EXPECT_GT(injected_count, 0u);
  }

  std::uint64_t possible_count = 0;
  std::uint64_t injected_count = 0;
};

// Lists grow in doublings: a further stream costs its own two records and little more.
TEST(PoolHostMemoryGrowth, StreamsCostWhatTheyNeed) {
  constexpr std::uint64_t stream_count = 1000;
  B driver(vmm::fake_driver(vmm::fake::profile::cuda()), std::make_shared<pause_in_driver>());
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

class idle_listener final : public vmm::fork_listener {
 public:
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
    B driver(vmm::fake_driver(vmm::fake::profile::cuda()), std::make_shared<pause_in_driver>());
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

TEST_F(PoolHostMemory, Cuda) { sweep_all(pool_scenarios::variants().at(0)); }
TEST_F(PoolHostMemory, WithoutAliases) { sweep_all(pool_scenarios::variants().at(1)); }
TEST_F(PoolHostMemory, Fronts) { sweep_all(pool_scenarios::variants().at(6)); }
TEST_F(PoolHostMemory, Host) { sweep_all(pool_scenarios::variants().at(5)); }

}  // namespace
