// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.timeline:progress - the known progress of the work of many streams.
//
// For an allocator that frees far more often than events can be recorded: a free is a point on the
// allocator's clock and costs a counter. An event is recorded when a point is queried, and covers
// every point before it. This is the one owner of that clock, of each stream's handle and phase, of
// the points, and of the recorded events that show whether those have passed.
//
// I1  The clock only grows. A stream's last epoch is its newest free; all of its work up to its
//     passed epoch has finished. A point at the passed epoch or earlier has passed.
// I2  Events are kept oldest first, and only those that have not passed. The newest covers every
//     point of a stream that is retired, or those have passed.
// I3  The driver is given the handle of an active stream only: active_handle() and record_order are
//     the only ways to one, and both check that. A retired stream's handle may be another stream's.
// I4  A record is used again only when nothing is listed under it. Its epochs only grow, so a point
//     that was kept of its former use has passed.
// I5  The last epoch of the stream found last is kept beside the clock, and its record's is older:
//     a free on it writes one cache line. Any other stream's is in its record.
//
// Thread safety: none of its own; the owner's lock is held around each call. A record_order is
// carried out without it, but not while retire() may be called. No driver call is made here.
// Cost: O(1), except next_unrecorded() and the growth of the tables, which double.
export module vmm.timeline:progress;

import vmm.backend;
import vmm.base;
import vmm.std;
import :tickets;

namespace vmm {

/// All work submitted to a stream before the owner's clock showed `epoch`.
export struct stream_point {
  std::uint32_t stream = 0;
  std::uint64_t epoch = 0;
};

/// The use of a record.
export enum class stream_phase : std::uint8_t {
  unused,      // none: the next new stream gets it
  active,      // a stream that callers name
  retired,     // a stream that callers have forgotten and whose work may be unfinished
  shared,      // memory of forgotten streams: free for every stream
  capture,     // a captured graph: free for no other use until it is released
  unrecorded,  // all streams: free for no stream until an event of all work was recorded
};

/// A point and the event that was recorded at it or later.
export struct recorded_event {
  stream_point at{};
  ticket_ref event{};
};

/// The permission to record one event on an active stream. Used or dropped before retire() may be
/// called; add_event() consumes it.
export class record_order {
 public:
  record_order(record_order&& other) noexcept = default;
  record_order& operator=(record_order&& other) noexcept = default;
  record_order(const record_order&) = delete;
  record_order& operator=(const record_order&) = delete;

  [[nodiscard]] inline stream_handle handle() const noexcept { return handle_; }

 private:
  friend class stream_progress;
  friend struct point_answer;
  record_order() = default;

  stream_point at_{};
  stream_handle handle_ = stream_handle::default_stream;
};

/// The known progress of a point.
export struct point_answer {
  enum class kind : std::uint8_t {
    passed,      // all work up to it has finished
    recorded,    // `event` covers it: the oldest that does
    unrecorded,  // no event covers it: `order` may be carried out
  };
  kind is = kind::passed;
  ticket_ref event{};
  record_order order{};
};

/// The known progress of each stream, and the events that show it.
export class stream_progress {
 public:
  static constexpr std::uint32_t no_stream = ~0u;
  /// The maximum number of streams in use that are not forgotten.
  static constexpr std::uint32_t max_streams = 4000;
  /// The maximum number of records: of these, of forgotten streams with unfinished work, and of
  /// graphs.
  static constexpr std::uint32_t max_records = 4093;
  static constexpr std::size_t events_max = 4;

