// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls of the CUDA driver that programs for a GPU make beside vmm's. The last include of a file,
// as must.hpp is.
#pragma once

#include "../../backends/cuda/abi.h"
#include "must.hpp"

import vmm.cuda;

inline void must(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS)
    stop(std::string(what) + " returned " + std::to_string(static_cast<int>(code)));
}

/// The call of the driver; ends the program if the driver lacks it.
template <class Function>
[[nodiscard]] Function call_of(const vmm::cuda_driver& driver, const char* symbol, int version) {
  auto* const found = reinterpret_cast<Function>(driver.entry_point(symbol, version));
  if (found == nullptr) stop(std::string("the driver has no ") + symbol);
  return found;
}

/// Makes the device's context the thread's current one.
inline void enter(const vmm::cuda_driver& driver) {
  const auto set = call_of<PFN_cuCtxSetCurrent_v4000>(driver, "cuCtxSetCurrent", 4000);
  must(set(reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(driver.native_context()))),
       "cuCtxSetCurrent");
}
