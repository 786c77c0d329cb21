// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A library of a test, loaded by name up to the end of the process.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

class loaded_library {
 public:
  /// A symbol, as whatever function it is taken for.
  struct found_symbol {
    void* at;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(at);
    }
  };

  explicit loaded_library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) std::abort();
  }
  /// Null where the library has none of this name.
  template <class Function>
  [[nodiscard]] Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }
  /// One that has to be there.
  [[nodiscard]] found_symbol symbol(const char* name) const {
    void* const at = dlsym(handle_, name);
    if (at == nullptr) std::abort();
    return {at};
  }

 private:
  void* handle_;
};
