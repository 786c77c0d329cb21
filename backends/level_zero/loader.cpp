// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <dlfcn.h>

namespace vmm::level_zero {
namespace {

// Looks entry points up one by one and remembers whether one was missing.
class finder {
 public:
  explicit finder(void* library) noexcept : library_(library) {}

  template <class Function>
  void require(const char* symbol, Function& into) noexcept {
    into = reinterpret_cast<Function>(dlsym(library_, symbol));
    if (into == nullptr) complete_ = false;
  }
  [[nodiscard]] bool complete() const noexcept { return complete_; }

 private:
  void* library_;
  bool complete_ = true;
};

void find_device_calls(finder& find, entry_points& to) noexcept {
  find.require("zeInit", to.init);
  find.require("zeDriverGet", to.driver_get);
  find.require("zeDriverGetApiVersion", to.driver_get_api_version);
  find.require("zeDriverGetProperties", to.driver_get_properties);
  find.require("zeDeviceGet", to.device_get);
  find.require("zeDeviceGetProperties", to.device_get_properties);
  find.require("zeDeviceGetMemoryProperties", to.device_get_memory);
  find.require("zeDeviceGetCommandQueueGroupProperties", to.device_get_queue_groups);
  find.require("zeContextCreate", to.context_create);
  find.require("zeContextDestroy", to.context_destroy);
}

void find_memory_calls(finder& find, entry_points& to) noexcept {
  find.require("zeVirtualMemQueryPageSize", to.query_page_size);
  find.require("zeVirtualMemReserve", to.reserve);
  find.require("zeVirtualMemFree", to.free);
  find.require("zePhysicalMemCreate", to.physical_create);
  find.require("zePhysicalMemDestroy", to.physical_destroy);
  find.require("zeVirtualMemMap", to.map);
  find.require("zeVirtualMemUnmap", to.unmap);
}

void find_work_calls(finder& find, entry_points& to) noexcept {
  find.require("zeCommandListCreateImmediate", to.list_create);
  find.require("zeCommandListDestroy", to.list_destroy);
  find.require("zeCommandListAppendBarrier", to.append_barrier);
  find.require("zeCommandListAppendMemoryCopy", to.append_copy);
  find.require("zeCommandListAppendMemoryFill", to.append_fill);
  find.require("zeEventPoolCreate", to.event_pool_create);
  find.require("zeEventPoolDestroy", to.event_pool_destroy);
  find.require("zeEventCreate", to.event_create);
  find.require("zeEventDestroy", to.event_destroy);
  find.require("zeEventQueryStatus", to.event_query);
  find.require("zeEventHostSynchronize", to.event_synchronize);
  find.require("zeEventHostReset", to.event_reset);
}

}  // namespace

const char* load_loader(const char* library, entry_points& points) noexcept {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    return "the Level Zero loader (libze_loader.so.1, or what VMM_LEVEL_ZERO_LIBRARY names) could "
           "not be loaded: install the loader (libze1) and the vendor's driver, or choose another "
           "backend";
  }
  finder find(loaded);
  find_device_calls(find, points);
  find_memory_calls(find, points);
  find_work_calls(find, points);
  if (!find.complete()) {
    return "the Level Zero loader lacks a call that vmm needs: install one for version 1.0 of "
           "Level Zero or newer";
  }
  return nullptr;
}

}  // namespace vmm::level_zero
