// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:history - an allocator's events in bounded memory.
//
// A history_ring has space for a fixed number of events; a new event replaces the oldest. An
// allocator with a ring (memory_options::recorder) writes each allocation, free, growth, move,
// wait, pin, captured block and shortage into it. history().take() of the allocator copies the
// events together with the memory layout at that moment, so that a reader can go back event by
// event, even if the oldest events are lost. tools/history/README.md has the format.
//
// I1  The events of a ring are in the order in which they changed the allocator's state: each is
//     written under the lock of that state, or before the state's owner can observe the change.
// I2  A ring records one allocator at a time.
// I3  No bytes make decode_history() read outside of them, or take more memory than a small
//     multiple of their number.
//
// Thread safety: a ring's notes are serialised by its allocator; the rest is values, except
// history_label, which belongs to one thread, and the table of names, which has a lock.
// Cost: without a ring, one branch an event; with one, four stores of 8 bytes, and the clock at
// every clock_interval-th record and at each event that is slow.
export module vmm.observe:history;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// The kinds of events. Files contain the numbers: a new kind gets a new number.
export enum class history_kind : std::uint8_t {
  none = 0,
  // Blocks.
  allocated = 1,    ///< size: as rounded up; detail: as requested
  freed = 2,        ///< its memory is free from now on, for the stream at once
  free_pinned = 3,  ///< freed while pinned: `freed` follows with the last pin
  captured = 4,     ///< as allocated, for the graph that the stream is captured into
  kept = 5,         ///< freed in a capture: its memory stays with the graph
  pinned = 6,       ///< one more pin
  unpinned = 7,     ///< one pin fewer
  resized = 8,      ///< a block has a new size; detail: its previous address
  graph_ended = 9,  ///< the memory of the graph whose number is `detail` is free for the stream
  // Addresses and memory.
  reserved = 16,  ///< addresses, without memory
  unreserved = 17,
  mapped = 18,  ///< memory is behind these addresses; detail: where it was before, or 0
  /// These addresses lost their memory: it has moved, or they were part of a failed growth, whose
  /// mapping has no event.
  unmapped = 19,
  released = 20,   ///< the same, and the memory is retained or the driver's
  footprint = 21,  ///< size: physical memory that the allocator holds from now on
  suspended = 22,  ///< the memory behind these addresses was released; they stay reserved
  resumed = 23,
  remapped = 24,  ///< the block shows the memory of the block at `detail`: a copy by remapping
  // The work of a request: all events between its `grow` and its `served` or `short_of_memory`.
  grow = 32,             ///< free memory does not serve a request of this size
  served = 33,           ///< the growth has ended; address 0: without a block
  wait = 34,             ///< the stream waits, on the device, for stream `detail`
  blocked = 35,          ///< the calling thread waits for the stream's work
  passed = 36,           ///< that wait has ended
  short_of_memory = 37,  ///< size: the request; address: the code of the error; detail: the budget
  short_live = 38,       ///< follows: size: live bytes; detail: free bytes
  short_free = 39,       ///< follows: size: the largest free region; detail: the footprint
  trimmed = 40,          ///< size: bytes released to the driver
  // In a ring only: the time of the event before it.
  clock = 255,
};
/// "allocated" and so on; "unknown" for an unlisted number.
export [[nodiscard]] const char* name_of(history_kind kind) noexcept;

/// An event of a ring, as its writers pass it.
export struct history_note {
  history_kind kind = history_kind::none;
  address_range where{};
  stream_handle stream = stream_handle::default_stream;
  std::uint64_t detail = 0;
};

/// One event, as readers see it.
export struct history_event {
  /// Since the ring was created: the latest reading of the clock at or before the event. Of fast
  /// events only every clock_interval-th reads it.
  std::uint64_t time_ns = 0;
  address at{};
  std::uint64_t size_bytes = 0;
  std::uint64_t stream = 0;
  std::uint64_t detail = 0;
  std::uint32_t frame = 0;  ///< 1 + its place in history::frames; 0: none
  std::uint16_t tag = 0;    ///< 1 + its place in history::tags; 0: none
  history_kind kind = history_kind::none;
};

