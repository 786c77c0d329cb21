// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "all_work_events.h"

#include <algorithm>
#include <new>
#include <vector>

#include "violation.h"

import vmm.base;

namespace vmm::preload::managed {

// ---- users of memory ----------------------------------------------------------------------------

void memory_users::add(const user& added) {
  const sync::lock_guard turn(locks::events);
  if (std::ranges::find(list_, added) != list_.end()) return;
  list_.push_back(added);
  count_.store(list_.size(), std::memory_order_release);
}

void memory_users::forget_context(context_id gone) noexcept {
  const sync::lock_guard turn(locks::events);
  std::erase_if(list_, [&](const user& each) { return each.context == gone; });
  count_.store(list_.size(), std::memory_order_release);
}

memory_users::user memory_users::at(std::size_t index) const noexcept {
  const sync::lock_guard turn(locks::events);
  return index < list_.size() ? list_[index] : user{};
}

// ---- spare events -------------------------------------------------------------------------------

// Room for one more event of the context to be spare, beside all that were created.
bool all_work_events::make_room(context_id context) noexcept {
  try {
    events_of_context& of = spare_[context];
    if (of.spare.capacity() <= of.created_count)
      of.spare.reserve(std::max<std::size_t>(16, 2 * of.created_count));
    ++of.created_count;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

event_id all_work_events::take(context_id context) noexcept {
  {
    const sync::lock_guard turn(locks::events);
    const auto found = spare_.find(context);
    if (found != spare_.end() && !found->second.spare.empty()) {
      const event_id taken = found->second.spare.back();
      found->second.spare.pop_back();
      return taken;
    }
    if (!make_room(context)) return nullptr;
  }
  const current_context entered(cu_, context);
  event_id made = nullptr;
  if (entered.is_current() && cu_.create_event(&made, event_without_timing) == code::success)
    return made;
  const sync::lock_guard turn(locks::events);
  --spare_[context].created_count;
  return nullptr;
}

void all_work_events::add_spare(const event_point& passed) noexcept {
  const sync::lock_guard turn(locks::events);
  const auto found = spare_.find(passed.context);
  if (found == spare_.end()) return;  // the context has ended, and the event with it
  if (found->second.spare.size() >= found->second.created_count)
    return violated("all_work_events I1: an event is returned twice");
  found->second.spare.push_back(passed.event);
}

void all_work_events::add_spare(std::vector<event_point>& passed) noexcept {
  for (const event_point& each : passed) add_spare(each);
  passed.clear();
}

void all_work_events::forget_context(context_id gone) noexcept {
  const sync::lock_guard turn(locks::events);
  spare_.erase(gone);
}

// ---- recording ----------------------------------------------------------------------------------

template <class Record>
bool all_work_events::add(context_id context, std::vector<event_point>& into,
                          Record&& record) noexcept {
  const event_id event = take(context);
  if (event == nullptr) return false;
  try {
    into.push_back({context, event});
  } catch (const std::bad_alloc&) {
    add_spare({context, event});
    return false;
  }
  if (record(event) == code::success) return true;
  into.pop_back();
  add_spare({context, event});
  return false;
}

bool all_work_events::record(context_id context, std::vector<event_point>& into) noexcept {
  if (cu_.record_context_event == nullptr) return false;
  debug_check([&] { return !captures_.is_any(); },
              "all_work_events I2: an event behind all work is recorded beside a capture");
  return add(context, into,
             [&](event_id event) { return cu_.record_context_event(context, event); });
}

bool all_work_events::record(stream_name stream, std::vector<event_point>& into) noexcept {
  const context_id context = contexts_.of(stream);
  if (context == nullptr) return false;
  const bool other_form = stream.per_thread && number_of(stream.stream) == 0;
  const auto record = other_form ? cu_.record_event_per_thread : cu_.record_event;
  if (record == nullptr) return false;
  const current_context entered(cu_, context);
  if (!entered.is_current()) return false;
  return add(context, into, [&](event_id event) { return record(event, stream.stream); });
}

std::size_t all_work_events::record_users(context_id own, const memory_users& users,
                                          std::vector<event_point>& into) noexcept {
  std::size_t waited_count = 0;
  const auto record_one = [&](context_id context) VMM_REQUIRES_SHARED(locks::gate) {
    const bool is_recorded =
        std::ranges::any_of(into, [&](const event_point& each) { return each.context == context; });
    if (context == nullptr || is_recorded || record(context, into)) return;
    const current_context entered(cu_, context);
    ++waited_count;
    if (entered.is_current()) (void)cu_.synchronize_context();
  };
  record_one(own);
  for (std::size_t i = 0; i < users.count(); ++i) {
    const memory_users::user user = users.at(i);
    record_one(user.context != nullptr ? user.context : contexts_.primary_of(user.device));
  }
  return waited_count;
}

// ---- waiting ------------------------------------------------------------------------------------

// No context ends between the gate and the wait.
void all_work_events::wait(const std::vector<event_point>& points) noexcept {
  locks::ending.lock_shared();
  locks::gate.unlock_shared();
  {
    const relaxed_thread relaxed(cu_);
    for (const event_point& each : points) (void)cu_.synchronize_event(each.event);
  }
  locks::ending.unlock_shared();
  locks::gate.lock_shared();
}

// Without an event behind all work the host waits inside the gate, as in the driver's cuMemFree.
bool all_work_events::wait_for_context(context_id context) noexcept {
  if (captures_.is_any()) return false;
  std::vector<event_point> points;
  if (record(context, points)) {
    wait(points);
    add_spare(points);
    return true;
  }
  const current_context entered(cu_, context);
  return entered.is_current() && cu_.synchronize_context() == code::success;
}

const char* all_work_events::find_broken() const noexcept {
  const sync::lock_guard turn(locks::events);
  for (const auto& [context, of] : spare_) {
    if (of.spare.size() > of.created_count)
      return "all_work_events I1: more events are spare than were created";
    if (of.spare.capacity() < of.created_count)
      return "all_work_events I1: a spare event has no room";
  }
  return nullptr;
}

}  // namespace vmm::preload::managed
