// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:state_report - figures and lists of a pool's state: statistics, regions, mappings, the
// layout in a history, the report of a shortage. Not exported.
//
// Owns nothing and changes nothing: it is made for a call, over the pool's state.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(streams) for figures,
// O(regions) for lists.
export module vmm.stream:state_report;

import vmm.backend;
import vmm.observe;
import vmm.physical;
import vmm.std;
import vmm.va;
import :geometry;
import :pool_state;
import :segment;
import :statistics;

namespace vmm {

class state_report {
 public:
  explicit state_report(const pool_state& state) noexcept : state_(state) {}

  [[nodiscard]] pool_statistics statistics() const noexcept;
  /// The report, with the state's part.
  [[nodiscard]] shortage_report shortage(const stream_request& request,
                                         shortage_report report) const noexcept;
  [[nodiscard]] const shortage_report& last_shortage() const noexcept { return state_.shortage_; }
  [[nodiscard]] std::uint64_t largest_free_bytes() const noexcept;
  /// Adds the layout and the statistics. Errors: out_of_host_memory.
  [[nodiscard]] status describe(history& into) const noexcept;
  /// Appends all regions in address order. Errors: out_of_host_memory.
  [[nodiscard]] status list_regions(std::vector<pool_region>& out) const;
  /// Appends the mappings that the range touches, in address order. Errors: unknown_address,
  /// not_allocated, in_use (suspended). Throws std::bad_alloc.
  [[nodiscard]] status list_segments(address_range range, std::vector<memory_segment>& out) const;

 private:
  [[nodiscard]] pool_region shown(const segment& in, region_id region) const noexcept;
  void list_lent(const segment& in, region_id region, std::vector<pool_region>& out) const;
  void list_mappings(std::vector<history_mapping>& out) const;

  const pool_state& state_;
};

}  // namespace vmm
