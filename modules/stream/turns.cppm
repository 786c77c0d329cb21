// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:turns - what a call of a pool has for as long as it may call the driver. Not exported.
//
// I1  Whoever may call the driver for memory, or a remap callback, has a growth_turn, but for the
//     destructor, which is alone.
// I2  A growth_turn takes the watcher's lock, that of growth and the capture mode, in this order,
//     the only one in which they are taken. The watcher's comes first since a watched allocation
//     has it when it turns out to have to grow; and since a remap callback, which runs under the
//     lock of growth, may free and so take the watcher's, which its thread has then.
//
// I3  While a thread has a turn it relieves no other allocator (vmm.optimizer:relief).
//
// Thread safety: what it is for. Cost: that of the locks; the capture mode is two driver calls on
// backends that can capture.
module;
#include "../sync/thread_annotations.h"

export module vmm.stream:turns;

import vmm.backend;
import vmm.optimizer;
import vmm.std;
import vmm.support;
import vmm.sync;
import :guarded;
import :notices;

namespace vmm {

// For its life the calling thread's driver calls do not disturb captures that are under way.
class undisturbed {
 public:
  undisturbed(driver_interface& driver, bool watches) : driver_(driver), watches_(watches) {
    if (watches_) before_ = driver_.exchange_capture_mode(capture_mode::relaxed);
  }
  ~undisturbed() {
    if (watches_) (void)driver_.exchange_capture_mode(before_);
  }
  undisturbed(const undisturbed&) = delete;
  undisturbed& operator=(const undisturbed&) = delete;

 private:
  driver_interface& driver_;
  bool watches_;
  capture_mode before_ = capture_mode::any_thread;
};

// Where there is a watcher, one thread at a time. A thread that has it may take it again.
class watched_turn {
 public:
  // Null where there is none.
  explicit watched_turn(watcher_lock* lock) VMM_NOT_ANALYSED : lock_(lock) {
    if (lock_ != nullptr) [[unlikely]]
      lock_->lock();
  }
  ~watched_turn() VMM_NOT_ANALYSED {
    if (lock_ != nullptr) [[unlikely]]
      lock_->unlock();
  }
  watched_turn(const watched_turn&) = delete;
  watched_turn& operator=(const watched_turn&) = delete;

 private:
  const relief_pause pause_;
  watcher_lock* lock_;
};

// For its life, and under the lock of growth, a stream that the call names.
class named_stream {
 public:
  named_stream(stream_handle& named, stream_handle stream) noexcept : named_(named) {
    check(named_ == stream_handle::default_stream, "two calls name a stream at a time");
    named_ = stream;
  }
  ~named_stream() { named_ = stream_handle::default_stream; }
  named_stream(const named_stream&) = delete;
  named_stream& operator=(const named_stream&) = delete;

 private:
  stream_handle& named_;
};

// For its life, and under the lock of growth, a call fails without an event of all work.
class pressing_turn {
 public:
  explicit pressing_turn(sync::atomic<bool>& is_pressing) noexcept : is_pressing_(is_pressing) {
    check(!is_pressing_.load(std::memory_order_relaxed), "two calls press at a time");
    is_pressing_.store(true, std::memory_order_relaxed);
  }
  ~pressing_turn() { is_pressing_.store(false, std::memory_order_relaxed); }
  pressing_turn(const pressing_turn&) = delete;
  pressing_turn& operator=(const pressing_turn&) = delete;

 private:
  sync::atomic<bool>& is_pressing_;
};

// A remap callback must not come here: that ends the process.
class growth_turn {
 public:
  struct way_in {
    const remap_board& board;
    watcher_lock* watcher;  // null where there is none
    growth_lock& growth;
    driver_interface& driver;
    bool watches_capture;
  };
  explicit growth_turn(const way_in& to)
      : watched_(not_in_callback(to)),
        growing_(to.growth),
        capture_(to.driver, to.watches_capture) {}
  growth_turn(const growth_turn&) = delete;
  growth_turn& operator=(const growth_turn&) = delete;

 private:
  [[nodiscard]] static watcher_lock* not_in_callback(const way_in& to) {
    to.board.check_not_telling();
    return to.watcher;
  }

  watched_turn watched_;
  sync::lock_guard<growth_lock> growing_;
  undisturbed capture_;
};

}  // namespace vmm
