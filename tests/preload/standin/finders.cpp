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
entry at(const char* name, int version, Function* function) {
  return {name, version, false, reinterpret_cast<void*>(function)};
}
template <class Function>
entry per_thread(const char* name, int version, Function* function) {
  return {name, version, true, reinterpret_cast<void*>(function)};
}

// What the finder gives out for cuMemFree lies elsewhere than the exported function.
CUresult free_elsewhere(CUdeviceptr where) { return cuMemFree(where); }

// A form of a call that came after the preload library: its parameters are not ours to know.
CUresult info_of_the_future(std::size_t* free_bytes, std::size_t* total_bytes, int) {
  return cuMemGetInfo(free_bytes, total_bytes);
}

void add_device_calls(std::vector<entry>& all) {
  all.insert(all.end(), {
                            at("cuGetErrorName", 6000, &cuGetErrorName),
                            at("cuInit", 2000, &cuInit),
                            at("cuDriverGetVersion", 2020, &cuDriverGetVersion),
                            at("cuDeviceGetCount", 2000, &cuDeviceGetCount),
                            at("cuDeviceGet", 2000, &cuDeviceGet),
                            at("cuDeviceGetName", 2000, &cuDeviceGetName),
                            at("cuDeviceGetUuid", 11040, &cuDeviceGetUuid_v2),
                            at("cuDeviceGetAttribute", 2000, &cuDeviceGetAttribute),
                            at("cuDeviceCanAccessPeer", 4000, &cuDeviceCanAccessPeer),
                            at("cuDeviceGetP2PAttribute", 8000, &cuDeviceGetP2PAttribute),
                            at("cuDevicePrimaryCtxRetain", 7000, &cuDevicePrimaryCtxRetain),
                            at("cuDevicePrimaryCtxRelease", 11000, &cuDevicePrimaryCtxRelease),
                            at("cuDevicePrimaryCtxGetState", 7000, &cuDevicePrimaryCtxGetState),
                            at("cuDevicePrimaryCtxReset", 11000, &cuDevicePrimaryCtxReset),
                            at("cuCtxGetCurrent", 4000, &cuCtxGetCurrent),
                            at("cuCtxSetCurrent", 4000, &cuCtxSetCurrent),
                            at("cuCtxPushCurrent", 4000, &cuCtxPushCurrent),
                            at("cuCtxPopCurrent", 4000, &cuCtxPopCurrent),
                            at("cuCtxGetDevice", 2000, &cuCtxGetDevice),
                            at("cuCtxSynchronize", 2000, &cuCtxSynchronize),
                            at("cuCtxDestroy", 2000, &standin_old_destroy),
                            at("cuCtxDestroy", 4000, &cuCtxDestroy),
                            at("cuCtxRecordEvent", 12050, &cuCtxRecordEvent),
                            at("cuCtxEnablePeerAccess", 4000, &cuCtxEnablePeerAccess),
                            at("cuGetExportTable", 3000, &cuGetExportTable),
                        });
}

void add_physical_calls(std::vector<entry>& all) {
  all.insert(all.end(),
             {
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
                 at("cuMemGetAllocationPropertiesFromHandle", 10020,
                    &cuMemGetAllocationPropertiesFromHandle),
                 at("cuMemExportToShareableHandle", 10020, &cuMemExportToShareableHandle),
                 at("cuMemImportFromShareableHandle", 10020, &cuMemImportFromShareableHandle),
                 at("cuMemGetHandleForAddressRange", 11070, &cuMemGetHandleForAddressRange),
                 at("cuMulticastBindMem", 12010, &cuMulticastBindMem),
             });
}

