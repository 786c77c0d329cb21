// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The entry points of Level Zero's loader, found at run time. Private to backends/level_zero; of
// vmm it uses only the checks.
//
// After a load without a problem every pointer is set. The library is never unloaded.
//
// Thread safety: load_loader may be called from any thread; the table is constant once it is
// filled.
#pragma once

#include <level_zero/ze_api.h>

namespace vmm::level_zero {

struct entry_points {
  decltype(&zeInit) init = nullptr;
  decltype(&zeDriverGet) driver_get = nullptr;
  decltype(&zeDriverGetApiVersion) driver_get_api_version = nullptr;
  decltype(&zeDriverGetProperties) driver_get_properties = nullptr;
  decltype(&zeDeviceGet) device_get = nullptr;
  decltype(&zeDeviceGetProperties) device_get_properties = nullptr;
  decltype(&zeDeviceGetMemoryProperties) device_get_memory = nullptr;
  decltype(&zeDeviceGetCommandQueueGroupProperties) device_get_queue_groups = nullptr;
  decltype(&zeContextCreate) context_create = nullptr;
  decltype(&zeContextDestroy) context_destroy = nullptr;
  // Virtual memory.
  decltype(&zeVirtualMemQueryPageSize) query_page_size = nullptr;
  decltype(&zeVirtualMemReserve) reserve = nullptr;
  decltype(&zeVirtualMemFree) free = nullptr;
  decltype(&zePhysicalMemCreate) physical_create = nullptr;
  decltype(&zePhysicalMemDestroy) physical_destroy = nullptr;
  decltype(&zeVirtualMemMap) map = nullptr;
  decltype(&zeVirtualMemUnmap) unmap = nullptr;
  // Command lists and events.
  decltype(&zeCommandListCreateImmediate) list_create = nullptr;
  decltype(&zeCommandListDestroy) list_destroy = nullptr;
  decltype(&zeCommandListAppendBarrier) append_barrier = nullptr;
  decltype(&zeCommandListAppendMemoryCopy) append_copy = nullptr;
  decltype(&zeCommandListAppendMemoryFill) append_fill = nullptr;
  decltype(&zeEventPoolCreate) event_pool_create = nullptr;
  decltype(&zeEventPoolDestroy) event_pool_destroy = nullptr;
  decltype(&zeEventCreate) event_create = nullptr;
  decltype(&zeEventDestroy) event_destroy = nullptr;
  decltype(&zeEventQueryStatus) event_query = nullptr;
  decltype(&zeEventHostSynchronize) event_synchronize = nullptr;
  decltype(&zeEventHostReset) event_reset = nullptr;
};

/// Texts that live as long as the process; none where all went well.
struct load_problem {
  const char* detail = nullptr;  ///< the missing part and the remedy
  const char* symbol = "";       ///< the first call that the library lacks
};

/// Path or name of the loader, as dlopen takes it.
struct loader_name {
  const char* file = "libze_loader.so.1";
  bool is_variable = false;  ///< it is the value of VMM_LEVEL_ZERO_LIBRARY
};

/// Fills `points`.
[[nodiscard]] load_problem load_loader(const loader_name& name, entry_points& points) noexcept;

}  // namespace vmm::level_zero
