// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every call of vmm.h that takes a handle, with valid other arguments. The arguments are in static
// storage: a call with an invalid handle must not dereference them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "vmm.h"

namespace c_test {

enum class takes { driver, pool, manager };

struct call_with_handle {
  const char* name;
  takes kind;
  vmm_status (*make)(void* handle);
};

inline void ignore(void*, const vmm_remap_notice*) {}

struct arguments {
  std::array<unsigned char, 64> bytes{};
  void* at = nullptr;
  vmm_stream stream = nullptr;
  std::uint64_t number = 0;
  std::uint32_t word = 0;
  vmm_grant grant{VMM_PLACE_DEVICE, 1, VMM_RIGHTS_READ, 0};
  vmm_driver_info info{sizeof(vmm_driver_info), nullptr, 0, 0, 0, 0, 0};
  vmm_pool* pool = nullptr;
  vmm_manager* manager = nullptr;
  vmm_trim_report report{sizeof(vmm_trim_report), 0, 0, 0};
  vmm_preallocate_report prepared{sizeof(vmm_preallocate_report), 0, 0, 0, 0};
  vmm_pool_statistics pool_numbers{};
  vmm_manager_statistics manager_numbers{};
  vmm_shortage shortage{};
  vmm_block_request request{sizeof(vmm_block_request), 4096, 0, 0, nullptr};
  vmm_resize_request resize{sizeof(vmm_resize_request), nullptr, 4096, 0, 0, 0};
  vmm_copy_request copy{sizeof(vmm_copy_request), nullptr, nullptr, 0, nullptr, 0, 0};
  vmm_block_info block{};
  vmm_export_request exported{};
  vmm_export* share = nullptr;
  vmm_growable_options growth{};
  vmm_growable* growable = nullptr;

