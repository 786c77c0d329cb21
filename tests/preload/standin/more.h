// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the added calls of the stand-in share.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace standin {

/// Plain memory as it was asked for.
struct plain_block {
  std::size_t size = 0;
  CUcontext context = nullptr;
  std::uint64_t number = 0;
  bool has_stream = false;
};

struct extras {
  std::mutex lock;
  std::map<CUdeviceptr, plain_block> blocks;
  std::map<CUstream, CUcontext> streams;
  std::vector<CUstream> captured;
  std::uint64_t last_number = 0;
};
[[nodiscard]] extras& more();

/// The stream that a call means: 1 is the default one, 2 (and 0 where `per_thread`) the thread's.
[[nodiscard]] CUstream meant(CUstream stream, bool per_thread);

/// CUDA's version that this driver plays: VMM_STANDIN_VERSION, else that of the header.
[[nodiscard]] int played_version();

}  // namespace standin

extern "C" {

/// Work finishes in the order that the test wants: nothing by itself while `manual` is not 0.
void vmm_standin_manual(int manual);
/// Finishes everything.
void vmm_standin_finish();
/// Misuses that the fake driver saw: accesses to memory that is not there, and races.
unsigned long long vmm_standin_misuses();

CUresult base_cuMemCreate(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*,
                          unsigned long long);
CUresult base_cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle,
                                           CUmemAllocationHandleType, unsigned long long);
CUresult base_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*,
                                             CUmemAllocationHandleType);
CUresult base_cuMemGetInfo_v2(std::size_t*, std::size_t*);
CUresult base_cuMemAlloc_v2(CUdeviceptr*, std::size_t);
CUresult base_cuMemFree_v2(CUdeviceptr);
CUresult base_cuMemAllocAsync(CUdeviceptr*, std::size_t, CUstream);
CUresult base_cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult base_cuStreamCreate(CUstream*, unsigned);
CUresult base_cuStreamDestroy_v2(CUstream);
CUresult base_cuStreamSynchronize(CUstream);
CUresult base_cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult base_cuStreamEndCapture(CUstream, CUgraph*);
CUresult base_cuStreamIsCapturing(CUstream, CUstreamCaptureStatus*);
CUresult base_cuStreamWaitEvent(CUstream, CUevent, unsigned);
CUresult base_cuEventRecord(CUevent, CUstream);
CUresult base_cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
CUresult base_cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, std::size_t, CUstream);
CUresult base_cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, std::size_t, CUstream);
CUresult base_cuMemsetD8Async(CUdeviceptr, unsigned char, std::size_t, CUstream);

}  // extern "C"
