// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's caching allocator and its expandable segments as peers of bench_pool and bench_sharing.
// Built where PyTorch is installed (gpu_tests/gpu.sh pool), with its headers and libraries:
//   c++ -shared -fPIC -std=c++20 -O2 torch.cpp -I... -L... -lc10_cuda -lc10
#include <c10/cuda/CUDACachingAllocator.h>
#if __has_include(<c10/core/AllocatorConfig.h>)
#include <c10/core/AllocatorConfig.h>
#endif

#include <cstdint>
#include <exception>
#include <string>

#include "peer.h"

namespace {

namespace pytorch = c10::cuda::CUDACachingAllocator;

thread_local std::string last_problem;

// The work's result, or `refused` where it throws: nothing may pass through a C interface.
template <class Work, class Answer>
Answer guarded(Answer refused, Work&& work) {
  try {
    return work();
  } catch (const std::exception& problem) {
    last_problem = problem.what();
  }
  return refused;
}

void set(const std::string& settings) {
#if __has_include(<c10/core/AllocatorConfig.h>)
  c10::CachingAllocator::setAllocatorSettings(settings);
#else
  pytorch::setAllocatorSettings(settings);
#endif
}

int open_with(const std::string& settings) {
  return guarded(1, [&] {
    static const bool ready = [] {
      pytorch::init(1);
      return true;
    }();
    (void)ready;
    pytorch::emptyCache();
    set(settings);
    pytorch::resetPeakStats(0);
    return 0;
  });
}

int open_caching() { return open_with("expandable_segments:False"); }
int open_expandable() { return open_with("expandable_segments:True"); }

void* allocate(std::uint64_t size_bytes, void* stream) {
  return guarded(static_cast<void*>(nullptr), [&] {
    return pytorch::raw_alloc_with_stream(size_bytes, static_cast<cudaStream_t>(stream));
  });
}

int release(void* at, void*) {
  return guarded(1, [&] {
    pytorch::raw_delete(at);
    return 0;
  });
}

std::uint64_t peak_reserved_bytes() {
  // The first of the three figures is the sum of the pools.
  return guarded(std::uint64_t{0}, [] {
    return static_cast<std::uint64_t>(pytorch::getDeviceStats(0).reserved_bytes[0].peak);
  });
}

int close() {
  return guarded(1, [] {
    pytorch::emptyCache();
    return 0;
  });
}

const char* describe() { return last_problem.c_str(); }

constexpr vmm_peer peers[] = {
    {"PyTorch caching", open_caching, allocate, release, peak_reserved_bytes, close, describe},
    {"PyTorch expandable segments", open_expandable, allocate, release, peak_reserved_bytes, close,
     describe},
};

}  // namespace

extern "C" int vmm_peers(const vmm_peer** first) {
  *first = peers;
  return 2;
}
