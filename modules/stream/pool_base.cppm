// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_base - references that the parts of one pool share. Not exported.
export module vmm.stream:pool_base;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :call_path;
import :capture_watch;
import :growth_entry;
import :notifier;
import :options;
import :pool_history;
import :state_lock;

namespace vmm {

/// The state before set-up.
struct pool_lower {
  driver_interface& driver;
  const pool_options& options;
  const content_filler& contents;
  suspension_phases& phases;
  call_path& path;
  growth_entry& entry;
  capture_watch& captures;
  notifier& notices;
  pool_history& events;
  const sync::atomic<std::uint64_t>& expected_limit_bytes;
  relief_member& relief;
};

struct pool_base : pool_lower {
  device_core& core;
};

}  // namespace vmm