  // ---- numbers and handles ----
  /// Another number of the default stream; default_stream if it has one number.
  void set_default_alias(stream_handle alias) noexcept { default_alias_ = alias; }
  [[nodiscard]] inline std::uint32_t find(stream_handle stream) noexcept {
    if (stream == last_handle_ && last_stream_ != no_stream) [[likely]] {
      debug_check([this] { return is_active_as(last_stream_, last_handle_); },
                  "the stream found last is another one by now");
      return last_stream_;
    }
    return look_up(stream);
  }
  /// The number of records, unused ones included.
  [[nodiscard]] inline std::uint32_t count() const noexcept {
    return static_cast<std::uint32_t>(records_.size());
  }
  /// The number that the next add() returns.
  [[nodiscard]] inline std::uint32_t next_number() const noexcept {
    debug_check([this] { return unused_.empty() || unused_.back() < count(); },
                "a missing record becomes unused");
    return unused_.empty() ? count() : unused_.back();
  }
  /// A record of `phase`; find() finds active streams. Errors: out_of_host_memory, in_use (too
  /// many), invalid_argument (an active stream's handle of 2^63 or more).
  [[nodiscard]] result<std::uint32_t> add(stream_handle stream, stream_phase phase) noexcept;
  [[nodiscard]] inline stream_phase phase_of(std::uint32_t stream) const noexcept {
    debug_check([&] { return stream < count(); }, "no stream has this number");
    return records_[stream]->phase;
  }
  /// The handle of an active stream, for a driver call.
  [[nodiscard]] stream_handle active_handle(std::uint32_t stream) const noexcept;
  /// To distinguish streams in texts; a retired one may share it with an active one.
  [[nodiscard]] inline stream_handle shown_handle(std::uint32_t stream) const noexcept {
    debug_check([&] { return stream < count(); }, "no stream has this number");
    const stream_handle handle = records_[stream]->handle;
    return is_set_aside(handle) ? stream_handle::default_stream : handle;
  }
  /// The identity of the active stream, by the driver; 0: not known.
  [[nodiscard]] inline std::uint64_t identity_of(std::uint32_t stream) const noexcept {
    debug_check([&] { return stream < count(); }, "no stream has this number");
    return records_[stream]->identity;
  }
  void set_identity(std::uint32_t stream, std::uint64_t identity) noexcept;
  /// Another stream has the handle: find() no longer returns the record, which stays active until
  /// it is retired. Not used if active streams are passed to the driver.
  void set_aside(std::uint32_t stream, timeline& time) noexcept;
  /// A stream that was set aside and is all_recorded(), or no_stream. Cost: O(records)
  /// while any is set aside.
  [[nodiscard]] std::uint32_t next_set_aside() const noexcept;
  /// Whether this is a capture's record of that stream.
  [[nodiscard]] bool is_capture_of(std::uint32_t record, stream_handle stream) const noexcept {
    return phase_of(record) == stream_phase::capture && records_[record]->handle == stream;
  }
  /// Retires the stream, which is never passed to the driver again. Requires: all_recorded(). Its
  /// events are cut off from its handle.
  void retire(std::uint32_t stream, timeline& time) noexcept;
  /// An event behind all work was recorded after the last point of an unrecorded record, which
  /// becomes like a retired stream whose last work the event covers.
  void retire_recorded(std::uint32_t record, ticket_ref event) noexcept;
  /// A retired stream, each in turn; or no_stream.
  [[nodiscard]] std::uint32_t next_retired() noexcept;
  [[nodiscard]] std::size_t retired_count() const noexcept { return retired_.size(); }
  /// The number of records of ended streams: retired ones and those that are set aside.
  [[nodiscard]] std::size_t leaving_count() const noexcept {
    return retired_.size() + set_aside_count_;
  }
  /// Frees the record for the next stream. Requires: nothing is listed under it.
  void recycle(std::uint32_t stream) noexcept;

