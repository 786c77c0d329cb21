// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A test's controls of the stub libcuda, beside the driver's own calls. Found by name with dlsym,
// so that the test program itself links neither the stub nor a driver.
#pragma once

extern "C" {

/// The stub's configuration, from the next cuInit on. Zero and false everywhere is an ordinary
/// machine of two devices.
struct vmm_standin_setup {
  int device_count_less_two;        ///< added to two: -2 is a machine without a device
  unsigned long long device_bytes;  ///< memory of each device; 0: as the fake driver's cuda profile
  unsigned long long plain_shift_bytes;  ///< offset of cuMemAlloc's results from a granule
  bool no_vmm;  ///< the device says that it has no virtual memory management
  bool no_rdma;
  bool no_compression;
};

/// Forgets everything and starts anew. No object of the driver may be in use.
void vmm_standin_reset(const vmm_standin_setup* setup);

/// The vmm::fake_driver behind the stub driver: its resource counts, misuses, clock and fault plan.
void* vmm_standin_fake();

/// The nth call of `symbol` from now on (1 is the next) returns `code` and does nothing; with
/// `forever`, each from then on.
void vmm_standin_fail(const char* symbol, int code, unsigned nth, bool forever);
void vmm_standin_clear_failures();
/// How often `symbol` was called since the last reset.
unsigned long long vmm_standin_calls(const char* symbol);

/// cuGetProcAddress no longer finds `symbol`.
void vmm_standin_hide(const char* symbol);

/// From now on every call that needs a context returns `code`, as after a failed kernel. 0 ends it.
void vmm_standin_poison(int code);

/// What cuMemFree calls, with `data`, when the memory has gone and before it returns: another
/// thread may be given the same addresses then. Null ends it.
void vmm_standin_on_free(void (*call)(void*), void* data);

/// What each call of `symbol` from now on calls, with `data`, before it does anything: other
/// threads may do what they like meanwhile. A null `call` ends it.
void vmm_standin_on_call(const char* symbol, void (*call)(void*), void* data);

/// References held on a device's primary context.
int vmm_standin_context_references(int device);

}  // extern "C"
