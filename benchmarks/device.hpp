// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The device of benchmarks that need one. The last include of a file, as must.hpp is.
#pragma once

#include "../tools/program/must.hpp"

import vmm.cuda;

/// The first device's driver; ends the program if it does not open.
inline vmm::cuda_driver open_device() {
  vmm::result<vmm::cuda_driver> driver = vmm::cuda_driver::open();
  if (!driver) stop("no CUDA device: " + vmm::describe(driver.error()));
  return must(std::move(driver));
}

/// When and on what something was measured: as given, else the device's name.
inline std::string head_of(const std::string& given, const vmm::cuda_driver& driver) {
  return given.empty() ? driver.description().device_name : given;
}
