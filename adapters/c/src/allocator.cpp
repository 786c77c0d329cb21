// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "vmm_allocator.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"

#include "allocator_object.hpp"
#include "block_exports.hpp"
#include "device_memory.hpp"
#include "history.hpp"

import vmm.base;
import vmm.manager;
import vmm.registry;
import vmm.stream;

namespace vmm_c {

template <>
inline constexpr struct_version first_version<vmm_allocator_options>{32, "vmm_allocator_options"};
template <>
inline constexpr struct_version first_version<vmm_allocator_calls>{32, "vmm_allocator_calls"};
template <>
inline constexpr struct_version first_version<vmm_allocator_statistics>{576,
                                                                        "vmm_allocator_statistics"};
static_assert(sizeof(vmm_allocation) == 40 && sizeof(vmm_level) == 32);

namespace {

vmm::stream_handle stream_in(const device_memory& device, vmm_stream stream) noexcept {
  const std::uint64_t number = address_of(stream).value;
  const bool has_legacy = device.streams().is_cuda || !device.streams().has_any;
  const bool legacy = has_legacy && number == static_cast<std::uint64_t>(cuda_default::legacy);
  return vmm::stream_handle{legacy ? 0 : number};
}
bool is_named(const device_memory& device, vmm_stream stream) noexcept {
  return takes_stream(device.streams().has_any, device.streams().is_cuda, stream);
}

vmm_status fail_unknown() noexcept {
  return fail(VMM_ERROR_UNKNOWN_ADDRESS, "no live block of the allocator begins at the address");
}

// Searches the devices for a block, one after the other.
template <class Ask>
vmm_status with_block(allocator_object& on, Ask&& ask) {
  const std::int32_t end = on.device_count.load(std::memory_order_relaxed);
  for (std::int32_t each = 0; each < end; ++each) {
    device_memory* const device = on.device(each);
    if (device == nullptr) continue;
    const vmm::result<bool> found = ask(*device, each);
    if (!found) return fail(found.error());
    if (*found) return VMM_SUCCESS;
  }
  return fail_unknown();
}

vmm_status allocate(allocator_object& on, std::uint64_t size_bytes, std::int32_t number,
                    vmm_stream stream, void** at) {
  device_memory* device = nullptr;
  if (const vmm_status there = need_device(on, number, device); there != VMM_SUCCESS) return there;
  if (!is_named(*device, stream)) return fail_stream();
  const vmm::result<vmm::address> got =
      device->allocate(size_bytes, stream_in(*device, stream), on.captures());
  if (!got) return fail(got.error());
  *at = pointer_to(*got);
  return VMM_SUCCESS;
}

vmm_status free_block(allocator_object& on, void* at) {
  if (at == nullptr) return VMM_SUCCESS;
  return with_block(on, [&](device_memory& device, std::int32_t) {
    return device.free(address_of(at).value, on.captures());
  });
}

// ---- of a kept allocator: no handle is checked -----------------------------------------------

vmm_status allocate_kept(void* self, std::uint64_t size_bytes, std::int32_t device,
                         vmm_stream stream, void** at) noexcept {
  return run([&]() -> vmm_status {
    auto& on = *static_cast<allocator_object*>(self);
    *at = nullptr;
    if (!on.is_here()) [[unlikely]]
      return fail_forked();
    return allocate(on, size_bytes, device, stream, at);
  });
}

vmm_status free_kept(void* self, void* at) noexcept {
  return run([&]() -> vmm_status {
    auto& on = *static_cast<allocator_object*>(self);
    if (!on.is_here()) [[unlikely]]
      return fail_forked();
    return free_block(on, at);
  });
}

vmm_status keep(allocator_object& on, vmm_allocator_calls* calls) {
  if (calls == nullptr) return fail_null();
  if (!is_sized(*calls)) return fail_size(*calls);
  on.is_kept.store(true);
  const vmm_allocator_calls made{sizeof(made), &on, &allocate_kept, &free_kept};
  write_struct(*calls, made);
  return VMM_SUCCESS;
}

// The simulated driver's descriptors are numbers of its own.
vmm_status check_processes(const allocator_object& on) noexcept {
  if (!on.driver_name.starts_with("fake")) return VMM_SUCCESS;
  return fail(VMM_ERROR_NOT_SUPPORTED, "the simulated driver has no memory for other processes");
}

vmm_status list_regions(device_memory& device, vmm_pool_region* regions, std::uint64_t capacity,
                        std::uint64_t& count) {
  const auto listed = device.pool().regions();
  if (!listed) return fail(listed.error());
  count = listed->size();
  for (std::size_t i = 0; i < listed->size() && i < capacity; ++i) {
    const vmm::pool_region& each = (*listed)[i];
    // The numbers of the kinds are those of vmm.h, in its order.
    regions[i] = {pointer_to(each.range.base),
                  each.range.size_bytes,
                  native(each.stream),
                  static_cast<std::uint32_t>(each.kind),
                  {}};
  }
  return VMM_SUCCESS;
}
static_assert(static_cast<std::uint32_t>(vmm::pool_region_kind::live) == VMM_REGION_LIVE &&
              static_cast<std::uint32_t>(vmm::pool_region_kind::free) == VMM_REGION_FREE &&
              static_cast<std::uint32_t>(vmm::pool_region_kind::hole) == VMM_REGION_HOLE &&
              static_cast<std::uint32_t>(vmm::pool_region_kind::stale) == VMM_REGION_STALE &&
              static_cast<std::uint32_t>(vmm::pool_region_kind::busy) == VMM_REGION_BUSY);

vmm_status create(const vmm_allocator_options* given, vmm_allocator** out) {
  vmm_allocator_options full;
  (void)vmm_allocator_options_init(&full, sizeof(full));
  if (given != nullptr) {
    if (const vmm_status read = read_struct(*given, full); read != VMM_SUCCESS) return read;
  }
  if (full.capture > VMM_CAPTURE_UNCHECKED)
    return fail_value(
        VMM_ERROR_BAD_OPTION, full.capture,
        "capture is one of VMM_CAPTURE_REFUSE, VMM_CAPTURE_PRIVATE, VMM_CAPTURE_UNCHECKED");
  const vmm_status flags =
      check_flags(VMM_ERROR_BAD_OPTION, {{full.read_environment, "read_environment is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  vmm::pool_options options;
  options.reservation_bytes = full.reservation_bytes;
  options.capture = static_cast<vmm::capture_rule>(full.capture);
  options.leak_hook.hook = nullptr;  // frameworks end with live tensors
  // Their streams live as long as the process, and captures of them come unannounced.
  options.streams_forgotten = true;
  // Programs that wait for a stream by other means free what another stream still reads.
  options.undeclared_uses = true;
  // Frameworks run for long: more driver time for less memory. docs/decisions/0006 has the figures.
  options.policy.handle_bytes_max = std::uint64_t{40} << 20;
  options.policy.headroom = 1.01;
  options.policy.tuning.move_budget_ns = 500;
  if (const vmm::status checked = options.validate(); !checked) return fail(checked.error());
  if (full.read_environment != 0) {
    const vmm::result<vmm::pool_options> read = vmm::pool_options::from_environment(options);
    if (!read) return fail(read.error());
    const auto others = vmm::manager_options::from_environment({});
    if (!others) return fail(others.error());
    options = *read;
  }
  const char* const name = full.driver == nullptr ? "cuda" : full.driver;
  if (const vmm::status known = vmm::check_backend_name(name); !known) return fail(known.error());
  auto made = std::make_unique<allocator_object>(name, options);
  void* const handle = add_handle(allocator_object::kind, made.get());
  if (handle == nullptr)
    return fail(VMM_ERROR_OUT_OF_HOST_MEMORY,
                "no handle is left: at most 65,536 can exist at a time");
  (void)made.release();
  *out = static_cast<vmm_allocator*>(handle);
  return VMM_SUCCESS;
}
static_assert(static_cast<int>(vmm::capture_rule::refuse) == VMM_CAPTURE_REFUSE &&
              static_cast<int>(vmm::capture_rule::private_memory) == VMM_CAPTURE_PRIVATE &&
              static_cast<int>(vmm::capture_rule::unchecked) == VMM_CAPTURE_UNCHECKED);

vmm_status make_device(allocator_object& on, std::int32_t number, device_memory*& out) {
  const bool is_numbered = on.driver_name == "cuda" || on.driver_name == "level_zero";
  if (number != 0 && !is_numbered && !on.driver_name.starts_with("fake"))
    return fail(VMM_ERROR_INVALID_ARGUMENT,
                "the allocator's driver has one device, 0: \"cuda\" and \"level_zero\", without a "
                "number, have several");
  const std::string name =
      is_numbered ? on.driver_name + ":" + std::to_string(number) : on.driver_name;
  join_preload();
  vmm::result<vmm::any_backend> opened = vmm::open_backend(name);
  if (!opened) return fail(opened.error());
  auto made = std::make_unique<device_memory>(std::move(*opened), on.options);
  if (const vmm::status ready = made->pool().set_up(); !ready) return fail(ready.error());
  made->set_limit(0);
  for (std::int64_t each = on.capture_count; each > 0; --each) {
    if (const vmm::status begun = made->pool().captures().begin(); !begun)
      return fail(begun.error());
  }
  out = made.release();
  on.devices[static_cast<std::size_t>(number)].store(out, std::memory_order_release);
  return VMM_SUCCESS;
}

// The device is counted before it opens: a child forked meanwhile leaves it to the parent.
vmm_status open_device(allocator_object& on, std::int32_t number, device_memory*& out) {
  const vmm::sync::lock_guard<vmm::sync::mutex> lock(on.opening);
  out = on.device(number);
  if (out != nullptr) return VMM_SUCCESS;
  const std::int32_t before = on.device_count.load();
  if (number >= before) on.device_count.store(number + 1);
  const vmm_status done = make_device(on, number, out);
  if (done != VMM_SUCCESS) on.device_count.store(before);
  return done;
}

}  // namespace

vmm_status need_device(allocator_object& on, std::int32_t number, device_memory*& out) {
  if (number < 0 || number >= devices_max) return fail_device();
  out = on.device(number);
  if (out != nullptr) [[likely]]
    return VMM_SUCCESS;
  return open_device(on, number, out);
}

vmm_status trim(allocator_object& on, std::int32_t number, std::uint64_t limit_bytes,
                vmm_trim_report* report) {
  if (report != nullptr && !is_sized(*report)) return fail_size(*report);
  vmm_trim_report sum{};
  const vmm_status done = on_devices(on, number, [&](device_memory& device, std::int32_t) {
    device.collect(on.captures());
    const auto given = device.pool().trim(limit_bytes);
    sum.released_count += given.released_count;
    sum.released_bytes += given.released_bytes;
    sum.still_mapped_bytes += given.still_mapped_bytes;
    return given.failure.code == vmm::errc::none ? VMM_SUCCESS : fail(given.failure);
  });
  if (report != nullptr) write_struct(*report, sum);
  return done;
}

std::optional<vmm_status> with_allocator(const void* handle, std::int32_t number, pool_work work,
                                         void* context) {
  const call_on<allocator_object> on(handle);
  if (!on) return std::nullopt;
  if (!on->is_here()) return fail_forked();
  device_memory* device = nullptr;
  if (const vmm_status there = need_device(*on, number, device); there != VMM_SUCCESS) return there;
  return work(device->pool(), context);
}

}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_allocator_options_init(vmm_allocator_options* options,
                                      uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size, [](vmm_allocator_options& out) {
    out.reservation_bytes = vmm::pool_options{}.reservation_bytes;
    out.capture = VMM_CAPTURE_PRIVATE;
  });
}

vmm_status vmm_allocator_create(const vmm_allocator_options* options,
                                vmm_allocator** allocator) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (allocator == nullptr) return fail_null();
    *allocator = nullptr;
    return create(options, allocator);
  });
}

