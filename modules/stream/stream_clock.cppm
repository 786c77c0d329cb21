// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:stream_clock - the progress of a pool's streams: queries of events, waits, and streams
// that end. Not exported.
//
// I1  A stream that was forgotten is not found, and its record ends once its last point has passed.
//
// Thread safety: all of it. Cost: driver calls by events; O(1) where a point is known to have
// passed.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:stream_clock;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import :batch_events;
import :call_path;
import :capture_watch;
import :growth_entry;
import :locks;
import :point_events;
import :pool_base;
import :pool_history;
import :pool_state;
import :state_lock;

namespace vmm {

class stream_clock {
 public:
  explicit stream_clock(const pool_base& base) noexcept
      : driver_(base.driver),
        gate_(base.path.gate()),
        state_(base.path.state()),
        entry_(base.entry),
        captures_(base.captures),
        events_(base.events),
        time_(base.core.time),
        path_(base.path),
        points_(base),
        batches_(base, points_) {}
  stream_clock(const stream_clock&) = delete;
  stream_clock& operator=(const stream_clock&) = delete;

  // ---- events ----
  [[nodiscard]] point_events& points() noexcept { return points_; }
  [[nodiscard]] batch_events& batches() noexcept { return batches_; }

  // ---- streams ----
  /// The record of the stream. Errors: invalid_argument (a stream of each thread), in_use (too many
  /// streams), out_of_host_memory.
  [[nodiscard]] result<std::uint32_t> enter(stream_handle stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::state);
  /// Called before a request on a stream with an identity: memory that an earlier stream of the
  /// same handle freed becomes free for others once all work submitted so far has finished, and is
  /// not the stream's. Errors: out_of_host_memory, driver errors.
  [[nodiscard]] status identify(stream_handle stream, std::uint64_t identity)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// Whether no memory that an earlier stream freed is listed under the handle.
  [[nodiscard]] bool is_identified(stream_handle stream, std::uint64_t identity) const noexcept
      VMM_EXCLUDES(rank::state) {
    return state_.with([&](auto& state) {
      const std::uint32_t number = state.progress().find(stream);
      return number == pool_state::no_stream || state.progress().identity_of(number) == identity;
    });
  }
  /// stream_pool::forget().
  [[nodiscard]] status forget(stream_handle stream)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);

  // ---- queries ----
  /// Determines whether a point has passed: queries the recorded events, oldest first, and records
  /// one if none covers the point. Errors: driver errors.
  [[nodiscard]] status poll(const stream_point& point) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// The same for the last point of every stream.
  [[nodiscard]] status poll_all() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// The same for a few forgotten streams; memory of finished ones becomes free for all. Queries
  /// that the driver refuses are repeated later.
  void poll_retired() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// Called before a request grows: poll_retired(), also for device-wide frees, whose event is
  /// recorded if few are unfinished.
  void catch_up() VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);

  // ---- waits ----
  /// Makes later work of the stream wait for the point, on the device. Counts the wait; only
  /// memory_reuse::behind_wait() and growth_planner::claim_handle() have the bytes.
  [[nodiscard]] status order_behind(const stream_point& point, std::uint32_t stream)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  /// Returns whether the calling thread waited.
  [[nodiscard]] result<bool> wait_for(const stream_point& point) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// stream_pool::synchronize().
  [[nodiscard]] status synchronize() VMM_EXCLUDES(rank::growth, rank::events, rank::state);
  /// Waits for the work of a record's stream.
  [[nodiscard]] result<bool> finish(std::uint32_t stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Waits for all work of every stream, when the pool ends.
  [[nodiscard]] status finish_all() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Waits for streams that use the memory, with or without a record.
  [[nodiscard]] status finish_others(std::span<const stream_handle> streams)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::state);

 private:
  [[nodiscard]] status adopt(std::uint32_t number, std::uint64_t identity)
      VMM_REQUIRES(rank::growth) VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status record_leaving(std::uint32_t stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] bool shares_event(std::uint32_t stream) VMM_EXCLUDES(rank::state);
  [[nodiscard]] result<bool> leave_to_batch(std::uint32_t stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status set_aside(std::uint32_t stream) VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  [[nodiscard]] status record_all(std::vector<recorded_event>& out)
      VMM_EXCLUDES(rank::growth, rank::events, rank::state);

  driver_interface& driver_;
  const pool_gate& gate_;
  state_cell& state_;
  growth_entry& entry_;
  capture_watch& captures_;
  pool_history& events_;
  timeline& time_;
  const call_path& path_;
  point_events points_;
  batch_events batches_;
};

}  // namespace vmm
