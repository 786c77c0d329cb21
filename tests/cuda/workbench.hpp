// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub driver's controls, as a test program calls them. VMM_STANDIN_LIBRARY names the library.
#pragma once

#include "../support/loaded_library.hpp"
#include "standin/standin.h"

namespace cuda_test {

/// The stub driver's entry points; the library stays loaded to the end of the process.
class controls : loaded_library {
 public:
  explicit controls(const char* library) : loaded_library(library) {}
  using loaded_library::find;  ///< one of the driver's own calls

  decltype(&vmm_standin_reset) reset = symbol("vmm_standin_reset");
  decltype(&vmm_standin_fake) fake = symbol("vmm_standin_fake");
  decltype(&vmm_standin_fail) fail = symbol("vmm_standin_fail");
  decltype(&vmm_standin_clear_failures) clear_failures = symbol("vmm_standin_clear_failures");
  decltype(&vmm_standin_calls) calls = symbol("vmm_standin_calls");
  decltype(&vmm_standin_hide) hide = symbol("vmm_standin_hide");
  decltype(&vmm_standin_poison) poison = symbol("vmm_standin_poison");
  decltype(&vmm_standin_on_free) on_free = symbol("vmm_standin_on_free");
  decltype(&vmm_standin_context_references) context_references =
      symbol("vmm_standin_context_references");
};

inline const controls& standin() {
  static const controls only(VMM_STANDIN_LIBRARY);
  return only;
}

}  // namespace cuda_test