vmm_status vmm_allocator_destroy(vmm_allocator* allocator) VMM_NOEXCEPT {
  if (allocator == nullptr) return VMM_SUCCESS;
  return run([&] {
    return destroy<allocator_object>(allocator, [](allocator_object& gone) { delete &gone; });
  });
}

vmm_status vmm_allocator_allocate(vmm_allocator* allocator, uint64_t size_bytes, int32_t device,
                                  vmm_stream stream, void** at) VMM_NOEXCEPT {
  if (at == nullptr) return fail_null();
  *at = nullptr;
  return on_allocator(allocator, [&](allocator_object& on) {
    return allocate(on, size_bytes, device, stream, at);
  });
}

vmm_status vmm_allocator_free(vmm_allocator* allocator, void* at) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) { return free_block(on, at); });
}

vmm_status vmm_allocator_keep(vmm_allocator* allocator, vmm_allocator_calls* calls) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) { return keep(on, calls); });
}

vmm_status vmm_allocator_record_stream(vmm_allocator* allocator, void* at,
                                       vmm_stream stream) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) {
    bool is_stream = true;
    const vmm_status done =
        with_block(on, [&](device_memory& device, std::int32_t) -> vmm::result<bool> {
          is_stream = is_named(device, stream);
          return is_stream ? device.record(address_of(at).value, stream_in(device, stream)) : true;
        });
    return is_stream ? done : fail_stream();
  });
}