  // ---- points ----
  [[nodiscard]] inline std::uint64_t clock() const noexcept { return clock_; }
  /// The point behind all work submitted to the stream so far.
  inline stream_point advance(std::uint32_t stream) noexcept {
    debug_check([&] { return stream < count(); }, "no stream has this number");
    debug_check([&] { return records_[stream]->phase != stream_phase::unused; },
                "something is freed on a record that nothing uses");
    ++clock_;
    if (stream == last_stream_) [[likely]] {
      last_epoch_ = clock_;
    } else {
      records_[stream]->last_epoch = clock_;
    }
    return {stream, clock_};
  }
  [[nodiscard]] inline std::uint64_t last_epoch(std::uint32_t stream) const noexcept {
    debug_check([&] { return stream < count(); }, "no stream has this number");
    const std::uint64_t epoch = stream == last_stream_ ? last_epoch_ : records_[stream]->last_epoch;
    debug_check([&] { return epoch <= clock_; }, "a stream's last epoch is in the future");
    return epoch;
  }
  /// The last point of a stream that memory waits for; a passed point if none does.
  [[nodiscard]] stream_point last_point(std::uint32_t stream) const noexcept;
  [[nodiscard]] inline bool passed(const stream_point& point) const noexcept {
    debug_check([&] { return point.stream < count() && point.epoch <= clock_; },
                "a point without a stream, or in the future");
    return point.epoch <= records_[point.stream]->passed_epoch;
  }
  /// The last field that a free, a repeated find() of one stream and count() read, for a test of
  /// its cache line.
  [[nodiscard]] const void* last_read() const noexcept { return &records_; }
  /// Whether the point has passed; else the event that covers it; else the permission to record
  /// one.
  [[nodiscard]] point_answer ask(const stream_point& point) const noexcept;
  /// The event that ask() permitted was recorded.
  void add_event(record_order&& done, ticket_ref event) noexcept;
  /// The same for an event behind all work, which covers every active stream. Cost: O(records).
  void add_event_of_all(record_order&& done, const ticket_ref& event) noexcept;
  void note_passed(const stream_point& point) noexcept;
  /// The events of a stream that have not passed, oldest first; returns how many.
  [[nodiscard]] std::size_t events_of(std::uint32_t stream,
                                      std::array<recorded_event, events_max>& out) const noexcept;
  /// Whether an event of the stream covers all that was ever freed on it, or all of that has
  /// passed.
  [[nodiscard]] bool all_recorded(std::uint32_t stream) const noexcept;
  /// The next active stream from `from` on that is not all_recorded(); or no_stream.
  [[nodiscard]] std::uint32_t next_unrecorded(std::uint32_t from) const noexcept;
  /// The point of memory that every stream may take, which has always passed.
  void pass_for_ever(std::uint32_t stream) noexcept;
  /// Checks I1 and I2 of each record, and the table. Errors: internal. O(records).
  [[nodiscard]] status validate() const noexcept;
  /// For the owner's end, after all work has finished: makes every record an active stream's.
  void release_all() noexcept;

 private:
  struct stream_record {
    stream_handle handle = stream_handle::default_stream;
    std::uint64_t identity = 0;
    std::uint64_t last_epoch = 0;
    std::uint64_t passed_epoch = 0;
    stream_phase phase = stream_phase::active;
    std::array<recorded_event, events_max> events{};
    std::size_t event_count = 0;
  };
  struct stream_slot {
    stream_handle handle{};
    std::uint32_t stream = no_stream;
  };

  [[nodiscard]] static std::size_t slot_of(stream_handle stream, std::size_t mask) noexcept {
    debug_check([&] { return (mask & (mask + 1)) == 0; },
                "the length of the table of streams is not a power of two");
    const std::uint64_t mixed = static_cast<std::uint64_t>(stream) * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(mixed >> 32) & mask;
  }
  static void enter(std::vector<stream_slot>& table, const stream_slot& what) noexcept;
  [[nodiscard]] std::uint32_t look_up(stream_handle stream) noexcept;
  [[nodiscard]] status provide_slot() noexcept;
  [[nodiscard]] status provide_record(stream_phase phase) noexcept;
  [[nodiscard]] bool is_active_as(std::uint32_t stream, stream_handle handle) const noexcept {
    return stream < count() && records_[stream]->phase == stream_phase::active &&
           records_[stream]->handle == handle;
  }
  // A handle that no driver uses for a stream.
  static constexpr std::uint64_t set_aside_bit = std::uint64_t{1} << 63;
  [[nodiscard]] static bool is_set_aside(stream_handle handle) noexcept {
    return (static_cast<std::uint64_t>(handle) & set_aside_bit) != 0;
  }
  [[nodiscard]] static bool is_consistent(const stream_record& record) noexcept;
  static void append_event(stream_record& record, recorded_event&& event) noexcept;
  void audit() noexcept;
  void find_last(stream_handle handle, std::uint32_t stream) noexcept;
  void leave_table(stream_handle stream) noexcept;
  void leave(std::uint32_t stream) noexcept;

  // The fields that every allocation and free reads are adjacent, on one cache line.
  stream_handle last_handle_ = stream_handle::default_stream;
  std::uint32_t last_stream_ = no_stream;
  std::uint64_t last_epoch_ = 0;  // of last_stream_
  std::uint64_t clock_ = 0;
  std::vector<std::unique_ptr<stream_record>> records_;
  std::vector<stream_slot> table_;      // open addressing, a power of two long
  std::vector<std::uint32_t> retired_;  // as large as records_ may get, as is the next one
  std::vector<std::uint32_t> unused_;
  std::uint32_t active_count_ = 0;
  stream_handle default_alias_ = stream_handle::default_stream;
  std::uint32_t set_aside_count_ = 0;
  std::size_t unaudited_count_ = 0;  // streams that ended since the last audit
};

}  // namespace vmm
