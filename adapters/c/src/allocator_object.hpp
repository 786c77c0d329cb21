// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The object of an allocator's handle, and its devices. It imports what it uses, so it comes after
// every include but those that do the same.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "errors.hpp"
#include "handles.hpp"
#include "vmm_allocator.h"

#include "device_memory.hpp"

import vmm.base;
import vmm.stream;

namespace vmm_c {

inline constexpr std::int32_t devices_max = 64;

struct allocator_object {
  static constexpr handle_kind kind = handle_kind::allocator;
  static constexpr const char* is_used_text =
      "the allocator is in use: one that vmm_allocator_keep() was called for lives as long as the "
      "process, and none is destroyed inside a call on it or between the announcements of a "
      "capture";
  allocator_object(const char* name, const vmm::pool_options& with)
      : driver_name(name), options(with) {}
  ~allocator_object() {
    for (auto& each : devices) delete each.load();
  }

  [[nodiscard]] bool has_users() const noexcept { return is_kept.load() || captures(); }
  [[nodiscard]] bool captures() const noexcept {
    return capture_count.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] device_memory* device(std::int32_t number) noexcept {
    if (number < 0 || number >= devices_max) return nullptr;
    return devices[static_cast<std::size_t>(number)].load(std::memory_order_acquire);
  }

  // An allocator that has opened no device belongs to the forked child that uses it.
  [[nodiscard]] bool is_here() noexcept {
    if (made_in.is_here()) [[likely]]
      return true;
    if (device_count.load(std::memory_order_acquire) != 0) return false;
    made_in.move_here();
    return true;
  }

  // What a call reads first, on one line with the first devices.
  alignas(64) made_here made_in;
  std::atomic<std::int32_t> device_count = 0;  // one more than the highest number in use
  std::atomic<std::int64_t> capture_count = 0;
  std::array<std::atomic<device_memory*>, devices_max> devices{};
  std::atomic<bool> is_kept = false;
  const std::string driver_name;
  const vmm::pool_options options;
  vmm::sync::mutex opening;
};

inline vmm_status fail_device() noexcept {
  return fail(VMM_ERROR_INVALID_ARGUMENT, "a device is a number from 0 to 63");
}

template <class Work>
vmm_status on_allocator(vmm_allocator* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<allocator_object> on(handle);
    if (!on) return fail_handle();
    return on->is_here() ? work(*on) : fail_forked();
  });
}

// The device, opened where it was not used so far.
[[nodiscard]] vmm_status need_device(allocator_object& on, std::int32_t number,
                                     device_memory*& out);

// Runs work on each device in use, or on one, until one fails.
template <class Work>
vmm_status on_devices(allocator_object& on, std::int32_t number, Work&& work) {
  const bool all = number == VMM_ALL_DEVICES;
  if (!all && (number < 0 || number >= devices_max)) return fail_device();
  const std::int32_t first = all ? 0 : number;
  const std::int32_t end = all ? on.device_count.load() : number + 1;
  for (std::int32_t each = first; each < end; ++each) {
    device_memory* const device = on.device(each);
    if (device == nullptr) continue;
    if (const vmm_status done = work(*device, each); done != VMM_SUCCESS) return done;
  }
  return VMM_SUCCESS;
}

// Releases what the devices hold free, down to a limit each. `report` may be null.
[[nodiscard]] vmm_status trim(allocator_object& on, std::int32_t number, std::uint64_t limit_bytes,
                              vmm_trim_report* report);

}  // namespace vmm_c
