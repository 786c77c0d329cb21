// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_MODE=vmm: the objects of the process, and the operations on all of them: the end of a
// context, of a stream, and the check of every invariant. Each object uses those above it in
// process_state.
//
// - Nothing here is destroyed at the end of the process.
// - Addresses outside of the library's live blocks are passed to the driver, except those inside
//   its reservations, which the driver does not have.
// - No call of the library disturbs a capture in progress.
//
// Thread safety: all of it.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include "abi.h"
#include "all_work_events.h"
#include "captures.h"
#include "contexts.h"
#include "device_pools.h"
#include "driver_calls.h"
#include "live_blocks.h"
#include "locks.h"
#include "violation.h"
#include "waiting_frees.h"

namespace vmm::preload::managed {

struct process_state {
  process_state() noexcept { cu.find(); }

  driver_calls cu;
  reserved_ranges ranges;
  context_table contexts{cu};
  capture_list captures{cu, contexts};
  all_work_events events{cu, contexts, captures};
  live_blocks blocks;
  device_table devices{cu, contexts, {cu, ranges, events, captures, blocks}};
};

[[nodiscard]] process_state& process() noexcept;

/// Called before a stream is destroyed.
void forget(stream_id stream) noexcept VMM_EXCLUDES(locks::gate);

/// While it exists the driver may end a context: no other call of the library is in progress.
class VMM_SCOPED_CAPABILITY context_end_guard {
 public:
  context_end_guard() noexcept VMM_ACQUIRE(locks::gate, locks::ending);
  ~context_end_guard() VMM_RELEASE();
  context_end_guard(const context_end_guard&) = delete;
  context_end_guard& operator=(const context_end_guard&) = delete;

  /// A device's primary context; null if it is not active.
  [[nodiscard]] context_id primary_context(device_id device) const noexcept;
};

/// The driver has ended the context, with its blocks. Null: no effect.
void note_ended(context_id gone) noexcept VMM_REQUIRES(locks::gate, locks::ending);

/// Waits for all work of a context; while it lives no capture begins.
class VMM_SCOPED_CAPABILITY idle_guard {
 public:
  explicit idle_guard(context_id context) noexcept VMM_ACQUIRE_SHARED(locks::gate);
  ~idle_guard() VMM_RELEASE();
  idle_guard(const idle_guard&) = delete;
  idle_guard& operator=(const idle_guard&) = delete;

  /// False: a stream of the process is captured, and the work was not waited for.
  [[nodiscard]] bool is_idle() const noexcept { return is_idle_; }

 private:
  bool is_idle_ = false;
};

/// Checks every invariant of every object. Returns null, or the broken one. Waits for calls in
/// progress. Throws std::bad_alloc.
[[nodiscard]] const char* find_broken() VMM_EXCLUDES(locks::gate);

}  // namespace vmm::preload::managed
