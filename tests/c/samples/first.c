/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <vmm.h>

int main(void) {
  vmm_driver* driver = NULL;
  vmm_pool* pool = NULL;
  void* at = NULL;
  vmm_status status = vmm_driver_open("host", VMM_ANY_DEVICE, &driver); /* or "cuda" */
  if (status == VMM_SUCCESS) status = vmm_pool_create(driver, NULL, &pool);
  if (status == VMM_SUCCESS) status = vmm_pool_allocate(pool, 3 << 20, NULL, &at);
  if (status == VMM_SUCCESS) status = vmm_pool_free(pool, at, NULL);
  printf("%s\n", status == VMM_SUCCESS ? "3 MiB allocated and freed" : vmm_last_error_text());
  vmm_pool_destroy(pool);
  vmm_driver_close(driver);
  return status;
}
