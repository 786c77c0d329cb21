// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The capture gate: no capture begins while a call of the library records, queries or unmaps.
//
// Such a call shares the gate for its duration. The begin of a capture and the end of a context
// take it alone. So a call that finds no capture in progress runs to its end without one. No thread
// waits for work of a device while it shares the gate: that work may wait for a thread that begins
// a capture.
//
// A thread shares the gate once at a time, which the compiler's lock analysis checks: a thread that
// waits to take it alone has priority.
//
// Thread safety: all of it. Cost: two atomic operations without contention.
#pragma once

#include <pthread.h>

#include "../../modules/base/thread_annotations.h"

namespace vmm::preload::managed {

class VMM_CAPABILITY("gate") capture_gate {
 public:
  constexpr capture_gate() = default;
  capture_gate(const capture_gate&) = delete;
  capture_gate& operator=(const capture_gate&) = delete;

  void lock() noexcept VMM_ACQUIRE() { (void)pthread_rwlock_wrlock(&lock_); }
  void unlock() noexcept VMM_RELEASE() { (void)pthread_rwlock_unlock(&lock_); }
  void lock_shared() noexcept VMM_ACQUIRE_SHARED() { (void)pthread_rwlock_rdlock(&lock_); }
  [[nodiscard]] bool try_lock_shared() noexcept
      VMM_THREAD_ATTRIBUTE(try_acquire_shared_capability(true)) {
    return pthread_rwlock_tryrdlock(&lock_) == 0;
  }
  void unlock_shared() noexcept VMM_RELEASE_SHARED() { (void)pthread_rwlock_unlock(&lock_); }

 private:
  // Many threads may share it: one that begins a capture must not wait for all of them.
  pthread_rwlock_t lock_ = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
};

/// Shares the gate for its life.
class VMM_SCOPED_CAPABILITY gate_guard {
 public:
  explicit gate_guard(capture_gate& gate) noexcept VMM_ACQUIRE_SHARED(gate) : gate_(gate) {
    gate_.lock_shared();
  }
  ~gate_guard() VMM_RELEASE() { gate_.unlock_shared(); }
  gate_guard(const gate_guard&) = delete;
  gate_guard& operator=(const gate_guard&) = delete;

 private:
  capture_gate& gate_;
};

}  // namespace vmm::preload::managed
