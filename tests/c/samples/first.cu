// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <vmm.hpp>

__global__ void fill(float* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = 1.0f;
}

int main() try {
  vmm::driver driver("cuda");
  vmm::pool pool(driver);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  {
    vmm::device_array<float> values(pool, 1 << 20, stream);
    fill<<<(1 << 20) / 256, 256, 0, stream>>>(values.data(), 1 << 20);
  }  // freed in the order of the stream, without waiting for the kernel
  pool.forget(stream);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
  return 0;
} catch (const std::exception& failure) {
  std::printf("%s\n", failure.what());
  return 1;
}
