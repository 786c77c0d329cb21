// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.timeline:tickets - points in a stream's work, for changes that must wait for them.
//
// Unmapping does not wait for the device, so memory must not be unmapped, moved or handed to
// another stream before the work that may use it has finished. A ticket stands for all work
// submitted to a stream before the ticket was created. It can be queried (passed), waited for on
// the device (order), or, as the last resort, by the host (wait).
//
// I1  The event behind a ticket is reused only after the ticket has lost its last reference.
// I2  A null ticket has passed: backends whose work is finished when a call returns have no others.
//
// A ticket that has passed stays passed. One that the driver refused to record is late: its event
// is recorded when the ticket is queried, and covers later work, too. In a forked child a reference
// is dropped without the lock, which a thread of the parent may hold, and its ticket is left as it
// is.
//
// Thread safety: everything here may be called from any thread; no driver call is made under the
// lock, except for late tickets. record_behind() is one thread's at a time. Cost: record() is one
// event record (and one creation for each ticket in use at once), passed() one event query until it
// returns true and none afterwards.
module;
#include "../base/thread_annotations.h"

export module vmm.timeline:tickets;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// The text of every call that refuses the per-thread default stream.
export inline constexpr error per_thread_stream =
    refuse(errc::invalid_argument,
           "the per-thread default stream is a different stream in each thread: create a stream "
           "and pass it");

inline constexpr error no_stream_handle =
    refuse(errc::invalid_argument, "a stream's handle is a pointer, below 2^63");

/// Errors: invalid_argument (the per-thread default stream, a handle of 2^63 or more).
export [[nodiscard]] inline status check_stream(const features& can,
                                                stream_handle stream) noexcept {
  constexpr std::uint64_t handle_end = std::uint64_t{1} << 63;
  if (can.is_per_thread(stream)) return per_thread_stream;
  if (static_cast<std::uint64_t>(stream) >= handle_end) return no_stream_handle;
  return {};
}

class ticket_home;

/// One recorded point. Reached through ticket_ref only.
export struct ticket {
  event_handle event = event_handle::none;
  stream_handle stream = stream_handle::default_stream;
  std::uint64_t generation = 0;  // of the timeline, when the point was recorded
  std::uint64_t identity = 0;    // of the stream; 0: another one may have its handle
  sync::atomic<std::uint32_t> reference_count = 0;
  sync::atomic<bool> has_passed = false;
  std::atomic<bool> is_late = false;  // not recorded yet; no step of a test's schedule
  ticket_home* home = nullptr;
  ticket* next_free = nullptr;
};

/// Owns the tickets, and retains the events of released ones.
class ticket_home {
 public:
  /// A ticket with one reference whose event may be none; null when the host is out of memory.
  [[nodiscard]] ticket* acquire() noexcept;
  void recycle(ticket& point) noexcept;
  /// Removes one retained event; none if no event is retained.
  [[nodiscard]] event_handle take_event() noexcept;

 private:
  const process_mark made_in_;
  sync::mutex mutex_;
  object_pool<ticket> pool_ VMM_GUARDED_BY(mutex_);
  ticket* with_event_ VMM_GUARDED_BY(mutex_) =
      nullptr;  // released, event retained for the next event
};

/// A counted reference to a ticket, or to none (which has passed).
export class ticket_ref {
 public:
  ticket_ref() = default;
  explicit ticket_ref(ticket* adopted) noexcept : point_(adopted) {
    check(adopted == nullptr || adopted->home != nullptr, "a ticket is adopted that has no home");
  }
  ticket_ref(const ticket_ref& other) noexcept : point_(other.point_) {
    if (point_ == nullptr) return;
    const std::uint32_t before = point_->reference_count.fetch_add(1, std::memory_order_relaxed);
    check(before > 0, "a reference is copied from a ticket without references");
  }
  ticket_ref(ticket_ref&& other) noexcept : point_(std::exchange(other.point_, nullptr)) {}
  ticket_ref& operator=(ticket_ref other) noexcept {
    std::swap(point_, other.point_);
    return *this;
  }
  ~ticket_ref() { reset(); }

  void reset() noexcept;
  [[nodiscard]] ticket* get() const noexcept { return point_; }
  /// The known state, without a driver call: true if nothing is left to wait for.
  [[nodiscard]] bool known_passed() const noexcept {
    return point_ == nullptr || point_->has_passed.load(std::memory_order_acquire);
  }

 private:
  ticket* point_ = nullptr;
};

/// Creates and queries tickets on one driver. Outlives every ticket that it creates.
export class timeline {
 public:
  /// `streams_forgotten`: memory_options::streams_forgotten.
  explicit timeline(driver_ref driver, bool streams_forgotten = false) noexcept
      : driver_(driver), streams_forgotten_(streams_forgotten) {}
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;
  ~timeline();

