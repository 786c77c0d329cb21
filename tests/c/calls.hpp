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

// A handle as each call takes its own.
struct any_handle {
  void* number;
  template <class Object>
  operator Object*() const {  // NOLINT(google-explicit-constructor)
    return static_cast<Object*>(number);
  }
};

// A row of a table: the name of a call, and its arguments; the first is the handle `h`.
#define VMM_CALL(kind, name, arguments)    \
  call_with_handle {                       \
    #name, takes::kind, [](void* handle) { \
      const any_handle h{handle};          \
      return name arguments;               \
    }                                      \
  }

inline constexpr std::array driver_calls{
    VMM_CALL(driver, vmm_driver_query_peer, (h, 0, 0, &given().word, nullptr)),
    VMM_CALL(driver, vmm_driver_get_access, (h, &given(), VMM_PLACE_DEVICE, 0, &given().word)),
    VMM_CALL(driver, vmm_share_export, (h, &given().exported, &given().share)),
    VMM_CALL(driver, vmm_driver_query, (h, &given().info)),
    VMM_CALL(driver, vmm_driver_memory, (h, &given().number, nullptr)),
    VMM_CALL(driver, vmm_driver_create_stream, (h, &given().stream)),
    VMM_CALL(driver, vmm_driver_destroy_stream, (h, &given())),
    VMM_CALL(driver, vmm_driver_synchronize_stream, (h, nullptr)),
    VMM_CALL(driver, vmm_driver_order_streams, (h, nullptr, nullptr)),
    VMM_CALL(driver, vmm_driver_write, (h, &given().bytes, &given().bytes, 0)),
    VMM_CALL(driver, vmm_driver_read, (h, &given().bytes, &given().bytes, 0)),
    VMM_CALL(driver, vmm_driver_fill, (h, &given().bytes, 0, 0, nullptr)),
    VMM_CALL(driver, vmm_pool_create, (h, nullptr, &given().pool)),
    VMM_CALL(driver, vmm_manager_create, (h, nullptr, &given().manager)),
};

inline constexpr std::array pool_calls{
    VMM_CALL(pool, vmm_pool_set_peers, (h, &given().grant, 1)),
    VMM_CALL(pool, vmm_pool_allocate_dedicated, (h, 4096, nullptr, &given().at)),
    VMM_CALL(pool, vmm_pool_set_access, (h, &given(), &given().grant, 1)),
    VMM_CALL(pool, vmm_pool_allocate, (h, 4096, nullptr, &given().at)),
    VMM_CALL(pool, vmm_pool_allocate_aligned, (h, 4096, 256, nullptr, &given().at)),
    VMM_CALL(pool, vmm_pool_free, (h, &given(), nullptr)),
    VMM_CALL(pool, vmm_pool_free_sized, (h, &given(), 1, nullptr)),
    VMM_CALL(pool, vmm_pool_free_unordered, (h, &given())),
    VMM_CALL(pool, vmm_pool_capture_begin, (h)),
    VMM_CALL(pool, vmm_pool_capture_end, (h)),
    VMM_CALL(pool, vmm_pool_pin, (h, &given())),
    VMM_CALL(pool, vmm_pool_unpin, (h, &given())),
    VMM_CALL(pool, vmm_pool_forget_stream, (h, nullptr)),
    VMM_CALL(pool, vmm_pool_capture_number, (h, nullptr, &given().number)),
    VMM_CALL(pool, vmm_pool_capture_release, (h, 1, nullptr)),
    VMM_CALL(pool, vmm_pool_synchronize, (h)),
    VMM_CALL(pool, vmm_pool_trim, (h, 0, &given().report)),
    VMM_CALL(pool, vmm_pool_preallocate, (h, 4096, nullptr, &given().prepared)),
    VMM_CALL(pool, vmm_pool_get_statistics, (h, &given().pool_numbers)),
    VMM_CALL(pool, vmm_pool_regions, (h, nullptr, 0, &given().number)),
    VMM_CALL(pool, vmm_pool_dump, (h, nullptr, 0, &given().number)),
    VMM_CALL(pool, vmm_pool_last_shortage, (h, &given().shortage)),
    VMM_CALL(pool, vmm_pool_subscribe, (h, &ignore, nullptr, &given().number)),
    VMM_CALL(pool, vmm_pool_unsubscribe, (h, 77)),
    VMM_CALL(pool, vmm_pool_remap_epoch, (h, &given().number)),
    VMM_CALL(pool, vmm_pool_validate, (h)),
};

inline constexpr std::array manager_calls{
    VMM_CALL(manager, vmm_manager_set_access, (h, &given(), &given().grant, 1)),
    VMM_CALL(manager, vmm_manager_set_part_access, (h, &given(), 1, &given().grant, 1)),
    VMM_CALL(manager, vmm_manager_parts, (h, &given(), nullptr, 0, &given().number)),
    VMM_CALL(manager, vmm_manager_set_peers, (h, &given().grant, 1)),
    VMM_CALL(manager, vmm_share_export_block, (h, &given(), &given().exported, &given().share)),
    VMM_CALL(manager, vmm_growable_create, (h, &given().growth, &given().growable)),
    VMM_CALL(manager, vmm_manager_allocate, (h, &given().request, &given().at)),
    VMM_CALL(manager, vmm_manager_free, (h, &given())),
    VMM_CALL(manager, vmm_manager_free_on, (h, &given(), nullptr)),
    VMM_CALL(manager, vmm_manager_free_idle, (h, &given())),
    VMM_CALL(manager, vmm_manager_resize, (h, &given().resize, &given().at)),
    VMM_CALL(manager, vmm_manager_copy, (h, &given().copy)),
    VMM_CALL(manager, vmm_manager_forget_stream, (h, nullptr)),
    VMM_CALL(manager, vmm_manager_synchronize, (h, &given())),
    VMM_CALL(manager, vmm_manager_find, (h, &given(), &given().block)),
    VMM_CALL(manager, vmm_manager_trim, (h, 0, &given().report)),
    VMM_CALL(manager, vmm_manager_get_statistics, (h, &given().manager_numbers)),
    VMM_CALL(manager, vmm_manager_extents, (h, nullptr, 0, &given().number)),
    VMM_CALL(manager, vmm_manager_validate, (h)),
};

// Null is nothing to destroy; every other handle that is none is refused here, too.
inline constexpr std::array ending_calls{
    VMM_CALL(driver, vmm_driver_close, (h)),
    VMM_CALL(pool, vmm_pool_destroy, (h)),
    VMM_CALL(manager, vmm_manager_destroy, (h)),
};

template <class Visit>
void for_each_call(Visit&& visit) {
  for (const call_with_handle& each : driver_calls) visit(each);
  for (const call_with_handle& each : pool_calls) visit(each);
  for (const call_with_handle& each : manager_calls) visit(each);
}

}  // namespace c_test
