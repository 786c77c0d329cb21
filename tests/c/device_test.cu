// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a program that nvcc compiles uses libvmm.so on a GPU: kernels on ten streams in blocks of
// one pool never see another's bytes; CCCL's references, Thrust and its containers allocate there;
// a captured graph keeps its private memory, and the default stream of each thread is refused.
// Method: 10,000 rounds on ten streams, in each of which a kernel fills a fresh block with its
// round's number and another counts the words that differ, in memory that is freed without
// waiting. Then the same through cuda::mr, a sort by Thrust whose temporary memory is the pool's,
// and a graph that is launched again while the pool is in use.
//   nvcc -std=c++17 -I adapters/c/include device_test.cu -L BUILD/c -lvmm -o device_test
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include "device_work.cuh"
#include "vmm.hpp"

namespace {

constexpr int rounds = 10'000;

__global__ void descend(unsigned* words, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) words[i] = static_cast<unsigned>(count - i);
}

void check_streams(vmm::pool& pool, const ground& on) {
  for (int round = 0; round < rounds; ++round) {
    const cudaStream_t stream = on.streams[round % stream_count];
    const std::size_t count = words_of(round);
    vmm::device_array<unsigned> words(pool, count, stream);
    const auto mark = static_cast<unsigned>(round);
    fill<<<64, threads, 0, stream>>>(words.data(), count, mark);
    compare<<<64, threads, 0, stream>>>(words.data(), count, mark, on.wrong);
  }
  expect(on.wrong_words() == 0, "words of ten streams");
  expect(vmm_pool_validate(pool.get()) == VMM_SUCCESS, "the pool after ten streams");
}

void check_resources(vmm::stream_resource resource, const ground& on) {
#if VMM_HAS_CUDA_MR && CCCL_VERSION >= 3002000
  cuda::mr::resource_ref<cuda::mr::device_accessible> ref = resource;
#elif VMM_HAS_CUDA_MR
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> ref = resource;
#else
  vmm::stream_resource& ref = resource;
#endif
  for (int round = 0; round < rounds / 10; ++round) {
    const cuda::stream_ref stream(on.streams[round % stream_count]);
    const std::size_t count = words_of(round);
#if CCCL_VERSION >= 3002000
    void* const at = ref.allocate(stream, count * sizeof(unsigned), 256);
#else
    void* const at = ref.allocate_async(count * sizeof(unsigned), 256, stream);
#endif
    auto* const words = static_cast<unsigned*>(at);
    const auto mark = static_cast<unsigned>(round) + 1'000'000;
    fill<<<64, threads, 0, stream.get()>>>(words, count, mark);
    compare<<<64, threads, 0, stream.get()>>>(words, count, mark, on.wrong);
#if CCCL_VERSION >= 3002000
    ref.deallocate(stream, at, count * sizeof(unsigned), 256);
#else
    ref.deallocate_async(at, count * sizeof(unsigned), 256, stream);
#endif
  }
  expect(on.wrong_words() == 0, "words of cuda::mr");
}

// What Thrust takes as an allocator of temporary memory: bytes, in the order of one stream.
struct temporary_memory {
  using value_type = char;
  vmm_pool* pool;
  vmm_stream stream;
  char* allocate(std::ptrdiff_t size_bytes) {
    void* at = nullptr;
    if (vmm_pool_allocate(pool, static_cast<std::uint64_t>(size_bytes), stream, &at) != VMM_SUCCESS)
      throw std::bad_alloc();
    ++count;
    return static_cast<char*>(at);
  }
  void deallocate(char* at, std::size_t) { (void)vmm_pool_free(pool, at, stream); }
  int count = 0;
};

void check_thrust(vmm::pool& pool, const ground& on) {
  constexpr std::size_t count = 1'000'000;
  for (const cudaStream_t stream : on.streams) {
    vmm::device_array<unsigned> words(pool, count, stream);
    descend<<<static_cast<unsigned>(count / threads + 1), threads, 0, stream>>>(words.data(),
                                                                                count);
    temporary_memory memory{pool.get(), stream};
    const thrust::device_ptr<unsigned> first(words.data());
    thrust::sort(thrust::cuda::par(memory).on(stream), first, first + count);
    std::vector<unsigned> sorted(count);
    expect(cudaMemcpyAsync(sorted.data(), words.data(), count * sizeof(unsigned),
                           cudaMemcpyDeviceToHost, stream) == cudaSuccess,
           "a copy of what was sorted");
    expect(cudaStreamSynchronize(stream) == cudaSuccess, "the sort");
    expect(sorted[0] == 1 && sorted[count / 2] == count / 2 + 1 && sorted[count - 1] == count,
           "what was sorted");
    expect(memory.count > 0, "Thrust's temporary memory");
  }
}

