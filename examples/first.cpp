// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The README's program: a pool on the first available driver.
#include <cstdio>

import vmm;

int main() {
  auto driver = vmm::open_backend();  // a GPU where there is one, else host memory
  if (!driver) return std::fprintf(stderr, "%s\n", vmm::describe(driver.error()).c_str()), 1;
  vmm::stream_pool pool(*driver);
  const auto stream = vmm::stream_handle::default_stream;
  const auto block = pool.allocate(3 << 20, stream);
  if (!block) return std::fprintf(stderr, "%s\n", vmm::describe(block.error()).c_str()), 1;
  std::printf("3 MiB at %p\n", block->as<void>());
  return pool.free(*block, stream) ? 0 : 1;
}
