// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:growth_commit - the end of a growth's plan: its records before the driver maps it, and
// its commit or abandonment. Not exported.
//
// Owns nothing: it is made for a call, over the pool's state. The invariants of a plan are those of
// :growth_planner.
//
// Thread safety: none of its own; each call under the lock of the pool's state, the plan under that
// of growth. Cost: O(1) for each slot.
export module vmm.stream:growth_commit;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :growth_planner;
import :mappings;
import :pool_state;

namespace vmm {

class growth_commit {
 public:
  explicit growth_commit(pool_state& state) noexcept : state_(state), records_(state.records()) {}

  /// After the new pieces are there: names them all in order, and makes their records.
  /// Errors: out_of_host_memory; the plan is as before.
  [[nodiscard]] status prepare(growth_plan& plan, const memory_list& fresh) noexcept;
  /// Where commit() puts the request's block.
  [[nodiscard]] address_range block_of(const growth_plan& plan) const noexcept;
  /// Whether statistics count the request's block, which is mapped and not live yet, as live.
  void count_as_live(const growth_plan& plan, bool is_counted) noexcept;
  /// The target is mapped. Gives the request its block. Errors: out_of_host_memory; the memory is
  /// free for the stream then.
  [[nodiscard]] result<address> commit(const growth_plan& plan) noexcept;
  /// The target is mapped without a request: all of it is free for the stream.
  void commit_free(const growth_plan& plan) noexcept;
  /// Before it is committed, while what moves is still known to be where it was: the events of what
  /// was mapped.
  void note_mapped(const growth_plan& plan) noexcept;
  /// Returns everything claimed. The first `standing_count` pieces are still mapped in the target:
  /// these slots become stale.
  void abandon(growth_plan& plan, std::size_t standing_count) noexcept;

 private:
  [[nodiscard]] mapping_slot make_slot(const growth_plan& plan, handle_record* moved,
                                       physical_memory* fresh) noexcept;
  void drop_slots(growth_plan& plan, std::size_t from) noexcept;
  void place_slots(growth_plan& plan) noexcept;
  void charge_moves(const growth_plan& plan) noexcept;
  [[nodiscard]] region_id build_target(const growth_plan& plan) noexcept;
  void put_in_slot(const mapping_slot& slot, bool moves, const stream_point& now) noexcept;
  void reenter_start(const growth_plan& plan) noexcept;
  void keep_unused(const growth_plan& plan, const stream_point& now) noexcept;
  void leave_standing(const growth_plan& plan, std::size_t standing_count) noexcept;

  pool_state& state_;
  mappings& records_;
};

}  // namespace vmm
