// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base:sync - the locks and atomics that every layer above shares.
//
// Those of the standard library, and a spin lock, with annotations for Clang's thread-safety
// analysis. In builds with VMM_SCHEDULE_POINTS each operation is announced to an observer, which
// may delay the calling thread, so a test can decide which thread runs next. In other builds each
// operation is the standard library's, inlined.
//
// - A lock is announced before it is taken, an unlock after the lock is free. Under an observer
//   that runs one thread at a time, and never one that needs a held lock, no thread waits.
// - An atomic operation is announced before it happens.
//
// Thread safety: all of it; set_schedule_observer() while no other thread uses any of it.
module;
#include "thread_annotations.h"

export module vmm.base:sync;

import vmm.std;
import :support;

namespace vmm::sync {

/// Whether locks and atomics announce their operations.
export inline constexpr bool has_schedule_points = VMM_SCHEDULE_POINTS != 0;

/// The operation that a thread is about to perform, or, for unlocks, has performed.
export enum class step : std::uint8_t {
  lock,
  lock_again,  ///< of a recursive mutex: its holder may lock it again
  lock_shared,
  unlock,
  unlock_shared,
  load,
  store,
  change,  ///< of an atomic: read and written in one
};

/// Called at every step of every thread, on that thread, in builds with schedule points.
export class schedule_observer {
 public:
  /// `object` is the lock or the atomic. May hold the calling thread back.
  virtual void reach(step what, const void* object) noexcept = 0;

 protected:
  schedule_observer() = default;
  ~schedule_observer() = default;
  schedule_observer(const schedule_observer&) = default;
  schedule_observer& operator=(const schedule_observer&) = default;
};

/// Null: no observer. Without schedule points it is never called. Returns the previous one.
export schedule_observer* set_schedule_observer(schedule_observer* observer) noexcept;

void announce(step what, const void* object) noexcept;

inline void reach(step what, const void* object) noexcept {
  if constexpr (has_schedule_points) {
    announce(what, object);
  } else {
    (void)what;
    (void)object;
  }
}

/// std::mutex.
export class VMM_CAPABILITY("mutex") mutex {
 public:
  mutex() = default;
  mutex(const mutex&) = delete;
  mutex& operator=(const mutex&) = delete;

  inline void lock() noexcept VMM_ACQUIRE() {
    reach(step::lock, this);
    mutex_.lock();
  }
  /// Takes the lock if it is free, and returns whether it did. Announced as lock() is.
  [[nodiscard]] inline bool try_lock() noexcept VMM_TRY_ACQUIRE(true) {
    reach(step::lock, this);
    return mutex_.try_lock();
  }
  inline void unlock() noexcept VMM_RELEASE() {
    mutex_.unlock();
    reach(step::unlock, this);
  }

 private:
  std::mutex mutex_;
};

/// For lambdas that are called while the caller holds the lock. Effects: none.
export template <class Lock>
inline void assume_locked(const Lock& lock) noexcept VMM_ASSERT_HELD(lock) {
  (void)lock;
}

/// std::mutex for critical sections that usually take a microsecond and may take long: a thread
/// that finds it held spins for about the time of a sleep and a wake-up, and then sleeps.
export class VMM_CAPABILITY("mutex") watched_mutex {
 public:
  watched_mutex() = default;
  watched_mutex(const watched_mutex&) = delete;
  watched_mutex& operator=(const watched_mutex&) = delete;

  inline void lock() noexcept VMM_ACQUIRE() {
    reach(step::lock, this);
    if (!mutex_.try_lock()) [[unlikely]]
      lock_slowly();
    is_locked_.store(true, std::memory_order_relaxed);
  }
  inline void unlock() noexcept VMM_RELEASE() {
    is_locked_.store(false, std::memory_order_relaxed);
    mutex_.unlock();
    reach(step::unlock, this);
  }

 private:
  void lock_slowly() noexcept;

  std::mutex mutex_;
  std::atomic<bool> is_locked_ = false;  // for observers: may be late
};

/// std::recursive_mutex. Each unlock is announced, the last one like the others.
export class VMM_CAPABILITY("mutex") recursive_mutex {
 public:
  recursive_mutex() = default;
  recursive_mutex(const recursive_mutex&) = delete;
  recursive_mutex& operator=(const recursive_mutex&) = delete;

  inline void lock() noexcept VMM_ACQUIRE() {
    reach(step::lock_again, this);
    mutex_.lock();
  }
  [[nodiscard]] inline bool try_lock() noexcept VMM_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  inline void unlock() noexcept VMM_RELEASE() {
    mutex_.unlock();
    reach(step::unlock, this);
  }

 private:
  std::recursive_mutex mutex_;
};

/// std::shared_mutex.
export class VMM_CAPABILITY("shared_mutex") shared_mutex {
 public:
  shared_mutex() = default;
  shared_mutex(const shared_mutex&) = delete;
  shared_mutex& operator=(const shared_mutex&) = delete;

