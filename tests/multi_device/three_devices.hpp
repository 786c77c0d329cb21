// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A fake machine for tests of rights: two devices besides the one that is home.
#pragma once

import vmm.fake;

inline vmm::fake::profile three_devices() {
  vmm::fake::profile made = vmm::fake::profile::cuda();
  made.device_count = 3;
  made.device_memory_bytes = 512 * MiB;
  return made;
}
