// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "grants.hpp"
#include "manager_object.hpp"
#include "objects.hpp"

import vmm.backend;
import vmm.base;
import vmm.manager;

using namespace vmm_c;

namespace {

// With the devices, because drivers do not name the missing one.
vmm::error of_devices(vmm::error refused, std::int32_t from, std::int32_t to) noexcept {
  if (refused.code != vmm::errc::invalid_argument) return refused;
  refused.detail = vmm::detail_text()
                       .add(refused.detail)
                       .add("; not '")
                       .add_number(static_cast<std::uint64_t>(from))
                       .add(" and ")
                       .add_number(static_cast<std::uint64_t>(to))
                       .add("'")
                       .keep(refused.detail);
  return refused;
}

}  // namespace

extern "C" {

vmm_status vmm_driver_query_peer(vmm_driver* driver, int32_t from, int32_t to, uint32_t* link,
                                 uint32_t* flags) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<driver_object> on(driver);
    if (!on) return fail_handle();
    if (link == nullptr) return fail_null();
    if (from < 0 || to < 0) return fail(VMM_ERROR_INVALID_ARGUMENT, "a device has a number");
    if (!on->backend.feature_set().peers)
      return fail(VMM_ERROR_NOT_SUPPORTED,
                  "the driver has no links between devices: they need a driver with peers, such as "
                  "cuda");
    const vmm::result<vmm::peer_info> seen =
        on->backend.query_peer({vmm::device(from), vmm::device(to)});
    if (!seen) return fail(of_devices(seen.error(), from, to));
    switch (seen->link) {
      case vmm::link_kind::itself: *link = VMM_LINK_ITSELF; break;
      case vmm::link_kind::peer: *link = VMM_LINK_PEER; break;
      default: *link = VMM_LINK_NONE; break;
    }
    if (flags != nullptr) *flags = seen->native_atomics ? VMM_LINK_ATOMICS : 0;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_driver_get_access(vmm_driver* driver, const void* at, uint32_t place, int32_t device,
                                 uint32_t* rights) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<driver_object> on(driver);
    if (!on) return fail_handle();
    if (rights == nullptr) return fail_null();
    const std::optional<vmm::location> where = location_of(place, device);
    if (!where || device < 0)
      return fail_value(VMM_ERROR_INVALID_ARGUMENT, device,
                        "a location is one of VMM_PLACE_* and the number of a device or node, 0 on "
                        "the host");
    const vmm::result<vmm::access> seen = on->backend.get_access(address_of(at), *where);
    if (!seen) return answer_access(*on, {address_of(at), 1}, seen.error());
    *rights = static_cast<std::uint32_t>(*seen);
    return VMM_SUCCESS;
  });
}

vmm_status vmm_manager_set_access(vmm_manager* manager, void* at, const vmm_grant* grants,
                                  uint64_t count) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<manager_object> on(manager);
    if (!on) return fail_handle();
    return with_grants(grants, count, [&](std::span<const vmm::access_grant> list) {
      return answer(on->manager.set_access(address_of(at), list));
    });
  });
}

vmm_status vmm_manager_set_part_access(vmm_manager* manager, void* at, uint64_t size_bytes,
                                       const vmm_grant* grants, uint64_t count) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<manager_object> on(manager);
    if (!on) return fail_handle();
    return with_grants(grants, count, [&](std::span<const vmm::access_grant> list) {
      const vmm::address_range part{address_of(at), size_bytes};
      return answer(on->manager.set_access(part, list));
    });
  });
}

vmm_status vmm_manager_parts(vmm_manager* manager, void* at, vmm_growable_part* parts,
                             uint64_t capacity, uint64_t* count) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<manager_object> on(manager);
    if (!on) return fail_handle();
    if (count == nullptr || (parts == nullptr && capacity != 0)) return fail_null();
    const vmm::result<vmm::range_info> block = on->manager.find(address_of(at));
    if (!block) return fail(block.error());
    const auto listed = on->manager.segments({block->base, block->sizes.mapped_bytes});
    if (!listed) return fail(listed.error());
    *count = listed->size();
    for (std::size_t i = 0; i < listed->size() && i < capacity; ++i) {
      const vmm::memory_segment& each = (*listed)[i];
      parts[i] = {static_cast<std::uint64_t>(each.handle), each.range.size_bytes};
    }
    return VMM_SUCCESS;
  });
}

vmm_status vmm_manager_set_peers(vmm_manager* manager, const vmm_grant* grants,
                                 uint64_t count) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    const call_on<manager_object> on(manager);
    if (!on) return fail_handle();
    return with_grants(grants, count, [&](std::span<const vmm::access_grant> list) {
      return answer(on->manager.set_peers(list));
    });
  });
}

}  // extern "C"
