// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A test's controls of the simulated Level Zero driver and the witness, beside Level Zero's own
// calls. Found by name with dlsym: the test program links neither.
#pragma once

extern "C" {

/// What the driver is from the next vmm_ze_reset on, which reads ZE_AFFINITY_MASK too. Zero and
/// false everywhere is an ordinary machine of two GPUs.
struct vmm_ze_setup {
  int device_count_less_two = 0;        ///< added to two
  unsigned long long device_bytes = 0;  ///< of each GPU; 0: as the fake driver's profile
  bool no_vmm = false;                  ///< no virtual memory
  bool hint_or_nothing = false;         ///< a reservation elsewhere than wished for is refused
  bool on_demand_pages = false;         ///< the device makes memory when it is touched
  unsigned long long address_shift_bytes = 0;  ///< every reservation begins that far behind a page
  int device_count_leaving = 0;   ///< so many are counted, and gone when they are queried
  bool gives_no_address = false;  ///< reserve returns success and a null
  bool gives_no_memory = false;   ///< create returns success and a null
  bool repeats_address = false;   ///< reserve returns the last reservation once more
};

/// Forgets everything and starts anew. No object of the driver may be in use. Returns the number of
/// objects left in the previous one.
unsigned long long vmm_ze_reset(const vmm_ze_setup* setup);
/// The vmm::fake_driver behind the driver: its resource counts, misuses, clock and fault plan.
void* vmm_ze_fake();
/// The nth call of `symbol` from now on (1 is the next) returns `code` and does nothing; with
/// `forever`, each from then on.
void vmm_ze_fail(const char* symbol, int code, unsigned nth, bool forever);
void vmm_ze_clear_failures();
/// How often `symbol` was called since the last reset.
unsigned long long vmm_ze_calls(const char* symbol);
/// Uses that Level Zero forbids and the fake driver cannot see: an event set back while work waits
/// for it, a list destroyed before its work finished. The text names the first; "" for none.
const char* vmm_ze_misuse();
/// The calling thread's last call that reached the driver: the count, and its result.
void vmm_ze_last(unsigned long long* count, int* code);

/// Called with true before and with false after each call that a thread makes to the loader; none
/// when null.
void vmm_witness_notify(void (*hook)(bool inside));
/// Of the witness: refusals that came from the loader or its layers and not from the driver. The
/// text names them; "" for none.
const char* vmm_witness_complaints();
/// How often a call went through the witness.
unsigned long long vmm_witness_calls();
void vmm_witness_clear();

}  // extern "C"
