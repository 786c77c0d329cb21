// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <dlfcn.h>

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm::level_zero {
namespace {

// Looks entry points up one by one and records the first that is missing.
class finder {
 public:
  explicit finder(void* library) noexcept : library_(library) {
    check(library != nullptr, "calls are looked for in a library that is loaded");
  }

  template <class Function>
  void require(const char* symbol, Function& into) noexcept {
    check(into == nullptr, "an entry point is looked up twice, or two share a slot");
    into = reinterpret_cast<Function>(dlsym(library_, symbol));
    if (into == nullptr && missing_ == nullptr) missing_ = symbol;
  }
  [[nodiscard]] const char* missing() const noexcept { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
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

detail_text& add_name(detail_text& to, const loader_name& name) noexcept {
  check(name.file != nullptr && *name.file != '\0', "a library has a name");
  return to.add(name.is_variable ? "VMM_LEVEL_ZERO_LIBRARY is '" : "the Level Zero loader '")
      .add(name.file)
      .add(name.is_variable ? "', which " : "' ");
}

// The dynamic loader's error for the library; it names another file if that one is at fault.
const char* not_loaded(const loader_name& name, const char* reason) noexcept {
  check(reason != nullptr, "a library is not loaded for no reason");
  detail_text text;
  return add_name(text, name)
      .add("could not be loaded (")
      .add(reason)
      .add(name.is_variable ? "): correct it, or unset it for the system's libze_loader.so.1"
                            : "): install the loader (libze1) and the vendor's driver, have "
                              "VMM_LEVEL_ZERO_LIBRARY name one, or choose another backend")
      .keep(
          "the Level Zero loader (libze_loader.so.1, or that of VMM_LEVEL_ZERO_LIBRARY) could not "
          "be loaded: install the loader (libze1) and the vendor's driver, or choose another "
          "backend");
}

// No loader, or an old one.
const char* too_old(const loader_name& name) noexcept {
  detail_text text;
  return add_name(text, name)
      .add(
          "lacks the call that is named, which vmm needs: install a loader for version 1.0 of "
          "Level Zero or newer")
      .keep(
          "the Level Zero loader lacks the call that is named, which vmm needs: install one for "
          "version 1.0 of Level Zero or newer");
}

}  // namespace

load_problem load_loader(const loader_name& name, entry_points& points) noexcept {
  check(name.file != nullptr && *name.file != '\0', "the loader has a name");
  const loaded_library loaded = load_named(name.file);
  if (loaded.handle == nullptr) return {not_loaded(name, loaded.reason), ""};
  finder find(loaded.handle);
  find_device_calls(find, points);
  find_memory_calls(find, points);
  find_work_calls(find, points);
  if (find.missing() != nullptr) return {too_old(name), find.missing()};
  check(points.map != nullptr && points.unmap != nullptr, "memory cannot be mapped");
  check(points.init != nullptr && points.event_reset != nullptr, "every call was looked for");
  return {};
}

}  // namespace vmm::level_zero
