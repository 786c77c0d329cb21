// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:memory_parts - the parts of a pool that hold its device's memory, created at set-up;
// each uses those before it. Not exported.
export module vmm.stream:memory_parts;

import vmm.backend;
import vmm.optimizer;
import :block_rights;
import :memory_reuse;
import :pool_base;
import :pool_growth;
import :reclaimer;
import :stream_clock;

namespace vmm {

struct memory_parts {
  /// Throws std::bad_alloc.
  memory_parts(driver_ref driver, const core_options& how, const pool_lower& lower)
      : core(driver, how),
        clock({lower, core}),
        rights({lower, core}, clock),
        reclaim({lower, core}, clock, rights),
        reuse({lower, core}, clock, rights),
        growth({lower, core}, clock, reclaim) {}
  memory_parts(const memory_parts&) = delete;
  memory_parts& operator=(const memory_parts&) = delete;

  device_core core;
  stream_clock clock;
  block_rights rights;
  reclaimer reclaim;
  memory_reuse reuse;
  pool_growth growth;
};

}  // namespace vmm
