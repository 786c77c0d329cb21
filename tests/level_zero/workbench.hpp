// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver under the distribution's own loader, as a test program sets it up: with the
// validation layer, and the witness before them. VMM_ZE_DRIVER and VMM_ZE_WITNESS name the
// libraries.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "driver/controls.h"

namespace ze_test {

/// The controls; the libraries stay loaded to the end of the process. The loader reads its
/// variables once: they are set before it is loaded.
class controls {
 public:
  /// `names` are the drivers that the loader is to load, with commas; the controls are `of` one.
  explicit controls(const char* names = VMM_ZE_DRIVER, const char* of = VMM_ZE_DRIVER) {
    ::setenv("ZE_ENABLE_ALT_DRIVERS", names, 1);
    ::setenv("ZE_ENABLE_VALIDATION_LAYER", "1", 1);
    ::setenv("ZE_ENABLE_PARAMETER_VALIDATION", "1", 1);
    ::setenv("ZE_ENABLE_LOADER_INTERCEPT", "1", 1);
    void* const driver = dlopen(of, RTLD_NOW | RTLD_LOCAL);
    void* const witness = dlopen(VMM_ZE_WITNESS, RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr || witness == nullptr) std::abort();
    bind(driver, reset, "vmm_ze_reset");
    bind(driver, fake, "vmm_ze_fake");
    bind(driver, fail, "vmm_ze_fail");
    bind(driver, clear_failures, "vmm_ze_clear_failures");
    bind(driver, calls, "vmm_ze_calls");
    bind(driver, misuse, "vmm_ze_misuse");
    bind(witness, complaints, "vmm_witness_complaints");
    bind(witness, witnessed, "vmm_witness_calls");
    bind(witness, clear_complaints, "vmm_witness_clear");
    bind(witness, notify, "vmm_witness_notify");
    find_ = witness;
  }
  /// One of Level Zero's own calls, through the witness.
  template <class Function>
  [[nodiscard]] Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(dlsym(find_, symbol));
  }

  decltype(&vmm_ze_reset) reset = nullptr;
  decltype(&vmm_ze_fake) fake = nullptr;
  decltype(&vmm_ze_fail) fail = nullptr;
  decltype(&vmm_ze_clear_failures) clear_failures = nullptr;
  decltype(&vmm_ze_calls) calls = nullptr;
  decltype(&vmm_ze_misuse) misuse = nullptr;
  decltype(&vmm_witness_complaints) complaints = nullptr;
  decltype(&vmm_witness_calls) witnessed = nullptr;
  decltype(&vmm_witness_clear) clear_complaints = nullptr;
  decltype(&vmm_witness_notify) notify = nullptr;

 private:
  template <class Function>
  static void bind(void* library, Function& into, const char* symbol) {
    into = reinterpret_cast<Function>(dlsym(library, symbol));
    if (into == nullptr) std::abort();
  }
  void* find_ = nullptr;
};

inline const controls& simulated() {
  static const controls only;
  return only;
}

}  // namespace ze_test
