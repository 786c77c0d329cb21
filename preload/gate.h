// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Who may touch the device's work, and when no capture may begin.
//
// A call of ours that marks, asks or unmaps shares the gate for as long as it does; a capture that
// is about to begin, and whoever ends a context, have it alone. So a call that saw no capture under
// way goes on in a process where there is none. Nobody waits for work of a device while sharing it:
// that work may itself wait for a thread that begins a capture.
//
// I1  A thread shares it once at a time: one that waits for it alone is let in before others.
//
// Thread safety: what it is for. Cost: two atomic operations, where nobody waits.
#pragma once

#include <pthread.h>

#include <shared_mutex>

namespace vmm::preload::managed {

/// Satisfies what std::shared_lock and std::unique_lock need.
class capture_gate {
 public:
  capture_gate() noexcept {
    pthread_rwlockattr_t how;
    (void)pthread_rwlockattr_init(&how);
    // Those who share it may be many: the one that begins a capture must not wait for all of them.
    (void)pthread_rwlockattr_setkind_np(&how, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    (void)pthread_rwlock_init(&lock_, &how);
    (void)pthread_rwlockattr_destroy(&how);
  }
  capture_gate(const capture_gate&) = delete;
  capture_gate& operator=(const capture_gate&) = delete;

  void lock() noexcept { (void)pthread_rwlock_wrlock(&lock_); }
  void unlock() noexcept { (void)pthread_rwlock_unlock(&lock_); }
  void lock_shared() noexcept { (void)pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() noexcept { (void)pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

/// A call's part in it.
using shared_turn = std::shared_lock<capture_gate>;

}  // namespace vmm::preload::managed
