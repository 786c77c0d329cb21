// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:stream_table - the records under which a pool's free memory is listed: one for each
// stream, one for each stream of a captured graph, and one for memory of forgotten streams. Not
// exported.
//
// I1  A record has one phase (stream_phase). Only free memory of an active or retired record, or of
//     the shared one, may go to other streams.
// I2  There is at most one shared record, and its free memory has always passed.
// I3  A record's locked blocks are those that name it: blocks that are freed and pinned, and live
//     blocks of a captured graph. It is used again only without such blocks and without listed
//     memory.
// I4  A batch is a record of device-wide frees, for which one event of all work stands. At most one
//     is open (frees enter it) and one closed (its event is to be recorded): these are unrecorded,
//     and their memory is not reused. The others are retired.
// I5  The owner of a graph's record is another record of the same graph, whose free memory must not
//     be reused; any other record owns itself.
//
// How far the work of each stream has come is stream_progress's, which this owns: progress().
// Thread safety: none of its own; under the lock of the pool's state. Cost: O(1).
export module vmm.stream:stream_table;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;
import vmm.timeline;

namespace vmm {

class stream_table {
 public:
  static constexpr std::uint32_t no_stream = stream_progress::no_stream;

  [[nodiscard]] inline stream_progress& progress() noexcept { return progress_; }
  [[nodiscard]] inline const stream_progress& progress() const noexcept { return progress_; }
  /// Records, those not in use with them.
  [[nodiscard]] inline std::uint32_t count() const noexcept { return progress_.count(); }
  [[nodiscard]] inline stream_phase phase_of(std::uint32_t stream) const noexcept {
    debug_check([&] { return stream < count(); }, "no record of a stream has this number");
    return progress_.phase_of(stream);
  }
  /// Free memory of such a record is a captured graph's: it counts as live.
  [[nodiscard]] inline bool is_capture(std::uint32_t stream) const noexcept {
    return phase_of(stream) == stream_phase::capture;
  }
  [[nodiscard]] inline bool passed(const stream_point& point) const noexcept {
    debug_check([&] { return point.stream < count(); }, "no record of a stream has this number");
    return progress_.passed(point);
  }
  /// When the memory that is freed for this stream now was freed: a forgotten stream is given no
  /// work any more.
  [[nodiscard]] stream_point free_point(std::uint32_t stream) noexcept;
  /// The last point of a stream that is to be forgotten. If freed, pinned blocks refer to it, that
  /// is now: they are free once all work submitted to the stream so far has finished.
  [[nodiscard]] stream_point leaving_point(std::uint32_t stream) noexcept;
  /// Another stream whose free memory may be taken, the shared record first; the stream itself when
  /// this step leads to none. Steps go from 0 to count().
  [[nodiscard]] std::uint32_t other(std::uint32_t stream, std::uint32_t step) const noexcept;

  // ---- records ----
  /// The number that the next add() returns.
  [[nodiscard]] inline std::uint32_t next_number() const noexcept {
    return progress_.next_number();
  }
  /// Room for that record. Errors: out_of_host_memory.
  [[nodiscard]] status provide() noexcept;
  /// After provide(). Errors: out_of_host_memory, in_use (too many).
  [[nodiscard]] result<std::uint32_t> add(stream_handle stream, stream_phase phase) noexcept;
  /// Nothing is listed under the record: it goes to the next stream. Not while blocks name it.
  void recycle(std::uint32_t stream) noexcept;
  /// All work has finished and the pool is going away: every record is an active stream's.
  void release_all() noexcept;

  // ---- shared free memory ----
  /// The record of forgotten streams' memory; no_stream before the first.
  [[nodiscard]] inline std::uint32_t shared() const noexcept {
    debug_check([&] { return shared_ == no_stream || phase_of(shared_) == stream_phase::shared; },
                "free memory is shared under a stream's record");
    return shared_;
  }
  void set_shared(std::uint32_t stream) noexcept;

  // ---- batches ----
  /// The record for device-wide frees now; no_stream before the first.
  [[nodiscard]] inline std::uint32_t open_batch() const noexcept {
    debug_check(
        [this] {
          return open_batch_ == no_stream || phase_of(open_batch_) == stream_phase::unrecorded;
        },
        "the open batch is not a batch");
    return open_batch_;
  }
  /// The batch without a recorded event, or no_stream.
  [[nodiscard]] inline std::uint32_t closed_batch() const noexcept {
    debug_check([this] { return closed_batch_ == no_stream || closed_batch_ != open_batch_; },
                "I4: a batch is open and closed");
    return closed_batch_;
  }
  [[nodiscard]] inline bool is_batch(std::uint32_t stream) const noexcept {
    check(stream < records_.size(), "no record of a stream has this number");
    return records_[stream].is_batch;
  }
  /// Batches whose event was recorded and that have not gone.
  [[nodiscard]] inline std::uint32_t recorded_batch_count() const noexcept {
    debug_check([this] { return recorded_count_ <= progress_.retired_count(); },
                "more batches are recorded than records wait for their events");
    return recorded_count_;
  }
  /// Whether something was freed after everything that no event stands for.
  [[nodiscard]] bool has_unrecorded() const noexcept;
  /// The record, unrecorded, is the open batch. With `known_only` its event stands for the work of
  /// the streams that are known here: one that is forgotten before leaves an event of its own.
  void open_batch_in(std::uint32_t record, bool known_only) noexcept;
  /// The open batch is closed, and `next`, an unrecorded record, is open.
  void close_batch(std::uint32_t next) noexcept;
  /// An event of all work was recorded after the closed batch was closed.
  void retire_batch(ticket_ref event) noexcept;
  /// Whether what becomes free for the record is joined to what others have finished with: not in a
  /// graph's record, nor in a batch, where that would wait for the batch's event.
  [[nodiscard]] inline bool joins_others(std::uint32_t stream) const noexcept {
    const stream_phase phase = phase_of(stream);
    return phase != stream_phase::capture && phase != stream_phase::unrecorded;
  }

  // ---- locked blocks, and captured graphs ----
  void add_locked(std::uint32_t stream) noexcept;
  void remove_locked(std::uint32_t stream) noexcept;
  [[nodiscard]] inline bool has_locked(std::uint32_t stream) const noexcept {
    check(stream < records_.size(), "no record of a stream has this number");
    return records_[stream].locked_count != 0;
  }
  [[nodiscard]] inline std::uint32_t owner_of(std::uint32_t stream) const noexcept {
    check(stream < records_.size(), "no record of a stream has this number");
    return records_[stream].owner;
  }
  void set_owner(std::uint32_t stream, std::uint32_t owner) noexcept;

  /// Null if I1, I2, I4 and I5 hold, else the broken part. O(records).
  [[nodiscard]] const char* broken_invariant() const noexcept;

 private:
  struct record {
    std::uint64_t locked_count = 0;
    std::uint32_t owner = 0;  // of a graph's record: the record whose memory must not be reused
    bool is_batch = false;
  };

  [[nodiscard]] record& record_of(std::uint32_t stream) noexcept;
  [[nodiscard]] const char* broken_batch(std::uint32_t stream) const noexcept;

  stream_progress progress_;
  std::vector<record> records_;  // one more than there are numbers, at times
  std::uint32_t shared_ = no_stream;
  std::uint32_t open_batch_ = no_stream;
  std::uint32_t closed_batch_ = no_stream;
  std::uint32_t recorded_count_ = 0;
  bool is_known_only_ = false;
};

}  // namespace vmm