  arguments() {
    pool_numbers.struct_size = sizeof(pool_numbers);
    manager_numbers.struct_size = sizeof(manager_numbers);
    shortage.struct_size = sizeof(shortage);
    block.struct_size = sizeof(block);
    growth.struct_size = sizeof(growth);      // of no size, as the next
    exported.struct_size = sizeof(exported);  // of no size: refused where the handle is not
  }
};

inline arguments& given() {
  static arguments all;
  return all;
}

inline vmm_driver* as_driver(void* handle) { return static_cast<vmm_driver*>(handle); }
inline vmm_pool* as_pool(void* handle) { return static_cast<vmm_pool*>(handle); }
inline vmm_manager* as_manager(void* handle) { return static_cast<vmm_manager*>(handle); }

inline constexpr std::array driver_calls{
    call_with_handle{
        "vmm_driver_query_peer", takes::driver,
        [](void* h) { return vmm_driver_query_peer(as_driver(h), 0, 0, &given().word, nullptr); }},
    call_with_handle{"vmm_driver_get_access", takes::driver,
                     [](void* h) {
                       return vmm_driver_get_access(as_driver(h), &given(), VMM_PLACE_DEVICE, 0,
                                                    &given().word);
                     }},
    call_with_handle{
        "vmm_share_export", takes::driver,
        [](void* h) { return vmm_share_export(as_driver(h), &given().exported, &given().share); }},
    call_with_handle{"vmm_driver_query", takes::driver,
                     [](void* h) { return vmm_driver_query(as_driver(h), &given().info); }},
    call_with_handle{
        "vmm_driver_memory", takes::driver,
        [](void* h) { return vmm_driver_memory(as_driver(h), &given().number, nullptr); }},
    call_with_handle{
        "vmm_driver_create_stream", takes::driver,
        [](void* h) { return vmm_driver_create_stream(as_driver(h), &given().stream); }},
    call_with_handle{"vmm_driver_destroy_stream", takes::driver,
                     [](void* h) { return vmm_driver_destroy_stream(as_driver(h), &given()); }},
    call_with_handle{"vmm_driver_synchronize_stream", takes::driver,
                     [](void* h) { return vmm_driver_synchronize_stream(as_driver(h), nullptr); }},
    call_with_handle{
        "vmm_driver_order_streams", takes::driver,
        [](void* h) { return vmm_driver_order_streams(as_driver(h), nullptr, nullptr); }},
    call_with_handle{
        "vmm_driver_write", takes::driver,
        [](void* h) { return vmm_driver_write(as_driver(h), &given().bytes, &given().bytes, 0); }},
    call_with_handle{
        "vmm_driver_read", takes::driver,
        [](void* h) { return vmm_driver_read(as_driver(h), &given().bytes, &given().bytes, 0); }},
    call_with_handle{
        "vmm_driver_fill", takes::driver,
        [](void* h) { return vmm_driver_fill(as_driver(h), &given().bytes, 0, 0, nullptr); }},
    call_with_handle{"vmm_pool_create", takes::driver,
                     [](void* h) { return vmm_pool_create(as_driver(h), nullptr, &given().pool); }},
    call_with_handle{
        "vmm_manager_create", takes::driver,
        [](void* h) { return vmm_manager_create(as_driver(h), nullptr, &given().manager); }},
};

inline constexpr std::array pool_calls{
    call_with_handle{"vmm_pool_set_peers", takes::pool,
                     [](void* h) { return vmm_pool_set_peers(as_pool(h), &given().grant, 1); }},
    call_with_handle{"vmm_pool_allocate_dedicated", takes::pool,
                     [](void* h) {
                       return vmm_pool_allocate_dedicated(as_pool(h), 4096, nullptr, &given().at);
                     }},
    call_with_handle{
        "vmm_pool_set_access", takes::pool,
        [](void* h) { return vmm_pool_set_access(as_pool(h), &given(), &given().grant, 1); }},
    call_with_handle{
        "vmm_pool_allocate", takes::pool,
        [](void* h) { return vmm_pool_allocate(as_pool(h), 4096, nullptr, &given().at); }},
    call_with_handle{"vmm_pool_allocate_aligned", takes::pool,
                     [](void* h) {
                       return vmm_pool_allocate_aligned(as_pool(h), 4096, 256, nullptr,
                                                        &given().at);
                     }},
    call_with_handle{"vmm_pool_free", takes::pool,
                     [](void* h) { return vmm_pool_free(as_pool(h), &given(), nullptr); }},
    call_with_handle{"vmm_pool_free_sized", takes::pool,
                     [](void* h) { return vmm_pool_free_sized(as_pool(h), &given(), 1, nullptr); }},
    call_with_handle{"vmm_pool_free_unordered", takes::pool,
                     [](void* h) { return vmm_pool_free_unordered(as_pool(h), &given()); }},
    call_with_handle{"vmm_pool_capture_begin", takes::pool,
                     [](void* h) { return vmm_pool_capture_begin(as_pool(h)); }},
    call_with_handle{"vmm_pool_capture_end", takes::pool,
                     [](void* h) { return vmm_pool_capture_end(as_pool(h)); }},
    call_with_handle{"vmm_pool_pin", takes::pool,
                     [](void* h) { return vmm_pool_pin(as_pool(h), &given()); }},
    call_with_handle{"vmm_pool_unpin", takes::pool,
                     [](void* h) { return vmm_pool_unpin(as_pool(h), &given()); }},
    call_with_handle{"vmm_pool_forget_stream", takes::pool,
                     [](void* h) { return vmm_pool_forget_stream(as_pool(h), nullptr); }},
    call_with_handle{
        "vmm_pool_capture_number", takes::pool,
        [](void* h) { return vmm_pool_capture_number(as_pool(h), nullptr, &given().number); }},
    call_with_handle{"vmm_pool_capture_release", takes::pool,
                     [](void* h) { return vmm_pool_capture_release(as_pool(h), 1, nullptr); }},
    call_with_handle{"vmm_pool_synchronize", takes::pool,
                     [](void* h) { return vmm_pool_synchronize(as_pool(h)); }},
    call_with_handle{"vmm_pool_trim", takes::pool,
                     [](void* h) { return vmm_pool_trim(as_pool(h), 0, &given().report); }},
    call_with_handle{
        "vmm_pool_preallocate", takes::pool,
        [](void* h) { return vmm_pool_preallocate(as_pool(h), 4096, nullptr, &given().prepared); }},
    call_with_handle{
        "vmm_pool_get_statistics", takes::pool,
        [](void* h) { return vmm_pool_get_statistics(as_pool(h), &given().pool_numbers); }},
    call_with_handle{
        "vmm_pool_regions", takes::pool,
        [](void* h) { return vmm_pool_regions(as_pool(h), nullptr, 0, &given().number); }},
    call_with_handle{
        "vmm_pool_dump", takes::pool,
        [](void* h) { return vmm_pool_dump(as_pool(h), nullptr, 0, &given().number); }},
    call_with_handle{"vmm_pool_last_shortage", takes::pool,
                     [](void* h) { return vmm_pool_last_shortage(as_pool(h), &given().shortage); }},
    call_with_handle{
        "vmm_pool_subscribe", takes::pool,
        [](void* h) { return vmm_pool_subscribe(as_pool(h), &ignore, nullptr, &given().number); }},
    call_with_handle{"vmm_pool_unsubscribe", takes::pool,
                     [](void* h) { return vmm_pool_unsubscribe(as_pool(h), 77); }},
    call_with_handle{"vmm_pool_remap_epoch", takes::pool,
                     [](void* h) { return vmm_pool_remap_epoch(as_pool(h), &given().number); }},
    call_with_handle{"vmm_pool_validate", takes::pool,
                     [](void* h) { return vmm_pool_validate(as_pool(h)); }},
};

inline constexpr std::array manager_calls{
    call_with_handle{
        "vmm_manager_set_access", takes::manager,
        [](void* h) { return vmm_manager_set_access(as_manager(h), &given(), &given().grant, 1); }},
    call_with_handle{"vmm_manager_set_part_access", takes::manager,
                     [](void* h) {
                       return vmm_manager_set_part_access(as_manager(h), &given(), 1,
                                                          &given().grant, 1);
                     }},
    call_with_handle{"vmm_manager_parts", takes::manager,
                     [](void* h) {
                       std::uint64_t count = 0;
                       return vmm_manager_parts(as_manager(h), &given(), nullptr, 0, &count);
                     }},
    call_with_handle{
        "vmm_manager_set_peers", takes::manager,
        [](void* h) { return vmm_manager_set_peers(as_manager(h), &given().grant, 1); }},
    call_with_handle{"vmm_share_export_block", takes::manager,
                     [](void* h) {
                       return vmm_share_export_block(as_manager(h), &given(), &given().exported,
                                                     &given().share);
                     }},
    call_with_handle{"vmm_growable_create", takes::manager,
                     [](void* h) {
                       return vmm_growable_create(as_manager(h), &given().growth,
                                                  &given().growable);
                     }},
    call_with_handle{
        "vmm_manager_allocate", takes::manager,
        [](void* h) { return vmm_manager_allocate(as_manager(h), &given().request, &given().at); }},
    call_with_handle{"vmm_manager_free", takes::manager,
                     [](void* h) { return vmm_manager_free(as_manager(h), &given()); }},
    call_with_handle{"vmm_manager_free_on", takes::manager,
                     [](void* h) { return vmm_manager_free_on(as_manager(h), &given(), nullptr); }},
    call_with_handle{"vmm_manager_free_idle", takes::manager,
                     [](void* h) { return vmm_manager_free_idle(as_manager(h), &given()); }},
    call_with_handle{
        "vmm_manager_resize", takes::manager,
        [](void* h) { return vmm_manager_resize(as_manager(h), &given().resize, &given().at); }},
    call_with_handle{"vmm_manager_copy", takes::manager,
                     [](void* h) { return vmm_manager_copy(as_manager(h), &given().copy); }},
    call_with_handle{"vmm_manager_forget_stream", takes::manager,
                     [](void* h) { return vmm_manager_forget_stream(as_manager(h), nullptr); }},
    call_with_handle{"vmm_manager_synchronize", takes::manager,
                     [](void* h) { return vmm_manager_synchronize(as_manager(h), &given()); }},
    call_with_handle{
        "vmm_manager_find", takes::manager,
        [](void* h) { return vmm_manager_find(as_manager(h), &given(), &given().block); }},
    call_with_handle{"vmm_manager_trim", takes::manager,
                     [](void* h) { return vmm_manager_trim(as_manager(h), 0, &given().report); }},
    call_with_handle{"vmm_manager_get_statistics", takes::manager,
                     [](void* h) {
                       return vmm_manager_get_statistics(as_manager(h), &given().manager_numbers);
                     }},
    call_with_handle{
        "vmm_manager_extents", takes::manager,
        [](void* h) { return vmm_manager_extents(as_manager(h), nullptr, 0, &given().number); }},
    call_with_handle{"vmm_manager_validate", takes::manager,
                     [](void* h) { return vmm_manager_validate(as_manager(h)); }},
};

// Null is nothing to destroy; every other handle that is none is refused here, too.
inline constexpr std::array ending_calls{
    call_with_handle{"vmm_driver_close", takes::driver,
                     [](void* h) { return vmm_driver_close(as_driver(h)); }},
    call_with_handle{"vmm_pool_destroy", takes::pool,
                     [](void* h) { return vmm_pool_destroy(as_pool(h)); }},
    call_with_handle{"vmm_manager_destroy", takes::manager,
                     [](void* h) { return vmm_manager_destroy(as_manager(h)); }},
};

template <class Visit>
void for_each_call(Visit&& visit) {
  for (const call_with_handle& each : driver_calls) visit(each);
  for (const call_with_handle& each : pool_calls) visit(each);
  for (const call_with_handle& each : manager_calls) visit(each);
}

}  // namespace c_test