// What a container of Thrust takes: a resource, in the order of the default stream, which is
// Thrust's default.
class pool_resource final : public thrust::mr::memory_resource<thrust::device_ptr<void>> {
 public:
  explicit pool_resource(vmm::pool& pool) : pool_(&pool) {}
  pointer do_allocate(std::size_t size_bytes, std::size_t alignment) override {
    expect(alignment <= 256, "no container requests more");
    ++count;
    return pointer(pool_->allocate(size_bytes, nullptr));
  }
  void do_deallocate(pointer at, std::size_t, std::size_t) override {
    pool_->free(at.get(), nullptr);
  }
  int count = 0;

 private:
  vmm::pool* pool_;
};

void check_container(vmm::pool& pool) {
  using allocator = thrust::mr::allocator<unsigned, pool_resource>;
  constexpr std::size_t start = 1'000;
  constexpr std::size_t end = 3'000'000;
  pool_resource resource(pool);
  {
    thrust::device_vector<unsigned, allocator> words{allocator(&resource)};
    for (std::size_t size = start; size <= end; size *= 2) {
      const std::size_t before = words.size();
      words.resize(size);
      thrust::sequence(words.begin() + static_cast<std::ptrdiff_t>(before), words.end(),
                       static_cast<unsigned>(before));
    }
    const std::vector<unsigned> seen(words.begin(), words.end());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) wrong += seen[i] == i ? 0 : 1;
    expect(seen.size() > end / 2 && wrong == 0, "the words of a device_vector that grew");
  }
  expect(resource.count > 5, "a device_vector takes its memory from the pool");
}

void check_capture(vmm::driver& driver, const ground& on) {
  vmm_pool_options options = vmm::pool_options();
  options.capture = VMM_CAPTURE_PRIVATE;
  vmm::pool pool(driver, options);
  const cudaStream_t stream = on.streams[0];
  constexpr std::size_t count = 1'000'000;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  std::uint64_t number = 0;
  expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "a capture");
  {
    vmm::device_array<unsigned> words(pool, count, stream);
    fill<<<64, threads, 0, stream>>>(words.data(), count, 7u);
    compare<<<64, threads, 0, stream>>>(words.data(), count, 7u, on.wrong);
    expect(vmm_pool_capture_number(pool.get(), stream, &number) == VMM_SUCCESS, "its number");
  }
  expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "its end");
  expect(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess, "a graph");
  for (int round = 0; round < 100; ++round) {
    const cudaStream_t other = on.streams[1 + round % (stream_count - 1)];
    vmm::device_array<unsigned> words(pool, count, other);
    fill<<<64, threads, 0, other>>>(words.data(), count, 8u);
    expect(cudaGraphLaunch(ready, stream) == cudaSuccess, "a launch");
    compare<<<64, threads, 0, other>>>(words.data(), count, 8u, on.wrong);
  }
  expect(on.wrong_words() == 0, "words of a graph");
  expect(pool.statistics().captured_bytes >= count * sizeof(unsigned), "what the graph keeps");
  expect(cudaGraphExecDestroy(ready) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess,
         "gone");
  expect(vmm_pool_capture_release(pool.get(), number, stream) == VMM_SUCCESS, "released");
  expect(pool.statistics().captured_bytes == 0, "nothing kept");
}

void check_default_streams(vmm::pool& pool) {
  void* at = nullptr;
  expect(pool.try_allocate(4096, cudaStreamPerThread, at) == VMM_ERROR_INVALID_ARGUMENT,
         "the default stream of each thread is refused");
  void* const legacy = pool.allocate(4096, cudaStreamLegacy);
  pool.free(legacy, nullptr);
  void* const again = pool.allocate(4096, nullptr);
  expect(again == legacy, "the legacy stream is the default stream");
  pool.free(again, cudaStreamLegacy);
}

}  // namespace

int main() {
  try {
    vmm::driver driver("cuda");
    const ground on;
    {
      vmm::pool pool(driver);
      check_streams(pool, on);
      check_resources(vmm::stream_resource(pool), on);
      check_thrust(pool, on);
      check_container(pool);
      check_default_streams(pool);
      expect(pool.statistics().live_count == 0, "nothing is left");
      const vmm_pool_statistics numbers = pool.statistics();
      std::printf(
          "%llu requests needed the driver, %llu handles, peak %llu MiB live, %llu mapped\n",
          static_cast<unsigned long long>(numbers.slow_count),
          static_cast<unsigned long long>(numbers.created_count),
          static_cast<unsigned long long>(numbers.peak_live_bytes >> 20),
          static_cast<unsigned long long>(numbers.peak_mapped_bytes >> 20));
    }
    check_capture(driver, on);
  } catch (const std::exception& failure) {
    std::printf("%s\n", failure.what());
    return 1;
  }
  std::printf(failed ? "device_test: WRONG\n" : "device_test: as it should be\n");
  return failed;
}
