// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver's entry points, found at run time. Private to backends/cuda; independent of vmm's
// modules.
//
// After a load without a problem every required pointer is set; an optional one may be null. The
// library is never unloaded: error names and code that it owns stay valid to the end of the
// process.
//
// Thread safety: load_driver may be called from any thread; the table is constant once it is
// filled.
#pragma once

#include "abi.h"

namespace vmm::cuda {

/// One pointer for each driver call. The typedef's suffix is the driver version with which the call
/// is looked up.
struct entry_points {
  // Device and context.
  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDriverGetVersion_v2020 driver_get_version = nullptr;
  PFN_cuDeviceGetCount_v2000 device_get_count = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetName_v2000 device_get_name = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_context_retain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 primary_context_release = nullptr;
  PFN_cuCtxGetCurrent_v4000 context_get_current = nullptr;
  PFN_cuCtxPushCurrent_v4000 context_push = nullptr;
  PFN_cuCtxPopCurrent_v4000 context_pop = nullptr;
  PFN_cuCtxSynchronize_v2000 context_synchronize = nullptr;
  // Virtual memory.
  PFN_cuMemGetInfo_v3020 mem_get_info = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 mem_get_granularity = nullptr;
  PFN_cuMemAddressReserve_v10020 mem_address_reserve = nullptr;
  PFN_cuMemAddressFree_v10020 mem_address_free = nullptr;
  PFN_cuMemCreate_v10020 mem_create = nullptr;
  PFN_cuMemRelease_v10020 mem_release = nullptr;
  PFN_cuMemMap_v10020 mem_map = nullptr;
  PFN_cuMemUnmap_v10020 mem_unmap = nullptr;
  PFN_cuMemSetAccess_v10020 mem_set_access = nullptr;
  PFN_cuMemGetAccess_v10020 mem_get_access = nullptr;
  PFN_cuMemRetainAllocationHandle_v11000 mem_retain = nullptr;
  PFN_cuMemGetAllocationPropertiesFromHandle_v10020 mem_get_properties = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 mem_export = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 mem_import = nullptr;
  // Between devices, and for other drivers: optional.
  PFN_cuDeviceCanAccessPeer_v4000 device_can_access_peer = nullptr;
  PFN_cuDeviceGetP2PAttribute_v8000 device_get_p2p_attribute = nullptr;
  PFN_cuMemGetHandleForAddressRange_v11070 mem_get_range_handle = nullptr;
  // Plain memory, for cuda_memory::plain.
  PFN_cuMemAlloc_v3020 mem_alloc = nullptr;
  PFN_cuMemFree_v3020 mem_free = nullptr;
  // Streams, events, bytes. Stream 0 is the legacy default stream.
  PFN_cuStreamCreate_v2000 stream_create = nullptr;
  PFN_cuStreamDestroy_v4000 stream_destroy = nullptr;
  PFN_cuStreamSynchronize_v2000 stream_synchronize = nullptr;
  PFN_cuStreamWaitEvent_v3020 stream_wait_event = nullptr;
  PFN_cuEventCreate_v2000 event_create = nullptr;
  PFN_cuEventDestroy_v4000 event_destroy = nullptr;
  PFN_cuEventRecord_v2000 event_record = nullptr;
  PFN_cuEventQuery_v2000 event_query = nullptr;
  PFN_cuEventSynchronize_v2000 event_synchronize = nullptr;
  // All work of a context in one event: optional.
  PFN_cuStreamGetId_v12000 stream_get_id = nullptr;
  PFN_cuCtxRecordEvent_v12050 context_record = nullptr;
  // Capture into graphs: optional.
  PFN_cuStreamIsCapturing_v10000 stream_is_capturing = nullptr;
  PFN_cuStreamGetCaptureInfo_v10010 stream_get_capture = nullptr;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_capture_mode = nullptr;
  PFN_cuMemcpyDtoDAsync_v3020 copy_on_device = nullptr;
  PFN_cuMemcpyHtoDAsync_v3020 copy_to_device = nullptr;
  PFN_cuMemcpyDtoHAsync_v3020 copy_to_host = nullptr;
  PFN_cuMemsetD8Async_v3020 fill = nullptr;
  // Multicast: optional, and not even looked up unless the caller allows it.
  PFN_cuMulticastGetGranularity_v12010 multicast_get_granularity = nullptr;
  PFN_cuMulticastCreate_v12010 multicast_create = nullptr;
  PFN_cuMulticastAddDevice_v12010 multicast_add_device = nullptr;
  PFN_cuMulticastBindMem_v12010 multicast_bind = nullptr;
  PFN_cuMulticastBindAddr_v12010 multicast_bind_address = nullptr;
  PFN_cuMulticastUnbind_v12010 multicast_unbind = nullptr;

  /// Any other call of the driver, by its name without a version suffix; null when the driver does
  /// not have it.
  [[nodiscard]] void* find(const char* symbol, int version) const noexcept;

  PFN_cuGetProcAddress_v12000 find_v12 = nullptr;  // one of the two finders is set
  PFN_cuGetProcAddress_v11030 find_v11 = nullptr;
};

struct load_options {
  const char* driver_library = nullptr;  ///< path or name, as dlopen takes it
  bool is_variable = false;              ///< the name is the value of VMM_CUDA_LIBRARY
  bool multicast = false;
};

/// Fills `points`. Returns null, or a static text with the missing part and the remedy.
[[nodiscard]] const char* load_driver(const load_options& options, entry_points& points) noexcept;

}  // namespace vmm::cuda
