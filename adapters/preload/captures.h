// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Stream captures of the process: announced before they begin, so that no event behind all work is
// recorded beside one.
//
// I1  A capture is in the list from before it begins to after it ends. If the host has no memory
// for the list, captures count as in progress until the process ends.
//
// Lock: captures; begin() takes the gate alone first. Thread safety: all of it. Cost: is_any() two
// loads.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <vector>

#include "abi.h"
#include "contexts.h"
#include "driver_calls.h"
#include "locks.h"

namespace vmm::preload::managed {

class capture_list {
 public:
  capture_list(const driver_calls& cu, context_table& known) noexcept : cu_(cu), contexts_(known) {}
  capture_list(const capture_list&) = delete;
  capture_list& operator=(const capture_list&) = delete;

  [[nodiscard]] bool is_any() const noexcept {
    return count_.load(std::memory_order_acquire) != 0 ||
           has_lost_count_.load(std::memory_order_relaxed);
  }
  /// Whether the stream is being captured; true if the driver does not have it.
  [[nodiscard]] bool is_captured(stream_name name) const noexcept;

  /// A capture is about to begin on the stream. Effects: waits for events that are being recorded.
  void begin(stream_name stream) noexcept VMM_EXCLUDES(locks::gate, locks::captures);
  /// The driver refused it.
  void refuse(stream_name stream) noexcept VMM_EXCLUDES(locks::captures);
  /// The capture on the stream may have ended.
  void end(stream_name stream) noexcept VMM_EXCLUDES(locks::captures);
  void forget(stream_id stream) noexcept VMM_EXCLUDES(locks::captures);
  void forget_context(context_id gone) noexcept VMM_EXCLUDES(locks::captures);

  /// Null, or the invariant that does not hold.
  [[nodiscard]] const char* find_broken() const noexcept VMM_EXCLUDES(locks::captures);

 private:
  struct captured_stream {
    stream_id stream = nullptr;
    pthread_t thread{};  // of a per-thread stream
    bool per_thread = false;
    context_id context = nullptr;
  };
  [[nodiscard]] static bool is_on(const captured_stream& capture, stream_name stream) noexcept;
  template <class IsGone>
  void erase_if(IsGone&& is_gone) noexcept;

  const driver_calls& cu_;
  context_table& contexts_;
  std::vector<captured_stream> list_ VMM_GUARDED_BY(locks::captures);
  std::atomic<std::size_t> count_ = 0;
  std::atomic<bool> has_lost_count_ = false;
};

/// While it exists, driver calls of the calling thread neither disturb captures nor fail because of
/// them. vmm's own relaxed_capture works through a driver object, which does not exist yet when a
/// device is opened, and is not one's own context when a peer's event is recorded.
class relaxed_thread {
 public:
  explicit relaxed_thread(const driver_calls& cu) noexcept : exchange_(cu.exchange_capture_mode) {
    if (exchange_ != nullptr) (void)exchange_(&mode_);
  }
  ~relaxed_thread() {
    if (exchange_ != nullptr) (void)exchange_(&mode_);
  }
  relaxed_thread(const relaxed_thread&) = delete;
  relaxed_thread& operator=(const relaxed_thread&) = delete;

 private:
  result_code (*const exchange_)(int*);
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the mode before
};

}  // namespace vmm::preload::managed
