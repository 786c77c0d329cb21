// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:shortage - shortages: the steps before a request fails, in this order, and the report.
// Not exported.
//
// 0  release_ready(): announced memory that no work has used; before the ladder, in grow() alone
// 1  poll_streams(): memory that its streams have finished with
// 2  idle memory of other allocators of the device, if any: 3 stops, the locks are released, and
//    the attempt is repeated (with_relief(), vmm.optimizer:relief)
// 3  wait_for_next_stream(): waits for one stream after the other, with
//    options().wait_when_short
// 4  memory at options().spill: grow(), grow_dedicated()
//
// After each step the request is tried again with everything that is free: retry_finished(),
// retry_after_wait().
//
// A new rung is a function beside poll_streams() with its place in ladder_for(), and a line above.
// It returns true if the request is to be tried again, false if it has nothing left, which begins
// the next rung; one that runs once in an attempt is a single_rung(). It runs under the rank of
// growth, so it calls neither users nor other allocators: such calls belong to 2, between two
// attempts. A rung behind 2 is a part of wait_for_next_stream(), below its stop. A captured request
// has one rung of its own: captured_calls::take().
//
// I1  Memory that a failed request has created is released to the driver.
//
// Thread safety: all of it. Cost: none unless memory is short.
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

class pool_shortage {
 public:
  pool_shortage(const pool_base& base, memory_parts& parts) noexcept
      : driver_(base.driver),
        options_(base.options),
        state_(base.path.state()),
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
  /// Serves a request whose growth failed for `cause`, a shortage.
  [[nodiscard]] result<address> grow(growth_attempt& attempt, const error& cause)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// A block with its own mappings, of created or cached memory. While memory is short, idle free
  /// memory moves to the cache first.
  [[nodiscard]] result<address> grow_dedicated(const stream_request& request, relief_pass& relief)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// Memory that the announcement `number` creates from the mark on goes first when memory is
  /// short, while nothing has used it.
  void note_ready(std::uint64_t mark, std::uint64_t number) noexcept {
    ready_mark_.store(mark, std::memory_order_relaxed);
    ready_number_.store(number, std::memory_order_release);
  }
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
  std::uint64_t release_ready() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::release, rank::events, rank::state);
  [[nodiscard]] bool stops_for_others(const growth_attempt& attempt, const error& cause) const;
  // The rungs, and their order.
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
  std::atomic<std::uint64_t> ready_mark_ = 0;
  std::atomic<std::uint64_t> ready_number_ = 0;  // 0: nothing is ready
};

}  // namespace vmm
