// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:point_events - the events that cover points of streams' work. Not exported.
//
// I1  A stream that was forgotten is not named to the driver, and one that the call does not name
//     only where streams are forgotten before they are destroyed.
//
// An event is recorded on a stream, or behind all work, only if no known capture would contain it.
//
// Thread safety: all of it. Cost: driver calls by events.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:point_events;

import vmm.backend;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import :capture_watch;
import :growth_entry;
import :locks;
import :pool_base;
import :pool_state;
import :state_lock;

namespace vmm {

/// An event of one stream, or one behind all work.
struct fresh_event {
  ticket_ref ticket{};
  bool is_of_all = false;
};

class point_events {
 public:
  explicit point_events(const pool_base& base) noexcept
      : state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        time_(base.core.time) {}
  point_events(const point_events&) = delete;
  point_events& operator=(const point_events&) = delete;

  /// The event that covers the point, or a new one; null if the point has passed: if the driver
  /// refuses the stream and has no event in its place, the call waits for all work. Errors:
  /// not_permitted (the stream is being captured), driver errors.
  [[nodiscard]] result<ticket_ref> event_for(point_answer&& answer) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// An event on the stream if it may have one, else behind all work. Errors: not_permitted (it is
  /// being captured), driver errors.
  [[nodiscard]] result<fresh_event> record_on(stream_handle stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Such an event, with its record in the streams' progress.
  static void note(pool_state& state, record_order&& order, const fresh_event& event) noexcept
      VMM_REQUIRES(rank::state);
  /// The event of a point without one for the stream's work. Errors: as record_on().
  [[nodiscard]] result<ticket_ref> record_point_named(record_order&& order)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);
  /// Errors: not_permitted (a stream is being captured), driver errors.
  [[nodiscard]] result<ticket_ref> record_all_work() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Waits for all work of every stream, destroyed or not, and of streams without a record.
  /// Requires: an event behind all work.
  [[nodiscard]] status finish_all_work() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

 private:
  [[nodiscard]] result<ticket_ref> record_point(record_order&& order) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] result<ticket_ref> record_named(stream_handle stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<ticket_ref> record_stream(stream_handle stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);

  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  timeline& time_;
};

}  // namespace vmm
