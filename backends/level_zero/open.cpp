// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - finding the device, and giving back what an object made.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import :state;

namespace vmm {
namespace level_zero {
namespace {

constexpr std::uint64_t large_bytes = 1ull << 30;  // gets the largest pages

// An error of open(): there is no usable device, whatever word the driver has for it.
error unusable(ze_result_t code, const char* detail) noexcept {
  error failure = error_of(call::none, code);
  failure.code = errc::unavailable;
  failure.detail = detail;
  return failure;
}

constexpr const char* no_driver_detail =
    "the Level Zero loader is there but finds no driver that starts: install the vendor's "
    "(libze-intel-gpu1), and look at the rights to /dev/dri";

struct found_device {
  ze_driver_handle_t driver = nullptr;
  ze_device_handle_t device = nullptr;
};

// Counted calls: the count first, then as many.
template <class Handle, class Get>
ze_result_t list(std::vector<Handle>& into, Get&& get) {
  std::uint32_t count = 0;
  ze_result_t code = get(&count, static_cast<Handle*>(nullptr));
  if (code != ZE_RESULT_SUCCESS) return code;
  into.resize(count);
  return count == 0 ? code : get(&count, into.data());
}

// The GPUs of one driver.
ze_result_t add_devices(const entry_points& ze, ze_driver_handle_t driver,
                        std::vector<found_device>& into) {
  std::vector<ze_device_handle_t> devices;
  ze_result_t code = list(devices, [&](std::uint32_t* count, ze_device_handle_t* out) {
    return ze.device_get(driver, count, out);
  });
  for (const ze_device_handle_t each : devices) {
    if (code != ZE_RESULT_SUCCESS) break;
    ze_device_properties_t about{};
    about.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
    code = ze.device_get_properties(each, &about);
    if (code == ZE_RESULT_SUCCESS && about.type == ZE_DEVICE_TYPE_GPU) {
      into.push_back({driver, each});
    }
  }
  return code;
}

const char* library_name(const level_zero_options& options) noexcept {
  if (options.loader_library != nullptr) return options.loader_library;
  const char* named = std::getenv("VMM_LEVEL_ZERO_LIBRARY");
  return named != nullptr && *named != '\0' ? named : "libze_loader.so.1";
}

}  // namespace

status driver_state::find_device() {
  if (const ze_result_t code = ze.init(ZE_INIT_FLAG_GPU_ONLY); code != ZE_RESULT_SUCCESS) {
    return unusable(code, no_driver_detail);
  }
  std::vector<ze_driver_handle_t> drivers;
  ze_result_t code = list(drivers, [&](std::uint32_t* count, ze_driver_handle_t* out) {
    return ze.driver_get(count, out);
  });
  std::vector<found_device> devices;
  for (const ze_driver_handle_t each : drivers) {
    if (code == ZE_RESULT_SUCCESS) code = add_devices(ze, each, devices);
  }
  if (code != ZE_RESULT_SUCCESS) {
    return unusable(code, "the Level Zero driver does not say which devices there are");
  }
  if (devices.empty()) {
    return refuse(errc::unavailable, "the Level Zero drivers see no GPU: look at ZE_AFFINITY_MASK");
  }
  if (static_cast<std::size_t>(ordinal) >= devices.size()) {
    return refuse(errc::unavailable,
                  "level_zero_options::device is not a GPU that the Level Zero drivers see");
  }
  driver = devices[static_cast<std::size_t>(ordinal)].driver;
  device = devices[static_cast<std::size_t>(ordinal)].device;
  return {};
}

// Fills description and the sizes. What no call tells stays off in the features until somebody has
// tried it on a device: docs/level_zero.md.
status driver_state::read_device() {
  ze_device_properties_t about{};
  about.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
  ze_result_t code = ze.device_get_properties(device, &about);
  ze_driver_properties_t driver_about{};
  driver_about.stype = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES;
  if (code == ZE_RESULT_SUCCESS) code = ze.driver_get_properties(driver, &driver_about);
  ze_api_version_t version = ZE_API_VERSION_1_0;
  if (code == ZE_RESULT_SUCCESS) code = ze.driver_get_api_version(driver, &version);
  std::vector<ze_device_memory_properties_t> memories;
  if (code == ZE_RESULT_SUCCESS) {
    code = list(memories, [&](std::uint32_t* count, ze_device_memory_properties_t* out) {
      for (std::uint32_t i = 0; out != nullptr && i < *count; ++i) {
        out[i].stype = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES;
      }
      return ze.device_get_memory(device, count, out);
    });
  }
  std::vector<ze_command_queue_group_properties_t> groups;
  if (code == ZE_RESULT_SUCCESS) {
    code = list(groups, [&](std::uint32_t* count, ze_command_queue_group_properties_t* out) {
      for (std::uint32_t i = 0; out != nullptr && i < *count; ++i) {
        out[i].stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES;
      }
      return ze.device_get_queue_groups(device, count, out);
    });
  }
  if (code != ZE_RESULT_SUCCESS) {
    return unusable(code, "the Level Zero driver does not describe its device");
  }
  for (const auto& each : memories) total_bytes += each.totalSize;
  const auto computes = [](const ze_command_queue_group_properties_t& group) {
    return (group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) != 0;
  };
  const auto chosen = std::find_if(groups.begin(), groups.end(), computes);
  if (chosen == groups.end()) {
    return refuse(errc::not_supported, "the device has no command queues that compute");
  }
  queue_ordinal = static_cast<std::uint32_t>(chosen - groups.begin());

  can.spanning_unmap = true;
  can.streams = true;
  can.copy = true;
  can.unmap_may_stall = true;
  can.lazy_commit = (about.flags & ZE_DEVICE_PROPERTY_FLAG_ONDEMANDPAGING) != 0;
  std::memcpy(description.device_name, about.name, sizeof description.device_name);
  description.device_name[sizeof description.device_name - 1] = '\0';
  description.api_major = static_cast<std::int32_t>(ZE_MAJOR_VERSION(version));
  description.api_minor = static_cast<std::int32_t>(ZE_MINOR_VERSION(version));
  description.driver_version = driver_about.driverVersion;
  description.vendor_id = about.vendorId;
  description.device_id = about.deviceId;
  return {};
}

status driver_state::make_context() {
  const ze_context_desc_t like{ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
  if (const ze_result_t code = ze.context_create(driver, &like, &context);
      code != ZE_RESULT_SUCCESS) {
    context = nullptr;
    return unusable(code, "the Level Zero driver makes no context for the device");
  }
  points.use(ze, context);
  const result<std::uint64_t> page = page_size(call::query_granularity, large_bytes);
  if (!page) {
    error failure = page.error();
    if (failure.code == errc::not_supported) {
      failure.detail =
          "the device has no virtual memory management: choose another device or backend";
    }
    return failure;
  }
  large_page_bytes = *page;
  const auto plain = make_list(false);
  if (!plain) return plain.error();
  stream_state first;
  first.list = *plain;
  streams.emplace(0, std::move(first));
  const auto own = make_list(true);
  if (!own) return own.error();
  transfers = *own;
  return {};
}

driver_state::~driver_state() {
  if (context == nullptr) return;
  for (const stream_state& each : leaving) static_cast<void>(ze.list_destroy(each.list));
  for (const auto& [token, each] : streams) static_cast<void>(ze.list_destroy(each.list));
  if (transfers != nullptr) static_cast<void>(ze.list_destroy(transfers));
  points.close();
  for (auto& [at, each] : held.mappings()) {
    if (each.rights != access::none) static_cast<void>(switch_native(at, each, false));
  }
  for (const auto& [handle, each] : held.memories()) {
    const auto native = reinterpret_cast<ze_physical_mem_handle_t>(each.native);
    static_cast<void>(ze.physical_destroy(context, native));
  }
  for (const auto& [at, each] : held.reservations()) {
    static_cast<void>(
        ze.free(context, reinterpret_cast<void*>(each.origin.base.value), each.origin.size_bytes));
  }
  static_cast<void>(ze.context_destroy(context));
}

}  // namespace level_zero

result<level_zero_driver> level_zero_driver::open(const level_zero_options& options) {
  if (options.device < 0) {
    return refuse(errc::bad_option, "level_zero_options::device is a device number: 0 or more");
  }
  try {
    auto opened = std::make_unique<level_zero::driver_state>();
    const char* const library = level_zero::library_name(options);
    if (const char* problem = level_zero::load_loader(library, opened->ze); problem != nullptr) {
      return refuse(errc::unavailable, problem);
    }
    opened->ordinal = options.device;
    if (const status found = opened->find_device(); !found) return found.error();
    if (const status readable = opened->read_device(); !readable) return readable.error();
    if (const status ready = opened->make_context(); !ready) return ready.error();
    return level_zero_driver(std::move(opened));
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory for the Level Zero backend");
  }
}

level_zero_driver::level_zero_driver(std::unique_ptr<level_zero::driver_state> opened) noexcept
    : state_(std::move(opened)) {}
level_zero_driver::~level_zero_driver() { leave_if_forked(); }
level_zero_driver::level_zero_driver(level_zero_driver&&) noexcept = default;
level_zero_driver& level_zero_driver::operator=(level_zero_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
  }
  return *this;
}

// The context is the parent's: a driver's state does not survive a fork.
void level_zero_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->made_in.is_here()) leave_behind(state_.release());
}

const features& level_zero_driver::feature_set() const noexcept { return state_->can; }
location level_zero_driver::home() const noexcept { return vmm::device(state_->ordinal); }
const level_zero_description& level_zero_driver::description() const noexcept {
  return state_->description;
}
std::uint64_t level_zero_driver::native_context() const noexcept {
  return reinterpret_cast<std::uintptr_t>(state_->context);
}
std::uint64_t level_zero_driver::native_device() const noexcept {
  return reinterpret_cast<std::uintptr_t>(state_->device);
}

}  // namespace vmm
