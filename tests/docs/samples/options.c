/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The options of docs/c.md, given to a pool on the host driver. */
#include <stdio.h>
#include <vmm.h>

int main(void) {
  vmm_pool_options options;
  vmm_pool_options_init(&options, sizeof options);
  options.budget_bytes = (uint64_t)8 << 30;
  options.read_environment = 1; /* VMM_POOL_POLICY, VMM_BUDGET and others: docs/options.md */
  options.stream_arenas = VMM_ARENAS_ALWAYS; /* a lock for each stream from its first growth on */
  vmm_driver* driver = NULL;
  vmm_pool* pool = NULL;
  vmm_status status = vmm_driver_open("host", VMM_ANY_DEVICE, &driver);
  if (status == VMM_SUCCESS) status = vmm_pool_create(driver, &options, &pool);
  if (status != VMM_SUCCESS) printf("%s\n", vmm_last_error_text());
  vmm_pool_destroy(pool);
  vmm_driver_close(driver);
  return status;
}
