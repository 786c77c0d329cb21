// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:block_observer - the reservations, mappings and blocks of a pool, one call for each.
//
// Thread safety: the pool makes one call at a time, from any thread. Cost: the observer's own.
export module vmm.observe:block_observer;

import vmm.backend;

namespace vmm {

/// Notified of every reservation, mapping and block of a pool, for tools that check accesses. It
/// serialises the pool's allocations and frees. A block that is freed while it is pinned, or that a
/// captured graph may use, is not reported as freed: a later block at its addresses ends it. Called
/// from any thread, with the device's context current if the backend is a context_backend.
/// Requires: it makes no call that could change blocks or mappings of the pool, else the process
/// ends.
export class block_observer {
 public:
  /// Called before the first mapping there, and after the last.
  virtual void reserved(address_range addresses) noexcept = 0;
  virtual void unreserved(address_range addresses) noexcept = 0;
  /// Called before the first block there, and after the last.
  virtual void mapped(address_range memory) noexcept = 0;
  virtual void unmapped(address_range memory) noexcept = 0;
  /// The requested bytes, not rounded up.
  virtual void allocated(address_range block) noexcept = 0;
  virtual void freed(address block) noexcept = 0;

 protected:
  ~block_observer() = default;
};

}  // namespace vmm
