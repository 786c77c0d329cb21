// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/guide.md. It opens a CUDA device and says so where there is none.
#include <cstdint>
#include <cstdio>

import vmm;

// A program that includes cuda_runtime.h has this type already.
using cudaStream_t = struct CUstream_st*;

// The number by which vmm knows a CUDA stream.
vmm::stream_handle number_of(cudaStream_t stream) {
  return static_cast<vmm::stream_handle>(reinterpret_cast<std::uintptr_t>(stream));
}

// Where a kernel finds a block.
float* pointer_to(vmm::address block) { return reinterpret_cast<float*>(block.value); }

int main() {
  auto driver = vmm::cuda_driver::open();  // device 0
  if (!driver) return std::puts(vmm::describe(driver.error()).c_str()), 0;
  vmm::stream_pool pool(*driver);

  const cudaStream_t stream = nullptr;  // or one that cudaStreamCreate made
  const auto block = pool.allocate(1000 * sizeof(float), number_of(stream));
  if (!block) return std::puts(vmm::describe(block.error()).c_str()), 1;

  // kernel<<<8, 128, 0, stream>>>(pointer_to(*block), 1000);
  std::printf("1000 floats at %p\n", static_cast<void*>(pointer_to(*block)));

  // Takes effect after the kernel; the host does not wait.
  if (auto freed = pool.free(*block, number_of(stream)); !freed)
    return std::puts(vmm::describe(freed.error()).c_str()), 1;
  return 0;
}
