// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The grown stub driver for libcuda: cuGetProcAddress, old and new, with versions and the two
// meanings of stream 0. As the real one it may return an address that is not the exported one.

#include "more.h"
#include "state.h"

extern "C" {

CUresult standin_old_destroy(CUcontext);
CUresult standin_get_capture(CUstream, CUstreamCaptureStatus*, cuuint64_t*);
CUresult cuCtxRecordEvent(CUcontext, CUevent);

#define VMM_PER_THREAD_FORM(symbol, parameters) CUresult symbol parameters;
VMM_PER_THREAD_FORM(cuMemAllocAsync_ptsz, (CUdeviceptr*, std::size_t, CUstream))
VMM_PER_THREAD_FORM(cuMemFreeAsync_ptsz, (CUdeviceptr, CUstream))
VMM_PER_THREAD_FORM(cuMemAllocFromPoolAsync_ptsz,
                    (CUdeviceptr*, std::size_t, CUmemoryPool, CUstream))
VMM_PER_THREAD_FORM(cuStreamSynchronize_ptsz, (CUstream))
VMM_PER_THREAD_FORM(cuStreamBeginCapture_v2_ptsz, (CUstream, CUstreamCaptureMode))
VMM_PER_THREAD_FORM(cuStreamEndCapture_ptsz, (CUstream, CUgraph*))
VMM_PER_THREAD_FORM(cuStreamIsCapturing_ptsz, (CUstream, CUstreamCaptureStatus*))
VMM_PER_THREAD_FORM(cuStreamWaitEvent_ptsz, (CUstream, CUevent, unsigned))
VMM_PER_THREAD_FORM(cuEventRecord_ptsz, (CUevent, CUstream))
VMM_PER_THREAD_FORM(cuMemcpy_ptds, (CUdeviceptr, CUdeviceptr, std::size_t))
VMM_PER_THREAD_FORM(cuMemcpyAsync_ptsz, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))
VMM_PER_THREAD_FORM(cuMemcpyDtoD_v2_ptds, (CUdeviceptr, CUdeviceptr, std::size_t))
VMM_PER_THREAD_FORM(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))
VMM_PER_THREAD_FORM(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr, const void*, std::size_t, CUstream))
VMM_PER_THREAD_FORM(cuMemcpyDtoHAsync_v2_ptsz, (void*, CUdeviceptr, std::size_t, CUstream))
VMM_PER_THREAD_FORM(cuMemsetD8Async_ptsz, (CUdeviceptr, unsigned char, std::size_t, CUstream))

CUresult standin_old_finder(const char* name, void** found, int version, cuuint64_t flags);
CUresult standin_new_finder(const char* name, void** found, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult* why);

}  // extern "C"

