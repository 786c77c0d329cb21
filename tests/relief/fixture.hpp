// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Allocators on one fake device of 1 GiB, which has nothing left of them after each test. It
// imports what it uses, so it is the last include of a file.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace relief {

inline constexpr auto stream = vmm::stream_handle::default_stream;

inline vmm::fake::profile small_device(std::uint64_t device_bytes = GiB) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_memory_bytes = device_bytes;
  return plays;
}

/// Handles of a granule each, so that a large request is made of many.
inline vmm::pool_options fine_pool(std::uint64_t budget_bytes = 0) {
  vmm::pool_options options;
  options.policy.handle_bytes_max = 2 * MiB;
  options.policy.tuning.growth_share = 0;
  options.policy.headroom = 0;
  options.budget_bytes = budget_bytes;
  return options;
}

struct OneDevice : testing::Test {
  explicit OneDevice(const vmm::fake::profile& plays = small_device()) : driver(plays) {}
  ~OneDevice() override {
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }

  [[nodiscard]] std::uint64_t held_bytes() const { return driver.resource_counts().memory_bytes; }
  [[nodiscard]] std::uint64_t created() const { return driver.calls(vmm::call::create); }
  [[nodiscard]] static std::string text(const vmm::error& why) { return vmm::describe(why); }

  vmm::fake_driver driver;
};

/// Memory that the pool retains unused.
inline void keep(vmm::stream_pool& pool, std::uint64_t size_bytes) {
  const auto at = pool.allocate(size_bytes, stream);
  ASSERT_TRUE(at) << vmm::describe(at.error());
  ASSERT_TRUE(pool.free(*at, stream));
}
inline void keep(vmm::manager& of, std::uint64_t size_bytes) {
  const auto at = of.allocate(size_bytes);
  ASSERT_TRUE(at) << vmm::describe(at.error());
  ASSERT_TRUE(of.free(*at));
}
inline void keep(vmm::growable_range& range, std::uint64_t size_bytes) {
  ASSERT_TRUE(range.grow(size_bytes));
  ASSERT_TRUE(range.shrink(0));
  ASSERT_TRUE(range.synchronize(stream));
}

}  // namespace relief
