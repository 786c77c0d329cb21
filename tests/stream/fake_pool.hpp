// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stream pool on the fake driver with two streams. After every test, and before another pool, the
// pool's validator passes, with its live blocks and after they are freed; after every test the
// driver's resource counts are zero, and it has seen no misuse. It imports what it uses, so it is
// the last include of a file.
#pragma once

#include "../support/fake_device.hpp"

import vmm.stream;

struct FakePool : FakeDevice {
  using pool = vmm::stream_pool;

  using FakeDevice::FakeDevice;
  void SetUp() override {
    FakeDevice::SetUp();
    open();
  }
  void open(const vmm::pool_options& options = {}) {
    close();
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
    options.policy.tuning.small_handle_bytes = 0;
    return options;
  }
  // With all work finished and no live block.
  void close() {
    if (managed == nullptr) return;
    validate();
    EXPECT_TRUE(driver.finish_all());
    free_all();
    validate();
    managed.reset();
  }
  void free_all() {
    if (managed->statistics().live_count == 0) return;
    const auto regions = *managed->regions();
    for (const vmm::pool_region& each : regions)
      if (each.kind == vmm::pool_region_kind::live) free(each.range.base, a);
  }
  void validate() {
    const vmm::status valid = managed->validate();
    EXPECT_TRUE(valid) << (valid ? "" : valid.error().detail);
  }
  void TearDown() override {
    close();
    FakeDevice::TearDown();
  }

  vmm::address allocate(std::uint64_t size_bytes, vmm::stream_handle stream) {
    const auto at = managed->allocate(size_bytes, stream);
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  std::vector<vmm::address> allocate_each(std::size_t count, std::uint64_t size_bytes,
                                          vmm::stream_handle stream) {
    std::vector<vmm::address> blocks(count);
    for (vmm::address& each : blocks) each = allocate(size_bytes, stream);
    return blocks;
  }
  void free(vmm::address at, vmm::stream_handle stream) { fine(managed->free(at, stream)); }
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

  std::unique_ptr<pool> managed;
};
