// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :native;

namespace vmm::cuda {

CUmemLocation native(location where) noexcept {
  CUmemLocation out{};
  out.id = where.ordinal;
  switch (where.kind) {
    case location::place::device: out.type = CU_MEM_LOCATION_TYPE_DEVICE; break;
    case location::place::host: out.type = CU_MEM_LOCATION_TYPE_HOST; break;
    case location::place::host_node: out.type = CU_MEM_LOCATION_TYPE_HOST_NUMA; break;
  }
  check(out.type != CU_MEM_LOCATION_TYPE_INVALID, "a location is of no kind");
  debug_check([&] { return from_native(out) == where; },
              "I1: a location does not convert back to itself");
  return out;
}

location from_native(const CUmemLocation& where) noexcept {
  if (where.type == CU_MEM_LOCATION_TYPE_HOST) return host();
  if (where.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) return host_node(where.id);
  return device(where.id);
}

// share_kind numbers its bits without a gap; the driver's bit for a fabric handle is 8.
CUmemAllocationHandleType native(share_kind kinds) noexcept {
  const auto bits = static_cast<unsigned>(kinds);
  const unsigned plain = bits & ~static_cast<unsigned>(share_kind::fabric);
  check(bits <= 7, "share_kind is not one of the enumerators");
  const bool is_fabric = (bits & static_cast<unsigned>(share_kind::fabric)) != 0;
  const unsigned fabric = is_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0u;
  return static_cast<CUmemAllocationHandleType>(plain | fabric);
}

share_kind from_native(CUmemAllocationHandleType kinds) noexcept {
  const auto bits = static_cast<unsigned>(kinds);
  const bool is_fabric = (bits & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  const unsigned fabric = is_fabric ? static_cast<unsigned>(share_kind::fabric) : 0;
  return static_cast<share_kind>((bits & 3u) | fabric);
}

CUmemAccess_flags native(access rights) noexcept {
  switch (rights) {
    case access::none: return CU_MEM_ACCESS_FLAGS_PROT_NONE;
    case access::read: return CU_MEM_ACCESS_FLAGS_PROT_READ;
    case access::read_write: return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  check(false, "access is not one of the enumerators");
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

access from_native(unsigned long long flags) noexcept {
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return access::read_write;
  return flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? access::read : access::none;
}

CUstreamCaptureMode native(capture_mode mode) noexcept {
  switch (mode) {
    case capture_mode::any_thread: return CU_STREAM_CAPTURE_MODE_GLOBAL;
    case capture_mode::this_thread: return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    case capture_mode::relaxed: return CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  check(false, "capture_mode is not one of the enumerators");
  return CU_STREAM_CAPTURE_MODE_GLOBAL;
}

capture_mode from_native(CUstreamCaptureMode mode) noexcept {
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return capture_mode::relaxed;
  return mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? capture_mode::this_thread
                                                     : capture_mode::any_thread;
}

CUmemAllocationProp native(const physical_request& request, const features& can) noexcept {
  CUmemAllocationProp out{};
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.requestedHandleTypes = native(request.shareable);
  out.location = native(request.where);
  const bool on_device = request.where.kind == location::place::device;
  if (request.compressible && can.compression && on_device) {
    out.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  }
  out.allocFlags.gpuDirectRDMACapable = request.rdma_capable ? 1 : 0;
  return out;
}

CUmulticastObjectProp native(const multicast_request& request) noexcept {
  CUmulticastObjectProp out{};
  out.numDevices = request.device_count;
  out.size = request.size_bytes;
  out.handleTypes = static_cast<unsigned long long>(native(request.shareable));
  return out;
}

CUmemGenericAllocationHandle native(physical_handle handle) noexcept {
  return static_cast<CUmemGenericAllocationHandle>(handle);
}

CUmemGenericAllocationHandle native(multicast_handle handle) noexcept {
  return static_cast<CUmemGenericAllocationHandle>(handle);
}

CUstream native(stream_handle stream) noexcept {
  return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(stream));
}

CUevent native(event_handle event) noexcept {
  return reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(event));
}

stream_handle from_native(CUstream stream) noexcept {
  check(stream != nullptr, "the driver created a stream and returned no handle");
  return static_cast<stream_handle>(reinterpret_cast<std::uintptr_t>(stream));
}

event_handle from_native(CUevent event) noexcept {
  check(event != nullptr, "the driver created an event and returned no handle");
  return static_cast<event_handle>(reinterpret_cast<std::uintptr_t>(event));
}

}  // namespace vmm::cuda