/// The kind of a region when a history was taken.
export enum class history_region_kind : std::uint32_t {
  live = 0,
  free = 1,   ///< mapped, free for the stream
  hole = 2,   ///< reserved, without memory
  stale = 3,  ///< mapped, but its memory has moved
  busy = 4,   ///< claimed by a call in progress
};
/// A region when the history was taken.
export struct history_region {
  address_range where{};
  std::uint64_t stream = 0;  ///< of free regions
  history_region_kind kind = history_region_kind::hole;
};
/// One mapping of one allocation handle at that time.
export struct history_mapping {
  address_range where{};
  bool is_stale = false;
};
/// A line of a caller's program.
export struct history_frame {
  std::string file{};
  std::string function{};
  std::uint32_t line = 0;
};
/// A named value of the allocator: its kind, its policy, its statistics.
export struct history_fact {
  std::string name{};
  std::string value{};
};

/// The contents of a file.
export struct history {
  std::vector<history_event> events{};    ///< oldest first
  std::uint64_t lost_count = 0;           ///< older events that were overwritten
  std::vector<history_region> regions{};  ///< after the last event, in address order
  std::vector<history_mapping> mappings{};
  std::vector<std::string> tags{};
  std::vector<history_frame> frames{};
  std::vector<history_fact> facts{};
};

/// Called with each event as it is written, for tools that show events while the program runs.
export class history_listener {
 public:
  /// Called under the lock of the allocator's state: must not call vmm or wait. The detail of a
  /// block's event is the requested size.
  virtual void heard(const history_note& what) noexcept = 0;

 protected:
  ~history_listener() = default;
};

/// Options of a ring, and the file for its history at a shortage.
export struct history_options {
  /// The capacity in records of 33 bytes each: an allocation or free takes one, a slow event two. A
  /// power of two from 2^10 to 2^26.
  std::uint64_t event_count = std::uint64_t{1} << 18;
  /// Fast events per reading of the clock: a power of two from 1 to 4096.
  std::uint32_t clock_interval = 32;
  /// An allocator writes its history to this path with ".0", ".1" and so on behind it before it
  /// returns a shortage. Empty: no file.
  std::string shortage_path{};
  std::uint32_t shortage_count_max = 4;  ///< the maximum number of files
  /// Called with each event; it outlives the recording. Null: no listener, at no cost.
  history_listener* listener = nullptr;

  /// Errors: bad_option; the detail names the option and its range.
  [[nodiscard]] status validate() const noexcept;
};

// Whether an event needs more than its record: a label was set, or a ring has a listener. Stays
// true once it is true.
extern sync::atomic<bool> history_needs_more;

/// The events of one allocator in a ring buffer. It outlives the allocator that records into it.
export class history_ring {
 public:
  /// Errors: bad_option, out_of_host_memory.
  [[nodiscard]] static result<std::unique_ptr<history_ring>> make(const history_options& options);
  history_ring(const history_ring&) = delete;
  history_ring& operator=(const history_ring&) = delete;
  /// Requires: no allocator records into the ring.
  ~history_ring();
  [[nodiscard]] const history_options& options() const noexcept { return options_; }

  // ---- for allocators; calls of note, note_block and copy exclude one another ----

