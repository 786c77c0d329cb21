// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
#include <utility>

module vmm.timeline;

import vmm.backend;
import vmm.intrusive;
import vmm.sync;

namespace vmm {

ticket* ticket_home::acquire() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  ticket* point = with_event_;
  if (point != nullptr) {
    with_event_ = point->next_free;
    point->next_free = nullptr;
  } else {
    point = pool_.acquire();
    if (point == nullptr) return nullptr;
    point->event = event_handle::none;
  }
  point->home = this;
  point->reference_count.store(1, std::memory_order_relaxed);
  point->has_passed.store(true, std::memory_order_relaxed);
  return point;
}

void ticket_home::recycle(ticket& point) noexcept {
  check(point.reference_count.load(std::memory_order_relaxed) == 0,
        "a ticket is recycled while referred to");
  if (!made_in_.is_here()) return;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (point.event == event_handle::none) {
    pool_.release(point);
    return;
  }
  point.next_free = with_event_;
  with_event_ = &point;
}

event_handle ticket_home::take_event() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (with_event_ == nullptr) return event_handle::none;
  ticket* const point = with_event_;
  with_event_ = point->next_free;
  const event_handle event = std::exchange(point->event, event_handle::none);
  pool_.release(*point);
  return event;
}

void ticket_ref::reset() noexcept {
  ticket* const point = std::exchange(point_, nullptr);
  if (point == nullptr) return;
  const std::uint32_t before = point->reference_count.fetch_sub(1, std::memory_order_acq_rel);
  check(before > 0, "a ticket loses a reference that it does not have");
  if (before == 1) point->home->recycle(*point);
}

}  // namespace vmm
