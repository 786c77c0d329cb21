// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:state_audit - every invariant of a pool's state, over all of it. Not exported.
//
// Owns nothing and changes nothing: it is made for a call, over the pool's state.
//
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(everything).
export module vmm.stream:state_audit;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;
import :mappings;
import :pool_state;
import :segment;

namespace vmm {

class state_audit {
 public:
  explicit state_audit(const pool_state& state) noexcept : state_(state) {}

  [[nodiscard]] status validate() const noexcept;
  /// At the highest level of checks: a full check after the first growth, the second, the fourth,
  /// and so on, which bounds its cost. Nothing is claimed.
  inline void after_growth() const noexcept {
    if constexpr (check_level >= 3) {
      if (std::has_single_bit(state_.totals_.slow_count))
        paranoid_check([&] { return validate().has_value(); }, "a growth broke the pool's tables");
    }
  }

 private:
  // What validate() adds up.
  struct sums {
    std::uint64_t live = 0;
    std::uint64_t owned = 0;
    std::uint64_t handle_granules = 0;
    std::uint64_t stale_count = 0;
    std::uint64_t pinned_count = 0;
    std::uint64_t block_count = 0;  // of one segment, by table
    std::uint64_t locked_count = 0;
  };
  [[nodiscard]] const char* broken_region(const segment& in, region_id region,
                                          sums& seen) const noexcept;
  [[nodiscard]] const char* broken_mapping(const segment& in, const mapping& m,
                                           sums& seen) const noexcept;
  [[nodiscard]] const char* broken_mappings(const segment& in, sums& seen) const noexcept;
  [[nodiscard]] const char* broken_tables(const segment& in, sums& seen) const noexcept;
  [[nodiscard]] const char* broken_sums(const sums& seen) const noexcept;

  const pool_state& state_;
};

}  // namespace vmm
