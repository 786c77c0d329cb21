// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each module can be imported by itself, without the umbrella.
// Method: import them one by one and use one thing of each.
#include <cstdio>

import vmm.backend;

int use_parts() {
  std::printf("an error is called: %s\n", vmm::name_of(vmm::errc::out_of_memory));
  return 0;
}
