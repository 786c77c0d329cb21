// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:reclaimer - unmaps unused memory, and releases it. Not exported.
//
// I1  A claimed handle that could not be unmapped is free again.
// I2  An unmapping is announced before it is made.
//
// Memory that unfinished work may use is never unmapped.
//
// Thread safety: all of it. Cost: driver calls by mappings and handles.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:reclaimer;

import vmm.backend;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import :block_rights;
import :capture_watch;
import :geometry;
import :growth_entry;
import :locks;
import :mappings;
import :notices;
import :notifier;
import :options;
import :pool_base;
import :pool_history;
import :state_lock;
import :statistics;
import :stream_clock;

namespace vmm {

class reclaimer {
 public:
  reclaimer(const pool_base& base, stream_clock& clock, block_rights& rights) noexcept
      : driver_(base.driver),
        options_(base.options),
        gate_(base.path.gate()),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        notices_(base.notices),
        events_(base.events),
        memory_(base.core.memory),
        remaps_(base.core.remaps),
        clock_(clock),
        rights_(rights),
        may_alias_(base.driver.feature_set().alias != alias_level::none) {}
  reclaimer(const reclaimer&) = delete;
  reclaimer& operator=(const reclaimer&) = delete;

  // ---- stale mappings ----
  /// Queries `count_max` times whether the work of the oldest stale mapping has finished, and
  /// unmaps it if it has. A mapping that stays, since its work is unfinished or the driver refuses,
  /// moves to the end of the list, and may be queried again.
  void unmap_stale(std::size_t count_max) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Unmaps one at a time, so that no growth finds more stale mappings than the policy keeps.
  void unmap_ahead(preallocate_report& report)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);

  // ---- free handles ----
  /// Unmaps free idle handles: their memory goes to the cache, their addresses become holes.
  /// `waiting_bytes` gets the size of free handles that are kept because unfinished work may use
  /// them.
  /// With `made_for`: only what that announcement created and nothing has used.
  [[nodiscard]] status unmap_idle(std::uint64_t size_bytes, std::uint64_t* waiting_bytes = nullptr,
                                  std::uint64_t made_for = 0) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// A handle, all of whose blocks were freed while suspended, is not created again: its addresses
  /// become a hole. One that a failed resumption left mapped stays if the driver refuses to unmap
  /// it. Requires: no copy uses the memory.
  [[nodiscard]] status drop_freed() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Unmaps stale mappings whose work has finished; if memory cannot move, also free memory, so
  /// that it can be mapped again elsewhere.
  [[nodiscard]] status make_room(const stream_request& request) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Unmaps everything, when the pool ends.
  [[nodiscard]] status unmap_all() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

  // ---- memory is released to the driver ----
  /// Releases in progress on other threads have finished when this returns.
  trim_report release_cached() VMM_EXCLUDES(rank::release, rank::state);
  /// Releases the memory created since the mark. Returns the bytes.
  std::uint64_t release_created(std::uint64_t mark) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::release, rank::state);
  /// Releases free memory, mapped or not, that the announcement `made_for` created since the mark
  /// and nothing has used. Returns the bytes.
  std::uint64_t release_unused(std::uint64_t mark, std::uint64_t made_for)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::release, rank::events, rank::state);
  /// stream_pool::trim(). In steps; memory that a step unmapped is released outside the lock: a
  /// thread that has to grow waits for one step at most.
  [[nodiscard]] trim_report trim(std::uint64_t limit_bytes)
      VMM_EXCLUDES(rank::growth, rank::release, rank::events, rank::state);
  /// The same until that many bytes fewer are free.
  trim_report trim_by(std::uint64_t size_bytes)
      VMM_EXCLUDES(rank::growth, rank::release, rank::events, rank::state);

 private:
  void unmap_stale_in_steps() VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  [[nodiscard]] bool unmap_if_finished(mapping& taken) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status unmap(mapping& gone, remap_kind kind) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status unmap_handle(handle_record& gone) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status claim_idle(free_handle_walk& walk, std::vector<handle_record*>& claimed)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<bool> trim_step(std::uint64_t limit_bytes, std::uint64_t& waiting_bytes)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);

  driver_interface& driver_;
  const pool_options& options_;
  const pool_gate& gate_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  notifier& notices_;
  pool_history& events_;
  physical_pool& memory_;
  remapper& remaps_;
  stream_clock& clock_;
  block_rights& rights_;
  const bool may_alias_;
  release_lock lock_;  // held while memory is released to the driver
};

}  // namespace vmm
