// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:batch_events - the events of batches of device-wide frees. Not exported.
//
// A batch has one event behind all work, if the driver has such events; else one behind an event of
// each stream.
//
// I1  A batch whose event was recorded takes no more blocks.
//
// Thread safety: all of it. Cost: a driver call for a batch, or one for each stream.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:batch_events;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import :capture_watch;
import :growth_entry;
import :locks;
import :point_events;
import :pool_base;
import :state_lock;

namespace vmm {

class batch_events {
 public:
  batch_events(const pool_base& base, point_events& points) noexcept
      : driver_(base.driver),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        time_(base.core.time),
        points_(points) {}
  batch_events(const batch_events&) = delete;
  batch_events& operator=(const batch_events&) = delete;

  /// For the device-wide frees so far. Errors: see is_deferred(); driver errors.
  [[nodiscard]] status record() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// The same if few such events are unfinished. Returns whether one was recorded; a later call may
  /// record one.
  bool record_few() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// The same for calls that need no memory, on drivers that have an event behind all work.
  void try_record() VMM_EXCLUDES(rank::events, rank::state);
  /// Whether the driver refused the last event behind all work, because of an unannounced capture:
  /// then only a call that needs memory tries again.
  [[nodiscard]] bool was_refused() const noexcept {
    return was_refused_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] bool has_unrecorded() VMM_EXCLUDES(rank::state);
  [[nodiscard]] bool wants_event() VMM_EXCLUDES(rank::state);
  [[nodiscard]] status record_by_event(stream_handle own) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<bool> close(stream_handle own) VMM_REQUIRES(rank::events)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] status end(result<ticket_ref>&& event) VMM_REQUIRES(rank::events)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<ticket_ref> record_known_streams() VMM_REQUIRES(rank::growth, rank::events)
      VMM_EXCLUDES(rank::state);

  driver_interface& driver_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  timeline& time_;
  point_events& points_;
  sync::atomic<bool> was_refused_ = false;
};

}  // namespace vmm
