// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A pool and a manager on the fake driver, each with what a misuse needs: streams, blocks, and the
// promise that after a refused call everything is as before. It imports what it uses, so it is the
// last include of a file.
#ifndef VMM_TESTS_MISUSE_FIXTURE_HPP
#define VMM_TESTS_MISUSE_FIXTURE_HPP

#include "../support/child.hpp"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;
import vmm.suspend;

namespace misuse {

using fake_pool = vmm::stream_pool;
using fake_manager = vmm::manager;

/// That of the per-thread default stream, and numbers that are not a pointer's.
inline constexpr std::uint64_t no_streams[] = {2, std::uint64_t{1} << 63, ~std::uint64_t{0}};

/// What a failed check writes, as a pattern of a death test.
inline std::string check_failed(const std::string& text) { return "vmm: check failed: " + text; }

struct Base : testing::Test {
  Base() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void SetUp() override {
    a = *driver.create_stream();
    b = *driver.create_stream();
  }
  void finish() {
    EXPECT_TRUE(driver.finish_all());
    for (const vmm::stream_handle stream : {a, b}) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    if (reports_gone_streams) driver.clear_misuses();
    for (const auto& each : driver.misuses()) ADD_FAILURE() << each.detail;
  }
  bool reports_gone_streams = false;  // that are not there: a misuse that the driver reports
  vmm::fake_driver driver;
  vmm::stream_handle a{}, b{};
};

struct PoolMisuse : Base {
  // Every whole handle of one page moves before any is created.
  [[nodiscard]] static vmm::pool_options moving() {
    vmm::pool_options options;
    options.policy.handle_bytes_max = 2 * MiB;
    options.policy.headroom = 0;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.min_move_share = 0;
    options.policy.tuning.growth_share = 0;
    return options;
  }
  void SetUp() override {
    Base::SetUp();
    open();
  }
  void open(const vmm::pool_options& options = {}) {
    pool = std::make_unique<fake_pool>(driver, options);
  }
  void TearDown() override {
    if (pool != nullptr) EXPECT_TRUE(pool->validate());
    pool.reset();
    finish();
  }
  [[nodiscard]] vmm::address allocate(std::uint64_t size_bytes, vmm::stream_handle stream) {
    const auto at = pool->allocate(size_bytes, stream);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  void free(vmm::address at, vmm::stream_handle stream) { EXPECT_TRUE(pool->free(at, stream)); }
  std::unique_ptr<fake_pool> pool;
};

struct ManagerMisuse : Base {
  void SetUp() override {
    Base::SetUp();
    manager = std::make_unique<fake_manager>(driver);
  }
  void TearDown() override {
    if (manager != nullptr) EXPECT_TRUE(manager->validate());
    manager.reset();
    finish();
  }
  [[nodiscard]] vmm::address allocate(std::uint64_t size_bytes) {
    const auto at = manager->allocate({.size_bytes = size_bytes, .stream = a});
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  std::unique_ptr<fake_manager> manager;
};

/// The code of a refusal; none where the call was taken.
template <class Answer>
[[nodiscard]] vmm::errc code_of(const Answer& answer) {
  return answer ? vmm::errc::none : answer.error().code;
}

}  // namespace misuse

#endif
