// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "objects.hpp"
#include "python.hpp"

import vmm.backend;
import vmm.market;
import vmm.optimizer;
import vmm.registry;

namespace vmm_c {
namespace {

constexpr std::size_t name_bytes = 64;

// Idle memory of the allocators here for the pools of the preload library, which stands before the
// driver. Its own idle memory it releases when a create of theirs fails.
std::uint64_t relieve(std::int32_t device, std::uint64_t wanted_bytes) noexcept {
  return vmm::relieve({nullptr, vmm::device(device)}, wanted_bytes);
}

// What the tenants here hold of a device, for the preload library's figures of its memory.
std::uint64_t held(const char* device) noexcept {
  try {
    return vmm::market_charged_bytes(vmm::make_market_device(device));
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// Null, or why a name and a device do not fit. The registry reports errors of the name alone.
const char* wrong_device(std::string_view name, std::int32_t device) noexcept {
  if (device == VMM_ANY_DEVICE) return nullptr;
  if (device < 0) return "device is a number from 0 on, or VMM_ANY_DEVICE (-1)";
  if (name.empty()) {
    return "without a name the library chooses the driver and its device: pass "
           "VMM_ANY_DEVICE, or name \"cuda\" or \"level_zero\"";
  }
  if (name.starts_with("cuda:") || name.starts_with("level_zero:")) {
    return "the name has a device's number, such as \"cuda:0\": pass VMM_ANY_DEVICE beside it, or "
           "the name without a number";
  }
  const bool has_one = name == "host" || name == "fake" || name.starts_with("fake:");
  return has_one && device > 0 ? "this driver has one device: pass VMM_ANY_DEVICE, or 0" : nullptr;
}

// The name with the device, as the registry takes it.
vmm_status name_with_device(const char* name, std::int32_t device, char (&out)[name_bytes]) {
  const std::string_view given = name == nullptr ? "" : name;
  const bool is_numbered = given == "cuda" || given == "level_zero";
  if (const char* wrong = wrong_device(given, device); wrong != nullptr)
    return fail_value(VMM_ERROR_BAD_OPTION, device, wrong);
  if (given.size() > name_bytes / 2)
    return fail(VMM_ERROR_BAD_OPTION, "no driver has so long a name: see vmm_list_drivers");
  const int size = static_cast<int>(given.size());
  if (device >= 0 && is_numbered) {
    (void)std::snprintf(out, name_bytes, "%.*s:%d", size, given.data(), device);
  } else {
    (void)std::snprintf(out, name_bytes, "%.*s", size, given.data());
  }
  return VMM_SUCCESS;
}

vmm_status open(const char* name, std::int32_t device, vmm_driver** out) {
  char full[name_bytes];
  if (const vmm_status named = name_with_device(name, device, full); named != VMM_SUCCESS)
    return named;
  join_preload();
  vmm::result<vmm::any_backend> opened = vmm::open_backend(full);
  if (!opened) return fail(opened.error());
  auto made = std::make_unique<driver_object>(std::move(*opened));
  void* const handle = add_handle(driver_object::kind, made.get());
  if (handle == nullptr)
    return fail(VMM_ERROR_OUT_OF_HOST_MEMORY,
                "no handle is left: at most 65,536 can exist at a time");
  (void)made.release();
  *out = static_cast<vmm_driver*>(handle);
  return VMM_SUCCESS;
}

std::uint64_t bit(bool has, std::uint64_t feature) noexcept { return has ? feature : 0; }

std::uint64_t bits_of(const vmm::features& can) noexcept {
  return bit(can.host_accessible, VMM_FEATURE_HOST_ACCESSIBLE) |
         bit(can.streams, VMM_FEATURE_STREAMS) | bit(can.capture, VMM_FEATURE_CAPTURE) |
         bit(can.copy, VMM_FEATURE_COPY) |
         bit(can.alias != vmm::alias_level::none, VMM_FEATURE_ALIAS) |
         bit(can.host_location, VMM_FEATURE_HOST_PLACE) |
         bit(can.host_node_location, VMM_FEATURE_HOST_NODE_PLACE) |
         bit(can.export_posix_fd, VMM_FEATURE_EXPORT_POSIX_FD) |
         bit(can.export_fabric, VMM_FEATURE_EXPORT_FABRIC) |
         bit(can.compression, VMM_FEATURE_COMPRESSION) | bit(can.rdma, VMM_FEATURE_RDMA) |
         bit(can.multicast_capable, VMM_FEATURE_MULTICAST_CAPABLE);
}

std::uint32_t place_of(vmm::location where) noexcept {
  switch (where.kind) {
    case vmm::location::place::device: return VMM_PLACE_DEVICE;
    case vmm::location::place::host: return VMM_PLACE_HOST;
    case vmm::location::place::host_node: return VMM_PLACE_HOST_NODE;
  }
  return VMM_PLACE_DEVICE;
}

vmm::status order(vmm::any_backend& on, vmm::stream_handle first, vmm::stream_handle then) {
  if (!on.feature_set().streams) {
    const bool is_default = first == vmm::stream_handle::default_stream;
    if (is_default && then == first) return {};
    return on.synchronize_stream(is_default ? then : first);  // reports the missing feature
  }
  if (first == then) return {};
  const vmm::result<vmm::event_handle> event = on.create_event();
  if (!event) return event.error();
  vmm::status ordered = on.record_event(*event, first);
  if (ordered) ordered = on.wait_event(then, *event);
  const vmm::status gone = on.destroy_event(*event);
  return ordered ? gone : ordered;
}

vmm_status query(driver_object& driver, vmm_driver_info& out) {
  const vmm::location home = driver.backend.home();
  vmm::physical_request like;
  like.where = home;
  like.size_bytes = std::uint64_t{2} << 20;
  const vmm::result<vmm::granularity> unit = driver.backend.query_granularity(like);
  if (!unit) return fail(unit.error());
  vmm_driver_info info{};
  info.name = driver.backend.name().data();
  info.features = bits_of(driver.backend.feature_set());
  info.granularity = unit->minimum_bytes;
  info.recommended = unit->recommended_bytes;
  info.place = place_of(home);
  info.device = home.ordinal;
  write_struct(out, info);
  return VMM_SUCCESS;
}

// A call on a driver: `work` gets it.
template <class Work>
vmm_status on_driver(vmm_driver* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<driver_object> driver(handle);
    return driver ? work(*driver) : fail_handle();
  });
}

}  // namespace

void join_preload() noexcept {
  static const bool is_joined = [] {
    void* const there = ::dlopen("libvmm_preload.so", RTLD_NOW | RTLD_NOLOAD);
    if (there == nullptr) return false;
    using join = void (*)(std::uint64_t (*)(std::int32_t, std::uint64_t));
    using join_tenants = void (*)(std::uint64_t (*)(const char*));
    const auto call = reinterpret_cast<join>(::dlsym(there, "vmm_preload_join"));
    const auto tenants = reinterpret_cast<join_tenants>(::dlsym(there, "vmm_preload_join_tenants"));
    if (call != nullptr) call(&relieve);
    if (tenants != nullptr) tenants(&held);
    return call != nullptr;
  }();
  (void)is_joined;
}
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_parse_bytes(const char* text, uint64_t* bytes) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (text == nullptr || bytes == nullptr) return fail_null();
    const std::optional<std::uint64_t> size_bytes = vmm::parse_bytes(text);
    if (!size_bytes) {
      return fail(
          vmm::refuse_value(text, "a size is a number with a unit, such as 512MiB or 1.5GiB"));
    }
    *bytes = *size_bytes;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_list_drivers(vmm_driver_entry* entries, uint64_t capacity,
                            uint64_t* count) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (count == nullptr || (entries == nullptr && capacity != 0)) return fail_null();
    const auto known = vmm::backend_names();
    *count = known.size();
    for (std::size_t i = 0; i < known.size() && i < capacity; ++i) {
      entries[i] = {known[i].name.data(), words_of_c(known[i].reason), known[i].available ? 1u : 0u,
                    0};
    }
    return VMM_SUCCESS;
  });
}