  /// Errors: bad_option (it records another allocator).
  [[nodiscard]] status attach() noexcept;
  void detach() noexcept;
  /// A slow event: it reads the clock.
  void note(const history_note& what) noexcept;
  /// A fast one: `size_bytes` as rounded up, `asked_bytes` as requested (0: unknown).
  inline void note_block(history_kind kind, address_range block, std::uint64_t asked_bytes,
                         stream_handle stream) noexcept;
  /// Records written since the ring was made, those lost with them.
  [[nodiscard]] std::uint64_t written_count() const noexcept { return written_count_; }
  /// The events among them.
  [[nodiscard]] std::uint64_t event_count() const noexcept { return written_count_ - clock_count_; }
  /// The number of the oldest record in the ring.
  [[nodiscard]] std::uint64_t oldest_number() const noexcept;
  /// Numbers of records: [first, first + count).
  struct numbers {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  /// Appends the events of these records. Requires: they are in the ring and follow those already
  /// in `out`, and `out` has capacity for them.
  void copy(const numbers& which, std::vector<history_event>& out) const noexcept;
  /// Turns the times that copy() gives into nanoseconds, and adds the names of tags and frames.
  /// Errors: out_of_host_memory.
  [[nodiscard]] status complete(history& taken) const;
  /// Writes `taken` to the next of the shortage's files, if the options name one and fewer exist
  /// than they allow. A failure is reported on stderr, once.
  void write_shortage(const history& taken) noexcept;
  [[nodiscard]] bool wants_shortage() const noexcept {
    return !options_.shortage_path.empty() && shortage_count_ < options_.shortage_count_max;
  }

 private:
  // The kind is above the address, the tag above the size, the frame above the bytes not requested.
  // Four words: two records share a cache line, and none crosses one. The ticks of a clock record
  // are in its stream.
  struct record {
    std::uint64_t at_and_kind = 0;
    std::uint64_t size_and_tag = 0;
    std::uint64_t stream = 0;
    std::uint64_t detail = 0;
  };
  struct free_memory {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  template <class T>
  using table = std::unique_ptr<T[], free_memory>;

  static constexpr std::uint32_t kind_shift = 56;
  static constexpr std::uint32_t tag_shift = 48;
  static constexpr std::uint32_t frame_shift = 40;
  static constexpr std::uint64_t at_mask = (std::uint64_t{1} << kind_shift) - 1;
  static constexpr std::uint64_t size_mask = (std::uint64_t{1} << tag_shift) - 1;
  static constexpr std::uint64_t rest_mask = (std::uint64_t{1} << frame_shift) - 1;
  [[nodiscard]] static constexpr bool is_block_kind(history_kind kind) noexcept {
    return kind >= history_kind::allocated && kind <= history_kind::unpinned;
  }

  history_ring(const history_options& options, table<record>&& records,
               table<std::uint64_t>&& clocks) noexcept;
  void read_clock() noexcept;
  inline record& write_block(history_kind kind, address_range block, std::uint64_t asked_bytes,
                             stream_handle stream) noexcept;
  // The rare events of a block: those that read the clock, or need more than their record. Behind
  // one call at the end of note_block(), so that the others save no register for it.
  void note_block_with_more(history_kind kind, address_range block, std::uint64_t asked_bytes,
                            stream_handle stream) noexcept;
  void note_more(record& to, const history_note& what) noexcept;
  void write(const record& next) noexcept;
  [[nodiscard]] static history_event event_of(const record& from) noexcept;

