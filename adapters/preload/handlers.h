// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The handlers of each call of the table, in every mode. A handler returns what the driver would
// return; it calls the driver through its call_site.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "routes.h"

namespace vmm::preload {

/// One call of an entry: which, and the driver's own function.
struct call_site {
  entry_id entry;
  bool per_thread;  ///< what stream 0 means
  void* real;

  template <class... Arguments>
  result_code operator()(Arguments... arguments) const {
    return reinterpret_cast<result_code (*)(Arguments...)>(real)(arguments...);
  }
};

namespace handlers {

/// An address that the driver gives to no memory: the result is that for an unknown pointer.
constexpr device_pointer nobodys_address = 1;

template <class... Arguments>
result_code pass(const call_site& site, Arguments... arguments) {
  return site(arguments...);
}

result_code allocate(const call_site& site, device_pointer* at, std::size_t size);
result_code allocate_pitch(const call_site& site, device_pointer* at, std::size_t* pitch,
                           std::size_t width, std::size_t height, unsigned element);
result_code free_now(const call_site& site, device_pointer at);
result_code allocate_async(const call_site& site, device_pointer* at, std::size_t size,
                           stream_id stream);
result_code free_async(const call_site& site, device_pointer at, stream_id stream);
result_code allocate_from_pool(const call_site& site, device_pointer* at, std::size_t size,
                               pool_id pool, stream_id stream);
result_code allocate_managed(const call_site& site, device_pointer* at, std::size_t size,
                             unsigned flags);

result_code memory_info(const call_site& site, std::size_t* free_bytes, std::size_t* total_bytes);
result_code device_total(const call_site& site, std::size_t* total_bytes, device_id device);
result_code address_range(const call_site& site, device_pointer* base, std::size_t* size,
                          device_pointer at);
result_code pointer_attribute_of(const call_site& site, void* data, int attribute,
                                 device_pointer at);
result_code pointer_attributes_of(const call_site& site, unsigned count, int* attributes,
                                  void** data, device_pointer at);
result_code ipc_export(const call_site& site, ipc_handle* handle, device_pointer at);
result_code ipc_open(const call_site& site, device_pointer* at, ipc_handle handle, unsigned flags);
result_code ipc_close(const call_site& site, device_pointer at);

result_code copy(const call_site& site, device_pointer target, device_pointer source,
                 std::size_t size);
result_code copy_on_stream(const call_site& site, device_pointer target, device_pointer source,
                           std::size_t size, stream_id stream);

result_code create_physical(const call_site& site, physical_id* handle, std::size_t size,
                            const memory_properties* like, flag_set flags);
result_code release_physical(const call_site& site, physical_id handle);
result_code map_physical(const call_site& site, device_pointer at, std::size_t size,
                         std::size_t offset, physical_id handle, flag_set flags);
result_code unmap_physical(const call_site& site, device_pointer at, std::size_t size);
result_code export_physical(const call_site& site, void* shared, physical_id handle, int kind,
                            flag_set flags);
result_code retain_physical(const call_site& site, physical_id* handle, void* at);
result_code export_range(const call_site& site, void* handle, device_pointer at, std::size_t size,
                         int kind, flag_set flags);
result_code bind_physical(const call_site& site, physical_id team, std::size_t team_offset,
                          physical_id handle, std::size_t offset, std::size_t size, flag_set flags);
result_code bind_range(const call_site& site, physical_id team, std::size_t team_offset,
                       device_pointer at, std::size_t size, flag_set flags);

result_code destroy_stream(const call_site& site, stream_id stream);
result_code begin_old_capture(const call_site& site, stream_id stream);
result_code begin_capture(const call_site& site, stream_id stream, int how);
result_code begin_graph_capture(const call_site& site, stream_id stream, graph_id graph,
                                const void* nodes, const void* edges, std::size_t count, int how);
result_code end_capture(const call_site& site, stream_id stream, graph_id* graph);

result_code reset_device(const call_site& site, device_id device);
result_code destroy_context(const call_site& site, context_id context);
result_code enable_peer(const call_site& site, context_id peer, unsigned flags);
result_code set_pool_access(const call_site& site, pool_id pool, const access_description* grants,
                            std::size_t count);
result_code set_device_pool(const call_site& site, device_id device, pool_id pool);
result_code get_pool_attribute(const call_site& site, pool_id pool, int attribute, void* value);
result_code set_pool_attribute(const call_site& site, pool_id pool, int attribute, void* value);
result_code trim_pool(const call_site& site, pool_id pool, std::size_t kept_size);

result_code find_old(const call_site& site, const char* name, void** found, int version,
                     flag_set flags);
result_code find_new(const call_site& site, const char* name, void** found, int version,
                     flag_set flags, int* why);

}  // namespace handlers
}  // namespace vmm::preload