vmm_status vmm_allocator_begin_capture(vmm_allocator* allocator) VMM_NOEXCEPT {
  return on_allocator(allocator, [](allocator_object& on) -> vmm_status {
    const vmm::sync::lock_guard<vmm::sync::mutex> lock(on.opening);
    const vmm_status done =
        on_devices(on, VMM_ALL_DEVICES, [](device_memory& device, std::int32_t) {
          const vmm::status begun = device.pool().captures().begin();
          return begun ? VMM_SUCCESS : fail(begun.error());
        });
    if (done == VMM_SUCCESS) on.capture_count.fetch_add(1);
    return done;
  });
}

vmm_status vmm_allocator_end_capture(vmm_allocator* allocator) VMM_NOEXCEPT {
  return on_allocator(allocator, [](allocator_object& on) -> vmm_status {
    const vmm::sync::lock_guard<vmm::sync::mutex> lock(on.opening);
    if (!on.captures()) return fail(VMM_ERROR_NOT_PERMITTED, "no capture was begun");
    on.capture_count.fetch_sub(1);
    return on_devices(on, VMM_ALL_DEVICES, [&](device_memory& device, std::int32_t) {
      const vmm::status ended = device.pool().captures().end();
      if (!on.captures()) device.collect(false);
      return ended ? VMM_SUCCESS : fail(ended.error());
    });
  });
}

