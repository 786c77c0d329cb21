// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.base;
import vmm.std;

namespace vmm {

std::uint64_t this_thread() noexcept {
  thread_local const char mark = 0;
  return reinterpret_cast<std::uintptr_t>(&mark);
}

// What another thread writes there is never this thread's number.
void observer_lock::lock() noexcept {
  const std::uint64_t self = this_thread();
  if (holder_.load(std::memory_order_relaxed) != self) {
    turns_.lock();
    check(depth_ == 0, "a lock is acquired while it is held");
    holder_.store(self, std::memory_order_relaxed);
  }
  ++depth_;
}

void observer_lock::unlock() noexcept {
  check(depth_ != 0 && holder_.load(std::memory_order_relaxed) == this_thread(),
        "a thread releases a lock that it does not hold");
  if (--depth_ != 0) return;
  holder_.store(0, std::memory_order_relaxed);
  turns_.unlock();
}

}  // namespace vmm
