// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the added calls of the stub driver share.
#pragma once

#include "../../../tools/program/standard.hpp"
#include "../../cuda/standin/symbols.h"

namespace standin {

/// A request for plain memory.
struct plain_block {
  std::size_t size = 0;
  CUcontext context = nullptr;
  std::uint64_t number = 0;
  bool has_stream = false;
};

struct extras {
  std::mutex lock;
  std::map<CUevent, CUcontext> events;
  std::vector<CUcontext> spare_contexts;  // destroyed ones: the next one has an old address
  std::uint64_t stale_count = 0;
  std::map<CUdeviceptr, plain_block> blocks;
  std::map<CUstream, CUcontext> streams;
  std::vector<CUstream> captured;
  std::uint64_t last_number = 0;
};
[[nodiscard]] extras& more();

/// The stream that a call means: 1 is the default one, 2 (and 0 where `per_thread`) the thread's.
[[nodiscard]] CUstream meant(CUstream stream, bool per_thread);

/// Whether the driver still has it; a call that names one that is gone is counted as stale.
[[nodiscard]] bool has_event(CUevent event);
[[nodiscard]] bool has_stream(CUstream stream);
[[nodiscard]] bool has_context(CUcontext context);
/// Spoils each capture that is under way. False: no capture.
bool spoil_captures();

/// CUDA's version that this driver plays: VMM_STANDIN_VERSION, else that of the header.
[[nodiscard]] int played_version();

}  // namespace standin

extern "C" {

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device);

/// Work finishes in the order that the test chooses: nothing by itself while `manual` is not 0.
void vmm_standin_manual(int manual);
/// Finishes everything.
void vmm_standin_finish();
/// Misuses that the fake driver saw: accesses to memory that is not there, and races.
unsigned long long vmm_standin_misuses();

/// Calls that named a context, a stream or an event that was gone.
unsigned long long vmm_standin_stale();
/// A context beside the primary one, made current.
int vmm_standin_create_context(CUcontext* context, int device);

CUresult base_cuCtxSynchronize();
CUresult base_cuCtxPushCurrent_v2(CUcontext);
CUresult base_cuEventCreate(CUevent*, unsigned);
CUresult base_cuEventDestroy_v2(CUevent);
CUresult base_cuEventQuery(CUevent);
CUresult base_cuEventSynchronize(CUevent);
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
