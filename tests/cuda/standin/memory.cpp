// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub libcuda: virtual memory, sharing and multicast.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

import vmm.backend;
import vmm.fake;

using standin::code_of, standin::hand_out, standin::needs;

namespace {

template <class Body>
CUresult answer(const char* symbol, needs need, Body&& body) noexcept {
  return standin::answer_with<vmm::fake_driver>(symbol, need, body);
}

std::optional<vmm::location> location_of(const CUmemLocation& where) {
  switch (where.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return vmm::device(where.id);
    case CU_MEM_LOCATION_TYPE_HOST: return vmm::host();
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return vmm::host_node(where.id);
    default: return std::nullopt;
  }
}

std::optional<vmm::share_kind> share_of(unsigned long long types) {
  switch (types) {
    case CU_MEM_HANDLE_TYPE_NONE: return vmm::share_kind::none;
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: return vmm::share_kind::posix_fd;
    case CU_MEM_HANDLE_TYPE_WIN32: return vmm::share_kind::win32;
    case CU_MEM_HANDLE_TYPE_FABRIC: return vmm::share_kind::fabric;
    default: return std::nullopt;
  }
}

std::optional<vmm::physical_request> request_of(std::size_t size, const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return std::nullopt;
  const auto where = location_of(prop->location);
  const auto share = share_of(static_cast<unsigned long long>(prop->requestedHandleTypes));
  if (!where || !share) return std::nullopt;
  return vmm::physical_request{size, *where, *share,
                               prop->allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC,
                               prop->allocFlags.gpuDirectRDMACapable != 0};
}

std::optional<vmm::access> rights_of(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_NONE: return vmm::access::none;
    case CU_MEM_ACCESS_FLAGS_PROT_READ: return vmm::access::read;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE: return vmm::access::read_write;
    default: return std::nullopt;
  }
}

std::optional<vmm::multicast_request> team_of(const CUmulticastObjectProp* prop) {
  if (prop == nullptr || prop->flags != 0) return std::nullopt;
  const auto share = share_of(prop->handleTypes);
  if (!share) return std::nullopt;
  return vmm::multicast_request{prop->size, prop->numDevices, *share};
}

vmm::physical_handle handle_of(CUmemGenericAllocationHandle handle) {
  return static_cast<vmm::physical_handle>(handle);
}

vmm::multicast_handle team_handle(CUmemGenericAllocationHandle handle) {
  return static_cast<vmm::multicast_handle>(handle);
}

constexpr auto to_handle = [](auto made) {
  return static_cast<CUmemGenericAllocationHandle>(made);
};

constexpr auto to_properties = [](const auto& granted) {
  CUmemAllocationProp out{};
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  if (granted.shareable == vmm::share_kind::posix_fd) {
    out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  } else if (granted.shareable == vmm::share_kind::fabric) {
    out.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  }
  out.location.id = granted.where.ordinal;
  out.location.type =
      granted.where.kind == vmm::location::place::device
          ? CU_MEM_LOCATION_TYPE_DEVICE
          : (granted.where.kind == vmm::location::place::host ? CU_MEM_LOCATION_TYPE_HOST
                                                              : CU_MEM_LOCATION_TYPE_HOST_NUMA);
  out.allocFlags.compressionType =
      granted.compressible ? CU_MEM_ALLOCATION_COMP_GENERIC : CU_MEM_ALLOCATION_COMP_NONE;
  out.allocFlags.gpuDirectRDMACapable = granted.rdma_capable ? 1 : 0;
  return out;
};

std::uint64_t inode_of(int descriptor) {
  struct stat about{};
  return fstat(descriptor, &about) == 0 ? about.st_ino : 0;
}

// A real descriptor for the fake's; -1 when the system gives none.
int give_out(std::int64_t token) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  const locked s(standin::the());
  s->exported.push_back({inode_of(ends[1]), ends[0], token});
  return ends[1];
}

// The fake's descriptor behind a real one; -1 when it was not given out here.
std::int64_t token_behind(int descriptor) {
  const locked s(standin::the());
  const std::uint64_t inode = inode_of(descriptor);
  for (const standin::exported_descriptor& each : s->exported)
    if (each.inode == inode) return each.token;
  return -1;
}

bool all_closed(const standin::exported_descriptor& one) {
  pollfd end{one.read_end, POLLIN, 0};
  return poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
}

}  // namespace

void standin::sweep_descriptors() {
  const locked s(the());
  std::erase_if(s->exported, [&](const exported_descriptor& one) {
    if (!all_closed(one)) return false;
    vmm::shared_handle shared{.kind = vmm::share_kind::posix_fd, .descriptor = one.token};
    static_cast<void>(static_cast<vmm::fake_driver*>(s->fake.get())->close_descriptor(shared));
    close(one.read_end);
    return true;
  });
}

