// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stream pool on the fake driver with two streams. After every test the pool's validator passes,
// the driver's resource counts are zero, and it has seen no misuse. It imports what it uses,
// so it is the last include of a file.
#ifndef VMM_TESTS_STREAM_FAKE_POOL_HPP
#define VMM_TESTS_STREAM_FAKE_POOL_HPP

#include "../support/test.h"

import vmm.fake;
import vmm.stream;

struct FakePool : testing::Test {
  using pool = vmm::stream_pool;

  explicit FakePool(const vmm::fake::profile& plays = vmm::fake::profile::cuda()) : driver(plays) {}
  void SetUp() override {
    a = *driver.create_stream();
    b = *driver.create_stream();
    open();
  }
  void open(const vmm::pool_options& options = {}) {
    managed = std::make_unique<pool>(driver, options);
  }
  /// With one option changed.
  template <class Options, class Option, class Value>
  void open(vmm::pool_options options, Option Options::* option, const Value& value) {
    options.*option = value;
    open(options);
  }
  // Handles of one page and every whole one moved before any is created.
  [[nodiscard]] static vmm::pool_options moving() {
    vmm::pool_options options;
    options.policy.handle_bytes_max = 2 * MiB;
    options.policy.headroom = 0;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.min_move_share = 0;
    options.policy.tuning.growth_share = 0;
    return options;
  }
  void validate() {
    const vmm::status valid = managed->validate();
    EXPECT_TRUE(valid) << (valid ? "" : valid.error().detail);
  }
  void TearDown() override {
    if (managed != nullptr) validate();
    EXPECT_TRUE(driver.finish_all());
    managed.reset();
    for (const vmm::stream_handle stream : {a, b})
      if (stream != vmm::stream_handle::default_stream) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    for (const auto& misuse : driver.misuses()) ADD_FAILURE() << misuse.detail;
  }

  [[nodiscard]] vmm::address allocate(std::uint64_t size_bytes, vmm::stream_handle stream) {
    const auto at = managed->allocate(size_bytes, stream);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  [[nodiscard]] std::vector<vmm::address> allocate_each(std::size_t count, std::uint64_t size_bytes,
                                                        vmm::stream_handle stream) {
    std::vector<vmm::address> blocks(count);
    for (vmm::address& each : blocks) each = allocate(size_bytes, stream);
    return blocks;
  }
  static void fine(const vmm::status& answer) {
    EXPECT_TRUE(answer) << (answer ? "" : vmm::describe(answer.error()));
  }
  void free(vmm::address at, vmm::stream_handle stream) { fine(managed->free(at, stream)); }
  void run(vmm::stream_handle stream, vmm::address_range what, double us = 1000) {
    vmm::fake::kernel work{"writer", us};
    work.writes = {&what, 1};
    ASSERT_TRUE(driver.launch(stream, work));
  }
  void run_and_free(vmm::stream_handle stream, vmm::address_range what, double us = 1000) {
    run(stream, what, us);
    free(what.base, stream);
  }
  /// Nothing may have spoiled the capture.
  void end_capture(vmm::stream_handle stream) {
    const auto graph = driver.end_capture(stream);
    ASSERT_TRUE(graph) << "the capture was spoiled";
    ASSERT_TRUE(driver.destroy_graph(*graph));
  }

  vmm::fake_driver driver;
  vmm::stream_handle a{}, b{};
  std::unique_ptr<pool> managed;
};

#endif
