// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.optimizer;
import vmm.std;
import vmm.support;
import vmm.sync;

namespace vmm {

namespace {

thread_local const remap_board* watched = nullptr;

}  // namespace

std::uint64_t this_thread() noexcept {
  thread_local const char mark = 0;
  return reinterpret_cast<std::uintptr_t>(&mark);
}

// ---- turns of a watched pool -----------------------------------------------------------

// What another thread writes there is never this thread's number.
void watcher_lock::lock() noexcept {
  const std::uint64_t self = this_thread();
  if (holder_.load(std::memory_order_relaxed) != self) {
    turns_.lock();
    check(depth_ == 0, "a turn begins while another one goes on");
    holder_.store(self, std::memory_order_relaxed);
  }
  ++depth_;
}

void watcher_lock::unlock() noexcept {
  check(depth_ != 0 && holder_.load(std::memory_order_relaxed) == this_thread(),
        "a turn is ended that another thread has, or nobody");
  if (--depth_ != 0) return;
  holder_.store(0, std::memory_order_relaxed);
  turns_.unlock();
}

// ---- callbacks -------------------------------------------------------------------------

watcher_turn::watcher_turn(const remap_board& of) noexcept : before_(std::exchange(watched, &of)) {}
watcher_turn::~watcher_turn() {
  check(watched != nullptr, "a watcher's turn ends that never began");
  watched = before_;
}

void remap_board::check_not_watching() const noexcept {
  check(watched != this, "a block watcher calls the pool that calls it");
}

bool remap_board::is_telling_here() const noexcept {
  return telling_.load(std::memory_order_relaxed) == this_thread();
}

void remap_board::check_not_telling() const noexcept {
  check_not_watching();
  check(!is_telling_here(), "a remap callback calls what it must not: see remap_listener");
}

result<remap_subscription> remap_board::add(remap_listener& told) noexcept {
  check_not_telling();
  const notices_guard lock(lock_);
  try {
    listeners_.push_back({&told, last_number_ + 1});
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a subscription");
  }
  ++last_number_;
  check(last_number_ != 0, "the numbers of subscriptions are used up");
  check(listeners_.back().told == &told && listeners_.back().number == last_number_,
        "a subscription has another number than its listener");
  count_.store(listeners_.size(), std::memory_order_relaxed);
  return static_cast<remap_subscription>(last_number_);
}

status remap_board::remove(remap_subscription gone) noexcept {
  check_not_telling();
  const notices_guard lock(lock_);
  const auto found = std::find_if(listeners_.begin(), listeners_.end(), [&](const listener& each) {
    return each.number == static_cast<std::uint64_t>(gone);
  });
  if (found == listeners_.end())
    return refuse(errc::invalid_argument, "not a live subscription: it was ended before");
  check(count_.load(std::memory_order_relaxed) == listeners_.size(),
        "the count of listeners is wrong");
  listeners_.erase(found);
  count_.store(listeners_.size(), std::memory_order_relaxed);
  return {};
}

void remap_board::tell(const remap_notice& notice) noexcept {
  const relief_pause pause;
  const notices_guard lock(lock_);
  check(telling_.load(std::memory_order_relaxed) == 0, "a change is told while another one is");
  telling_.store(this_thread(), std::memory_order_relaxed);
  const bool is_after = notice.kind == remap_kind::mapped;
  check((notice.epoch != 0 || is_after) && notice.range.size_bytes != 0,
        "a change of nothing is told");
  for (const listener& each : listeners_) {
    if (is_after) {
      each.told->after_change(notice);
    } else {
      each.told->before_change(notice);
    }
  }
  telling_.store(0, std::memory_order_relaxed);
}

}  // namespace vmm
