// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:lock - a lock for some tens of nanoseconds, which is what a pool's allocate and free
// take. Not exported.
//
// std::mutex took a third of that: two calls into the C library, two atomic exchanges. Here taking
// costs one, and giving back is a plain store, so nobody can be woken: who finds the lock held
// looks again, then lets others run, then sleeps for longer and longer.
//
// Thread safety: what it is for. Not recursive; unlock() by the thread that locked. Cost: one
// atomic exchange where nobody competes. Not fair. Never held while the driver is called.
module;
#include <atomic>

export module vmm.stream:lock;

namespace vmm {

class quick_lock {
 public:
  quick_lock() = default;
  quick_lock(const quick_lock&) = delete;
  quick_lock& operator=(const quick_lock&) = delete;

  inline void lock() noexcept {
    if (is_held_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      lock_slowly();
  }
  inline void unlock() noexcept { is_held_.store(false, std::memory_order_release); }

 private:
  void lock_slowly() noexcept;

  std::atomic<bool> is_held_ = false;
};

}  // namespace vmm
