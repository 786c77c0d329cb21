// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.base;

import vmm.std;

namespace vmm::sync {

namespace {

// Relaxed: it must not order the threads that it watches.
std::atomic<schedule_observer*> observer_in_use = nullptr;

// Leaves what a processor's other thread can use to that one, for some tens of nanoseconds.
inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

schedule_observer* set_schedule_observer(schedule_observer* observer) noexcept {
  return observer_in_use.exchange(observer, std::memory_order_relaxed);
}

void announce(step what, const void* object) noexcept {
  check(object != nullptr, "a step without a lock or an atomic is announced");
  schedule_observer* const observer = observer_in_use.load(std::memory_order_relaxed);
  if (observer != nullptr) observer->reach(what, object);
}

void watched_mutex::lock_slowly() noexcept {
  constexpr std::uint32_t looks_max = 500;  // 10 to 25 us, where the processor can pause
  for (std::uint32_t looks = 0; looks < looks_max; ++looks) {
    if (!is_locked_.load(std::memory_order_relaxed) && mutex_.try_lock()) return;
    pause();
  }
  mutex_.lock();
}

// Most waits end within a few hundred nanoseconds. Where they do not, the holder has lost its
// processor, and looking on would only keep it from getting another one.
void spin_lock::lock_slowly() noexcept {
  constexpr std::uint32_t looks_max = 100;
  constexpr std::uint32_t yields_max = 32;
  constexpr std::uint32_t sleep_us_max = 128;
  std::uint32_t sleep_us = 1;
  for (std::uint32_t looks = 0;; ++looks) {
    if (!is_locked_.load(std::memory_order_relaxed) &&
        !is_locked_.exchange(true, std::memory_order_acquire))
      return;
    if (looks < looks_max) continue;
    if (looks < looks_max + yields_max) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(sleep_us));
    sleep_us = std::min(sleep_us * 2, sleep_us_max);
    check(sleep_us > 0 && sleep_us <= sleep_us_max, "a thread sleeps too long for a lock");
  }
}

}  // namespace vmm::sync
