// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the programs of nvcc share: ten streams, kernels that fill words and count wrong ones, and
// expectations that are printed.
#pragma once

#include <cstddef>
#include <cstdio>

#include <cuda_runtime.h>

#include "vmm.hpp"

namespace {

constexpr int stream_count = 10;
constexpr int threads = 256;

int failed = 0;

void expect(bool good, const char* what) {
  if (good) return;
  std::printf("wrong: %s (%s; %s)\n", what, vmm_last_error_text(),
              cudaGetErrorString(cudaPeekAtLastError()));
  failed = 1;
}

__global__ void fill(unsigned* words, std::size_t count, unsigned value) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = value;
}

__global__ void compare(const unsigned* words, std::size_t count, unsigned value,
                        unsigned long long* wrong) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    if (words[i] != value) atomicAdd(wrong, 1ull);
  }
}

struct ground {
  ground() {
    for (cudaStream_t& each : streams)
      expect(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking) == cudaSuccess, "a stream");
    expect(cudaMalloc(&wrong, sizeof(*wrong)) == cudaSuccess, "the counter");
    expect(cudaMemset(wrong, 0, sizeof(*wrong)) == cudaSuccess, "the counter's zero");
    expect(cudaDeviceSynchronize() == cudaSuccess, "the start");
  }
  void use(unsigned* words, std::size_t count, unsigned value, cudaStream_t stream) const {
    fill<<<64, threads, 0, stream>>>(words, count, value);
    compare<<<64, threads, 0, stream>>>(words, count, value, wrong);
  }
  [[nodiscard]] unsigned long long wrong_words() const {
    expect(cudaDeviceSynchronize() == cudaSuccess, "the device's work");
    unsigned long long count = ~0ull;
    expect(cudaMemcpy(&count, wrong, sizeof(count), cudaMemcpyDeviceToHost) == cudaSuccess,
           "a copy");
    return count;
  }
  cudaStream_t streams[stream_count] = {};
  unsigned long long* wrong = nullptr;
};

std::size_t words_of(int round) {
  constexpr std::size_t sizes[] = {100, 5'000, 70'000, 600'000, 1'500'000};
  return sizes[static_cast<unsigned>(round) * 7 % 5];
}

}  // namespace
