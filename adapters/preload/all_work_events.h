// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Events behind the work that may use a block: of one stream, or of all work of each context that
// may use the memory of a device.
//
// I1  An event is spare, or in one entry of pending frees; a context has at most as many spare ones
//     as were created there. Returning an event takes no host memory.
// I2  An event behind all work is recorded only while no capture is in progress, under the gate.
//
// The events of a context that has ended are never passed to the driver again.
//
// Lock: events. Thread safety: all of it. Cost: record() a lock and one driver call for each
// context; the first events of a context are created. wait() releases the gate while it waits.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <atomic>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "abi.h"
#include "captures.h"
#include "contexts.h"
#include "driver_calls.h"
#include "locks.h"

namespace vmm::preload::managed {

/// A point in the work of a context.
struct event_point {
  context_id context = nullptr;
  event_id event = nullptr;
};

/// The contexts whose work may use a device's memory, besides the device's own.
class memory_users {
 public:
  struct user {
    context_id context = nullptr;  // null: the device's primary one, while it is active
    device_id device = -1;

    [[nodiscard]] bool operator==(const user&) const = default;
  };

  /// Throws std::bad_alloc; nothing is changed then.
  void add(const user& added) VMM_EXCLUDES(locks::events);
  void forget_context(context_id gone) noexcept VMM_EXCLUDES(locks::events);
  [[nodiscard]] std::size_t count() const noexcept {
    return count_.load(std::memory_order_acquire);
  }
  /// The user with this index; an empty one if there are fewer.
  [[nodiscard]] user at(std::size_t index) const noexcept VMM_EXCLUDES(locks::events);

 private:
  std::vector<user> list_ VMM_GUARDED_BY(locks::events);
  std::atomic<std::size_t> count_ = 0;
};

class all_work_events {
 public:
  all_work_events(const driver_calls& cu, context_table& known, capture_list& under_way) noexcept
      : cu_(cu), contexts_(known), captures_(under_way) {}
  all_work_events(const all_work_events&) = delete;
  all_work_events& operator=(const all_work_events&) = delete;

  /// Records an event behind all work of the context, on streams of every kind, into the list.
  /// False: the driver has no such event, or the host no memory.
  [[nodiscard]] bool record(context_id context, std::vector<event_point>& into) noexcept
      VMM_REQUIRES_SHARED(locks::gate);
  /// The same behind the work of one stream.
  [[nodiscard]] bool record(stream_name stream, std::vector<event_point>& into) noexcept
      VMM_REQUIRES_SHARED(locks::gate);
  /// Records an event of `own` and of each user's context. Returns the number of contexts that the
  /// host waited for instead. A context with a point in the list is skipped, whatever the point is
  /// behind: other points are added after this call.
  std::size_t record_users(context_id own, const memory_users& users,
                           std::vector<event_point>& into) noexcept
      VMM_REQUIRES_SHARED(locks::gate);

  /// An event that the driver reports as an error counts as passed: its context is lost, and no
  /// work runs there any more.
  [[nodiscard]] bool has_passed(const event_point& point) const noexcept {
    return cu_.query_event(point.event) != code::not_ready;
  }
  /// Waits outside of the gate, where a capture may begin; no context ends meanwhile.
  void wait(const std::vector<event_point>& points) noexcept VMM_REQUIRES_SHARED(locks::gate)
      VMM_EXCLUDES(locks::ending);
  /// Waits for all work of the context. False: a capture is in progress, or the context was
  /// destroyed.
  [[nodiscard]] bool wait_for_context(context_id context) noexcept VMM_REQUIRES_SHARED(locks::gate);

  void add_spare(const event_point& passed) noexcept VMM_EXCLUDES(locks::events);
  void add_spare(std::vector<event_point>& passed) noexcept VMM_EXCLUDES(locks::events);
  void forget_context(context_id gone) noexcept VMM_EXCLUDES(locks::events);

  /// Null, or the invariant that does not hold.
  [[nodiscard]] const char* find_broken() const noexcept VMM_EXCLUDES(locks::events);

 private:
  struct events_of_context {
    std::vector<event_id> spare;  // with room for all that were created
    std::size_t created_count = 0;
  };

  [[nodiscard]] event_id take(context_id context) noexcept VMM_EXCLUDES(locks::events);
  [[nodiscard]] bool make_room(context_id context) noexcept VMM_REQUIRES(locks::events);
  template <class Record>
  [[nodiscard]] bool add(context_id context, std::vector<event_point>& into,
                         Record&& record) noexcept;

  const driver_calls& cu_;
  context_table& contexts_;
  capture_list& captures_;
  std::unordered_map<context_id, events_of_context> spare_ VMM_GUARDED_BY(locks::events);
};

}  // namespace vmm::preload::managed
