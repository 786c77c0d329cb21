// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:locks - the ranks of a pool's locks, the locks and their guards. Not exported.
//
// A rank stands for one lock of every pool. It is one object of the program, so that the compiler's
// analysis follows it from class to class, which it cannot do for a member. A function that needs a
// lock has VMM_REQUIRES(rank::growth); one that takes a lock, or calls the driver, has
// VMM_EXCLUDES(rank::state). A missing guard, a lock that is held twice and a lock that is taken
// out of order do not compile.
//
// Locks are taken in the order of their ranks, outermost first: change, observer, growth, notices,
// release, events, history, state, arena. No driver call and no callback is made under the ranks of
// state and arena.
//
// The analysis sees no held lock in the body of a lambda: if a function holds a lock and calls the
// lambda before it returns, the lambda begins with assume_locked().
//
// Thread safety: all of it. Cost: that of the locks.
module;
#include "../base/thread_annotations.h"

export module vmm.stream:locks;

import vmm.base;
import vmm.optimizer;
import vmm.std;

namespace vmm {

class VMM_CAPABILITY("rank") lock_rank {};

namespace rank {

inline lock_rank arena;                                 // one arena's
inline lock_rank state VMM_ACQUIRED_BEFORE(arena);      // tens of nanoseconds
inline lock_rank history VMM_ACQUIRED_BEFORE(state);    // from taking a history to its end
inline lock_rank events VMM_ACQUIRED_BEFORE(history);   // an event behind all work is recorded
inline lock_rank release VMM_ACQUIRED_BEFORE(events);   // memory is released to the driver
inline lock_rank notices VMM_ACQUIRED_BEFORE(release);  // remap callbacks run
inline lock_rank growth VMM_ACQUIRED_BEFORE(notices);   // the driver is called for memory
inline lock_rank observer VMM_ACQUIRED_BEFORE(growth);  // an observed call
inline lock_rank change VMM_ACQUIRED_BEFORE(observer);  // a suspension; blocks that are filled

}  // namespace rank

/// For lambdas that are called while the caller holds the lock. Effects: none.
inline void assume_locked(const lock_rank& locked) noexcept VMM_ASSERT_HELD(locked) {
  (void)locked;
}

// ---- locks -------------------------------------------------------------------------------

/// A number that no other running thread has; not 0.
[[nodiscard]] std::uint64_t this_thread() noexcept;

class arena_lock : public sync::spin_lock {};
class events_lock : public sync::mutex {};
class release_lock : public sync::mutex {};
class notices_lock : public sync::mutex {};

/// Passed on in nearly the order of requests: the thread that waits for the second mutex has the
/// first. A thread that takes the lock again and again, as one that prepares or trims does, gets it
/// once more at most before one that waits.
class growth_lock {
 public:
  growth_lock() = default;
  growth_lock(const growth_lock&) = delete;
  growth_lock& operator=(const growth_lock&) = delete;
  inline void lock() noexcept VMM_NOT_ANALYSED {
    next_.lock();
    growing_.lock();
    next_.unlock();
  }
  inline void unlock() noexcept VMM_NOT_ANALYSED { growing_.unlock(); }

 private:
  sync::watched_mutex next_;
  sync::watched_mutex growing_;
};

/// Passed on as growth_lock is. Its holder may take it again: a thread that allocates or trims has
/// it while remap callbacks run on that thread, and a callback may free.
class observer_lock {
 public:
  observer_lock() = default;
  observer_lock(const observer_lock&) = delete;
  observer_lock& operator=(const observer_lock&) = delete;
  void lock() noexcept;
  void unlock() noexcept;

 private:
  growth_lock turns_;
  sync::atomic<std::uint64_t> holder_ = 0;  // the thread: each finds its own number, or another
  std::uint32_t depth_ = 0;                 // under turns_
};

// ---- guards ------------------------------------------------------------------------------

/// Holds the lock for its life, if it is not null. A guard adds the rank.
template <class Lock>
class lock_scope {
 public:
  lock_scope(const lock_scope&) = delete;
  lock_scope& operator=(const lock_scope&) = delete;
  inline explicit lock_scope(Lock* lock) noexcept : lock_(lock) {
    if (lock_ != nullptr) lock_->lock();
  }
  inline ~lock_scope() {
    if (lock_ != nullptr) lock_->unlock();
  }

 private:
  Lock* const lock_;
};

class VMM_SCOPED_CAPABILITY arena_guard : lock_scope<arena_lock> {
 public:
  inline explicit arena_guard(arena_lock& lock) noexcept VMM_ACQUIRE(rank::arena)
      : lock_scope(&lock) {}
  inline ~arena_guard() VMM_RELEASE() {}
};

class VMM_SCOPED_CAPABILITY history_guard : lock_scope<sync::mutex> {
 public:
  inline explicit history_guard(sync::mutex& lock) noexcept VMM_ACQUIRE(rank::history)
      : lock_scope(&lock) {}
  inline ~history_guard() VMM_RELEASE() {}
};

class VMM_SCOPED_CAPABILITY events_guard : lock_scope<events_lock> {
 public:
  inline explicit events_guard(events_lock& lock) noexcept VMM_ACQUIRE(rank::events)
      : lock_scope(&lock) {}
  inline ~events_guard() VMM_RELEASE() {}
};

class VMM_SCOPED_CAPABILITY release_guard : lock_scope<release_lock> {
 public:
  inline explicit release_guard(release_lock& lock) noexcept VMM_ACQUIRE(rank::release)
      : lock_scope(&lock) {}
  inline ~release_guard() VMM_RELEASE() {}
};

class VMM_SCOPED_CAPABILITY notices_guard : lock_scope<notices_lock> {
 public:
  inline explicit notices_guard(notices_lock& lock) noexcept VMM_ACQUIRE(rank::notices)
      : lock_scope(&lock) {}
  inline ~notices_guard() VMM_RELEASE() {}
};

/// Holds the lock of the phases. Null in a remap callback, whose thread holds the lock of growth,
/// which every suspension needs.
class VMM_SCOPED_CAPABILITY change_guard : public beside_change {
 public:
  inline explicit change_guard(suspension_phases* phases) noexcept VMM_ACQUIRE(rank::change)
      : beside_change(phases) {}
  inline ~change_guard() VMM_RELEASE() {}
};

}  // namespace vmm
