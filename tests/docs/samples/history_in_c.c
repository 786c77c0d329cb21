/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What docs/observe.md shows of C, on the host driver. */
#include <stdio.h>
#include <vmm.h>

static vmm_status record(vmm_pool* pool) {
  vmm_history_options how;
  uint32_t weights = 0;
  void* at = NULL;
  vmm_history_options_init(&how, sizeof how);
  how.shortage_path = "short.history"; /* short.history.0 and so on, at a shortage */
  vmm_status status = vmm_history_start(pool, 0, &how);
  if (status == VMM_SUCCESS) status = vmm_history_tag("weights", &weights);
  if (status == VMM_SUCCESS) status = vmm_history_label(weights, 0, NULL, NULL);
  if (status == VMM_SUCCESS) status = vmm_pool_allocate(pool, 1 << 20, NULL, &at);
  if (status == VMM_SUCCESS) status = vmm_pool_free(pool, at, NULL);
  if (status == VMM_SUCCESS) status = vmm_history_label(0, 0, NULL, NULL);
  if (status == VMM_SUCCESS) status = vmm_history_stop(pool, 0, "c.history");
  return status;
}

int main(void) {
  vmm_driver* driver = NULL;
  vmm_pool* pool = NULL;
  vmm_status status = vmm_driver_open("host", VMM_ANY_DEVICE, &driver);
  if (status == VMM_SUCCESS) status = vmm_pool_create(driver, NULL, &pool);
  if (status == VMM_SUCCESS) status = record(pool);
  if (status != VMM_SUCCESS) printf("%s\n", vmm_last_error_text());
  vmm_pool_destroy(pool);
  vmm_driver_close(driver);
  if (status == VMM_SUCCESS && remove("c.history") != 0) return 1;
  return status;
}