vmm_status vmm_driver_open(const char* name, int32_t device, vmm_driver** driver) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (driver == nullptr) return fail_null();
    *driver = nullptr;
    const handler_scope handlers;
    return open(name, device, driver);
  });
}

vmm_status vmm_driver_close(vmm_driver* driver) VMM_NOEXCEPT {
  if (driver == nullptr) return VMM_SUCCESS;
  return run(
      [&] { return destroy<driver_object>(driver, [](driver_object& gone) { delete &gone; }); });
}

vmm_status vmm_driver_query(vmm_driver* driver, vmm_driver_info* info) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (info == nullptr) return fail_null();
    return is_sized(*info) ? query(on, *info) : fail_size(*info);
  });
}

vmm_status vmm_driver_memory(vmm_driver* driver, uint64_t* free_bytes,
                             uint64_t* total_bytes) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    const vmm::result<vmm::memory_info> info = on.backend.query_memory(on.backend.home());
    if (!info) return fail(info.error());
    if (free_bytes != nullptr) *free_bytes = info->free_bytes;
    if (total_bytes != nullptr) *total_bytes = info->total_bytes;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_driver_create_stream(vmm_driver* driver, vmm_stream* stream) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (stream == nullptr) return fail_null();
    const vmm::result<vmm::stream_handle> made = on.backend.create_stream();
    if (!made) return fail(made.error());
    *stream = native(*made);
    return VMM_SUCCESS;
  });
}

