// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:shortage - memory that is short: what is tried before a request is refused, in this
// order, and the report. Not exported.
//
// 1  what every stream has finished with
// 2  idle memory of other allocators of the device, where there are any (vmm.optimizer:relief)
// 3  the work of one stream after the other, where options().wait_when_short
// 4  memory at options().spill
//
// After each step the request is tried again with everything that is free.
//
// I1  What a request that fails has created is released to the driver.
//
// Thread safety: all of it. Cost: none where memory is not short, except for check_can_fit().
module;
#include "../base/thread_annotations.h"

export module vmm.stream:shortage;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import :capture_watch;
import :geometry;
import :growth_entry;
import :growth_planner;
import :locks;
import :memory_parts;
import :options;
import :pool_base;
import :pool_history;
import :state_lock;

namespace vmm {

/// A request that the warm path did not serve, over its attempts.
struct slow_call {
  std::uint64_t size_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
  stream_request request{};                     // its stream's record once that is entered
  std::optional<std::uint64_t> created_mark{};  // before its first growth
};

class pool_shortage {
 public:
  pool_shortage(const pool_base& base, memory_parts& parts) noexcept
      : driver_(base.driver),
        options_(base.options),
        state_(base.state),
        entry_(base.entry),
        captures_(base.captures),
        events_(base.events),
        relief_(base.relief),
        parts_(parts) {}
  pool_shortage(const pool_shortage&) = delete;
  pool_shortage& operator=(const pool_shortage&) = delete;

  // ---- other allocators ----
  /// Effects: other allocators of the device are served with idle memory.
  void enter(const relief_key& key) noexcept;

  // ---- requests ----
  /// Runs pass(call, relief), also with memory that others give back, unless the request can never
  /// fit. A request that fails gives back what it created, and its error gets figures.
  template <class Pass>
  [[nodiscard]] result<address> with_others(slow_call& call, Pass&& pass)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state) {
    if (const status fits = check_can_fit(call); !fits) return fits.error();
    const result<address> at = with_relief(relief_, call.size_bytes,
                                           [&](relief_pass& relief) { return pass(call, relief); });
    return at ? at : end_failed(call, at.error());
  }
  /// The request in granules, whose stream is not entered. Errors: invalid_argument (no bytes),
  /// over_budget, out_of_memory, out_of_addresses (no segment takes it).
  [[nodiscard]] result<stream_request> request_for(const block_shape& shape)
      VMM_EXCLUDES(rank::state);
  /// Refuses what nothing can make room for. Errors: over_budget, out_of_memory.
  [[nodiscard]] status check_can_fit(const slow_call& call)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// Before the first growth of a request: what is created from here on is its own.
  void mark_created(slow_call& call) const noexcept {
    if (!call.created_mark) call.created_mark = parts_.core.memory.creation_mark();
  }
  /// Serves a request whose growth failed for `cause`, a shortage.
  [[nodiscard]] result<address> grow(growth_attempt& attempt, const error& cause)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// A block of mappings of its own, of memory that is created or cached. While memory is short,
  /// idle free memory moves to the cache first.
  [[nodiscard]] result<address> grow_dedicated(const stream_request& request, relief_pass& relief)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  void report(growth_attempt& attempt, const error& cause) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

 private:
  // Streams that are waited for, from the first wait on.
  struct stream_waits {
    std::uint32_t stream_count = 0;
    std::uint32_t begun_count = 0;
  };

  [[nodiscard]] std::uint64_t give_idle_back(std::uint64_t wanted_bytes)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<std::uint32_t> count_granules(std::uint64_t size_bytes)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] error refuse_too_large(std::uint64_t size_bytes) VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<address> end_failed(const slow_call& call, const error& why)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] bool stops_for_others(const growth_attempt& attempt, const error& cause) const;
  // The rungs: false where a rung has nothing left.
  [[nodiscard]] auto ladder_for(growth_attempt& attempt, stream_waits& waits);
  [[nodiscard]] result<bool> poll_streams() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<bool> wait_for_next_stream(growth_attempt& attempt, stream_waits& waits)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> retry_finished(growth_attempt& attempt) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> retry_after_wait(growth_attempt& attempt) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> grow_from_all(growth_attempt& attempt) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

  driver_interface& driver_;
  const pool_options& options_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  pool_history& events_;
  relief_member& relief_;
  memory_parts& parts_;
};

}  // namespace vmm