  inline void lock() noexcept VMM_ACQUIRE() {
    reach(step::lock, this);
    mutex_.lock();
  }
  inline void unlock() noexcept VMM_RELEASE() {
    mutex_.unlock();
    reach(step::unlock, this);
  }
  inline void lock_shared() noexcept VMM_ACQUIRE_SHARED() {
    reach(step::lock_shared, this);
    mutex_.lock_shared();
  }
  inline void unlock_shared() noexcept VMM_RELEASE_SHARED() {
    mutex_.unlock_shared();
    reach(step::unlock_shared, this);
  }

 private:
  std::shared_mutex mutex_;
};

/// A lock for some tens of nanoseconds. std::mutex takes three times as long: two calls into the C
/// library, two atomic exchanges. Here an uncontended lock() costs one exchange, and unlock() is a
/// plain store, which cannot wake a thread: one that finds the lock held tries again, then yields,
/// then sleeps for longer and longer. Not fair. Never to be held while the driver is called.
export class VMM_CAPABILITY("spin_lock") spin_lock {
 public:
  spin_lock() = default;
  spin_lock(const spin_lock&) = delete;
  spin_lock& operator=(const spin_lock&) = delete;

  inline void lock() noexcept VMM_ACQUIRE() {
    reach(step::lock, this);
    if (is_locked_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      lock_slowly();
  }
  /// Takes the lock if it is free, and returns whether it did. Announced as lock() is.
  [[nodiscard]] inline bool try_lock() noexcept VMM_TRY_ACQUIRE(true) {
    reach(step::lock, this);
    return !is_locked_.exchange(true, std::memory_order_acquire);
  }
  inline void unlock() noexcept VMM_RELEASE() {
    debug_check([this] { return is_locked_.load(std::memory_order_relaxed); },
                "a spin lock is unlocked that is not locked");
    is_locked_.store(false, std::memory_order_release);
    reach(step::unlock, this);
  }

 private:
  void lock_slowly() noexcept;

  std::atomic<bool> is_locked_ = false;
};

/// Holds a lock for its life.
export template <class Lock>
class VMM_SCOPED_CAPABILITY lock_guard {
 public:
  inline explicit lock_guard(Lock& lock) noexcept VMM_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  inline ~lock_guard() VMM_RELEASE() { lock_.unlock(); }
  lock_guard(const lock_guard&) = delete;
  lock_guard& operator=(const lock_guard&) = delete;

 private:
  Lock& lock_;
};

/// Holds a shared_mutex together with others that only read.
export class VMM_SCOPED_CAPABILITY shared_guard {
 public:
  inline explicit shared_guard(shared_mutex& lock) noexcept VMM_ACQUIRE_SHARED(lock) : lock_(lock) {
    lock_.lock_shared();
  }
  inline ~shared_guard() VMM_RELEASE() { lock_.unlock_shared(); }
  shared_guard(const shared_guard&) = delete;
  shared_guard& operator=(const shared_guard&) = delete;

 private:
  shared_mutex& lock_;
};

/// The part of std::atomic that vmm uses.
export template <class T>
class atomic {
 public:
  constexpr atomic(T initial = T{}) noexcept : value_(initial) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;

  [[nodiscard]] inline T load(std::memory_order order) const noexcept {
    debug_check(
        [order] {
          return order != std::memory_order_release && order != std::memory_order_acq_rel;
        },
        "a load releases what was written");
    reach(step::load, this);
    return value_.load(order);
  }
  inline void store(T value, std::memory_order order) noexcept {
    debug_check(
        [order] {
          return order != std::memory_order_acquire && order != std::memory_order_acq_rel;
        },
        "a store acquires what others wrote");
    reach(step::store, this);
    value_.store(value, order);
  }
  inline T exchange(T value, std::memory_order order) noexcept {
    reach(step::change, this);
    return value_.exchange(value, order);
  }
  inline T fetch_add(T value, std::memory_order order) noexcept {
    reach(step::change, this);
    return value_.fetch_add(value, order);
  }
  inline T fetch_or(T bits, std::memory_order order) noexcept {
    reach(step::change, this);
    return value_.fetch_or(bits, order);
  }
  inline T fetch_and(T bits, std::memory_order order) noexcept {
    reach(step::change, this);
    return value_.fetch_and(bits, order);
  }
  inline T fetch_sub(T value, std::memory_order order) noexcept {
    reach(step::change, this);
    return value_.fetch_sub(value, order);
  }

 private:
  std::atomic<T> value_;
};

static_assert(sizeof(mutex) == sizeof(std::mutex));
static_assert(sizeof(recursive_mutex) == sizeof(std::recursive_mutex));
static_assert(sizeof(shared_mutex) == sizeof(std::shared_mutex));
static_assert(sizeof(spin_lock) == sizeof(bool));
static_assert(sizeof(atomic<std::uint64_t>) == sizeof(std::uint64_t));

}  // namespace vmm::sync
