// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:exports - blocks whose handles other processes or libraries have.
//
// Thread safety: all of it. Cost: O(log n + pieces).
export module vmm.manager:exports;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :base;
import :history;
import :types;

namespace vmm {

/// A manager's exports.
///
/// Every call: Thread safety: any thread.
class manager_exports {
 public:
  manager_exports(manager_base& base, manager_history& history) noexcept
      : base_(base), history_(history) {}
  manager_exports(const manager_exports&) = delete;
  manager_exports& operator=(const manager_exports&) = delete;

  /// Requires: manager_options::shareable. For vmm.share, and for code that exports handles.
  /// Effects: returns the block's handles and sizes. From then on its memory serves no other block:
  /// when it is freed, it is released to the driver, since the importers may still use it. A block
  /// exported as pinned is refused with in_use by free, resize and remapping copies until end() was
  /// called as often. With a number, only the block whose exported_range has it. Errors: as free;
  /// not_allocated (another number's), not_supported (memory that was not made shareable),
  /// invalid_argument (the block's memory was lost), out_of_host_memory, those of get_properties
  /// and unmap. Cost: O(log n + pieces), one driver call.
  [[nodiscard]] result<exported_range> begin(address at, export_rule rule,
                                             std::uint64_t number = 0);
  /// Ends one export that was pinned. Errors: as free; invalid_argument (the block is not pinned).
  [[nodiscard]] status end(address at);

 private:
  [[nodiscard]] result<exported_range> describe(block& given);

  manager_base& base_;
  manager_history& history_;
};

}  // namespace vmm
