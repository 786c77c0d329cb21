// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: containers of CCCL and RMM take their memory from a pool of libvmm.so on a GPU, in the
// order of ten streams, without a line of theirs or ours written for it.
// Method: thousands of cuda::device_buffer, rmm::device_uvector and rmm::device_buffer on ten
// streams over one vmm::stream_resource; a kernel fills each, another counts the words that differ,
// and the container goes before they have run. RMM's current resource is ours meanwhile.
// Needs RMM 26.10 or newer, which no distribution has: VMM_RMM in CMakeLists.txt beside this.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

#include <cuda_runtime.h>
#include <cuda/buffer>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include "device_work.cuh"
#include "vmm.hpp"

namespace {

constexpr int rounds = 3'000;

void check_cccl(const vmm::stream_resource& resource, const ground& on) {
  for (int round = 0; round < rounds; ++round) {
    const cudaStream_t stream = on.streams[round % stream_count];
    const std::size_t count = words_of(round);
    cuda::device_buffer<unsigned> words(cuda::stream_ref(stream), resource, count, cuda::no_init);
    expect(words.size() == count, "the size of a cuda::device_buffer");
    on.use(words.data(), count, static_cast<unsigned>(round), stream);
  }
  expect(on.wrong_words() == 0, "words of cuda::device_buffer");
}

void check_rmm(vmm::stream_resource resource, const ground& on) {
  const auto before = rmm::mr::set_current_device_resource(resource);
  for (int round = 0; round < rounds; ++round) {
    const cudaStream_t stream = on.streams[round % stream_count];
    const std::size_t count = words_of(round);
    rmm::device_uvector<unsigned> words(count, rmm::cuda_stream_view(stream));
    on.use(words.data(), count, static_cast<unsigned>(round), stream);
    rmm::device_buffer bytes(count * sizeof(unsigned), rmm::cuda_stream_view(stream), resource);
    on.use(static_cast<unsigned*>(bytes.data()), count, static_cast<unsigned>(~round), stream);
  }
  expect(on.wrong_words() == 0, "words of RMM's containers");
  rmm::mr::set_current_device_resource(before);
}

}  // namespace

int main() {
  try {
    vmm::driver driver("cuda");
    const ground on;
    vmm::pool pool(driver);
    const vmm::stream_resource resource(pool);
    check_cccl(resource, on);
    const std::uint64_t after_cccl = pool.statistics().peak_live_bytes;
    expect(after_cccl > 0, "cuda::device_buffer takes memory from the pool");
    check_rmm(resource, on);
    const vmm_pool_statistics numbers = pool.statistics();
    expect(numbers.peak_live_bytes > after_cccl, "RMM takes memory from the pool");
    expect(numbers.live_count == 0, "nothing is left");
    std::printf("%d cuda::device_buffer, %d of RMM; peak %llu MiB live, %llu mapped\n", rounds,
                2 * rounds, static_cast<unsigned long long>(numbers.peak_live_bytes >> 20),
                static_cast<unsigned long long>(numbers.peak_mapped_bytes >> 20));
  } catch (const std::exception& failure) {
    std::printf("%s\n", failure.what());
    return 1;
  }
  std::printf(failed ? "containers_test: WRONG\n" : "containers_test: as it should be\n");
  return failed;
}
