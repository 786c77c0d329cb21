// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A fake machine for tests of rights: two devices besides the one that is home. It imports what it
// uses, so it is the last include of a file.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.fake;

inline vmm::fake::profile three_devices(std::uint64_t memory_bytes = 140 * GiB) {
  vmm::fake::profile made = vmm::fake::profile::cuda();
  made.device_count = 3;
  made.device_memory_bytes = memory_bytes;
  made.node_count = 2;
  made.can.multicast = true;
  return made;
}

/// Nothing is left on the machine after a test, and it has seen no misuse.
struct ThreeDevices : testing::Test {
  explicit ThreeDevices(const vmm::fake::profile& plays = three_devices()) : driver(plays) {}
  void TearDown() override {
    EXPECT_EQ(driver.misuse_count(), 0u) << driver.report();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  // Of every granule of a range; none where two differ.
  [[nodiscard]] vmm::access of(vmm::address at, vmm::location grantee = vmm::device(1),
                               std::uint64_t size_bytes = 2 * MiB) {
    const vmm::access first = *driver.get_access(at, grantee);
    for (std::uint64_t i = 0; i < size_bytes; i += 2 * MiB)
      EXPECT_EQ(*driver.get_access(at + i, grantee), first) << "at " << i;
    return first;
  }

  vmm::fake_driver driver;
};
