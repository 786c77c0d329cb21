// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the sweeps of an allocator's scenarios have in common. It imports what it uses, so it is the
// last include except others with imports.
#pragma once

#include "test.h"

import vmm.backend;
import vmm.fake;

namespace sweeps {

inline vmm::fake_driver& fake_of(vmm::fake_driver& driver) { return driver; }
template <class Observer>
vmm::fake_driver& fake_of(vmm::observed_backend<vmm::fake_driver, Observer>& driver) {
  return driver.driver();
}

/// Without the value, or the numbers, of what succeeded.
template <class Answer>
vmm::status status_of(const Answer& answer) {
  if constexpr (requires { answer.failure; }) {
    return answer.failure.code == vmm::errc::none ? vmm::status{} : vmm::status{answer.failure};
  } else {
    return answer ? vmm::status{} : vmm::status{answer.error()};
  }
}

/// The drivers to sweep: how mappings may be shared and undone decides the way through the engine.
struct variant {
  const char* name;
  vmm::fake::profile plays;
  bool arenas = false;  // every stream of a pool has one from its first growth on
};
inline std::vector<variant> variants(std::uint64_t memory_bytes) {
  vmm::fake::profile cuda = vmm::fake::profile::cuda();
  cuda.device_memory_bytes = memory_bytes;
  vmm::fake::profile no_alias = cuda;
  no_alias.can.alias = vmm::alias_level::none;
  vmm::fake::profile no_span = cuda;
  no_span.can.spanning_unmap = false;
  vmm::fake::profile neither = no_alias;
  neither.can.spanning_unmap = false;
  vmm::fake::profile level_zero = vmm::fake::profile::level_zero();
  level_zero.device_memory_bytes = memory_bytes;
  vmm::fake::profile host = vmm::fake::profile::host();
  host.host_memory_bytes = memory_bytes;
  host.host_granularity = cuda.device_granularity;
  return {{"cuda", cuda},        {"no alias", no_alias},     {"no span", no_span},
          {"neither", neither},  {"level zero", level_zero}, {"host", host},
          {"arenas", cuda, true}};
}

}  // namespace sweeps
