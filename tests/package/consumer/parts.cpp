// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each module can be imported by itself, without the umbrella.
// Method: import them one by one and name one thing of each.
#include <cstdio>

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.intrusive;
import vmm.manager;
import vmm.optimizer;
import vmm.physical;
import vmm.reservation;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

int use_parts() {
  const unsigned long long total = sizeof(vmm::address) + sizeof(vmm::cuda_options) +
                                   sizeof(vmm::fake_driver) + sizeof(vmm::host_options) +
                                   sizeof(vmm::index_node) + sizeof(vmm::policy) +
                                   sizeof(vmm::block_request) + sizeof(vmm::physical_options) +
                                   sizeof(vmm::reservation_options) + sizeof(vmm::ticket_ref) +
                                   sizeof(vmm::tracker) + sizeof(vmm::range_options);
  std::printf("one thing of each module takes %llu bytes\n", total);
  return 0;
}
