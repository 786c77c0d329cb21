// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A manager on the fake driver with three streams, which ends the process at a misuse. After every
// test, and before another manager, the validator passes, with live blocks and after they are
// freed, and the driver's resource counts are zero. It imports what it uses, so it is the last
// include of a file, except others with imports.
#pragma once

#include "../support/fake_device.hpp"

import vmm.manager;

struct FakeManager : testing::Test {
  using manager = vmm::manager;

  explicit FakeManager(bool work_is_manual = false) : is_manual(work_is_manual) {}
  void SetUp() override { open(); }
  void open(vmm::manager_options options = {},
            const vmm::fake::profile& plays = vmm::fake::profile::cuda()) {
    close();
    driver = vmm::fake_driver(plays);
    driver.set_misuse_fatal(true);
    driver.set_gone_streams_undefined(true);
    driver.set_manual(is_manual);
    for (vmm::stream_handle& each : streams) each = driver.create_stream().value();
    driver.reset_calls();
    options.leak_hook.hook = nullptr;  // some tests end it with live blocks
    managed = std::make_unique<manager>(driver, options);
  }
  void open(const vmm::manager_policy& policy,
            const vmm::fake::profile& plays = vmm::fake::profile::cuda()) {
    vmm::manager_options options;
    options.policy = policy;
    open(options, plays);
  }
  void close() {
    driver.clear_faults();
    if (managed != nullptr) {
      EXPECT_TRUE(managed->validate());
      free_all();
      EXPECT_TRUE(managed->validate());
    }
    managed.reset();
    for (vmm::stream_handle& each : streams)
      if (each != vmm::stream_handle::default_stream)
        EXPECT_TRUE(driver.destroy_stream(std::exchange(each, {})));
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  void free_all() {
    if (managed->statistics().live_count == 0) return;
    const auto extents = *managed->extents();
    for (const vmm::extent_info& each : extents)
      if (each.kind == vmm::extent_kind::live) free(each.where.base);
  }
  void TearDown() override { close(); }

  vmm::address allocate(std::uint64_t size_bytes, vmm::stream_handle stream = {},
                        std::uint64_t growth_bytes = 0) {
    const auto at = managed->allocate({size_bytes, growth_bytes, 0, stream});
    EXPECT_TRUE(at) << (at ? "" : vmm::describe(at.error()));
    return at.value_or(vmm::address{});
  }
  void free(vmm::address at) {
    const vmm::status freed = managed->free(at);
    EXPECT_TRUE(freed) << (freed ? "" : vmm::describe(freed.error()));
  }
  // A kernel of 0.1 s, or until the test says so. The driver ends the process where it is not
  // ordered behind all that still uses this memory.
  void use(vmm::address at, std::uint64_t size_bytes, vmm::stream_handle stream = {}) {
    const vmm::address_range range{at, size_bytes};
    EXPECT_TRUE(driver.launch(stream, {.name = "use", .duration_us = 1e5, .writes = {&range, 1}}));
  }

  const bool is_manual;
  vmm::fake_driver driver;
  std::array<vmm::stream_handle, 3> streams{};
  std::unique_ptr<manager> managed;
};
