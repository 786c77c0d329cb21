// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The simulated Level Zero driver: virtual and physical memory.

#include "state.h"

import vmm.backend;
import vmm.fake;

namespace simulated {
namespace {

constexpr std::uint64_t unit_bytes = 2ull << 20;

template <class Body>
ze_result_t answer(const char* symbol, Body&& body) noexcept {
  return answer_with<vmm::fake_driver>(symbol, body);
}

vmm::address at_of(const void* at) { return {reinterpret_cast<std::uintptr_t>(at)}; }
vmm::physical_handle handle_of(ze_physical_mem_handle_t memory) {
  return static_cast<vmm::physical_handle>(memory->number);
}

ze_result_t ZE_APICALL query_page_size(ze_context_handle_t, ze_device_handle_t device,
                                       std::size_t size, std::size_t* page) {
  return answer("zeVirtualMemQueryPageSize", [&](vmm::fake_driver& fake) {
    if (the().setup.no_vmm) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    const auto unit =
        fake.query_granularity({.size_bytes = size, .where = vmm::device(device->ordinal)});
    if (unit) *page = unit->minimum_bytes;
    return code_of(unit);
  });
}

// With a shift, a whole page more is taken and the range begins inside it.
ze_result_t ZE_APICALL reserve(ze_context_handle_t, const void* start, std::size_t size,
                               void** base) {
  return answer("zeVirtualMemReserve", [&](vmm::fake_driver& fake) {
    *base = nullptr;
    if (the().setup.gives_no_address) return ZE_RESULT_SUCCESS;
    if (the().setup.repeats_address && the().last_reserved != 0) {
      *base = reinterpret_cast<void*>(the().last_reserved);
      return ZE_RESULT_SUCCESS;
    }
    const std::uint64_t shift = the().setup.address_shift_bytes;
    const std::uint64_t more = shift == 0 ? 0 : unit_bytes;
    const auto range =
        fake.reserve({.size_bytes = size + more, .alignment_bytes = 0, .hint = at_of(start)});
    if (!range) return code_of(range);
    if (the().setup.hint_or_nothing && start != nullptr && !(range->base == at_of(start))) {
      static_cast<void>(fake.free_reservation(*range));
      return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    const locked s(the());
    s->last_reserved = range->base.value + shift;
    s->reserved[s->last_reserved] = size;
    *base = reinterpret_cast<void*>(range->base.value + shift);
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL free_range(ze_context_handle_t, const void* at, std::size_t size) {
  return answer("zeVirtualMemFree", [&](vmm::fake_driver& fake) {
    const std::uint64_t shift = the().setup.address_shift_bytes;
    const std::uint64_t more = shift == 0 ? 0 : unit_bytes;
    const auto outcome = fake.free_reservation({{at_of(at).value - shift}, size + more});
    const locked s(the());
    if (outcome) s->reserved.erase(at_of(at).value);
    return code_of(outcome);
  });
}

ze_result_t ZE_APICALL physical_create(ze_context_handle_t, ze_device_handle_t device,
                                       ze_physical_mem_desc_t* like,
                                       ze_physical_mem_handle_t* memory) {
  return answer("zePhysicalMemCreate", [&](vmm::fake_driver& fake) {
    *memory = nullptr;
    if (the().setup.gives_no_memory) return ZE_RESULT_SUCCESS;
    if (like->stype != ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    const auto made =
        fake.create({.size_bytes = like->size, .where = vmm::device(device->ordinal)});
    if (!made) return code_of(made);
    *memory = new _ze_physical_mem_handle_t{static_cast<std::uint64_t>(*made)};
    return ZE_RESULT_SUCCESS;
  });
}

ze_result_t ZE_APICALL physical_destroy(ze_context_handle_t, ze_physical_mem_handle_t memory) {
  return answer("zePhysicalMemDestroy", [&](vmm::fake_driver& fake) {
    const auto released = fake.release(handle_of(memory));
    if (released) delete memory;
    return code_of(released);
  });
}

// The right is part of the map call, and the reservation keeps one for all of it.
ze_result_t ZE_APICALL map(ze_context_handle_t, const void* at, std::size_t size,
                           ze_physical_mem_handle_t memory, std::size_t offset,
                           ze_memory_access_attribute_t access) {
  return answer("zeVirtualMemMap", [&](vmm::fake_driver& fake) {
    const vmm::address_range range{at_of(at), size};
    const auto mapped = fake.map({range.base, size, handle_of(memory), offset});
    if (!mapped || access == ZE_MEMORY_ACCESS_ATTRIBUTE_NONE) return code_of(mapped);
    const vmm::access_grant all[] = {{fake.home(), access == ZE_MEMORY_ACCESS_ATTRIBUTE_READONLY
                                                       ? vmm::access::read
                                                       : vmm::access::read_write}};
    const auto allowed = fake.set_access(range, all);
    if (!allowed) static_cast<void>(fake.unmap(range));
    return code_of(allowed);
  });
}

ze_result_t ZE_APICALL unmap(ze_context_handle_t, const void* at, std::size_t size) {
  return answer("zeVirtualMemUnmap",
                [&](vmm::fake_driver& fake) { return code_of(fake.unmap({at_of(at), size})); });
}

}  // namespace

void fill_memory(ze_virtual_mem_dditable_t& to) {
  to.pfnQueryPageSize = query_page_size;
  to.pfnReserve = reserve;
  to.pfnFree = free_range;
  to.pfnMap = map;
  to.pfnUnmap = unmap;
}

void fill_memory(ze_physical_mem_dditable_t& to) {
  to.pfnCreate = physical_create;
  to.pfnDestroy = physical_destroy;
}

}  // namespace simulated