void add_memory_calls(std::vector<entry>& all) {
  all.insert(all.end(),
             {
                 at("cuMemGetInfo", 3020, &cuMemGetInfo),
                 at("cuMemGetInfo", 13010, &info_of_the_future),
                 at("cuDeviceTotalMem", 3020, &cuDeviceTotalMem_v2),
                 at("cuMemAlloc", 3020, &cuMemAlloc),
                 at("cuMemAllocPitch", 3020, &cuMemAllocPitch),
                 at("cuMemFree", 3020, &free_elsewhere),
                 at("cuMemAllocAsync", 11020, &cuMemAllocAsync),
                 per_thread("cuMemAllocAsync", 11020, &cuMemAllocAsync_ptsz),
                 at("cuMemFreeAsync", 11020, &cuMemFreeAsync),
                 per_thread("cuMemFreeAsync", 11020, &cuMemFreeAsync_ptsz),
                 at("cuMemAllocFromPoolAsync", 11020, &cuMemAllocFromPoolAsync),
                 per_thread("cuMemAllocFromPoolAsync", 11020, &cuMemAllocFromPoolAsync_ptsz),
                 at("cuDeviceGetDefaultMemPool", 11020, &cuDeviceGetDefaultMemPool),
                 at("cuDeviceSetMemPool", 11020, &cuDeviceSetMemPool),
                 at("cuMemPoolSetAccess", 11020, &cuMemPoolSetAccess),
                 at("cuMemPoolGetAttribute", 11020, &cuMemPoolGetAttribute),
                 at("cuMemPoolSetAttribute", 11020, &cuMemPoolSetAttribute),
                 at("cuMemPoolTrimTo", 11020, &cuMemPoolTrimTo),
                 at("cuMemGetAddressRange", 3020, &cuMemGetAddressRange),
                 at("cuPointerGetAttribute", 4000, &cuPointerGetAttribute),
                 at("cuPointerGetAttributes", 7000, &cuPointerGetAttributes),
                 at("cuIpcGetMemHandle", 4010, &cuIpcGetMemHandle),
                 at("cuIpcOpenMemHandle", 11000, &cuIpcOpenMemHandle),
                 at("cuIpcCloseMemHandle", 4010, &cuIpcCloseMemHandle),
                 at("cuMemcpy", 4000, &cuMemcpy),
                 per_thread("cuMemcpy", 7000, &cuMemcpy_ptds),
                 at("cuMemcpyAsync", 4000, &cuMemcpyAsync),
                 per_thread("cuMemcpyAsync", 7000, &cuMemcpyAsync_ptsz),
                 at("cuMemcpyDtoD", 3020, &cuMemcpyDtoD),
                 per_thread("cuMemcpyDtoD", 7000, &cuMemcpyDtoD_v2_ptds),
                 at("cuMemcpyDtoDAsync", 3020, &cuMemcpyDtoDAsync),
                 per_thread("cuMemcpyDtoDAsync", 7000, &cuMemcpyDtoDAsync_v2_ptsz),
                 at("cuMemcpyHtoDAsync", 3020, &cuMemcpyHtoDAsync),
                 per_thread("cuMemcpyHtoDAsync", 7000, &cuMemcpyHtoDAsync_v2_ptsz),
                 at("cuMemcpyDtoHAsync", 3020, &cuMemcpyDtoHAsync),
                 per_thread("cuMemcpyDtoHAsync", 7000, &cuMemcpyDtoHAsync_v2_ptsz),
                 at("cuMemsetD8Async", 3020, &cuMemsetD8Async),
                 per_thread("cuMemsetD8Async", 7000, &cuMemsetD8Async_ptsz),
             });
}

void add_stream_calls(std::vector<entry>& all) {
  all.insert(all.end(),
             {
                 at("cuStreamCreate", 2000, &cuStreamCreate),
                 at("cuStreamDestroy", 4000, &cuStreamDestroy),
                 at("cuStreamGetCtx", 9020, &cuStreamGetCtx),
                 at("cuStreamSynchronize", 2000, &cuStreamSynchronize),
                 per_thread("cuStreamSynchronize", 7000, &cuStreamSynchronize_ptsz),
                 at("cuStreamWaitEvent", 3020, &cuStreamWaitEvent),
                 per_thread("cuStreamWaitEvent", 7000, &cuStreamWaitEvent_ptsz),
                 at("cuEventCreate", 2000, &cuEventCreate),
                 at("cuEventDestroy", 4000, &cuEventDestroy),
                 at("cuEventRecord", 2000, &cuEventRecord),
                 per_thread("cuEventRecord", 7000, &cuEventRecord_ptsz),
                 at("cuEventQuery", 2000, &cuEventQuery),
                 at("cuEventSynchronize", 2000, &cuEventSynchronize),
                 at("cuStreamBeginCapture", 10010, &cuStreamBeginCapture),
                 per_thread("cuStreamBeginCapture", 10010, &cuStreamBeginCapture_v2_ptsz),
                 at("cuStreamEndCapture", 10000, &cuStreamEndCapture),
                 per_thread("cuStreamEndCapture", 10000, &cuStreamEndCapture_ptsz),
                 at("cuStreamIsCapturing", 10000, &cuStreamIsCapturing),
                 per_thread("cuStreamIsCapturing", 10000, &cuStreamIsCapturing_ptsz),
                 at("cuStreamGetCaptureInfo", 10010, &standin_get_capture),
                 at("cuThreadExchangeStreamCaptureMode", 10010, &cuThreadExchangeStreamCaptureMode),
                 at("cuGraphDestroy", 10000, &cuGraphDestroy),
                 at("cuGetProcAddress", 11030, &standin_old_finder),
                 at("cuGetProcAddress", 12000, &standin_new_finder),
             });
}

const std::vector<entry>& entries() {
  static const std::vector<entry> all = [] {
    std::vector<entry> made;
    add_device_calls(made);
    add_physical_calls(made);
    add_memory_calls(made);
    add_stream_calls(made);
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
  for (const entry& each : entries())
    if (std::string_view(each.name) == name) return true;
  return false;
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
