// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:pool_growth - carries out a plan of a growth: addresses, handles, mappings; for a
// request, and ahead of one. Not exported.
//
// I1  A growth that fails leaves every block and every free region as it was.
// I2  Memory that a growth maps has no last use of its own: the growth's stream is ordered behind
//     the work that may still use it.
// I3  A block of a growth is filled before any of its memory is free or live. If the driver refuses
//     the fill, no work uses the mapped memory, and the growth fails.
//
// Thread safety: all of it. Cost: driver calls by handles created and moved.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:pool_growth;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import :call_path;
import :geometry;
import :growth_entry;
import :growth_planner;
import :locks;
import :notifier;
import :options;
import :pool_base;
import :pool_history;
import :reclaimer;
import :state_lock;
import :statistics;
import :stream_clock;

namespace vmm {

class pool_growth {
 public:
  /// A request that was announced, and how far its preparation has come.
  struct preparation {
    stream_handle stream = stream_handle::default_stream;
    std::uint32_t count_granules = 0;
    std::uint64_t number = 0;  // of the announcement
    bool is_served = false;
    bool has_asked = false;     // what every stream has finished is known
    bool has_reserved = false;  // addresses, for this
  };

  [[nodiscard]] std::uint64_t next_announcement() noexcept {
    return announcement_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  pool_growth(const pool_base& base, stream_clock& clock, reclaimer& reclaim) noexcept
      : driver_(base.driver),
        options_(base.options),
        contents_(base.contents),
        gate_(base.path.gate()),
        state_(base.path.state()),
        entry_(base.entry),
        notices_(base.notices),
        events_(base.events),
        expected_limit_bytes_(base.expected_limit_bytes),
        memory_(base.core.memory),
        space_(base.core.space),
        remaps_(base.core.remaps),
        clock_(clock),
        reclaim_(reclaim),
        may_alias_(base.driver.feature_set().alias != alias_level::none) {}
  pool_growth(const pool_growth&) = delete;
  pool_growth& operator=(const pool_growth&) = delete;

  /// Whether mapped memory can be mapped elsewhere as well, and so move.
  [[nodiscard]] bool may_alias() const noexcept { return may_alias_; }
  /// New memory for the request. Errors: out_of_memory, over_budget, out_of_mappings,
  /// out_of_addresses, out_of_host_memory, driver errors.
  [[nodiscard]] result<address> try_grow(const stream_request& request, growth_effort& effort)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// The first pages of the options, at set-up.
  [[nodiscard]] status map_first_pages() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Makes memory ready for a later request, step by step: stream_pool::preallocate().
  [[nodiscard]] status make_ready(preparation work, preallocate_report& report)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// New memory, free for the stream, beyond what requests need: its arena passes it on. Creates
  /// none above 1.4 times the peak of live bytes, or near the pool's limit.
  void add_room(std::uint32_t stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Frees the addresses, when the pool ends and nothing is mapped.
  void remove_segments() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  /// The error, with the figures of the shortage.
  [[nodiscard]] error with_figures(const error& why, std::uint64_t size_bytes)
      VMM_EXCLUDES(rank::state);

 private:
  [[nodiscard]] std::uint64_t limit_bytes() const noexcept;
  [[nodiscard]] result<growth_plan> make_plan(const stream_request& request, growth_effort effort)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] bool may_succeed(const growth_plan& plan, const growth_effort& effort)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  [[nodiscard]] status map_planned(growth_plan& plan) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] growth_outcome carry_out(growth_plan& plan) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status carry_out_into(growth_plan& plan, growth_outcome& so_far)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status fill_block(const growth_plan& plan) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status add_segment(std::uint64_t needed_bytes) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<bool> is_served(const stream_request& request) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<bool> preallocate_step(preparation& work, preallocate_report& report)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<bool> map_ahead(growth_plan& plan, preallocate_report& report)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] std::uint64_t missing_bytes(const preparation& work) VMM_EXCLUDES(rank::state);

  driver_interface& driver_;
  const pool_options& options_;
  const content_filler& contents_;
  const pool_gate& gate_;
  state_cell& state_;
  growth_entry& entry_;
  notifier& notices_;
  pool_history& events_;
  const sync::atomic<std::uint64_t>& expected_limit_bytes_;
  physical_pool& memory_;
  reservation_space& space_;
  remapper& remaps_;
  stream_clock& clock_;
  reclaimer& reclaim_;
  sync::atomic<std::uint64_t> announcement_count_ = 0;
  const bool may_alias_;
};

}  // namespace vmm
