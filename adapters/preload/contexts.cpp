// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "contexts.h"

#include <new>

import vmm.base;

namespace vmm::preload::managed {

context_id context_table::current() const noexcept {
  context_id now = nullptr;
  return cu_.get_current(&now) == code::success ? now : nullptr;
}

device_id context_table::current_device() const noexcept {
  device_id device = -1;
  return cu_.get_device(&device) == code::success ? device : -1;
}

context_id context_table::primary_of(device_id device) const noexcept {
  unsigned flags = 0;
  int is_active = 0;
  context_id primary = nullptr;
  if (cu_.primary_state(device, &flags, &is_active) != code::success || is_active == 0 ||
      cu_.retain_primary(&primary, device) != code::success) {
    return nullptr;
  }
  (void)cu_.release_primary(device);
  return primary;
}

context_id context_table::of(stream_name name) noexcept {
  if (name.is_default() || name.is_per_thread()) return current();
  {
    const sync::shared_guard turn(locks::streams);
    const auto found = of_streams_.find(name.stream);
    if (found != of_streams_.end()) return found->second;
  }
  context_id context = nullptr;
  if (cu_.stream_context(name.stream, &context) != code::success) return nullptr;
  const sync::lock_guard turn(locks::streams);
  try {
    of_streams_[name.stream] = context;
  } catch (const std::bad_alloc&) {
    return context;  // queried again the next time
  }
  return context;
}

void context_table::forget(stream_id stream) noexcept {
  const sync::lock_guard turn(locks::streams);
  of_streams_.erase(stream);
}

void context_table::forget_context(context_id gone) noexcept {
  const sync::lock_guard turn(locks::streams);
  std::erase_if(of_streams_, [&](const auto& each) { return each.second == gone; });
}

current_context::current_context(const driver_calls& cu, context_id wanted) noexcept : cu_(cu) {
  context_id now = nullptr;
  is_current_ = cu_.get_current(&now) == code::success && now == wanted;
  if (is_current_) return;
  is_pushed_ = cu_.push_current(wanted) == code::success;
  is_current_ = is_pushed_;
}

current_context::~current_context() {
  context_id gone = nullptr;
  if (is_pushed_) (void)cu_.pop_current(&gone);
}

}  // namespace vmm::preload::managed
