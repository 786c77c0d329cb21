// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the resources of vmm.hpp are resources of cuda::mr, as any header of CCCL that is found
// says. Method: vmm.hpp asserts the concepts when this file is compiled. The program then
// allocates by way of CCCL's own type-erased reference, on the simulated device: no call of the
// CUDA runtime is made.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include <cstdint>
#include <cstdio>

#include "vmm.hpp"

static_assert(VMM_HAS_CUDA_MR, "the headers were found, and not used");

#if CCCL_VERSION >= 3002000
using stream_reference = cuda::mr::resource_ref<cuda::mr::device_accessible>;
using plain_reference = cuda::mr::synchronous_resource_ref<cuda::mr::device_accessible>;
#else
using stream_reference = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
using plain_reference = cuda::mr::resource_ref<cuda::mr::device_accessible>;
#endif

static void* take(stream_reference from, cuda::stream_ref stream, std::size_t size_bytes) {
#if CCCL_VERSION >= 3002000
  return from.allocate(stream, size_bytes, 256);
#else
  return from.allocate_async(size_bytes, 256, stream);
#endif
}

static void give(stream_reference to, cuda::stream_ref stream, void* at, std::size_t size_bytes) {
#if CCCL_VERSION >= 3002000
  to.deallocate(stream, at, size_bytes, 256);
#else
  to.deallocate_async(at, size_bytes, 256, stream);
#endif
}

static void* take_plainly(plain_reference from, std::size_t size_bytes) {
#if CCCL_VERSION >= 3002000
  void* const at = from.allocate_sync(size_bytes, 256);
  from.deallocate_sync(at, size_bytes, 256);
#else
  void* const at = from.allocate(size_bytes, 256);
  from.deallocate(at, size_bytes, 256);
#endif
  return at;
}

int main() {
  vmm::driver driver("fake");
  vmm::pool pool(driver);
  const vmm::stream work(driver);
  vmm::stream_resource ordered(pool);
  vmm::device_resource plain(pool);
  const cuda::stream_ref stream(static_cast<cudaStream_t>(work.get()));
  constexpr std::size_t size_bytes = std::size_t{3} << 20;
  void* const first = take(ordered, stream, size_bytes);
  give(ordered, stream, first, size_bytes);
  void* const second = take(ordered, stream, size_bytes);
  give(ordered, stream, second, size_bytes);
  const bool reused = first != nullptr && first == second;
  const bool took =
      take_plainly(plain, size_bytes) != nullptr && take_plainly(ordered, 1) != nullptr;
  const bool left = pool.statistics().live_count != 0;
  pool.forget(work.get());
  std::printf("CCCL %d: %s\n", CCCL_VERSION, reused && took && !left ? "as it should be" : "WRONG");
  return reused && took && !left ? 0 : 1;
}
