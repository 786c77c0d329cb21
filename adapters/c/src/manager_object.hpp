// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The object of a manager's handle. It imports what it uses, so it comes after every include but
// those that do the same.
#pragma once

#include "objects.hpp"

import vmm.backend;
import vmm.manager;

namespace vmm_c {

struct manager_object {
  static constexpr handle_kind kind = handle_kind::manager;
  manager_object(driver_object& on, const vmm::manager_options& options)
      : driver(on), manager(on.backend, options) {}

  // Exported blocks, growable ranges, and suspenders that it is a region of.
  [[nodiscard]] bool has_users() const noexcept {
    return export_count.load() != 0 || growable_count.load() != 0 || region_count.load() != 0;
  }
  [[nodiscard]] const char* text_of_use() const noexcept {
    if (region_count.load() != 0) return has_region_text;
    if (growable_count.load() != 0) return "the manager has growable ranges: destroy them first";
    return export_count.load() != 0 ? "blocks of the manager are exported: end the exports first"
                                    : nullptr;
  }

  driver_object& driver;
  const made_here made_in;
  std::atomic<std::uint32_t> export_count = 0;
  std::atomic<std::uint32_t> growable_count = 0;
  std::atomic<std::uint32_t> region_count = 0;
  vmm::manager manager;
  const listed_allocator listed{driver, manager.suspension()};
};

}  // namespace vmm_c
