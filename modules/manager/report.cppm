// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:report - a manager's numbers, and the layout of its addresses. Not exported.
//
// A view made for a call. Thread safety: all of it. Cost: O(1); extents() O(extents).
export module vmm.manager:report;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.std;
import :base;
import :statistics;

namespace vmm {

class manager_report {
 public:
  explicit manager_report(const manager_base& base) noexcept : base_(base) {}

  [[nodiscard]] manager_statistics statistics() const;
  [[nodiscard]] result<std::vector<extent_info>> extents() const;
  /// For vmm-top, on its thread.
  void sample(top_sample& out) const noexcept;
  /// The error of a request for `size_bytes`, with the figures of memory or addresses.
  [[nodiscard]] error with_figures(const error& why, std::uint64_t size_bytes) const;

 private:
  const manager_base& base_;
};

}  // namespace vmm
