// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The gate between calls that touch device work and captures that begin.
//
// A call of ours that records, queries or unmaps shares the gate meanwhile; a capture that is about
// to begin, and the end of a context, take it exclusively. So if a call saw no capture in progress,
// none begins during the call. A thread that shares the gate never waits for device work: that work
// may itself wait for a thread that begins a capture.
//
// I1  A thread shares it once at a time: one that waits for it exclusively has priority.
//
// Thread safety: all of it. Cost: two atomic operations without contention.
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
    // Many threads may share it: the one that begins a capture must not wait for all of them.
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
