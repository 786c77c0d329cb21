// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A stream pool or a manager on the fake driver with two streams. After every test nothing is live,
// the driver's resource counts are zero, and it has seen no misuse. It imports what it uses, so it
// is the last include of a file.
#pragma once

#include "../support/fake_device.hpp"

import vmm.manager;
import vmm.stream;

namespace both {

template <class Allocator>
struct Both : FakeDevice {
  static constexpr bool is_manager = std::is_same_v<Allocator, vmm::manager>;

  void SetUp() override {
    FakeDevice::SetUp();
    memory = std::make_unique<Allocator>(driver);
  }
  void TearDown() override {
    EXPECT_EQ(memory->statistics().live_count, 0u);
    EXPECT_TRUE(driver.finish_all());
    memory.reset();
    FakeDevice::TearDown();
  }
  [[nodiscard]] std::uint64_t live_count() { return memory->statistics().live_count; }

  std::unique_ptr<Allocator> memory;
};

using allocators = testing::Types<vmm::stream_pool, vmm::manager>;

}  // namespace both
