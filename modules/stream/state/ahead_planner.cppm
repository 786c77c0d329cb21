// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:ahead_planner - a growth ahead of requests, in steps: the plan of each. Not exported.
//
// A free region for a request that a program has announced, and addresses: decision 0006 has the
// reasons. A step maps one handle behind free memory of the stream, or undoes one stale mapping,
// and holds the lock of growth for that only. It makes no stream wait: it moves memory of the
// stream, or memory whose work has finished.
//
// Owns nothing: it is made for a call, over the pool's state. A step is a growth_plan like another
// (:growth_planner), which growth_commit carries out.
//
// Thread safety, cost: those of :growth_planner.
export module vmm.stream:ahead_planner;

import vmm.backend;
import vmm.std;
import vmm.va;
import :geometry;
import :growth_planner;
import :mappings;
import :pool_state;

namespace vmm {

class ahead_planner {
 public:
  explicit ahead_planner(pool_state& state) noexcept
      : state_(state), sizes_(state.sizes()), records_(state.records()), planner_(state) {}

  /// One step towards a free region that takes `wanted`, which no region of the stream does: a
  /// handle that is created within the headroom that the request would have, or one that moves and
  /// makes no stream wait, behind free memory of the stream or in a new place. No target where
  /// nothing can be done. Errors: as growth_planner::plan().
  [[nodiscard]] result<growth_plan> plan(const stream_request& wanted,
                                         const growth_effort& effort) noexcept;

 private:
  [[nodiscard]] bool moves_at_once(const handle_record& h, std::uint32_t stream) const noexcept;
  [[nodiscard]] handle_record* choose_ahead(std::uint32_t stream, std::uint32_t rest_granules,
                                            std::uint64_t place_granules) const noexcept;
  [[nodiscard]] std::uint32_t step_granules(std::uint32_t rest_granules,
                                            const growth_effort& effort) const noexcept;
  struct place_ahead {
    std::uint32_t segment = 0;
    region_id hole = region_id::none;
    std::uint32_t lead_granules = 0;
    std::uint64_t count_granules = 0;  // behind the lead
  };
  [[nodiscard]] place_ahead find_place(std::uint64_t wanted_granules) const noexcept;
  void choose_start_ahead(growth_plan& plan) noexcept;
  [[nodiscard]] place_ahead place_of(const growth_plan& plan,
                                     std::uint32_t rest_granules) const noexcept;
  [[nodiscard]] bool claim_ahead(growth_plan& plan, const place_ahead& place) noexcept;

  pool_state& state_;
  const pool_geometry& sizes_;
  mappings& records_;
  growth_planner planner_;
};

}  // namespace vmm