vmm_status vmm_driver_destroy_stream(vmm_driver* driver, vmm_stream stream) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (is_per_thread(on, stream)) return fail_stream();
    const vmm::stream_handle gone = stream_of(on, stream);
    if (gone == vmm::stream_handle::default_stream)
      return fail(VMM_ERROR_INVALID_ARGUMENT, "the default stream is not destroyed");
    return answer(on.backend.destroy_stream(gone));
  });
}

vmm_status vmm_driver_synchronize_stream(vmm_driver* driver, vmm_stream stream) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (is_per_thread(on, stream)) return fail_stream();
    if (!on.has_streams && stream_of(on, stream) == vmm::stream_handle::default_stream)
      return VMM_SUCCESS;
    return answer(on.backend.synchronize_stream(stream_of(on, stream)));
  });
}

vmm_status vmm_driver_order_streams(vmm_driver* driver, vmm_stream first,
                                    vmm_stream then) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (is_per_thread(on, first) || is_per_thread(on, then)) return fail_stream();
    return answer(order(on.backend, stream_of(on, first), stream_of(on, then)));
  });
}

vmm_status vmm_driver_write(vmm_driver* driver, void* target, const void* source,
                            uint64_t size_bytes) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (target == nullptr || source == nullptr) return fail_null();
    if (!fits(target, size_bytes) || !fits(source, size_bytes)) return fail_range();
    const auto* const bytes = static_cast<const std::byte*>(source);
    return answer_access(on, {address_of(target), size_bytes},
                         on.backend.write(address_of(target), std::span(bytes, size_bytes)));
  });
}

vmm_status vmm_driver_read(vmm_driver* driver, void* target, const void* source,
                           uint64_t size_bytes) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (target == nullptr || source == nullptr) return fail_null();
    if (!fits(target, size_bytes) || !fits(source, size_bytes)) return fail_range();
    auto* const bytes = static_cast<std::byte*>(target);
    return answer_access(on, {address_of(source), size_bytes},
                         on.backend.read(std::span(bytes, size_bytes), address_of(source)));
  });
}

vmm_status vmm_driver_fill(vmm_driver* driver, void* target, uint8_t value, uint64_t size_bytes,
                           vmm_stream stream) VMM_NOEXCEPT {
  return on_driver(driver, [&](driver_object& on) -> vmm_status {
    if (target == nullptr) return fail_null();
    if (!fits(target, size_bytes)) return fail_range();
    if (is_per_thread(on, stream)) return fail_stream();
    const vmm::address_range range{address_of(target), size_bytes};
    return answer_access(on, range, on.backend.fill({range, value, stream_of(on, stream)}));
  });
}

}  // extern "C"
