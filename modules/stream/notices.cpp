// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

module vmm.stream;

import vmm.backend;
import vmm.sync;

namespace vmm {

namespace {

// A number that no other running thread has.
std::uint64_t this_thread() noexcept {
  thread_local const char mark = 0;
  return reinterpret_cast<std::uintptr_t>(&mark);
}

thread_local const remap_board* watched = nullptr;

}  // namespace

watcher_turn::watcher_turn(const remap_board& of) noexcept : before_(std::exchange(watched, &of)) {}
watcher_turn::~watcher_turn() { watched = before_; }

void remap_board::check_not_watching() const noexcept {
  check(watched != this, "a block watcher calls the pool that calls it");
}

void remap_board::check_not_telling() const noexcept {
  check_not_watching();
  check(telling_.load(std::memory_order_relaxed) != this_thread(),
        "a remap callback calls what it must not: see remap_callback");
}

result<remap_subscription> remap_board::add(remap_callback callback, void* context) noexcept {
  if (callback == nullptr) return refuse(errc::invalid_argument, "a subscription has a callback");
  check_not_telling();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  try {
    listeners_.push_back({callback, context, last_number_ + 1});
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a subscription");
  }
  ++last_number_;
  count_.store(listeners_.size(), std::memory_order_relaxed);
  return static_cast<remap_subscription>(last_number_);
}

status remap_board::remove(remap_subscription gone) noexcept {
  check_not_telling();
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const auto found = std::find_if(listeners_.begin(), listeners_.end(), [&](const listener& each) {
    return each.number == static_cast<std::uint64_t>(gone);
  });
  if (found == listeners_.end())
    return refuse(errc::invalid_argument, "not a live subscription: it was ended before");
  listeners_.erase(found);
  count_.store(listeners_.size(), std::memory_order_relaxed);
  return {};
}

void remap_board::tell(const remap_notice& notice) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  telling_.store(this_thread(), std::memory_order_relaxed);
  for (const listener& each : listeners_) each.callback(each.context, notice);
  telling_.store(0, std::memory_order_relaxed);
}

}  // namespace vmm
