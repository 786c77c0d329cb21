// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The freed blocks of one device that work may still use.
//
// cuMemFree promises that the memory is not used again before all work of the device, and of those
// that may use its memory, has finished. Here the caller does not wait for that: the block waits
// behind events (all_work_events), or, while a stream is captured, without any until captures have
// ended. The pool's own device-wide free is not used: when memory is short it returns such memory
// behind a wait on one stream, and the program's other streams would not wait.
//
// I1  A block is freed to its allocator once, and only after its points have passed.
// I2  The bytes are those that the blocks which wait hold.
//
// A free takes no host memory. A block that its allocator cannot take back for lack of host memory
// waits for the next call.
//
// Locks: that of the pending frees, inside all others. Waits are outside of the gate.
// Thread safety: all of it. Cost: a free an event for each context that may use the memory;
// collect() a load where no block waits, else queries of the oldest few.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <atomic>
#include <cstdint>

#include "all_work_events.h"
#include "captures.h"
#include "live_blocks.h"
#include "locks.h"

import vmm.timeline;

namespace vmm::preload::managed {

class waiting_frees {
 public:
  waiting_frees(device_pools& device, all_work_events& events, const capture_list& captures,
                const live_blocks& live) noexcept
      : device_(device), events_(events), captures_(captures), live_(live) {}
  waiting_frees(const waiting_frees&) = delete;
  waiting_frees& operator=(const waiting_frees&) = delete;

  /// Frees a block behind all work that may use it. Without an event behind all work, and where
  /// VMM_FREE=wait, the caller waits.
  void free(pending_blocks::owner&& one) noexcept VMM_REQUIRES_SHARED(locks::gate);
  /// Frees a block behind the work of a stream; behind all work where that cannot be recorded.
  void free(pending_blocks::owner&& one, stream_name stream) noexcept
      VMM_REQUIRES_SHARED(locks::gate);
  /// Frees the blocks whose points have passed, and records the points of those that wait for
  /// captures to end. Has no effect during a capture.
  void collect() noexcept VMM_REQUIRES_SHARED(locks::gate);
  /// Frees a block that no work uses to its allocator.
  void hand_back(pending_blocks::owner&& one) noexcept;

  /// Waits for the block that was freed first, as the driver's cuMemFree does. False: it has no
  /// points yet.
  [[nodiscard]] bool wait_for_oldest() noexcept VMM_REQUIRES_SHARED(locks::gate);
  /// Waits for all pending blocks. False: none has points.
  [[nodiscard]] bool wait_for_all() noexcept VMM_REQUIRES_SHARED(locks::gate);

  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }
  /// The context and its work have ended: ends every wait of a block for it.
  void forget_context(context_id gone) noexcept;
  /// Null, or the invariant that does not hold. Requires: no other call is in progress.
  [[nodiscard]] const char* find_broken() const;

 private:
  void free_behind_all(pending_blocks::owner&& one) noexcept VMM_REQUIRES_SHARED(locks::gate);
  // The block waits for its points.
  void push(pending_blocks::owner&& one) noexcept;
  // The block has no points: collect() frees it anew, where it does anything.
  void leave_to_collect(pending_blocks::owner&& one) noexcept;
  void count_taken(const pending_blocks::owner& one) noexcept;

  device_pools& device_;
  all_work_events& events_;
  const capture_list& captures_;
  const live_blocks& live_;
  std::atomic<bool> has_pending_ = false;
  pending_blocks list_{has_pending_};
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace vmm::preload::managed
