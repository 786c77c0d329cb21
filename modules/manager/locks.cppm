// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager:locks - the ranks of a manager's locks, and their guards. Not exported.
//
// A rank stands for one lock of every manager, as in vmm.stream:locks. The lock of a growable range
// comes between `peers` and `growable`, those of an engine's parts after `events`.
//
// Locks are taken in the order of their ranks, outermost first: change, peers, growable, recovery,
// release, history, events. The compiler checks that.
//
// Thread safety: all of it. Cost: that of the locks.
module;
#include "../base/thread_annotations.h"

export module vmm.manager:locks;

import vmm.base;
import vmm.std;

namespace vmm {

class VMM_CAPABILITY("rank") manager_rank {};

namespace manager_lock {

inline manager_rank events;                                  // an event is written
inline manager_rank history VMM_ACQUIRED_BEFORE(events);     // from taking a history to its end
inline manager_rank release VMM_ACQUIRED_BEFORE(history);    // memory is released to the driver
inline manager_rank recovery VMM_ACQUIRED_BEFORE(release);   // memory is short
inline manager_rank growable VMM_ACQUIRED_BEFORE(recovery);  // rooms change, or all get rights
inline manager_rank peers VMM_ACQUIRED_BEFORE(growable);     // all blocks get rights
inline manager_rank change VMM_ACQUIRED_BEFORE(peers);       // all memory is suspended or resumed

}  // namespace manager_lock

/// For lambdas that are called while the caller holds the lock, and between begin and end of a
/// suspension. Effects: none.
inline void assume_locked(const manager_rank& rank) noexcept VMM_ASSERT_HELD(rank) { (void)rank; }

/// Holds a lock of this rank for its life.
template <class Lock>
class VMM_SCOPED_CAPABILITY rank_guard {
 public:
  rank_guard(manager_rank& rank, Lock& lock) noexcept VMM_ACQUIRE(rank) : lock_(lock) {
    (void)rank;
    lock_.lock();
  }
  ~rank_guard() VMM_RELEASE() { lock_.unlock(); }
  rank_guard(const rank_guard&) = delete;
  rank_guard& operator=(const rank_guard&) = delete;

 private:
  Lock& lock_;
};

/// Holds it together with other readers.
class VMM_SCOPED_CAPABILITY rank_share {
 public:
  rank_share(manager_rank& rank, sync::shared_mutex& lock) noexcept VMM_ACQUIRE_SHARED(rank)
      : lock_(lock) {
    (void)rank;
    lock_.lock_shared();
  }
  ~rank_share() VMM_RELEASE() { lock_.unlock_shared(); }
  rank_share(const rank_share&) = delete;
  rank_share& operator=(const rank_share&) = delete;

 private:
  sync::shared_mutex& lock_;
};

}  // namespace vmm
