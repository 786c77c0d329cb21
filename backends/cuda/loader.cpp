// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <dlfcn.h>

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm::cuda {
namespace {

// Looks entry points up one by one and records the first required one that is missing.
class finder {
 public:
  explicit finder(const entry_points& points) noexcept : points_(points) {}

  template <class Function>
  void require(const char* symbol, int version, Function& into) noexcept {
    allow(symbol, version, into);
    if (into == nullptr && missing_ == nullptr) missing_ = symbol;
  }
  template <class Function>
  void allow(const char* symbol, int version, Function& into) noexcept {
    check(into == nullptr, "an entry point is looked up twice, or two share a slot");
    into = reinterpret_cast<Function>(points_.find(symbol, version));
  }
  [[nodiscard]] const char* missing() const noexcept { return missing_; }

 private:
  const entry_points& points_;
  const char* missing_ = nullptr;
};

void find_device_calls(finder& find, entry_points& to) noexcept {
  find.require("cuGetErrorName", 6000, to.get_error_name);
  find.require("cuInit", 2000, to.init);
  find.require("cuDriverGetVersion", 2020, to.driver_get_version);
  find.require("cuDeviceGetCount", 2000, to.device_get_count);
  find.require("cuDeviceGet", 2000, to.device_get);
  find.require("cuDeviceGetName", 2000, to.device_get_name);
  find.require("cuDeviceGetAttribute", 2000, to.device_get_attribute);
  find.require("cuDevicePrimaryCtxRetain", 7000, to.primary_context_retain);
  find.require("cuDevicePrimaryCtxRelease", 11000, to.primary_context_release);
  find.require("cuCtxGetCurrent", 4000, to.context_get_current);
  find.require("cuCtxPushCurrent", 4000, to.context_push);
  find.require("cuCtxPopCurrent", 4000, to.context_pop);
  find.require("cuCtxSynchronize", 2000, to.context_synchronize);
}

void find_memory_calls(finder& find, entry_points& to) noexcept {
  find.require("cuMemGetInfo", 3020, to.mem_get_info);
  find.require("cuMemGetAllocationGranularity", 10020, to.mem_get_granularity);
  find.require("cuMemAddressReserve", 10020, to.mem_address_reserve);
  find.require("cuMemAddressFree", 10020, to.mem_address_free);
  find.require("cuMemCreate", 10020, to.mem_create);
  find.require("cuMemRelease", 10020, to.mem_release);
  find.require("cuMemMap", 10020, to.mem_map);
  find.require("cuMemUnmap", 10020, to.mem_unmap);
  find.require("cuMemSetAccess", 10020, to.mem_set_access);
  find.require("cuMemGetAccess", 10020, to.mem_get_access);
  find.require("cuMemRetainAllocationHandle", 11000, to.mem_retain);
  find.require("cuMemGetAllocationPropertiesFromHandle", 10020, to.mem_get_properties);
  find.require("cuMemExportToShareableHandle", 10020, to.mem_export);
  find.require("cuMemImportFromShareableHandle", 10020, to.mem_import);
  find.allow("cuDeviceCanAccessPeer", 4000, to.device_can_access_peer);
  find.allow("cuDeviceGetP2PAttribute", 8000, to.device_get_p2p_attribute);
  find.allow("cuMemGetHandleForAddressRange", 11070, to.mem_get_range_handle);
  find.require("cuMemAlloc", 3020, to.mem_alloc);
  find.require("cuMemFree", 3020, to.mem_free);
}

void find_work_calls(finder& find, entry_points& to) noexcept {
  find.require("cuStreamCreate", 2000, to.stream_create);
  find.require("cuStreamDestroy", 4000, to.stream_destroy);
  find.require("cuStreamSynchronize", 2000, to.stream_synchronize);
  find.require("cuStreamWaitEvent", 3020, to.stream_wait_event);
  find.require("cuEventCreate", 2000, to.event_create);
  find.require("cuEventDestroy", 4000, to.event_destroy);
  find.require("cuEventRecord", 2000, to.event_record);
  find.require("cuEventQuery", 2000, to.event_query);
  find.require("cuEventSynchronize", 2000, to.event_synchronize);
  find.allow("cuStreamGetId", 12000, to.stream_get_id);
  find.allow("cuCtxRecordEvent", 12050, to.context_record);
  find.allow("cuStreamIsCapturing", 10000, to.stream_is_capturing);
  find.allow("cuStreamGetCaptureInfo", 10010, to.stream_get_capture);
  find.allow("cuThreadExchangeStreamCaptureMode", 10010, to.exchange_capture_mode);
  find.require("cuMemcpyDtoDAsync", 3020, to.copy_on_device);
  find.require("cuMemcpyHtoDAsync", 3020, to.copy_to_device);
  find.require("cuMemcpyDtoHAsync", 3020, to.copy_to_host);
  find.require("cuMemsetD8Async", 3020, to.fill);
}

void find_multicast_calls(finder& find, entry_points& to) noexcept {
  find.allow("cuMulticastGetGranularity", 12010, to.multicast_get_granularity);
  find.allow("cuMulticastCreate", 12010, to.multicast_create);
  find.allow("cuMulticastAddDevice", 12010, to.multicast_add_device);
  find.allow("cuMulticastBindMem", 12010, to.multicast_bind);
  find.allow("cuMulticastBindAddr", 12010, to.multicast_bind_address);
  find.allow("cuMulticastUnbind", 12010, to.multicast_unbind);
}

// The loader's reason names a file of its own where the library's is not the one that is missing.
const char* not_loaded(const load_options& options, const char* reason) noexcept {
  check(reason != nullptr, "a library is not loaded for no reason");
  return detail_text()
      .add(options.is_variable ? "VMM_CUDA_LIBRARY is '" : "the CUDA driver's library '")
      .add(options.driver_library)
      .add(options.is_variable ? "', which could not be loaded (" : "' could not be loaded (")
      .add(reason)
      .add(options.is_variable
               ? "): correct it, or unset it for the system's libcuda.so.1"
               : "): install the NVIDIA driver, set VMM_CUDA_LIBRARY to its library, or choose "
                 "another backend")
      .keep(
          "the CUDA driver's library (libcuda.so.1, or that of VMM_CUDA_LIBRARY) could not be "
          "loaded: install the NVIDIA driver, or choose another backend");
}

// Another library, or an old driver.
const char* too_old(const load_options& options, const char* symbol) noexcept {
  check(symbol != nullptr && *symbol != '\0', "a missing call has no name");
  return detail_text()
      .add(options.is_variable ? "VMM_CUDA_LIBRARY is '" : "'")
      .add(options.driver_library)
      .add(options.is_variable ? "', which has no " : "' has no ")
      .add(symbol)
      .add(": it is not a CUDA driver's library, or an old one; install a driver for CUDA 11.3 ")
      .add("or newer")
      .keep("the CUDA driver lacks a call that vmm needs: install one for CUDA 11.3 or newer");
}

}  // namespace

void* entry_points::find(const char* symbol, int version) const noexcept {
  check(symbol != nullptr && version > 0, "a call is looked for without a name or a version");
  void* found = nullptr;
  CUresult code = CUDA_ERROR_NOT_FOUND;
  if (find_v12 != nullptr) {
    CUdriverProcAddressQueryResult why = CU_GET_PROC_ADDRESS_SUCCESS;
    code = find_v12(symbol, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &why);
  } else if (find_v11 != nullptr) {
    code = find_v11(symbol, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
  }
  return code == CUDA_SUCCESS ? found : nullptr;
}

const char* load_driver(const load_options& options, entry_points& points) noexcept {
  check(options.driver_library != nullptr, "the driver's library has no name");
  check(points.find_v11 == nullptr && points.find_v12 == nullptr,
        "the driver's library is loaded twice");
  const loaded_library loaded = load_named(options.driver_library);
  if (loaded.handle == nullptr) return not_loaded(options, loaded.reason);
  void* const library = loaded.handle;
  points.find_v12 =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
  points.find_v11 =
      reinterpret_cast<PFN_cuGetProcAddress_v11030>(dlsym(library, "cuGetProcAddress"));
  if (points.find_v12 == nullptr && points.find_v11 == nullptr)
    return too_old(options, "cuGetProcAddress");
  finder find(points);
  find_device_calls(find, points);
  find_memory_calls(find, points);
  find_work_calls(find, points);
  if (options.multicast) find_multicast_calls(find, points);
  if (find.missing() != nullptr) return too_old(options, find.missing());
  check(points.init != nullptr && points.mem_map != nullptr && points.event_query != nullptr,
        "a complete driver lacks a call");
  check(options.multicast || points.multicast_create == nullptr,
        "multicast entry points are loaded although not allowed");
  return nullptr;
}

}  // namespace vmm::cuda
