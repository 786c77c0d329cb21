// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:slow_path - the steps of a request that free memory of its stream does not serve at
// once. Not exported.
//
// 1  memory that other streams have finished with, or that arenas hold
// 2  new memory, within the policy's headroom
// 3  memory behind a wait on the device, else new memory beyond the headroom
// 4  the steps of :shortage
//
// A request fails only after all of these, or if it can never fit. For streams that are being
// captured see :captured_calls.
//
// Thread safety: all of it. Cost: driver calls by handles moved and created.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:slow_path;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.optimizer;
import vmm.std;
import :capture_watch;
import :geometry;
import :growth_entry;
import :growth_planner;
import :locks;
import :memory_parts;
import :notifier;
import :options;
import :pool_base;
import :pool_history;
import :shortage;
import :state_lock;
import :statistics;

namespace vmm {

/// A request that the warm path did not serve, over its attempts.
struct slow_call {
  std::uint64_t size_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
  stream_request request{};                     // its stream's record once that is entered
  std::optional<std::uint64_t> created_mark{};  // before its first growth
};

class slow_path {
 public:
  slow_path(const pool_base& base, memory_parts& parts, pool_shortage& shortage) noexcept
      : driver_(base.driver),
        options_(base.options),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        notices_(base.notices),
        events_(base.events),
        relief_(base.relief),
        parts_(parts),
        shortage_(shortage) {}
  slow_path(const slow_path&) = delete;
  slow_path& operator=(const slow_path&) = delete;

  /// stream_pool::allocate(), for requests that the warm path did not serve.
  [[nodiscard]] result<address> allocate(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// The same with an alignment above a granule: tries free memory of the stream first.
  [[nodiscard]] result<address> allocate_aligned(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// A block with its own mappings: stream_pool::allocate_dedicated().
  [[nodiscard]] result<address> allocate_dedicated(const block_shape& shape, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// stream_pool::preallocate().
  [[nodiscard]] preallocate_report preallocate(std::uint64_t size_bytes, stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// Releases idle memory under a policy that retains none. In a callback this is deferred to the
  /// next call.
  void keep_none() VMM_EXCLUDES(rank::growth, rank::events, rank::state);

  // ---- steps of any request that needs more than the warm path ----
  /// Runs pass(call, relief), also with memory that other allocators release, unless the request
  /// can never fit. A failed request releases the memory that it created, and its error gets
  /// figures.
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
  /// Refuses requests that can never fit. Errors: over_budget, out_of_memory.
  [[nodiscard]] status check_can_fit(const slow_call& call)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// The events of a growth: `grow` before it, `served` behind it.
  void note_growth(const stream_request& request, history_kind what, address at) noexcept
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  /// Called before the first growth of a request: memory created from then on belongs to it.
  void mark_created(slow_call& call) const noexcept {
    if (!call.created_mark) call.created_mark = parts_.core.memory.creation_mark();
  }

 private:
  // With VMM_REMEMBER, before the first request that grows: what the previous run needed.
  void make_remembered_ready(stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] preallocate_report announce(std::uint64_t size_bytes, stream_handle stream,
                                            std::uint64_t number)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] status check_lent(const stream_request& request) VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<std::uint32_t> count_granules(std::uint64_t size_bytes)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] error refuse_too_large(std::uint64_t size_bytes) VMM_EXCLUDES(rank::state);
  // The event of a block that is served.
  [[nodiscard]] result<address> note_served(const stream_request& request,
                                            std::uint64_t asked_bytes, result<address> at) noexcept
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  // Ends the rights of freed blocks, and unmaps a few stale mappings if there are more than the
  // policy keeps.
  void tidy() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  // With new memory where arenas want room.
  [[nodiscard]] result<address> with_room(const stream_request& request) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> end_failed(const slow_call& call, const error& why)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> allocate_once(slow_call& call, relief_pass& relief)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> allocate_dedicated_once(slow_call& call, relief_pass& relief)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] result<address> grow(const slow_call& call, relief_pass& relief)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<address> grow_by_steps(growth_attempt& attempt) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

  driver_interface& driver_;
  const pool_options& options_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  notifier& notices_;
  pool_history& events_;
  relief_member& relief_;
  memory_parts& parts_;
  pool_shortage& shortage_;
};

}  // namespace vmm
