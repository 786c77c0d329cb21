// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each module can be imported by itself, without the umbrella, and names that the umbrella
// does not bring are reachable through their own modules.
// Method: import them one by one; something of each module. The tidiness test sees that a module
// exports its partitions.
#include <cstdio>

import vmm.backend;
import vmm.base;
import vmm.containers;
import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.level_zero;
import vmm.manager;
import vmm.market;
import vmm.multi_device;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.registry;
import vmm.share;
import vmm.stream;
import vmm.suspend;
import vmm.testing;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace parts {
using vmm::aliased_memory, vmm::check, vmm::cuda_description, vmm::device_core, vmm::history_ring,
    vmm::host_resource_counts, vmm::level_zero_driver, vmm::market_owner, vmm::physical_handle,
    vmm::physical_pool, vmm::point_answer, vmm::region_map, vmm::share_channel, vmm::suspender,
    vmm::suspension_listener, vmm::ticket, vmm::tracker, vmm::fake::kernel, vmm::sync::spin_lock;
}  // namespace parts

int use_parts() {
  const unsigned long long total =
      sizeof(vmm::address) + sizeof(vmm::allocator_ref) + sizeof(vmm::cuda_options) +
      sizeof(vmm::fake_driver) + sizeof(vmm::growable_request) + sizeof(vmm::host_memory_resource) +
      sizeof(vmm::host_options) + sizeof(vmm::manager_policy) + sizeof(vmm::pool_options) +
      sizeof(vmm::vector<int>);
  std::printf("one thing of each module takes %llu bytes\n", total);
  return 0;
}
