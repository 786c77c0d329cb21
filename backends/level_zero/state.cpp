// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - the state of an object: finding the device, and releasing the objects that it
// created.
module;
#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :state;

namespace vmm {
namespace level_zero {
namespace {

constexpr const char* no_context = "the driver is called before there is a context";

// Set by a function that exit() calls. It is registered when the drivers have started, so it runs
// before their static objects are destroyed, and after those of the program that were complete by
// then.
std::atomic<bool> exit_has_begun = false;

// An error of open(): no device is usable, for any reason.
error unusable(ze_result_t code, const char* detail) noexcept {
  check(detail != nullptr, "an error has a text");
  error failure = error_of(call::none, code);
  failure.code = errc::unavailable;
  failure.detail = detail;
  return failure;
}

constexpr const char* no_virtual_memory =
    "the device has no virtual memory management: choose another device or backend";
constexpr const char* no_driver_detail =
    "the Level Zero loader is installed but finds no driver that starts: install the vendor's "
    "(libze-intel-gpu1), and check the permissions of /dev/dri; ZE_ENABLE_ALT_DRIVERS names a "
    "driver at another place";

// The variable's value, or nothing when it is unset or empty.
std::string_view variable(const char* name) noexcept {
  check(name != nullptr && *name != '\0', "a variable has no name");
  const char* const value = environment_text(name);
  return value != nullptr ? std::string_view(value) : std::string_view();
}

// With that variable the loader searches for no other driver.
const char* no_driver() noexcept {
  const std::string_view named = variable("ZE_ENABLE_ALT_DRIVERS");
  check(no_driver_detail[0] != '\0', "an error has a text");
  if (named.empty()) return no_driver_detail;
  return detail_text()
      .add(
          "the Level Zero loader is installed but finds no driver that starts: "
          "ZE_ENABLE_ALT_DRIVERS is '")
      .add(named)
      .add("', and the loader tries no other driver; correct or unset it")
      .keep(no_driver_detail);
}

// "1 GPU", "2 GPUs".
detail_text& add_count(detail_text& to, std::size_t count, std::string_view what) noexcept {
  check(!what.empty() && what.back() != 's', "a counted object has a singular name");
  return to.add_number(count).add(" ").add(what).add(count == 1 ? "" : "s");
}

// The requested driver number exceeds the number of drivers.
error no_such_driver(std::size_t number, std::size_t count) noexcept {
  check(number >= count, "a driver that there is is refused");
  detail_text text;
  text.add("level_zero_options::driver is ").add_number(number).add(", and the loader has ");
  add_count(text, count, "driver").add("; the first is 0");
  return refuse(errc::unavailable,
                text.keep("level_zero_options::driver is none that the loader has"));
}

// There are fewer GPUs. The driver's mask hides those that it does not name.
error no_such_device(std::size_t number, std::size_t count) noexcept {
  check(number >= count && count != 0, "a GPU that there is is refused");
  detail_text text;
  text.add("GPU ").add_number(number).add(" was requested, and ");
  text.add("the Level Zero drivers searched see ");
  add_count(text, count, "GPU").add("; the first is 0");
  if (const std::string_view mask = variable("ZE_AFFINITY_MASK"); !mask.empty()) {
    text.add("; ZE_AFFINITY_MASK is '").add(mask).add("'");
  }
  return refuse(
      errc::unavailable,
      text.keep("level_zero_options::device is not a GPU that the Level Zero drivers see"));
}

struct found_device {
  ze_driver_handle_t driver = nullptr;
  ze_device_handle_t device = nullptr;
};

// Counted calls: the count first, then as many.
template <class Handle, class Get>
ze_result_t list(std::vector<Handle>& into, Get&& get) {
  check(into.empty(), "a list is filled once");
  std::uint32_t count = 0;
  ze_result_t code = get(&count, static_cast<Handle*>(nullptr));
  if (code != ZE_RESULT_SUCCESS || count == 0) return code;
  into.resize(count);
  code = get(&count, into.data());
  // Fewer may be left than there were.
  if (count < into.size()) into.resize(count);
  return code;
}

// The GPUs of one driver. A null handle keeps its number: find_device() refuses it.
ze_result_t add_devices(const entry_points& ze, ze_driver_handle_t driver,
                        std::vector<found_device>& into) {
  check(driver != nullptr, "a driver that there is has a handle");
  std::vector<ze_device_handle_t> devices;
  ze_result_t code = list(devices, [&](std::uint32_t* count, ze_device_handle_t* out) {
    return ze.device_get(driver, count, out);
  });
  for (const ze_device_handle_t each : devices) {
    if (code != ZE_RESULT_SUCCESS) break;
    if (each == nullptr) {
      into.push_back({driver, each});
      continue;
    }
    ze_device_properties_t about{};
    about.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
    code = ze.device_get_properties(each, &about);
    if (code == ZE_RESULT_SUCCESS && about.type == ZE_DEVICE_TYPE_GPU) {
      into.push_back({driver, each});
    }
  }
  return code;
}

loader_name what_to_load(const level_zero_options& options) noexcept {
  if (options.loader_library != nullptr) return {options.loader_library, false};
  check(options.device >= 0, "options are looked at before they are used");
  const char* const named = environment_text("VMM_LEVEL_ZERO_LIBRARY");
  return named == nullptr ? loader_name{} : loader_name{named, true};
}

}  // namespace

bool level_zero_state::is_usable() const noexcept {
  return made_in.is_here() && !exit_has_begun.load(std::memory_order_relaxed);
}

error level_zero_state::refuse_unusable(call where) const noexcept {
  check(!is_usable(), "an object that can be used is refused");
  if (!made_in.is_here()) return refuse_forked(where);
  return error{errc::unavailable, where, 0, "",
               "the process is ending, and the driver's own objects with it"};
}

status level_zero_state::start_drivers() {
  check(ze.init != nullptr && context == nullptr, "drivers are started once the loader is there");
  if (exit_has_begun.load(std::memory_order_relaxed)) return refuse_unusable(call::none);
  if (const ze_result_t code = ze.init(ZE_INIT_FLAG_GPU_ONLY); code != ZE_RESULT_SUCCESS) {
    return unusable(code, no_driver());
  }
  static const int registered =
      std::atexit([] { exit_has_begun.store(true, std::memory_order_relaxed); });
  static_cast<void>(registered);  // without it, static objects are destroyed in any order
  return {};
}

// Drivers are queried in order until the device is found. Later drivers do not matter; an earlier
// one that fails makes the device's number uncertain.
status level_zero_state::find_device() {
  check(asked.device >= 0, "a device has a number");
  std::vector<ze_driver_handle_t> drivers;
  ze_result_t code = list(drivers, [&](std::uint32_t* count, ze_driver_handle_t* out) {
    return ze.driver_get(count, out);
  });
  if (code == ZE_RESULT_SUCCESS && drivers.empty()) {
    return refuse(errc::unavailable, no_driver());
  }
  const bool any = asked.driver == level_zero_options::all_drivers;
  const auto wanted = static_cast<std::size_t>(asked.device);
  if (code == ZE_RESULT_SUCCESS && !any &&
      static_cast<std::size_t>(asked.driver) >= drivers.size()) {
    return no_such_driver(static_cast<std::size_t>(asked.driver), drivers.size());
  }
  std::vector<found_device> devices;
  for (std::size_t i = 0; i < drivers.size() && devices.size() <= wanted; ++i) {
    if (!any && i != static_cast<std::size_t>(asked.driver)) continue;
    if (drivers[i] == nullptr) return no_value(call::none);
    if (code == ZE_RESULT_SUCCESS) code = add_devices(ze, drivers[i], devices);
    description.driver_number = static_cast<std::int32_t>(i);
  }
  if (code != ZE_RESULT_SUCCESS) {
    return unusable(code, "the Level Zero driver does not list its devices");
  }
  if (devices.empty()) {
    return refuse(errc::unavailable, "the Level Zero drivers see no GPU: check ZE_AFFINITY_MASK");
  }
  if (wanted >= devices.size()) return no_such_device(wanted, devices.size());
  driver = devices[wanted].driver;
  device = devices[wanted].device;
  if (device == nullptr) return no_value(call::none);
  check(driver != nullptr, "a device that there is has a driver");
  return {};
}

// Fills description and the sizes. A feature that no call reports stays off until it has been tried
// on a device: docs/contract.md.
status level_zero_state::read_device() {
  check(device != nullptr, "a device is found before it is read");
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
  if (code != ZE_RESULT_SUCCESS) {
    return unusable(code, "the Level Zero driver does not describe its device");
  }
  for (const auto& each : memories) total_bytes += each.totalSize;
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

// The first group that computes and copies; if none does both, the first that computes.
status level_zero_state::read_queues() {
  check(device != nullptr, "a device is found before it is read");
  std::vector<ze_command_queue_group_properties_t> groups;
  const auto fill = [&](std::uint32_t* count, ze_command_queue_group_properties_t* out) {
    for (std::uint32_t i = 0; out != nullptr && i < *count; ++i) {
      out[i].stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES;
    }
    return ze.device_get_queue_groups(device, count, out);
  };
  if (const ze_result_t code = list(groups, fill); code != ZE_RESULT_SUCCESS) {
    return unusable(code, "the Level Zero driver does not describe its device");
  }
  const auto computes = [](const ze_command_queue_group_properties_t& group) {
    return (group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) != 0;
  };
  const auto copies_too = [&](const ze_command_queue_group_properties_t& group) {
    return computes(group) && (group.flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY) != 0;
  };
  auto chosen = std::find_if(groups.begin(), groups.end(), copies_too);
  if (chosen == groups.end()) chosen = std::find_if(groups.begin(), groups.end(), computes);
  if (chosen == groups.end()) {
    return refuse(errc::not_supported, "the device has no command queues that compute");
  }
  queue_ordinal = static_cast<std::uint32_t>(chosen - groups.begin());
  check(queue_ordinal < groups.size(), "a group of queues has a number");
  return {};
}

status level_zero_state::make_context() {
  check(context == nullptr, "an object has one context");
  const ze_context_desc_t like{ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
  if (const ze_result_t code = ze.context_create(driver, &like, &context);
      code != ZE_RESULT_SUCCESS) {
    context = nullptr;
    return unusable(code, "the Level Zero driver makes no context for the device");
  }
  if (context == nullptr) {
    return refuse(errc::internal, "the driver returned success without a value");
  }
  points.use(ze, context);
  const result<std::uint64_t> page = page_size(call::query_granularity, large_bytes);
  if (!page) {
    error failure = page.error();
    if (failure.code == errc::not_supported) failure.detail = no_virtual_memory;
    return failure;
  }
  large_page_bytes = *page;
  return {};
}

// Some drivers report page sizes without physical memory. A full device is one all the same.
status level_zero_state::try_memory() {
  check(context != nullptr, no_context);
  const auto page = page_size(call::create, 1);
  if (!page) return page.error();
  ze_physical_mem_desc_t like{ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC, nullptr, 0, *page};
  ze_physical_mem_handle_t made = nullptr;
  const ze_result_t code = ze.physical_create(context, device, &like, &made);
  if (code == ZE_RESULT_ERROR_UNSUPPORTED_FEATURE) {
    error failure = error_of(call::create, code);
    failure.detail = no_virtual_memory;
    return failure;
  }
  if (code == ZE_RESULT_SUCCESS && made != nullptr) {
    static_cast<void>(ze.physical_destroy(context, made));
  }
  return {};
}

status level_zero_state::make_lists() {
  check(context != nullptr && streams.empty(), no_context);
  stream_state& first = streams[0];
  const auto plain = make_list(false);
  if (!plain) return plain.error();
  first.list = *plain;
  const auto own = make_list(true);
  if (!own) return own.error();
  transfers = *own;
  return {};
}

// Waits for the markers and queued waits that are the object's own. The caller's work is finished.
void level_zero_state::finish_work() noexcept {
  check(context != nullptr, no_context);
  std::unique_lock<std::mutex> lock(work_lock);
  for (const auto& [token, each] : leaving) {
    if (each.marked.empty()) continue;
    static_cast<void>(ze.event_synchronize(each.marked.back().marker->native, UINT64_MAX));
  }
  for (auto& [token, each] : streams) {
    if (!each.is_used) continue;
    const result<point*> last = append_point(lock, call::none, each);
    if (last) static_cast<void>(ze.event_synchronize((*last)->native, UINT64_MAX));
  }
}

level_zero_state::~level_zero_state() {
  if (context == nullptr) return;
  paranoid_check([&] { return records.validate(); },
                 "a Level Zero object ends with inconsistent records");
  finish_work();
  for (const auto& [token, each] : leaving) static_cast<void>(ze.list_destroy(each.list));
  for (const auto& [token, each] : streams) {
    if (each.list != nullptr) static_cast<void>(ze.list_destroy(each.list));
  }
  if (transfers != nullptr) static_cast<void>(ze.list_destroy(transfers));
  points.close();
  for (const auto& [at, each] : records.mappings()) {
    if (each.rights != access::none) static_cast<void>(switch_native(at, each, false));
  }
  for (const auto& [handle, each] : records.memories()) {
    const auto native = reinterpret_cast<ze_physical_mem_handle_t>(each.native);
    static_cast<void>(ze.physical_destroy(context, native));
  }
  for (const auto& [at, each] : records.reservations()) {
    static_cast<void>(free_native(call::none, each.origin));
  }
  static_cast<void>(ze.context_destroy(context));
}

result<std::unique_ptr<level_zero_state>> level_zero_state::open(
    const level_zero_options& options) {
  if (options.device < 0) {
    return refuse(errc::bad_option, "level_zero_options::device is a device number: 0 or more");
  }
  if (options.driver < level_zero_options::all_drivers) {
    return refuse(errc::bad_option,
                  "level_zero_options::driver is a driver number, 0 or more, or all_drivers");
  }
  if (options.loader_library != nullptr && *options.loader_library == '\0') {
    return refuse(errc::bad_option, "level_zero_options::loader_library is a name, or null");
  }
  try {
    auto opened = std::make_unique<level_zero_state>();
    const loader_name loader = what_to_load(options);
    const load_problem problem = load_loader(loader, opened->ze);
    if (problem.detail != nullptr) {
      const errc code = loader.is_variable ? errc::bad_option : errc::unavailable;
      return error{code, call::none, 0, problem.symbol, problem.detail};
    }
    opened->asked = options;
    for (const auto step : {&level_zero_state::start_drivers, &level_zero_state::find_device,
                            &level_zero_state::read_device, &level_zero_state::read_queues,
                            &level_zero_state::make_context, &level_zero_state::try_memory,
                            &level_zero_state::make_lists}) {
      if (const status done = ((*opened).*step)(); !done) return done.error();
    }
    check(opened->large_page_bytes != 0 && opened->transfers != nullptr,
          "an opened driver has all parts");
    return opened;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory for the Level Zero backend");
  }
}

}  // namespace level_zero
}  // namespace vmm
