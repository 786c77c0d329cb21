// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's names for the allocator, of each minor version, and the calls that its parts share.
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <vmm_allocator.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

namespace vmm_torch {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
#if VMM_TORCH >= 209
using c10::MempoolId_t;
#else
using c10::cuda::MempoolId_t;
#endif
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;
using torch_cuda::BlockInfo;
using torch_cuda::RecordContext;
using torch_cuda::SegmentInfo;
using torch_cuda::SnapshotInfo;
using torch_cuda::TraceEntry;
using context = std::shared_ptr<c10::GatheredContext>;

// The number of reasons for a closer check of every call: routes to pools, threads inside
// libvmm.torch.native(), a recorded history, trackers, libvmm.torch.disable(). Usually 0.
inline std::atomic<int> unusual{0};

// CUDA's runtime as PyTorch has loaded it.
template <class Function>
Function runtime(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

inline void check(vmm_status status) {
  TORCH_CHECK(status == VMM_SUCCESS, "vmm: ", vmm_last_error_text());
}

inline bool is_shortage(vmm_status status) {
  return status == VMM_ERROR_OUT_OF_MEMORY || status == VMM_ERROR_OVER_BUDGET ||
         status == VMM_ERROR_OUT_OF_ADDRESSES || status == VMM_ERROR_OUT_OF_MAPPINGS;
}

// What PyTorch's own deletes its blocks by. Null where it caches none: raw_delete() does not take
// back what it allocates then.
[[nodiscard]] inline c10::DeleterFnPtr cached_deleter(torch_cuda::CUDAAllocator* native) {
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr) return nullptr;
  const bool is_enabled = native->isEnabled();
  native->enable(true);
  const c10::DeleterFnPtr found = native->raw_deleter();
  native->enable(is_enabled);
  return found;
}

// PyTorch's callbacks for a shortage, which end what other processes have returned.
inline void run_free_callbacks() {
  for (const auto& each : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    (void)c10::FreeCudaMemoryCallbacksRegistry()->Create(each)->Execute();
}

// The list that a call of vmm_allocator.h writes: `ask` gets the array, its size, and the address
// of the count.
template <class Element, class Ask>
std::vector<Element> listed(Ask&& ask) {
  uint64_t count = 0;
  check(ask(nullptr, 0, &count));
  std::vector<Element> found(count + 64);
  check(ask(found.data(), found.size(), &count));
  found.resize(std::min<size_t>(found.size(), count));
  return found;
}

}  // namespace vmm_torch