vmm_status vmm_allocator_forget_stream(vmm_allocator* allocator, int32_t device,
                                       vmm_stream stream) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) {
    return on_devices(on, device, [&](device_memory& each, std::int32_t) {
      return is_named(each, stream) ? answer(each.pool().forget(stream_in(each, stream)))
                                    : fail_stream();
    });
  });
}

vmm_status vmm_allocator_trim(vmm_allocator* allocator, int32_t device, uint64_t limit_bytes,
                              vmm_trim_report* report) VMM_NOEXCEPT {
  return on_allocator(allocator,
                      [&](allocator_object& on) { return trim(on, device, limit_bytes, report); });
}

vmm_status vmm_allocator_set_limit(vmm_allocator* allocator, int32_t device,
                                   uint64_t limit_bytes) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    device_memory* there = nullptr;
    if (const vmm_status got = need_device(on, device, there); got != VMM_SUCCESS) return got;
    there->set_limit(limit_bytes);
    return VMM_SUCCESS;
  });
}

vmm_status vmm_allocator_add_peer(vmm_allocator* allocator, int32_t device,
                                  int32_t peer) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    device_memory* there = nullptr;
    if (const vmm_status got = need_device(on, device, there); got != VMM_SUCCESS) return got;
    if (peer < 0 || peer >= devices_max) return fail_device();
    if (peer == device) return VMM_SUCCESS;
    const vmm::access_grant grant{vmm::device(peer), vmm::access::read_write};
    return answer(there->pool().set_peers({&grant, 1}));
  });
}

