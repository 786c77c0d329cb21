// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A device's memory as a tenant of an owner sees it: its share, less the memory of this library's
// tenant, and of the tenants of libvmm.so, which joins here.
#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "process.h"
#include "routes.h"
#include "serve.h"

import vmm.backend;
import vmm.base;
import vmm.market;

namespace vmm::preload::managed {
namespace {

/// The bytes that the tenants of another library hold of a device, by its UUID as an owner has it.
using held_by_others = std::uint64_t (*)(const char* uuid);
std::atomic<held_by_others> joined_tenants = nullptr;

std::string uuid_of(const device_pools& device) {
  const std::optional<market_key> key = market_device_of(device.driver());
  return key ? market_device_text(*key) : std::string();
}

bool find_share_of(const device_pools* device, device_share& into) noexcept {
  if (device == nullptr || device->tenant() == nullptr) return false;
  const result<memory_info> share = device->tenant()->query_memory(device->tenant()->home());
  if (!share) return false;
  into.total_bytes = share->total_bytes;
  into.free_bytes = std::min(share->free_bytes + device->reusable_bytes(), share->total_bytes);
  return true;
}

// 0: the device's own.
std::uint64_t share_in_variables() {
  const result<std::optional<tenant_options>> options = tenant_options_from_environment();
  if (!options || !options->has_value()) return 0;
  const market_share& share = (*options)->share;
  return share.guarantee_bytes != 0 ? share.guarantee_bytes : share.limit_bytes;
}

// As share_of() has the total.
device_share refused_share() {
  const std::uint64_t bytes = share_in_variables();
  return {bytes != 0 ? bytes : std::numeric_limits<std::uint64_t>::max(), 0, true};
}

// Outside of the gate, as each call of the other library. Returns true.
bool subtract_others(const std::string& uuid, device_share& from) noexcept {
  const held_by_others held = joined_tenants.load(std::memory_order_acquire);
  if (held != nullptr) from.free_bytes -= std::min(from.free_bytes, held(uuid.c_str()));
  return true;
}

}  // namespace

bool find_share(device_share& into) noexcept {
  try {
    std::string uuid;
    {
      const gate_guard shared(locks::gate);
      const device_pools* const device = process().devices.of_current();
      if (device == nullptr && process().devices.is_barred()) {
        into = refused_share();
        return true;
      }
      if (!find_share_of(device, into)) return false;
      uuid = uuid_of(*device);
    }
    return subtract_others(uuid, into);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Without the driver no device is open, and the object of the process is not made yet.
bool find_share(const std::string& uuid, device_share& into) {
  const device_pools* open = nullptr;
  if (driver_file() != nullptr) {
    const gate_guard shared(locks::gate);
    process().devices.visit([&](const device_pools& each) {
      if (uuid_of(each) == uuid) open = &each;
    });
    if (open != nullptr && !find_share_of(open, into)) return false;
    if (open == nullptr && process().devices.is_barred(uuid)) {
      into = refused_share();
      return true;
    }
  }
  if (open == nullptr) into.total_bytes = into.free_bytes = share_in_variables();
  return into.total_bytes != 0 && subtract_others(uuid, into);
}

std::uint64_t share_of(device_id device) noexcept {
  {
    const gate_guard shared(locks::gate);
    const device_pools* const pools = process().devices.of_device(device);
    if (pools != nullptr && pools->tenant() == nullptr) return 0;
    if (pools != nullptr) {
      const result<memory_info> found = pools->tenant()->query_memory(pools->tenant()->home());
      return found ? found->total_bytes : 0;
    }
  }
  return share_in_variables();
}

}  // namespace vmm::preload::managed

extern "C" [[gnu::visibility("default"), gnu::used]] void vmm_preload_join_tenants(
    vmm::preload::managed::held_by_others held) {
  vmm::preload::managed::joined_tenants.store(held, std::memory_order_release);
}