  // The fields that every event uses, in one cache line.
  alignas(64) const std::uint64_t mask_;
  const std::uint64_t clock_mask_;  // a record whose number has none of these bits has its clock
  table<record> records_;
  std::uint64_t written_count_ = 0;
  // For two laps of the ring: the newest records do not overwrite the clocks of the oldest.
  table<std::uint64_t> clocks_;
  const std::uint64_t clock_table_mask_;
  const std::uint32_t clock_shift_;
  const history_options options_;
  std::uint64_t clock_count_ = 0;  // records that are the time of the event before them
  const std::uint64_t first_ticks_;
  const std::uint64_t first_ns_;
  std::uint32_t shortage_count_ = 0;
  bool has_complained_ = false;
  const process_mark made_in_;
  sync::atomic<bool> is_attached_ = false;
};

inline void history_ring::note_block(history_kind kind, address_range block,
                                     std::uint64_t asked_bytes, stream_handle stream) noexcept {
  debug_check([&] { return is_block_kind(kind) && asked_bytes <= block.size_bytes; },
              "a block's event has another kind, or a size below the requested one");
  debug_check([&] { return (block.base.value & ~at_mask) == 0; },
              "an address exceeds its bits in "
              "a record");
  debug_check([&] { return (block.size_bytes & ~size_mask) == 0; },
              "a size exceeds its bits in a "
              "record");
  const bool is_plain =
      (written_count_ & clock_mask_) != 0 && !history_needs_more.load(std::memory_order_relaxed);
  if (is_plain) [[likely]] {
    (void)write_block(kind, block, asked_bytes, stream);
  } else {
    note_block_with_more(kind, block, asked_bytes, stream);
  }
}

inline history_ring::record& history_ring::write_block(history_kind kind, address_range block,
                                                       std::uint64_t asked_bytes,
                                                       stream_handle stream) noexcept {
  record& to = records_[written_count_++ & mask_];
  to.at_and_kind = block.base.value | std::uint64_t{static_cast<std::uint8_t>(kind)} << kind_shift;
  to.size_and_tag = block.size_bytes;
  to.stream = static_cast<std::uint64_t>(stream);
  to.detail = std::min(block.size_bytes - asked_bytes, rest_mask);
  return to;
}

/// Errors of histories.
export inline constexpr error no_history_memory =
    refuse(errc::out_of_host_memory, "no host memory is left for a history");
export inline constexpr error no_recording =
    refuse(errc::invalid_argument,
           "no history is recorded: set memory_options::recorder, or start a history");

/// The steps of take_from() with the ring.
export class history_steps {
 public:
  /// Requires: the ring outlives this. Effects: none until reserve(). Errors: none. Cost: O(1).
  explicit history_steps(const history_ring& ring) noexcept : ring_(ring) {}
  /// Errors: out_of_host_memory.
  [[nodiscard]] status reserve();
  /// Copies some of the missing records; true if none is missing. Terminates: if events are written
  /// faster than they are copied, the last step copies all of them.
  [[nodiscard]] bool step() noexcept;
  [[nodiscard]] history& taken() noexcept { return taken_; }
  [[nodiscard]] result<history> complete();

 private:
  static constexpr std::uint64_t step_count = 4096;

  const history_ring& ring_;
  history taken_{};
  std::uint64_t next_ = 0;
  std::uint64_t event_count_ = 0;  // written when the last step was made
  std::uint64_t steps_left_ = 1 << 15;
};

/// Takes the ring's events in short steps under an allocator's lock. `with_lock(work)` calls `work`
/// under the lock; the last step also calls `look`, which adds the memory layout. Errors:
/// out_of_host_memory, those of `look`.
export template <class WithLock, class Look>
[[nodiscard]] result<history> take_from(const history_ring& ring, WithLock&& with_lock,
                                        Look&& look) {
  history_steps steps(ring);
  if (status room = steps.reserve(); !room) return room.error();
  status looked;
  bool is_last = false;
  while (!is_last) {
    with_lock([&] {
      is_last = steps.step();
      check(steps.taken().events.size() <= ring.written_count(),
            "more events are taken than were "
            "written");
      if (is_last) looked = look(steps.taken());
    });
  }
  if (!looked) return looked.error();
  return steps.complete();
}

/// The ring that an allocator writes to: one from its options, for the allocator's life; one of its
/// own, from begin() to the end of the recording; or none. Changed under the lock of events. A read
/// without the lock is repeated under it.
export class history_port {
 public:
  /// Requires: the ring, if any, outlives this. Effects: none on the ring until attach(). Errors:
  /// none. Cost: O(1).
  explicit history_port(history_ring* ring) noexcept : ring_(ring) {}
  ~history_port();
  history_port(const history_port&) = delete;
  history_port& operator=(const history_port&) = delete;
  /// Before the first note. Errors: bad_option (the ring records another allocator).
  [[nodiscard]] status attach() noexcept;
  /// While it is held no recording begins or ends, and the ring stays. Taken before the lock of
  /// events.
  [[nodiscard]] sync::mutex& mutex() const noexcept { return mutex_; }
  /// Begins to record into a ring of its own. Requires: mutex() and the lock of events; `own` is
  /// not null. Errors: in_use (a history is recorded).
  [[nodiscard]] status begin(std::unique_ptr<history_ring> own) noexcept;
  /// As take_from() of the ring. With `ended` the recording ends after the last event taken;
  /// `ended` receives the ring if it is the allocator's own. Requires: mutex(). Errors:
  /// invalid_argument (no history is recorded), those of take_from().
  template <class WithLock, class Look>
  [[nodiscard]] result<history> take(WithLock&& with_lock, Look&& look,
                                     std::unique_ptr<history_ring>* ended = nullptr) {
    if (!*this) return no_recording;
    return take_from(*get(), with_lock, [&](history& into) {
      const status looked = look(into);
      if (looked && ended != nullptr) *ended = end();
      return looked;
    });
  }
  /// Whether there is a ring; it is written to from attach() on.
  [[nodiscard]] inline explicit operator bool() const noexcept { return get() != nullptr; }
  [[nodiscard]] inline history_ring* operator->() const noexcept { return get(); }
  [[nodiscard]] inline history_ring* get() const noexcept {
    return ring_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] std::unique_ptr<history_ring> end() noexcept;

