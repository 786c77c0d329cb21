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

namespace {

constexpr int destroy_attempts = 3;
// No stream's number.
constexpr stream_handle stream_gone = static_cast<stream_handle>(~std::uint64_t{0});

}  // namespace

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

timeline::~timeline() {
  for (event_handle kept = home_.take_event(); kept != event_handle::none;
       kept = home_.take_event()) {
    // Nothing is left to tell: the owner is going away. A fault that strikes once is outlived.
    for (int left = destroy_attempts; left > 0 && !driver_->destroy_event(kept);) --left;
  }
}

result<ticket_ref> timeline::mark(stream_handle stream) {
  if (!driver_->feature_set().streams) return ticket_ref{};
  ticket* const raw = home_.acquire();
  if (raw == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a ticket");
  ticket_ref point{raw};
  if (raw->event == event_handle::none) {
    const result<event_handle> event = driver_->create_event();
    if (!event) return event.error();
    raw->event = *event;
  }
  raw->stream = stream;
  raw->era = era_.load(std::memory_order_acquire);
  raw->has_passed.store(false, std::memory_order_release);
  if (status recorded = driver_->record_event(raw->event, stream); !recorded) {
    raw->has_passed.store(true, std::memory_order_release);
    return recorded.error();
  }
  return point;
}

result<bool> timeline::passed(const ticket_ref& point) {
  if (point.known_passed()) return true;
  const result<bool> finished = driver_->query_event(point.get()->event);
  if (finished && *finished) point.get()->has_passed.store(true, std::memory_order_release);
  return finished;
}

status timeline::order(stream_handle stream, const ticket_ref& point) {
  if (point.known_passed()) return {};
  const bool is_same = point.get()->era == era_.load(std::memory_order_acquire);
  if (is_same && point.get()->stream == stream) return {};
  const result<bool> finished = passed(point);
  if (!finished) return finished.error();
  return *finished ? status{} : driver_->wait_event(stream, point.get()->event);
}

void timeline::orphan(const ticket_ref& point) noexcept {
  if (point.get() != nullptr) point.get()->stream = stream_gone;
}

status timeline::wait(const ticket_ref& point) {
  if (point.known_passed()) return {};
  if (status waited = driver_->synchronize_event(point.get()->event); !waited) return waited;
  point.get()->has_passed.store(true, std::memory_order_release);
  return {};
}

}  // namespace vmm
