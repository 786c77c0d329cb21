// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_parts - the parts of a pool that need its device, created together at set-up;
// each uses those before it. Not exported.
export module vmm.stream:pool_parts;

import vmm.backend;
import vmm.optimizer;
import :captured_calls;
import :checked_calls;
import :memory_parts;
import :pool_base;
import :shortage;
import :slow_path;

namespace vmm {

struct pool_parts : memory_parts {
  /// Throws std::bad_alloc.
  pool_parts(driver_ref driver, const core_options& how, const pool_lower& lower)
      : memory_parts(driver, how, lower),
        shortage({lower, core}, *this),
        slow({lower, core}, *this, shortage),
        captured({lower, core}, *this, shortage, slow),
        checked({lower, core}, *this, slow, captured) {}

  pool_shortage shortage;
  slow_path slow;
  captured_calls captured;
  checked_calls checked;
};

}  // namespace vmm
