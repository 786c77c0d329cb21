// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: memory that a pool or a manager places on the host serves the device that works on it and
// the place where it lies. Method: on every kind of place, a kernel on the block, a copy into it,
// and the rights that the driver says each location has.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace {

using vmm::address, vmm::stream_handle;

struct place {
  const char* name;
  vmm::location where;
  vmm::fake::profile plays;
};

std::vector<place> places() {
  const vmm::fake::profile cuda = vmm::fake::profile::cuda();
  return {{"the device", vmm::device(0), cuda},
          {"the host", vmm::host(), cuda},
          {"a node of the host", vmm::host_node(0), cuda},
          {"the host, Level Zero", vmm::host(), vmm::fake::profile::level_zero()}};
}

// A kernel on the block, a copy from it into another one, and rights for both locations.
void use(vmm::fake_driver& driver, const place& on, address first, address second) {
  const vmm::address_range written{first, 4 * MiB};
  const vmm::status ran =
      driver.launch(stream_handle::default_stream, {.duration_us = 5, .writes = {&written, 1}});
  EXPECT_TRUE(ran) << on.name << ": " << (ran ? "" : vmm::describe(ran.error()));
  const vmm::status copied = driver.copy({second, first, 4 * MiB, stream_handle::default_stream});
  EXPECT_TRUE(copied) << on.name << ": " << (copied ? "" : vmm::describe(copied.error()));
  ASSERT_TRUE(driver.finish_all());
  for (const vmm::location grantee : {driver.home(), on.where}) {
    const auto rights = driver.get_access(first, grantee);
    EXPECT_TRUE(rights && *rights == vmm::access::read_write) << on.name;
  }
  for (const auto& misuse : driver.misuses()) ADD_FAILURE() << on.name << ": " << misuse.detail;
}

TEST(Placement, APoolsMemoryServesTheDeviceAndItsPlace) {
  for (const place& on : places()) {
    vmm::fake_driver driver{on.plays};
    {
      vmm::pool_options options;
      options.placement = on.where;
      vmm::stream_pool managed(driver, options);
      const auto first = managed.allocate(4 * MiB, stream_handle::default_stream);
      const auto second = managed.allocate(4 * MiB, stream_handle::default_stream);
      ASSERT_TRUE(first && second) << on.name;
      use(driver, on, *first, *second);
      for (const address each : {*first, *second})
        EXPECT_TRUE(managed.free(each, stream_handle::default_stream));
    }
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
}

TEST(Placement, AManagersMemoryServesTheDeviceAndItsPlace) {
  for (const place& on : places()) {
    vmm::fake_driver driver{on.plays};
    {
      vmm::manager_options options;
      options.placement = on.where;
      vmm::manager managed(driver, options);
      const auto first = managed.allocate(vmm::allocate_request{4 * MiB, 0});
      const auto second = managed.allocate(vmm::allocate_request{4 * MiB, 0});
      ASSERT_TRUE(first && second) << on.name;
      use(driver, on, *first, *second);
      for (const address each : {*first, *second}) EXPECT_TRUE(managed.free(each));
    }
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
}

}  // namespace
