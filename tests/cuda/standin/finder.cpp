// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub libcuda: cuGetProcAddress, old and new.

#include "state.h"

extern "C" CUresult standin_get_capture(CUstream, CUstreamCaptureStatus*, cuuint64_t*);

namespace {

struct entry {
  const char* symbol;
  int version;  // the CUDA version that brought this form of the call
  void* function;
};

// The name of the API, whatever symbol it is a macro for.
#define ENTRY(function, version) \
  entry { #function, version, reinterpret_cast<void*>(&function) }

const entry entries[] = {
    ENTRY(cuDeviceCanAccessPeer, 4000),
    ENTRY(cuCtxEnablePeerAccess, 4000),
    ENTRY(cuMemcpyPeerAsync, 4000),
    ENTRY(cuDeviceGetP2PAttribute, 8000),
    ENTRY(cuMemGetHandleForAddressRange, 11070),
    ENTRY(cuMulticastGetGranularity, 12010),
    ENTRY(cuMulticastCreate, 12010),
    ENTRY(cuMulticastAddDevice, 12010),
    ENTRY(cuMulticastBindMem, 12010),
    ENTRY(cuMulticastBindAddr, 12010),
    ENTRY(cuMulticastUnbind, 12010),
    ENTRY(cuGetErrorName, 6000),
    ENTRY(cuInit, 2000),
    ENTRY(cuDriverGetVersion, 2020),
    ENTRY(cuDeviceGetCount, 2000),
    ENTRY(cuDeviceGet, 2000),
    ENTRY(cuDeviceGetName, 2000),
    ENTRY(cuDeviceGetAttribute, 2000),
    ENTRY(cuDevicePrimaryCtxRetain, 7000),
    ENTRY(cuDevicePrimaryCtxRelease, 11000),
    ENTRY(cuCtxGetCurrent, 4000),
    ENTRY(cuCtxSetCurrent, 4000),
    ENTRY(cuCtxPushCurrent, 4000),
    ENTRY(cuCtxPopCurrent, 4000),
    ENTRY(cuCtxSynchronize, 2000),
    ENTRY(cuMemGetInfo, 3020),
    ENTRY(cuMemGetAllocationGranularity, 10020),
    ENTRY(cuMemAddressReserve, 10020),
    ENTRY(cuMemAddressFree, 10020),
    ENTRY(cuMemCreate, 10020),
    ENTRY(cuMemRelease, 10020),
    ENTRY(cuMemMap, 10020),
    ENTRY(cuMemUnmap, 10020),
    ENTRY(cuMemSetAccess, 10020),
    ENTRY(cuMemGetAccess, 10020),
    ENTRY(cuMemRetainAllocationHandle, 11000),
    ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020),
    ENTRY(cuMemExportToShareableHandle, 10020),
    ENTRY(cuMemImportFromShareableHandle, 10020),
    ENTRY(cuStreamCreate, 2000),
    ENTRY(cuStreamDestroy, 4000),
    ENTRY(cuStreamSynchronize, 2000),
    ENTRY(cuStreamWaitEvent, 3020),
    ENTRY(cuEventCreate, 2000),
    ENTRY(cuEventDestroy, 4000),
    ENTRY(cuEventRecord, 2000),
    ENTRY(cuEventQuery, 2000),
    ENTRY(cuEventSynchronize, 2000),
    ENTRY(cuCtxRecordEvent, 12050),
    ENTRY(cuStreamGetId, 12000),
    ENTRY(cuStreamBeginCapture, 10010),
    ENTRY(cuStreamEndCapture, 10000),
    ENTRY(cuStreamIsCapturing, 10000),
    ENTRY(cuThreadExchangeStreamCaptureMode, 10010),
    ENTRY(cuGraphDestroy, 10000),
    ENTRY(cuMemcpyDtoDAsync, 3020),
    ENTRY(cuMemcpyHtoDAsync, 3020),
    ENTRY(cuMemcpyDtoHAsync, 3020),
    ENTRY(cuMemsetD8Async, 3020),
    ENTRY(cuMemAlloc, 3020),
    ENTRY(cuMemFree, 3020),
    ENTRY(cuMemAllocAsync, 11020),
    ENTRY(cuMemFreeAsync, 11020),
    ENTRY(cuDeviceGetDefaultMemPool, 11020),
    ENTRY(cuMemPoolSetAttribute, 11020),
    ENTRY(cuMemPoolGetAttribute, 11020),
    ENTRY(cuMemPoolTrimTo, 11020),
    ENTRY(cuModuleLoadData, 2000),
    ENTRY(cuModuleUnload, 2000),
    ENTRY(cuModuleGetFunction, 2000),
    ENTRY(cuLaunchKernel, 4000),
    {"cuStreamGetCaptureInfo", 10010, reinterpret_cast<void*>(&standin_get_capture)}};

CUresult find(const char* symbol, void** function, int version,
              CUdriverProcAddressQueryResult* why) {
  const locked s(standin::the());
  *function = nullptr;
  if (why != nullptr) *why = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (s->hidden.contains(std::string_view(symbol))) return CUDA_ERROR_NOT_FOUND;
  for (const entry& each : entries) {
    if (std::string_view(each.symbol) != symbol) continue;
    if (version < each.version) {
      if (why != nullptr) *why = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      return CUDA_ERROR_NOT_FOUND;
    }
    *function = each.function;
    if (why != nullptr) *why = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* why) {
  if (symbol == nullptr || function == nullptr ||
      flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return find(symbol, function, version, why);
}

}  // extern "C"

#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t) {
  return find(symbol, function, version, nullptr);
}