namespace {

struct entry {
  const char* name;
  int version;  // the CUDA version that brought this form of the call
  bool per_thread;
  void* function;
};

template <class Function>
entry at(const char* name, int version, Function* function, bool per_thread = false) {
  return {name, version, per_thread, reinterpret_cast<void*>(function)};
}

// What the finder gives out for cuMemFree lies elsewhere than the exported function.
CUresult free_elsewhere(CUdeviceptr where) { return cuMemFree(where); }

// A form of a call that came after the preload library: its parameters are not ours to know.
CUresult info_of_the_future(std::size_t* free_bytes, std::size_t* total_bytes, int) {
  return cuMemGetInfo(free_bytes, total_bytes);
}

#define VMM_AT(name, version) at(#name, version, &name)
void add_device_and_stream_calls(std::vector<entry>& all) {
  all.insert(all.end(), {VMM_AT(cuGetErrorName, 6000),
                         VMM_AT(cuInit, 2000),
                         VMM_AT(cuDriverGetVersion, 2020),
                         VMM_AT(cuDeviceGetCount, 2000),
                         VMM_AT(cuDeviceGet, 2000),
                         VMM_AT(cuDeviceGetName, 2000),
                         VMM_AT(cuDeviceGetAttribute, 2000),
                         VMM_AT(cuDeviceCanAccessPeer, 4000),
                         VMM_AT(cuDeviceGetP2PAttribute, 8000),
                         VMM_AT(cuDevicePrimaryCtxRetain, 7000),
                         VMM_AT(cuDevicePrimaryCtxRelease, 11000),
                         VMM_AT(cuDevicePrimaryCtxGetState, 7000),
                         VMM_AT(cuDevicePrimaryCtxReset, 11000),
                         VMM_AT(cuCtxGetCurrent, 4000),
                         VMM_AT(cuCtxSetCurrent, 4000),
                         VMM_AT(cuCtxPushCurrent, 4000),
                         VMM_AT(cuCtxPopCurrent, 4000),
                         VMM_AT(cuCtxGetDevice, 2000),
                         VMM_AT(cuCtxSynchronize, 2000),
                         VMM_AT(cuCtxDestroy, 4000),
                         VMM_AT(cuCtxRecordEvent, 12050),
                         VMM_AT(cuCtxEnablePeerAccess, 4000),
                         VMM_AT(cuGetExportTable, 3000),
                         VMM_AT(cuStreamCreate, 2000),
                         VMM_AT(cuStreamDestroy, 4000),
                         VMM_AT(cuStreamGetCtx, 9020),
                         VMM_AT(cuStreamSynchronize, 2000),
                         VMM_AT(cuStreamWaitEvent, 3020),
                         VMM_AT(cuEventCreate, 2000),
                         VMM_AT(cuEventDestroy, 4000),
                         VMM_AT(cuEventRecord, 2000),
                         VMM_AT(cuEventQuery, 2000),
                         VMM_AT(cuEventSynchronize, 2000),
                         VMM_AT(cuStreamBeginCapture, 10010),
                         VMM_AT(cuStreamEndCapture, 10000),
                         VMM_AT(cuStreamIsCapturing, 10000),
                         VMM_AT(cuThreadExchangeStreamCaptureMode, 10010),
                         VMM_AT(cuGraphDestroy, 10000),
                         at("cuDeviceGetUuid", 11040, &cuDeviceGetUuid_v2),
                         at("cuCtxDestroy", 2000, &standin_old_destroy),
                         at("cuStreamGetCaptureInfo", 10010, &standin_get_capture),
                         at("cuGetProcAddress", 11030, &standin_old_finder),
                         at("cuGetProcAddress", 12000, &standin_new_finder),
                         at("cuStreamSynchronize", 7000, &cuStreamSynchronize_ptsz, true),
                         at("cuStreamWaitEvent", 7000, &cuStreamWaitEvent_ptsz, true),
                         at("cuEventRecord", 7000, &cuEventRecord_ptsz, true),
                         at("cuStreamBeginCapture", 10010, &cuStreamBeginCapture_v2_ptsz, true),
                         at("cuStreamEndCapture", 10000, &cuStreamEndCapture_ptsz, true),
                         at("cuStreamIsCapturing", 10000, &cuStreamIsCapturing_ptsz, true)});
}

void add_memory_calls(std::vector<entry>& all) {
  all.insert(all.end(), {VMM_AT(cuMemGetAllocationGranularity, 10020),
                         VMM_AT(cuMemAddressReserve, 10020),
                         VMM_AT(cuMemAddressFree, 10020),
                         VMM_AT(cuMemCreate, 10020),
                         VMM_AT(cuMemRelease, 10020),
                         VMM_AT(cuMemMap, 10020),
                         VMM_AT(cuMemUnmap, 10020),
                         VMM_AT(cuMemSetAccess, 10020),
                         VMM_AT(cuMemGetAccess, 10020),
                         VMM_AT(cuMemRetainAllocationHandle, 11000),
                         VMM_AT(cuMemGetAllocationPropertiesFromHandle, 10020),
                         VMM_AT(cuMemExportToShareableHandle, 10020),
                         VMM_AT(cuMemImportFromShareableHandle, 10020),
                         VMM_AT(cuMemGetHandleForAddressRange, 11070),
                         VMM_AT(cuMulticastBindMem, 12010),
                         VMM_AT(cuMemGetInfo, 3020),
                         VMM_AT(cuMemAlloc, 3020),
                         VMM_AT(cuMemAllocPitch, 3020),
                         VMM_AT(cuMemAllocAsync, 11020),
                         VMM_AT(cuMemFreeAsync, 11020),
                         VMM_AT(cuMemAllocFromPoolAsync, 11020),
                         VMM_AT(cuDeviceGetDefaultMemPool, 11020),
                         VMM_AT(cuDeviceSetMemPool, 11020),
                         VMM_AT(cuMemPoolSetAccess, 11020),
                         VMM_AT(cuMemPoolGetAttribute, 11020),
                         VMM_AT(cuMemPoolSetAttribute, 11020),
                         VMM_AT(cuMemPoolTrimTo, 11020),
                         VMM_AT(cuMemGetAddressRange, 3020),
                         VMM_AT(cuPointerGetAttribute, 4000),
                         VMM_AT(cuPointerGetAttributes, 7000),
                         VMM_AT(cuIpcGetMemHandle, 4010),
                         VMM_AT(cuIpcOpenMemHandle, 11000),
                         VMM_AT(cuIpcCloseMemHandle, 4010),
                         VMM_AT(cuMemcpy, 4000),
                         VMM_AT(cuMemcpyAsync, 4000),
                         VMM_AT(cuMemcpyDtoD, 3020),
                         VMM_AT(cuMemcpyDtoDAsync, 3020),
                         VMM_AT(cuMemcpyHtoDAsync, 3020),
                         VMM_AT(cuMemcpyDtoHAsync, 3020),
                         VMM_AT(cuMemsetD8Async, 3020),
                         at("cuMemGetInfo", 13010, &info_of_the_future),
                         at("cuDeviceTotalMem", 3020, &cuDeviceTotalMem_v2),
                         at("cuMemFree", 3020, &free_elsewhere),
                         at("cuMemAllocAsync", 11020, &cuMemAllocAsync_ptsz, true),
                         at("cuMemFreeAsync", 11020, &cuMemFreeAsync_ptsz, true),
                         at("cuMemAllocFromPoolAsync", 11020, &cuMemAllocFromPoolAsync_ptsz, true),
                         at("cuMemcpy", 7000, &cuMemcpy_ptds, true),
                         at("cuMemcpyAsync", 7000, &cuMemcpyAsync_ptsz, true),
                         at("cuMemcpyDtoD", 7000, &cuMemcpyDtoD_v2_ptds, true),
                         at("cuMemcpyDtoDAsync", 7000, &cuMemcpyDtoDAsync_v2_ptsz, true),
                         at("cuMemcpyHtoDAsync", 7000, &cuMemcpyHtoDAsync_v2_ptsz, true),
                         at("cuMemcpyDtoHAsync", 7000, &cuMemcpyDtoHAsync_v2_ptsz, true),
                         at("cuMemsetD8Async", 7000, &cuMemsetD8Async_ptsz, true)});
}

const std::vector<entry>& entries() {
  static const std::vector<entry> all = [] {
    std::vector<entry> made;
    add_device_and_stream_calls(made);
    add_memory_calls(made);
    return made;
  }();
  return all;
}

// The newest form common to caller and driver; the per-thread one if it was requested.
const entry* best_of(const char* name, int version, bool wants_per_thread) {
  const entry* best = nullptr;
  for (const entry& each : entries()) {
    if (std::string_view(each.name) != name || each.version > version) continue;
    if (each.version > standin::played_version()) continue;
    if (each.per_thread && !wants_per_thread) continue;
    const bool is_better = best == nullptr || each.per_thread > best->per_thread ||
                           (each.per_thread == best->per_thread && each.version > best->version);
    if (is_better) best = &each;
  }
  return best;
}

bool is_known(const char* name) {
  return std::ranges::any_of(
      entries(), [&](const entry& each) { return std::string_view(each.name) == name; });
}

CUresult find(const char* name, void** found, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* why) {
  if (name == nullptr || found == nullptr ||
      flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const entry* best =
      best_of(name, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  *found = best == nullptr ? nullptr : best->function;
  if (why != nullptr) {
    *why = best != nullptr  ? CU_GET_PROC_ADDRESS_SUCCESS
           : is_known(name) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return best == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** found, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* why) {
  return find(name, found, version, flags, why);
}
CUresult standin_new_finder(const char* name, void** found, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult* why) {
  return find(name, found, version, flags, why);
}
CUresult standin_old_finder(const char* name, void** found, int version, cuuint64_t flags) {
  return find(name, found, version, flags, nullptr);
}

}  // extern "C"

#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char* name, void** found, int version,
                                     cuuint64_t flags) {
  return find(name, found, version, flags, nullptr);
}
