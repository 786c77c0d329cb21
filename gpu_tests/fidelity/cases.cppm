// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity:cases - the invalid and boundary calls that the fake driver is held to, in words and
// in code: one list for every backend.
//
// A probe marked `alone` might end the process or spoil the context on a real driver, so it runs in
// a process of its own there.
export module vmm.fidelity:cases;

import vmm.backend;
import vmm.std;
import :scratch;

namespace vmm::fidelity {

/// Whether a probe may run beside others or needs a process of its own on a real driver.
export enum class company : std::uint8_t { any, alone };

export struct probe {
  const char* id;    ///< stable: identifies the recorded results
  const char* what;  ///< for people
  std::string (*run)(scratch& s);
  company with = company::any;
};

export [[nodiscard]] std::vector<probe> all_probes();

/// The result in words; that of a refused set-up call is its error.
export [[nodiscard]] std::string answer(driver_ref driver, const probe& asked);

}  // namespace vmm::fidelity