  /// A ticket for all work submitted to `stream` so far; null if work is finished when a call
  /// returns. Errors: out_of_host_memory, those of create_event and record_event; nothing is
  /// changed.
  [[nodiscard]] result<ticket_ref> record(stream_handle stream);
  /// A ticket for cover(), made before work that cannot be undone is queued; null as of record().
  /// Errors: out_of_host_memory. No driver call that can fail.
  [[nodiscard]] result<ticket_ref> prepare(stream_handle stream);
  /// Requires: a ticket of prepare(). Effects: it stands for all work submitted to its stream so
  /// far. If the driver refuses the event, the thread waits for the stream, else for all work; if
  /// it refuses both waits, the ticket is late.
  void cover(const ticket_ref& point) noexcept;
  /// Whether a call that is not passed the stream may pass it to the driver.
  [[nodiscard]] bool may_name(stream_handle stream) const noexcept {
    return streams_forgotten_ || stream == stream_handle::default_stream || !can_record_all();
  }
  [[nodiscard]] bool streams_forgotten() const noexcept { return streams_forgotten_; }
  /// As record(), for a stream that may have been destroyed: unless the call is passed the stream
  /// (`is_named`), or may_name() it, an event behind all work stands for it, and the stream is not
  /// named to the driver. A stream that the driver refuses is covered as by cover_all(). Later work
  /// on the stream of this `identity` counts as behind the ticket; 0: on none, since another stream
  /// may have the handle. Errors: as record() and cover_all().
  [[nodiscard]] result<ticket_ref> record_unnamed(stream_handle stream, std::uint64_t identity = 0,
                                                  bool is_named = false);

  /// Whether one event can stand for the work of all streams: record_all() may be called.
  [[nodiscard]] bool can_record_all() const noexcept {
    const features& can = driver_->feature_set();
    return !can.streams || can.record_all;
  }
  /// A ticket for all work submitted to the device so far, on every stream; null if work is done
  /// when a call returns. One event. Requires: can_record_all(), and no stream is captured: the
  /// driver would return not_permitted and invalidate the capture. Errors: as record().
  [[nodiscard]] result<ticket_ref> record_all();
  /// The same, where no event can stand for all work by waiting for it: then the ticket is null.
  /// Requires: no stream is captured. Errors: as record_all(), and those of synchronize_all.
  [[nodiscard]] result<ticket_ref> cover_all();
  /// A ticket that passes when all of `points` have: a stream of this timeline's own waits for them
  /// on the device. For drivers without record_all(), over an event of each stream. One thread at a
  /// time. Errors: as record(), and those of create_stream and wait_event.
  [[nodiscard]] result<ticket_ref> record_behind(std::span<const ticket_ref> points);

  /// Whether everything before the ticket has finished; false of a late ticket that the driver
  /// still refuses to record. One event query until it is true.
  [[nodiscard]] result<bool> passed(const ticket_ref& point);

  /// Makes later work of `stream` wait, on the device, for the ticket. No call if the order holds
  /// already. Errors: those of query_event, wait_event and, for a late ticket, record().
  [[nodiscard]] status order(stream_handle stream, const ticket_ref& point);
  /// The same for a stream that may have been destroyed, and that the call is not passed. Where
  /// neither may_name() nor the driver lets the stream wait, the calling thread does, unless the
  /// point is that of the stream of this `identity`. Errors: as order() and wait().
  [[nodiscard]] status order_unnamed(stream_handle stream, std::uint64_t identity,
                                     const ticket_ref& point);
  /// A number that differs for a later stream of the same handle; constant if streams are forgotten
  /// before they are destroyed; 0 if the driver has none, as for a captured stream. Requires: the
  /// stream exists. Cost: one driver call for a created stream.
  [[nodiscard]] std::uint64_t identity_of(stream_handle stream) const noexcept;

  /// Call it before the ticket's stream is destroyed, since its handle may be reused: order() then
  /// makes a later stream wait, too. No other thread uses the ticket meanwhile.
  void orphan(const ticket_ref& point) noexcept;

  /// Call it before a stream is destroyed, since its handle may be reused: order() then queries and
  /// waits for every earlier ticket, of any stream. Any thread may use tickets meanwhile.
  void begin_generation() noexcept { generation_.fetch_add(1, std::memory_order_acq_rel); }

  /// Blocks the calling thread until the ticket has passed; for a late ticket that the driver still
  /// refuses to record, until all work has finished. The last resort.
  [[nodiscard]] status wait(const ticket_ref& point);

  /// Waits for all work submitted to `stream` so far; if the driver refuses the stream, for all
  /// work of the device. Returns false if the driver refuses both the event and the stream, and has
  /// no call that waits for all work. Requires: no stream is being captured. Errors: as
  /// record_unnamed() and wait(), and those of synchronize_stream.
  [[nodiscard]] result<bool> finish(stream_handle stream);

 private:
  [[nodiscard]] result<ticket_ref> blank_ticket(stream_handle stream,
                                                std::uint64_t identity) noexcept;
  // Behind the work of its stream, or behind all work.
  [[nodiscard]] status record_into(ticket& point, bool of_all) noexcept;
  // Records a late ticket; does nothing for others.
  [[nodiscard]] status record_late(ticket& point);
  [[nodiscard]] result<ticket_ref> record_all_for(stream_handle stream, std::uint64_t identity);
  [[nodiscard]] bool is_of(stream_handle stream, const ticket& point) const noexcept;

  driver_ref driver_;
  const bool streams_forgotten_;
  ticket_home home_;
  sync::atomic<std::uint64_t> generation_ = 0;
  sync::mutex late_mutex_;                 // a late ticket is recorded
  std::optional<stream_handle> waiter_{};  // of record_behind()
};

}  // namespace vmm
