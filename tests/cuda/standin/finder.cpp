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

template <class Function>
entry at(const char* symbol, int version, Function* function) {
  return {symbol, version, reinterpret_cast<void*>(function)};
}

// What came with several devices.
const std::vector<entry>& device_entries() {
  static const std::vector<entry> some{
      at("cuDeviceCanAccessPeer", 4000, &cuDeviceCanAccessPeer),
      at("cuCtxEnablePeerAccess", 4000, &cuCtxEnablePeerAccess),
      at("cuMemcpyPeerAsync", 4000, &cuMemcpyPeerAsync),
      at("cuDeviceGetP2PAttribute", 8000, &cuDeviceGetP2PAttribute),
      at("cuMemGetHandleForAddressRange", 11070, &cuMemGetHandleForAddressRange),
      at("cuMulticastGetGranularity", 12010, &cuMulticastGetGranularity),
      at("cuMulticastCreate", 12010, &cuMulticastCreate),
      at("cuMulticastAddDevice", 12010, &cuMulticastAddDevice),
      at("cuMulticastBindMem", 12010, &cuMulticastBindMem),
      at("cuMulticastBindAddr", 12010, &cuMulticastBindAddr),
      at("cuMulticastUnbind", 12010, &cuMulticastUnbind),
  };
  return some;
}

const std::vector<entry>& entries() {
  static const std::vector<entry> all{
      at("cuGetErrorName", 6000, &cuGetErrorName),
      at("cuInit", 2000, &cuInit),
      at("cuDriverGetVersion", 2020, &cuDriverGetVersion),
      at("cuDeviceGetCount", 2000, &cuDeviceGetCount),
      at("cuDeviceGet", 2000, &cuDeviceGet),
      at("cuDeviceGetName", 2000, &cuDeviceGetName),
      at("cuDeviceGetAttribute", 2000, &cuDeviceGetAttribute),
      at("cuDevicePrimaryCtxRetain", 7000, &cuDevicePrimaryCtxRetain),
      at("cuDevicePrimaryCtxRelease", 11000, &cuDevicePrimaryCtxRelease),
      at("cuCtxGetCurrent", 4000, &cuCtxGetCurrent),
      at("cuCtxSetCurrent", 4000, &cuCtxSetCurrent),
      at("cuCtxPushCurrent", 4000, &cuCtxPushCurrent),
      at("cuCtxPopCurrent", 4000, &cuCtxPopCurrent),
      at("cuCtxSynchronize", 2000, &cuCtxSynchronize),
      at("cuMemGetInfo", 3020, &cuMemGetInfo),
      at("cuMemGetAllocationGranularity", 10020, &cuMemGetAllocationGranularity),
      at("cuMemAddressReserve", 10020, &cuMemAddressReserve),
      at("cuMemAddressFree", 10020, &cuMemAddressFree),
      at("cuMemCreate", 10020, &cuMemCreate),
      at("cuMemRelease", 10020, &cuMemRelease),
      at("cuMemMap", 10020, &cuMemMap),
      at("cuMemUnmap", 10020, &cuMemUnmap),
      at("cuMemSetAccess", 10020, &cuMemSetAccess),
      at("cuMemGetAccess", 10020, &cuMemGetAccess),
      at("cuMemRetainAllocationHandle", 11000, &cuMemRetainAllocationHandle),
      at("cuMemGetAllocationPropertiesFromHandle", 10020, &cuMemGetAllocationPropertiesFromHandle),
      at("cuMemExportToShareableHandle", 10020, &cuMemExportToShareableHandle),
      at("cuMemImportFromShareableHandle", 10020, &cuMemImportFromShareableHandle),
      at("cuStreamCreate", 2000, &cuStreamCreate),
      at("cuStreamDestroy", 4000, &cuStreamDestroy),
      at("cuStreamSynchronize", 2000, &cuStreamSynchronize),
      at("cuStreamWaitEvent", 3020, &cuStreamWaitEvent),
      at("cuEventCreate", 2000, &cuEventCreate),
      at("cuEventDestroy", 4000, &cuEventDestroy),
      at("cuEventRecord", 2000, &cuEventRecord),
      at("cuEventQuery", 2000, &cuEventQuery),
      at("cuEventSynchronize", 2000, &cuEventSynchronize),
      at("cuCtxRecordEvent", 12050, &cuCtxRecordEvent),
      at("cuStreamGetId", 12000, &cuStreamGetId),
      at("cuStreamBeginCapture", 10010, &cuStreamBeginCapture),
      at("cuStreamEndCapture", 10000, &cuStreamEndCapture),
      at("cuStreamIsCapturing", 10000, &cuStreamIsCapturing),
      at("cuStreamGetCaptureInfo", 10010, &standin_get_capture),
      at("cuThreadExchangeStreamCaptureMode", 10010, &cuThreadExchangeStreamCaptureMode),
      at("cuGraphDestroy", 10000, &cuGraphDestroy),
      at("cuMemcpyDtoDAsync", 3020, &cuMemcpyDtoDAsync),
      at("cuMemcpyHtoDAsync", 3020, &cuMemcpyHtoDAsync),
      at("cuMemcpyDtoHAsync", 3020, &cuMemcpyDtoHAsync),
      at("cuMemsetD8Async", 3020, &cuMemsetD8Async),
      at("cuMemAlloc", 3020, &cuMemAlloc),
      at("cuMemFree", 3020, &cuMemFree),
      at("cuMemAllocAsync", 11020, &cuMemAllocAsync),
      at("cuMemFreeAsync", 11020, &cuMemFreeAsync),
      at("cuDeviceGetDefaultMemPool", 11020, &cuDeviceGetDefaultMemPool),
      at("cuMemPoolSetAttribute", 11020, &cuMemPoolSetAttribute),
      at("cuMemPoolGetAttribute", 11020, &cuMemPoolGetAttribute),
      at("cuMemPoolTrimTo", 11020, &cuMemPoolTrimTo),
      at("cuModuleLoadData", 2000, &cuModuleLoadData),
      at("cuModuleUnload", 2000, &cuModuleUnload),
      at("cuModuleGetFunction", 2000, &cuModuleGetFunction),
      at("cuLaunchKernel", 4000, &cuLaunchKernel),
  };
  return all;
}

CUresult find(const char* symbol, void** function, int version,
              CUdriverProcAddressQueryResult* why) {
  standin::state& s = standin::the();
  const std::lock_guard<std::mutex> hold(s.mutex);
  *function = nullptr;
  if (why != nullptr) *why = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (s.hidden.contains(std::string_view(symbol))) return CUDA_ERROR_NOT_FOUND;
  for (const std::vector<entry>* list : {&entries(), &device_entries()})
    for (const entry& each : *list) {
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
