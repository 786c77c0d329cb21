/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a program in C11 can use all parts of the interface, and its structs lie as the first
 * version laid them.
 * Method: offsets by _Static_assert; a pool, a manager and their numbers on the host's memory. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "vmm.h"

/* Members stay where they are: a program that was compiled with an older header still runs. */
#define LIES_AT(type, member, offset) \
  _Static_assert(offsetof(type, member) == (offset), #type "." #member " has moved")
LIES_AT(vmm_error_info, status, 8);
LIES_AT(vmm_error_info, native_code, 16);
LIES_AT(vmm_error_info, text, 56);
LIES_AT(vmm_driver_entry, available, 16);
LIES_AT(vmm_driver_info, features, 16);
LIES_AT(vmm_driver_info, granularity, 24);
LIES_AT(vmm_driver_info, place, 40);
LIES_AT(vmm_driver_info, device, 44);
LIES_AT(vmm_pool_options, policy, 8);
LIES_AT(vmm_pool_options, reservation_bytes, 16);
LIES_AT(vmm_pool_options, first_stream, 40);
LIES_AT(vmm_pool_options, budget_bytes, 48);
LIES_AT(vmm_pool_options, capture, 60);
LIES_AT(vmm_pool_options, use_place, 64);
LIES_AT(vmm_pool_options, place_ordinal, 72);
LIES_AT(vmm_pool_options, reserved, 84);
LIES_AT(vmm_pool_options, stream_arenas, 88);
LIES_AT(vmm_pool_options, captures_announced, 92);
LIES_AT(vmm_pool_options, streams_forgotten, 96);
LIES_AT(vmm_trim_report, still_mapped_bytes, 24);
LIES_AT(vmm_preallocate_report, left_bytes, 32);
LIES_AT(vmm_pool_statistics, live_bytes, 24);
LIES_AT(vmm_pool_statistics, live_count, 80);
LIES_AT(vmm_pool_statistics, host_wait_count, 168);
LIES_AT(vmm_pool_statistics, arena_count, 184);
LIES_AT(vmm_pool_region, kind, 24);
LIES_AT(vmm_shortage, failure, 24);
LIES_AT(vmm_shortage, budget_bytes, 72);
LIES_AT(vmm_remap_notice, kind, 32);
LIES_AT(vmm_manager_options, fragment_ratio, 16);
LIES_AT(vmm_manager_options, budget_bytes, 40);
LIES_AT(vmm_manager_options, place_ordinal, 72);
LIES_AT(vmm_manager_options, reserved, 84);
LIES_AT(vmm_block_request, stream, 32);
LIES_AT(vmm_resize_request, in_place, 32);
LIES_AT(vmm_copy_request, mode, 40);
LIES_AT(vmm_block_info, handle_count, 48);
LIES_AT(vmm_manager_statistics, held_bytes, 40);
LIES_AT(vmm_manager_statistics, recovery_count, 160);
LIES_AT(vmm_extent, kind, 24);
LIES_AT(vmm_growable_options, keep_dirty, 32);
LIES_AT(vmm_growable_request, change, 40);
LIES_AT(vmm_growable_info, pin_count, 72);
_Static_assert(VMM_FEATURE_RDMA == 1024 && VMM_COPY_MOVE == 2, "values stay");

static int failed = 0;

static void expect(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "wrong: %s (%s)\n", what, vmm_last_error_text());
  failed = 1;
}

static void use_pool(vmm_driver* driver) {
  vmm_pool_options options;
  expect(vmm_pool_options_init(&options, sizeof options) == VMM_SUCCESS, "init");
  options.budget_bytes = (uint64_t)256 << 20;
  vmm_pool* pool = NULL;
  expect(vmm_pool_create(driver, &options, &pool) == VMM_SUCCESS, "create");
  char* text = NULL;
  expect(vmm_pool_allocate(pool, 100, NULL, (void**)&text) == VMM_SUCCESS, "allocate");
  strcpy(text, "in memory of vmm");
  vmm_pool_statistics numbers = {.struct_size = sizeof numbers};
  expect(vmm_pool_get_statistics(pool, &numbers) == VMM_SUCCESS, "statistics");
  expect(numbers.live_count == 1 && numbers.live_bytes == 512, "one block");
  expect(vmm_pool_free(pool, text, NULL) == VMM_SUCCESS, "free");
  expect(vmm_pool_free(pool, text, NULL) == VMM_ERROR_NOT_ALLOCATED, "freed twice");
  vmm_error_info info = {.struct_size = sizeof info};
  expect(vmm_last_error(&info) == VMM_SUCCESS, "last error");
  expect(info.status == VMM_ERROR_NOT_ALLOCATED && strcmp(info.name, "not_allocated") == 0, "name");
  expect(vmm_pool_destroy(pool) == VMM_SUCCESS, "destroy");
}

static void use_manager(vmm_driver* driver) {
  vmm_manager* manager = NULL;
  expect(vmm_manager_create(driver, NULL, &manager) == VMM_SUCCESS, "create");
  vmm_block_request request = {.struct_size = sizeof request, .size_bytes = 1 << 20};
  unsigned char* at = NULL;
  expect(vmm_manager_allocate(manager, &request, (void**)&at) == VMM_SUCCESS, "allocate");
  at[1000] = 42;
  vmm_resize_request resize = {.struct_size = sizeof resize, .at = at, .size_bytes = 64 << 20};
  expect(vmm_manager_resize(manager, &resize, (void**)&at) == VMM_SUCCESS, "resize");
  expect(at[1000] == 42, "contents");
  expect(vmm_manager_free(manager, at) == VMM_SUCCESS, "free");
  expect(vmm_manager_destroy(manager) == VMM_SUCCESS, "destroy");
}

int main(void) {
  vmm_driver* driver = NULL;
  if (vmm_driver_open("host", VMM_ANY_DEVICE, &driver) != VMM_SUCCESS) {
    fprintf(stderr, "%s\n", vmm_last_error_text());
    return 1;
  }
  use_pool(driver);
  use_manager(driver);
  expect(vmm_driver_close(driver) == VMM_SUCCESS, "close");
  expect(vmm_version() == VMM_VERSION_MINOR * 100, "version");
  if (!failed) puts("C11: as it should be");
  return failed;
}
