// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// An observer of blocks that does nothing: calls take turns where there is one. It imports what it
// uses, so it is behind the includes of a file.
#pragma once

import vmm.backend;
import vmm.stream;

struct silent_observer : vmm::block_observer {
  void reserved(vmm::address_range) noexcept override {}
  void unreserved(vmm::address_range) noexcept override {}
  void mapped(vmm::address_range) noexcept override {}
  void unmapped(vmm::address_range) noexcept override {}
  void allocated(vmm::address_range) noexcept override {}
  void freed(vmm::address) noexcept override {}
};
