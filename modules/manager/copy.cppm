// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:copy - copies of blocks, by remapping and of their bytes. Not exported.
//
// Thread safety: all of it. Cost: driver calls by pieces, or a copy.
export module vmm.manager:copy;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :base;
import :history;
import :types;

namespace vmm {

class remap_copier {
 public:
  remap_copier(manager_base& base, manager_history& history) noexcept
      : base_(base), history_(history) {}
  remap_copier(const remap_copier&) = delete;
  remap_copier& operator=(const remap_copier&) = delete;

  /// Copies by remapping. Errors: not_supported (bytes must be copied); after any error but
  /// device_lost nothing has changed.
  [[nodiscard]] status remap(const copy_request& request, copy_mode mode);
  /// Errors: not_allocated (outside of a block), in_use (suspended), not_supported, driver errors.
  [[nodiscard]] status copy_bytes(const copy_request& request);

 private:
  [[nodiscard]] status remap_claimed(block& target, block& source, const copy_request& request,
                                     copy_mode mode);
  [[nodiscard]] bool remap_fits(const block& target, const block& source,
                                const copy_request& request) const;

  manager_base& base_;
  manager_history& history_;
};

}  // namespace vmm
