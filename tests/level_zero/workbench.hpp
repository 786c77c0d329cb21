// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver under the distribution's own loader, as a test program sets it up: with the
// validation layer, and the witness before them. VMM_ZE_DRIVER and VMM_ZE_WITNESS name the
// libraries.
#pragma once

#include "../support/loaded_library.hpp"
#include "driver/controls.h"

namespace ze_test {

/// The controls; the libraries stay loaded to the end of the process. The loader reads its
/// variables once: they are set before it is loaded.
class controls {
  loaded_library driver_, witness_;

 public:
  /// `names` are the drivers that the loader is to load, with commas; the controls are `of` one.
  explicit controls(const char* names = VMM_ZE_DRIVER, const char* of = VMM_ZE_DRIVER)
      : driver_(prepared(names, of)), witness_(VMM_ZE_WITNESS) {}
  /// One of Level Zero's own calls, through the witness.
  template <class Function>
  [[nodiscard]] Function* find(const char* symbol) const {
    return witness_.find<Function>(symbol);
  }

  decltype(&vmm_ze_reset) reset = driver_.symbol("vmm_ze_reset");
  decltype(&vmm_ze_fake) fake = driver_.symbol("vmm_ze_fake");
  decltype(&vmm_ze_fail) fail = driver_.symbol("vmm_ze_fail");
  decltype(&vmm_ze_clear_failures) clear_failures = driver_.symbol("vmm_ze_clear_failures");
  decltype(&vmm_ze_calls) calls = driver_.symbol("vmm_ze_calls");
  decltype(&vmm_ze_misuse) misuse = driver_.symbol("vmm_ze_misuse");
  decltype(&vmm_witness_complaints) complaints = witness_.symbol("vmm_witness_complaints");
  decltype(&vmm_witness_calls) witnessed = witness_.symbol("vmm_witness_calls");
  decltype(&vmm_witness_clear) clear_complaints = witness_.symbol("vmm_witness_clear");
  decltype(&vmm_witness_notify) notify = witness_.symbol("vmm_witness_notify");

 private:
  static const char* prepared(const char* names, const char* of) {
    ::setenv("ZE_ENABLE_ALT_DRIVERS", names, 1);
    for (const char* layer : {"ZE_ENABLE_VALIDATION_LAYER", "ZE_ENABLE_PARAMETER_VALIDATION",
                              "ZE_ENABLE_LOADER_INTERCEPT"})
      ::setenv(layer, "1", 1);
    return of;
  }
};

inline const controls& simulated() {
  static const controls only;
  return only;
}

}  // namespace ze_test