vmm_status vmm_allocator_export(vmm_allocator* allocator, const void* at,
                                vmm_block_export* out) VMM_NOEXCEPT {
  if (out == nullptr) return fail_null();
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    vmm_allocation block{};
    device_memory* owner = nullptr;
    const auto look = [&](device_memory& device, std::int32_t number) -> vmm::result<bool> {
      owner = &device;
      return device.find(address_of(at).value, number, block);
    };
    if (const vmm_status found = with_block(on, look); found != VMM_SUCCESS) return found;
    const vmm_status can = check_processes(on);
    return can == VMM_SUCCESS ? export_block(*owner, block, *out) : can;
  });
}

vmm_status vmm_allocator_import(vmm_allocator* allocator, const vmm_block_export* from,
                                int32_t device, void** at) VMM_NOEXCEPT {
  if (at == nullptr || from == nullptr) return fail_null();
  *at = nullptr;
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    if (const vmm_status can = check_processes(on); can != VMM_SUCCESS) return can;
    device_memory* there = nullptr;
    if (const vmm_status got = need_device(on, device, there); got != VMM_SUCCESS) return got;
    vmm::address mapped{};
    const vmm_status done = import_block(*there, *from, on.captures(), mapped);
    *at = pointer_to(mapped);
    return done;
  });
}

vmm_status vmm_allocator_end_import(vmm_allocator* allocator, void* at) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) {
    return with_block(on, [&](device_memory& device, std::int32_t) -> vmm::result<bool> {
      return end_import(device, address_of(at).value, on.captures());
    });
  });
}

vmm_status vmm_allocator_find(vmm_allocator* allocator, const void* at,
                              vmm_allocation* found) VMM_NOEXCEPT {
  if (found == nullptr) return fail_null();
  return on_allocator(allocator, [&](allocator_object& on) {
    return with_block(on, [&](device_memory& device, std::int32_t number) -> vmm::result<bool> {
      return device.find(address_of(at).value, number, *found);
    });
  });
}

vmm_status vmm_allocator_list(vmm_allocator* allocator, int32_t device, vmm_allocation* blocks,
                              uint64_t capacity, uint64_t* count) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    if (count == nullptr || (blocks == nullptr && capacity != 0)) return fail_null();
    std::vector<vmm_allocation> listed;
    const vmm_status done = on_devices(on, device, [&](device_memory& each, std::int32_t number) {
      each.list(number, listed);
      return VMM_SUCCESS;
    });
    if (done != VMM_SUCCESS) return done;
    *count = listed.size();
    for (std::size_t i = 0; i < listed.size() && i < capacity; ++i) blocks[i] = listed[i];
    return VMM_SUCCESS;
  });
}

vmm_status vmm_allocator_regions(vmm_allocator* allocator, int32_t device, vmm_pool_region* regions,
                                 uint64_t capacity, uint64_t* count) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    if (count == nullptr || (regions == nullptr && capacity != 0)) return fail_null();
    if (device == VMM_ALL_DEVICES) return fail_device();
    *count = 0;
    return on_devices(on, device, [&](device_memory& each, std::int32_t) {
      return list_regions(each, regions, capacity, *count);
    });
  });
}

vmm_status vmm_allocator_get_statistics(vmm_allocator* allocator, int32_t device,
                                        vmm_allocator_statistics* statistics) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
    if (statistics == nullptr) return fail_null();
    if (!is_sized(*statistics)) return fail_size(*statistics);
    if (device == VMM_ALL_DEVICES) return fail_device();
    vmm_allocator_statistics now{};
    const vmm_status done = on_devices(on, device, [&](device_memory& each, std::int32_t) {
      each.write_statistics(now);
      return VMM_SUCCESS;
    });
    if (done == VMM_SUCCESS) write_struct(*statistics, now);
    return done;
  });
}

vmm_status vmm_allocator_reset_peaks(vmm_allocator* allocator, int32_t device) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) {
    return on_devices(on, device, [](device_memory& each, std::int32_t) {
      each.reset_peaks();
      return VMM_SUCCESS;
    });
  });
}

vmm_status vmm_allocator_reset_counts(vmm_allocator* allocator, int32_t device) VMM_NOEXCEPT {
  return on_allocator(allocator, [&](allocator_object& on) {
    return on_devices(on, device, [](device_memory& each, std::int32_t) {
      each.reset_counts();
      return VMM_SUCCESS;
    });
  });
}

}  // extern "C"
