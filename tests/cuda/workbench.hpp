// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub driver's controls, as a test program calls them. VMM_STANDIN_LIBRARY names the library.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "standin/standin.h"

namespace cuda_test {

/// The stub driver's entry points; the library stays loaded to the end of the process.
class controls {
 public:
  explicit controls(const char* library) : handle_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) std::abort();
    bind(reset, "vmm_standin_reset");
    bind(fake, "vmm_standin_fake");
    bind(fail, "vmm_standin_fail");
    bind(clear_failures, "vmm_standin_clear_failures");
    bind(calls, "vmm_standin_calls");
    bind(hide, "vmm_standin_hide");
    bind(poison, "vmm_standin_poison");
    bind(on_free, "vmm_standin_on_free");
    bind(context_references, "vmm_standin_context_references");
  }
  /// One of the driver's own calls.
  template <class Function>
  [[nodiscard]] Function* find(const char* symbol) const {
    return reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }

  decltype(&vmm_standin_reset) reset = nullptr;
  decltype(&vmm_standin_fake) fake = nullptr;
  decltype(&vmm_standin_fail) fail = nullptr;
  decltype(&vmm_standin_clear_failures) clear_failures = nullptr;
  decltype(&vmm_standin_calls) calls = nullptr;
  decltype(&vmm_standin_hide) hide = nullptr;
  decltype(&vmm_standin_poison) poison = nullptr;
  decltype(&vmm_standin_on_free) on_free = nullptr;
  decltype(&vmm_standin_context_references) context_references = nullptr;

 private:
  template <class Function>
  void bind(Function& into, const char* symbol) {
    into = reinterpret_cast<Function>(dlsym(handle_, symbol));
    if (into == nullptr) std::abort();
  }
  void* handle_;
};

inline const controls& standin() {
  static const controls only(VMM_STANDIN_LIBRARY);
  return only;
}

}  // namespace cuda_test
