// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:growth_entry - the locks of a pool's call while it may call the driver. Not exported.
//
// I1  A thread that calls the driver for memory, or a remap callback, has a growth_guard, except
//     the destructor, which is alone (ending_guard).
//
// A growth_guard takes the observer's lock, that of growth and the capture mode, always in this
// order. The observer's comes first because an observed allocation already holds it when it has to
// grow; and because a remap callback, which runs under the lock of growth, may free and so take the
// observer's, which its thread then holds. While a thread has a growth_guard it relieves no other
// allocator (vmm.optimizer:relief).
//
// Thread safety: all of it. Cost: that of the locks; the capture mode is two driver calls on
// backends that can capture.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:growth_entry;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import :call_path;
import :locks;
import :notifier;

namespace vmm {

/// The data of a call of a pool.
struct growth_entry_options {
  bool is_observed = false;
  bool watches_capture = false;
  bool names_streams = false;  ///< in any call: those that are known have not been destroyed
  bool covers_all = false;     ///< events are recorded behind all work
};

/// The locks of observer and growth of one pool, and the stream that the call inside names.
class growth_entry {
 public:
  growth_entry(driver_interface& driver, const notifier& notices,
               const growth_entry_options& options) noexcept
      : driver_(driver), notices_(notices), options_(options) {}
  growth_entry(const growth_entry&) = delete;
  growth_entry& operator=(const growth_entry&) = delete;

  [[nodiscard]] bool names_streams() const noexcept { return options_.names_streams; }
  /// The stream that the call names; else the default stream.
  [[nodiscard]] stream_handle named() const noexcept VMM_REQUIRES(rank::growth) { return named_; }
  /// Whether the stream may be passed to the driver: it may have been destroyed since its last
  /// call.
  [[nodiscard]] bool may_name(stream_handle stream) const noexcept VMM_REQUIRES(rank::growth) {
    return names_streams() || stream == stream_handle::default_stream || stream == named_;
  }
  /// Whether an event on the stream covers its freed memory; else one behind all work does.
  [[nodiscard]] bool has_own_event(stream_handle stream) const noexcept VMM_REQUIRES(rank::growth) {
    return may_name(stream) && !options_.covers_all;
  }

 private:
  friend class growth_guard;
  friend class named_stream;
  friend class observer_guard;

  // Null without an observer.
  [[nodiscard]] observer_lock* observer() noexcept {
    return options_.is_observed ? &observer_lock_ : nullptr;
  }
  // A remap callback must not construct one: that ends the process.
  [[nodiscard]] growth_entry& outside_callbacks() noexcept {
    notices_.check_not_in_callback();
    return *this;
  }

  driver_interface& driver_;
  const notifier& notices_;
  const growth_entry_options options_;
  observer_lock observer_lock_;
  growth_lock growth_lock_;
  stream_handle named_ VMM_GUARDED_BY(rank::growth) = stream_handle::default_stream;
};

/// With an observer one thread at a time; a thread that holds it may take it again. Without one: no
/// lock.
class VMM_SCOPED_CAPABILITY observer_guard : lock_scope<observer_lock> {
 public:
  explicit observer_guard(growth_entry& entry) VMM_ACQUIRE(rank::observer)
      : lock_scope(entry.observer()) {}
  ~observer_guard() VMM_RELEASE() {}

 private:
  const relief_pause pause_;
};

/// A remap callback must not take it: that ends the process.
class VMM_SCOPED_CAPABILITY growth_guard {
 public:
  explicit growth_guard(growth_entry& entry) VMM_ACQUIRE(rank::growth)
      : observed_(entry.outside_callbacks()),
        growing_(&entry.growth_lock_),
        capture_(entry.driver_, entry.options_.watches_capture) {}
  ~growth_guard() VMM_RELEASE() {}

 private:
  observer_guard observed_;
  lock_scope<growth_lock> growing_;
  relaxed_capture capture_;
};

/// For the destructor, which runs without other threads: takes no lock.
class VMM_SCOPED_CAPABILITY ending_guard {
 public:
  explicit ending_guard(const pool_gate& gate) VMM_ACQUIRE(rank::growth) {
    check(gate.is_closed_by(gate_reason::goes_away),
          "I1: a pool in use is handled as one that ends");
  }
  ~ending_guard() VMM_RELEASE() {}
  ending_guard(const ending_guard&) = delete;
  ending_guard& operator=(const ending_guard&) = delete;
};

// For its life, a stream that the call names.
class named_stream {
 public:
  named_stream(growth_entry& entry, stream_handle stream) noexcept VMM_REQUIRES(rank::growth)
      : named_(entry.named_) {
    check(named_ == stream_handle::default_stream, "two calls name a stream at once");
    named_ = stream;
  }
  ~named_stream() { named_ = stream_handle::default_stream; }
  named_stream(const named_stream&) = delete;
  named_stream& operator=(const named_stream&) = delete;

 private:
  stream_handle& named_;
};

}  // namespace vmm
