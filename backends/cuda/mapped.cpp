// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :mapped;
import :native;
import :state;

namespace vmm::cuda {
namespace {

constexpr std::size_t inline_grant_count = 16;

}  // namespace

result<address_range> mapped_memory::reserve(const reserve_request& request) {
  CUdeviceptr base = 0;
  const status outcome = state_.run(call::reserve, [&](const entry_points& cu) {
    return cu.mem_address_reserve(&base, request.size_bytes, request.alignment_bytes,
                                  request.hint.value, 0);
  });
  if (!outcome) return outcome.error();
  check(base != 0, "the driver reserved addresses and returned none");
  check(request.alignment_bytes == 0 || base % request.alignment_bytes == 0,
        "the driver reserved addresses at another alignment");
  check(base + request.size_bytes > base, "the driver reserved addresses past the last one");
  return address_range{{base}, request.size_bytes};
}

status mapped_memory::free_reservation(address_range range) {
  return state_.run(call::free_reservation, [&](const entry_points& cu) {
    return cu.mem_address_free(range.base.value, range.size_bytes);
  });
}

result<physical_handle> mapped_memory::create(const physical_request& request) {
  if (request.rdma_capable && !state_.can.rdma)
    return state_.lacks(call::create, "the device cannot make memory that RDMA can reach");
  const CUmemAllocationProp prop = native(request, state_.can);
  CUmemGenericAllocationHandle made = 0;
  return state_.make<physical_handle>(call::create, made, [&](const entry_points& cu) {
    return cu.mem_create(&made, request.size_bytes, &prop, 0);
  });
}

status mapped_memory::release(physical_handle handle) {
  return state_.run(call::release,
                    [&](const entry_points& cu) { return cu.mem_release(native(handle)); });
}

status mapped_memory::map(const map_request& request) {
  return state_.run(call::map, [&](const entry_points& cu) {
    return cu.mem_map(request.at.value, request.size_bytes, request.offset_bytes,
                      native(request.memory), 0);
  });
}

status mapped_memory::unmap(address_range range) {
  return state_.run(call::unmap, [&](const entry_points& cu) {
    return cu.mem_unmap(range.base.value, range.size_bytes);
  });
}

status mapped_memory::set_access(address_range range, std::span<const access_grant> grants) {
  std::array<CUmemAccessDesc, inline_grant_count> few{};
  std::vector<CUmemAccessDesc> many;
  CUmemAccessDesc* wanted = few.data();
  if (grants.size() > few.size()) {
    try {
      many.resize(grants.size());
    } catch (const std::bad_alloc&) {
      return error{errc::out_of_host_memory, call::set_access, 0, "",
                   "no host memory for the list of grants"};
    }
    wanted = many.data();
  }
  check(grants.size() <= std::max(few.size(), many.size()), "a list of grants is too short");
  for (std::size_t i = 0; i < grants.size(); ++i) {
    wanted[i].location = native(grants[i].grantee);
    wanted[i].flags = native(grants[i].rights);
  }
  return state_.run(call::set_access, [&](const entry_points& cu) {
    return cu.mem_set_access(range.base.value, range.size_bytes, wanted, grants.size());
  });
}

result<access> mapped_memory::get_access(address at, location place) {
  const CUmemLocation where = native(place);
  unsigned long long flags = 0;
  const status outcome = state_.run(call::get_access, [&](const entry_points& cu) {
    return cu.mem_get_access(&flags, &where, at.value);
  });
  if (!outcome) return outcome.error();
  return from_native(flags);
}

result<physical_handle> mapped_memory::retain(address at) {
  CUmemGenericAllocationHandle made = 0;
  return state_.make<physical_handle>(call::retain, made, [&](const entry_points& cu) {
    return cu.mem_retain(&made, reinterpret_cast<void*>(static_cast<std::uintptr_t>(at.value)));
  });
}

result<physical_properties> mapped_memory::get_properties(physical_handle handle) {
  CUmemAllocationProp prop{};
  const status outcome = state_.run(call::get_properties, [&](const entry_points& cu) {
    return cu.mem_get_properties(&prop, native(handle));
  });
  if (!outcome) return outcome.error();
  return physical_properties{from_native(prop.location), from_native(prop.requestedHandleTypes),
                             prop.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC,
                             prop.allocFlags.gpuDirectRDMACapable != 0};
}

result<shared_handle> mapped_memory::export_handle(physical_handle handle, share_kind kind) {
  shared_handle out;
  out.kind = kind;
  int descriptor = -1;
  void* into = kind == share_kind::posix_fd ? static_cast<void*>(&descriptor)
                                            : static_cast<void*>(out.fabric);
  if (kind != share_kind::posix_fd && kind != share_kind::fabric)
    return state_.lacks(call::export_handle, "this backend exports descriptors and fabric handles");
  const status outcome = state_.run(call::export_handle, [&](const entry_points& cu) {
    return cu.mem_export(into, native(handle), native(kind), 0);
  });
  if (!outcome) return outcome.error();
  check((descriptor >= 0) == (kind == share_kind::posix_fd),
        "the driver exported a handle and gave no descriptor");
  out.descriptor = descriptor;
  return out;
}

result<physical_handle> mapped_memory::import_handle(const shared_handle& shared) {
  if (shared.kind != share_kind::posix_fd && shared.kind != share_kind::fabric)
    return state_.lacks(call::import_handle, "this backend imports descriptors and fabric handles");
  shared_handle copy = shared;  // the driver takes a pointer to bytes that may change
  void* from = shared.kind == share_kind::posix_fd
                   ? reinterpret_cast<void*>(static_cast<std::intptr_t>(shared.descriptor))
                   : static_cast<void*>(copy.fabric);
  CUmemGenericAllocationHandle made = 0;
  return state_.make<physical_handle>(call::import_handle, made, [&](const entry_points& cu) {
    return cu.mem_import(&made, from, native(shared.kind));
  });
}

}  // namespace vmm::cuda