extern "C" {

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return answer("cuMemGetInfo", needs::context, [&](vmm::fake_driver& fake) {
    const auto info = fake.query_memory(vmm::device(standin::context_stack().back()->device));
    if (!info) return code_of(info);
    *free_bytes = info->free_bytes;
    *total_bytes = info->total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  return answer("cuMemGetAllocationGranularity", needs::context, [&](vmm::fake_driver& fake) {
    const auto request = request_of(0, prop);
    if (!request || granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool minimum = option == CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    return hand_out(fake.query_granularity(*request), granularity, [&](vmm::granularity unit) {
      return minimum ? unit.minimum_bytes : unit.recommended_bytes;
    });
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* base, std::size_t size, std::size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
  return answer("cuMemAddressReserve", needs::context, [&](vmm::fake_driver& fake) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(fake.reserve({size, alignment, {hint}}), base,
                    [](vmm::address_range range) { return range.base.value; });
  });
}

STANDIN_ENTRY(cuMemAddressFree, context, (CUdeviceptr base, std::size_t size),
              code_of(fake.free_reservation({{base}, size})))

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  return answer("cuMemCreate", needs::context, [&](vmm::fake_driver& fake) {
    const auto request = request_of(size, prop);
    if (!request || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(fake.create(*request), handle, to_handle);
  });
}

STANDIN_ENTRY(cuMemRelease, context, (CUmemGenericAllocationHandle handle),
              code_of(fake.release(handle_of(handle))))

CUresult cuMemMap(CUdeviceptr at, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return answer("cuMemMap", needs::context, [&](vmm::fake_driver& fake) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return code_of(fake.map({{at}, size, handle_of(handle), offset}));
  });
}

STANDIN_ENTRY(cuMemUnmap, context, (CUdeviceptr at, std::size_t size),
              code_of(fake.unmap({{at}, size})))

CUresult cuMemSetAccess(CUdeviceptr at, std::size_t size, const CUmemAccessDesc* descriptions,
                        std::size_t count) {
  return answer("cuMemSetAccess", needs::context, [&](vmm::fake_driver& fake) {
    std::vector<vmm::access_grant> grants;
    for (std::size_t i = 0; i < count; ++i) {
      const auto where = location_of(descriptions[i].location);
      const auto rights = rights_of(descriptions[i].flags);
      if (!where || !rights) return CUDA_ERROR_INVALID_VALUE;
      grants.push_back({*where, *rights});
    }
    return code_of(fake.set_access({{at}, size}, grants));
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr at) {
  return answer("cuMemGetAccess", needs::context, [&](vmm::fake_driver& fake) {
    const auto where = location == nullptr ? std::nullopt : location_of(*location);
    if (!where || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(fake.get_access({at}, *where), flags,
                    [](vmm::access rights) -> unsigned long long {
                      if (rights == vmm::access::read_write)
                        return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                      return rights == vmm::access::read ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                         : CU_MEM_ACCESS_FLAGS_PROT_NONE;
                    });
  });
}

STANDIN_ENTRY(cuMemRetainAllocationHandle, context,
              (CUmemGenericAllocationHandle * handle, void* at),
              hand_out(fake.retain({reinterpret_cast<std::uintptr_t>(at)}), handle, to_handle))

STANDIN_ENTRY(cuMemGetAllocationPropertiesFromHandle, context,
              (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle),
              hand_out(fake.get_properties(handle_of(handle)), prop, to_properties))

CUresult cuMemExportToShareableHandle(void* into, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return answer("cuMemExportToShareableHandle", needs::context, [&](vmm::fake_driver& fake) {
    const auto kind = share_of(static_cast<unsigned long long>(type));
    if (!kind || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto shared = fake.export_handle(handle_of(handle), *kind);
    if (!shared) return code_of(shared);
    if (*kind == vmm::share_kind::fabric) {
      std::memcpy(into, shared->fabric, sizeof shared->fabric);
      return CUDA_SUCCESS;
    }
    const int descriptor = give_out(shared->descriptor);
    std::memcpy(into, &descriptor, sizeof descriptor);
    return descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                        CUmemAllocationHandleType type) {
  return answer("cuMemImportFromShareableHandle", needs::context, [&](vmm::fake_driver& fake) {
    const auto kind = share_of(static_cast<unsigned long long>(type));
    if (!kind) return CUDA_ERROR_INVALID_VALUE;
    vmm::shared_handle shared;
    shared.kind = *kind;
    if (*kind == vmm::share_kind::fabric) {
      std::memcpy(shared.fabric, from, sizeof shared.fabric);
    } else {
      shared.descriptor = token_behind(static_cast<int>(reinterpret_cast<std::intptr_t>(from)));
    }
    return hand_out(fake.import_handle(shared), handle, to_handle);
  });
}

// ---- devices side by side -----------------------------------------------------------------------

CUresult cuDeviceCanAccessPeer(int* reaches, CUdevice from, CUdevice to) {
  return answer("cuDeviceCanAccessPeer", needs::initialised, [&](vmm::fake_driver& fake) {
    if (reaches == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(
        fake.query_peer({vmm::device(from), vmm::device(to)}), reaches,
        [&](const vmm::peer_info& link) { return link.is_reachable() && from != to ? 1 : 0; });
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute which, CUdevice from,
                                 CUdevice to) {
  return answer("cuDeviceGetP2PAttribute", needs::initialised, [&](vmm::fake_driver& fake) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(fake.query_peer({vmm::device(from), vmm::device(to)}), value,
                    [&](const vmm::peer_info& link) -> int {
                      if (which == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)
                        return static_cast<int>(link.rank);
                      return link.is_reachable() && link.native_atomics ? 1 : 0;
                    });
  });
}

// Plain memory has no rights here that a kernel of another device would need.
CUresult cuCtxEnablePeerAccess(CUcontext to, unsigned flags) {
  return answer("cuCtxEnablePeerAccess", needs::context, [&](vmm::fake_driver& fake) {
    if (to == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto link = fake.query_peer(
        {vmm::device(standin::context_stack().back()->device), vmm::device(to->device)});
    if (!link) return code_of(link);
    return link->is_reachable() ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  });
}

CUresult cuMemGetHandleForAddressRange(void* into, CUdeviceptr at, std::size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  return answer("cuMemGetHandleForAddressRange", needs::context, [&](vmm::fake_driver& fake) {
    if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto made = fake.export_range({{at}, size});
    if (!made) return code_of(made);
    const int descriptor = give_out(made->descriptor);
    std::memcpy(into, &descriptor, sizeof descriptor);
    return descriptor >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}

// ---- multicast ----------------------------------------------------------------------------------

CUresult cuMulticastGetGranularity(std::size_t* granularity, const CUmulticastObjectProp* prop,
                                   CUmulticastGranularity_flags option) {
  return answer("cuMulticastGetGranularity", needs::context, [&](vmm::fake_driver& fake) {
    const auto request = team_of(prop);
    if (!request) return CUDA_ERROR_INVALID_VALUE;
    const bool minimum = option == CU_MULTICAST_GRANULARITY_MINIMUM;
    return hand_out(fake.query_multicast_granularity(*request), granularity,
                    [&](vmm::granularity unit) {
                      return minimum ? unit.minimum_bytes : unit.recommended_bytes;
                    });
  });
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle* team, const CUmulticastObjectProp* prop) {
  return answer("cuMulticastCreate", needs::context, [&](vmm::fake_driver& fake) {
    const auto request = team_of(prop);
    if (!request) return CUDA_ERROR_INVALID_VALUE;
    return hand_out(fake.create_multicast(*request), team, to_handle);
  });
}

STANDIN_ENTRY(cuMulticastAddDevice, context, (CUmemGenericAllocationHandle team, CUdevice device),
              code_of(fake.add_multicast_device(team_handle(team), vmm::device(device))))

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle team, std::size_t team_offset,
                            CUmemGenericAllocationHandle memory, std::size_t memory_offset,
                            std::size_t size, unsigned long long flags) {
  return answer("cuMulticastBindMem", needs::context, [&](vmm::fake_driver& fake) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto granted = fake.get_properties(handle_of(memory));
    if (!granted) return code_of(granted);
    return code_of(fake.bind_multicast(
        {team_handle(team), granted->where, handle_of(memory), team_offset, memory_offset, size}));
  });
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle team, std::size_t team_offset,
                             CUdeviceptr at, std::size_t size, unsigned long long flags) {
  return answer("cuMulticastBindAddr", needs::context, [&](vmm::fake_driver& fake) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return code_of(fake.bind_multicast_address({team_handle(team), {{at}, size}, team_offset}));
  });
}

STANDIN_ENTRY(cuMulticastUnbind, context,
              (CUmemGenericAllocationHandle team, CUdevice device, std::size_t team_offset,
               std::size_t size),
              code_of(fake.unbind_multicast({team_handle(team), vmm::device(device),
                                             vmm::physical_handle::none, team_offset, 0, size})))

}  // extern "C"
