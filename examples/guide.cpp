// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/start.md, on the first GPU, else on host memory.
#include <cstdio>

import vmm;

// A program that includes cuda_runtime.h has this type already.
using cudaStream_t = struct CUstream_st*;

int main() {
  auto driver = vmm::open_backend();  // the first GPU, else host memory
  if (!driver) return std::fprintf(stderr, "%s\n", vmm::describe(driver.error()).c_str()), 1;
  vmm::stream_pool pool(*driver);

  const cudaStream_t native = nullptr;  // or one that cudaStreamCreate made
  const vmm::stream_handle stream = vmm::stream_from_native(native);
  const auto block = pool.allocate(1000 * sizeof(float), stream);
  if (!block) return std::fprintf(stderr, "%s\n", vmm::describe(block.error()).c_str()), 1;

  // kernel<<<8, 128, 0, native>>>(block->as<float>(), 1000);
  std::printf("1000 floats at %p\n", block->as<void>());

  // Takes effect after the kernel; the host does not wait.
  if (auto freed = pool.free(*block, stream); !freed)
    return std::fprintf(stderr, "%s\n", vmm::describe(freed.error()).c_str()), 1;
  return 0;
}
