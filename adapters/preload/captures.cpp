// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "captures.h"

#include <algorithm>
#include <new>
#include <vector>

import vmm.base;

namespace vmm::preload::managed {

bool capture_list::is_captured(stream_name name) const noexcept {
  if (!is_any() || name.is_default()) return false;
  int state = 0;
  const bool other_form = name.per_thread && cu_.is_capturing_per_thread != nullptr;
  const auto query = other_form ? cu_.is_capturing_per_thread : cu_.is_capturing;
  return query(name.stream, &state) != code::success || state != 0;
}

bool capture_list::is_on(const captured_stream& capture, stream_name stream) noexcept {
  if (capture.per_thread != stream.is_per_thread()) return false;
  return capture.per_thread ? pthread_equal(capture.thread, pthread_self()) != 0
                            : capture.stream == stream.stream;
}

void capture_list::begin(stream_name stream) noexcept {
  const context_id context = cu_.is_usable ? contexts_.of(stream) : nullptr;
  locks::gate.lock();
  {
    const sync::lock_guard turn(locks::captures);
    try {
      list_.push_back({stream.stream, pthread_self(), stream.is_per_thread(), context});
    } catch (const std::bad_alloc&) {
      has_lost_count_.store(true, std::memory_order_relaxed);
    }
    count_.store(list_.size(), std::memory_order_release);
  }
  locks::gate.unlock();
}

void capture_list::refuse(stream_name stream) noexcept {
  const sync::lock_guard turn(locks::captures);
  // One of them: an earlier capture on the stream continues.
  const auto found =
      std::ranges::find_if(list_, [&](const captured_stream& each) { return is_on(each, stream); });
  if (found != list_.end()) list_.erase(found);
  count_.store(list_.size(), std::memory_order_release);
}

template <class IsGone>
void capture_list::erase_if(IsGone&& is_gone) noexcept {
  const sync::lock_guard turn(locks::captures);
  std::erase_if(list_, is_gone);
  count_.store(list_.size(), std::memory_order_release);
}

void capture_list::end(stream_name stream) noexcept {
  if (!cu_.is_usable || is_captured(stream)) return;
  erase_if([&](const captured_stream& each) { return is_on(each, stream); });
}

void capture_list::forget(stream_id stream) noexcept {
  erase_if([&](const captured_stream& each) { return !each.per_thread && each.stream == stream; });
}

void capture_list::forget_context(context_id gone) noexcept {
  erase_if([&](const captured_stream& each) { return each.context == gone; });
}

const char* capture_list::find_broken() const noexcept {
  const sync::lock_guard turn(locks::captures);
  if (count_.load(std::memory_order_relaxed) != list_.size())
    return "captures I1: a capture is not counted";
  return nullptr;
}

}  // namespace vmm::preload::managed
