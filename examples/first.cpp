// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The README's program: memory that doubles at its address.
#include <cstdio>

import vmm;

int main() {
  auto driver = vmm::host_driver::open();
  if (!driver) return std::puts(vmm::describe(driver.error()).c_str()), 1;
  vmm::manager memory(*driver);
  auto at = memory.allocate(64 << 20);
  if (at) at = memory.resize({.at = *at, .size_bytes = 128 << 20});  // no byte is copied
  if (!at) return std::puts(vmm::describe(at.error()).c_str()), 1;
  std::printf("128 MiB at %#llx\n", static_cast<unsigned long long>(at->value));
  return memory.free(*at) ? 0 : 1;
}
