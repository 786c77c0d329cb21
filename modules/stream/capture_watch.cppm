// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:capture_watch - whether a stream is being captured, queried as seldom as the options
// allow; and the captures that an event behind all work would invalidate. Not exported.
//
// I1  A capture is listed as seen from a call on its stream until a call detects its end, its graph
//     is released, or the last announced capture ends; has_seen_ is true while one is listed.
//
// While an events_guard exists no capture is announced, and no stream retires.
//
// Thread safety: all of it. Cost: a query of the driver if a call has driver errors, else O(1).
module;
#include "../base/thread_annotations.h"

export module vmm.stream:capture_watch;

import vmm.backend;
import vmm.base;
import vmm.std;
import :call_path;
import :growth_entry;
import :locks;
import :options;
import :state_lock;

namespace vmm {

class capture_watch {
 public:
  capture_watch(driver_interface& driver, const pool_options& options, call_path& path,
                growth_entry& entry) noexcept
      : driver_(driver),
        options_(options),
        path_(path),
        gate_(path.gate()),
        state_(path.state()),
        entry_(entry) {}
  capture_watch(const capture_watch&) = delete;
  capture_watch& operator=(const capture_watch&) = delete;

  // ---- streams ----
  /// Whether captures are queried.
  [[nodiscard]] bool is_on() const noexcept { return path_.looks_for_captures(); }
  /// Errors: invalid_argument (a stream of each thread), driver errors.
  [[nodiscard]] result<capture_info> query(stream_handle stream) VMM_EXCLUDES(rank::state);
  /// As query(); none without a query for a stream that cannot be captured.
  [[nodiscard]] result<capture_info> of(stream_handle stream) VMM_EXCLUDES(rank::state) {
    return path_.may_be_captured(stream) ? query(stream) : capture_info{};
  }
  /// Whether an event on the stream would be part of a capture. Errors: driver errors.
  [[nodiscard]] result<bool> is_captured(stream_handle stream) VMM_EXCLUDES(rank::state);
  /// Errors: not_permitted (captures are announced, and this one was not), driver errors.
  [[nodiscard]] status check_announced(stream_handle stream)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Errors: not_permitted (the capture was invalidated, or the options refuse it).
  [[nodiscard]] status check_allowed(const capture_info& seen) const;
  /// The number of the capture that the stream is in. Errors: invalid_argument (it is in none),
  /// not_supported, driver errors.
  [[nodiscard]] result<std::uint64_t> number(stream_handle stream)
      VMM_EXCLUDES(rank::events, rank::state);

  // ---- captures that a call has seen, and that were not announced ----
  void note_seen(stream_handle stream, std::uint64_t id) VMM_EXCLUDES(rank::events);
  void note_uncaptured(stream_handle stream) VMM_EXCLUDES(rank::events);
  void end_seen(std::uint64_t id) VMM_EXCLUDES(rank::events);

  // ---- captures that are announced ----
  void begin() VMM_EXCLUDES(rank::events);
  /// Errors: invalid_argument (none was announced).
  [[nodiscard]] status end() VMM_EXCLUDES(rank::events);
  [[nodiscard]] std::uint32_t announced_count() const VMM_EXCLUDES(rank::events);

  // ---- events behind all work ----
  [[nodiscard]] events_lock& lock() noexcept { return lock_; }
  /// Checks that such an event invalidates no capture: through the default stream, of all streams
  /// that synchronise with it; if streams may be named, of the known ones. A capture that a call
  /// has detected defers events as an announced one does, except if memory is short, since its end
  /// may never be detected. `own`: the stream that the call names. Errors: not_permitted (it would
  /// invalidate one), driver errors.
  [[nodiscard]] status check_none_captured(stream_handle own) VMM_REQUIRES(rank::events)
      VMM_EXCLUDES(rank::state);
  /// Checks that an event can be recorded for everything that was freed: on a captured stream none
  /// can be, and waiting for it would take others into its graph.
  [[nodiscard]] bool may_record_all() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);
  /// Errors: in_use (a stream that uses the memory is being captured), driver errors.
  [[nodiscard]] status check_no_use() VMM_REQUIRES(rank::growth)
      VMM_EXCLUDES(rank::events, rank::state);

  /// While it exists, the call that holds the lock of growth fails without an event of all work.
  class pressing {
   public:
    explicit pressing(capture_watch& of) noexcept VMM_REQUIRES(rank::growth)
        : is_pressing_(of.is_pressing_) {
      check(!is_pressing_.load(std::memory_order_relaxed),
            "two calls force a recorded event at once");
      is_pressing_.store(true, std::memory_order_relaxed);
    }
    ~pressing() { is_pressing_.store(false, std::memory_order_relaxed); }
    pressing(const pressing&) = delete;
    pressing& operator=(const pressing&) = delete;

   private:
    sync::atomic<bool>& is_pressing_;
  };

 private:
  struct seen_capture {
    stream_handle stream{};
    std::uint64_t id = 0;
  };

  [[nodiscard]] status check_known() VMM_REQUIRES(rank::events) VMM_EXCLUDES(rank::state);
  [[nodiscard]] status check_unused(stream_handle stream) VMM_EXCLUDES(rank::state);
  void publish_seen() VMM_REQUIRES(rank::events) {
    has_seen_.store(!seen_.empty(), std::memory_order_relaxed);
  }

  driver_interface& driver_;
  const pool_options& options_;
  const call_path& path_;
  pool_gate& gate_;
  state_cell& state_;
  growth_entry& entry_;
  mutable events_lock lock_;
  std::uint32_t announced_count_ VMM_GUARDED_BY(rank::events) = 0;
  std::vector<seen_capture> seen_ VMM_GUARDED_BY(rank::events);  // whose ends were not detected
  sync::atomic<bool> has_seen_ = false;
  sync::atomic<bool> is_pressing_ = false;
};

}  // namespace vmm