  mutable sync::mutex mutex_;
  std::atomic<history_ring*> ring_;
  std::unique_ptr<history_ring> own_{};
  bool is_attached_ = false;
};

/// Adds a fact with a number. Errors: out_of_host_memory.
export [[nodiscard]] status add_fact(history& to, const char* name, std::uint64_t value) noexcept;

/// During its life the calling thread's allocations and frees have this tag and this line of a
/// program in each history. Labels nest: the innermost one counts.
export class history_label {
 public:
  /// 0 keeps the outer label's value.
  struct names {
    std::uint16_t tag = 0;
    std::uint32_t frame = 0;
  };
  /// Requires: is_history_label(). Effects: sets the label of this thread until the destructor.
  /// Errors: none. Cost: some nanoseconds.
  explicit history_label(const names& now) noexcept;
  ~history_label();
  history_label(const history_label&) = delete;
  history_label& operator=(const history_label&) = delete;

 private:
  names before_;
};
/// Whether history_tag() and history_line() have returned these numbers; true for 0.
export [[nodiscard]] bool is_history_label(const history_label::names& now) noexcept;
/// The same without a scope, for callers from other languages. Returns the previous one.
/// Requires: is_history_label().
export history_label::names set_history_label(const history_label::names& now) noexcept;
/// The number of a tag's name. 0 beyond 65,535 names, or without host memory.
export [[nodiscard]] std::uint16_t history_tag(std::string_view name) noexcept;
/// The largest number of a line.
export inline constexpr std::uint32_t history_line_max = std::uint32_t{1} << 20;
/// The number of a line of a program, as above; at most history_line_max of them.
export [[nodiscard]] std::uint32_t history_line(std::string_view file, std::uint32_t line,
                                                std::string_view function) noexcept;

// ---- files ---------------------------------------------------------------------------

/// Format 1, little endian. Errors: out_of_host_memory.
export [[nodiscard]] result<std::vector<std::byte>> encode_history(const history& taken) noexcept;
/// Errors: invalid_argument (the detail has the cause), out_of_host_memory.
export [[nodiscard]] result<history> decode_history(std::span<const std::byte> bytes) noexcept;
/// Effects: writes a file beside `path`, then renames it to `path`: a reader finds the old file or
/// the new one. Writes in place if `path` is not a regular file, or if its folder takes no new
/// file. Errors: out_of_host_memory; unavailable, with the system's code, if the file cannot be
/// written: the old file is unchanged, except after a write in place.
export [[nodiscard]] status write_history(const history& taken, const char* path) noexcept;

}  // namespace vmm
