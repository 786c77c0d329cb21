// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.recording - recordings of programs' allocations, of several libraries, as one stream of
// events: memory snapshots of PyTorch 2.1 to 2.15, the list of memory_snapshot(), RMM's CSV logs,
// and vmm's own histories and traces; each plain or gzip.
//
// Files are read as a stream, and nothing in one is ever called. What a value of a pickle becomes
// is decided when it is complete: an event is 32 bytes, a stack is the number of its first
// occurrence, and what no reader of ours needs is dropped.
//
// - Each number in a record (context, stack, frame, text, stream, pool, block) is a place in its
//   table. Place 0 of each table is the empty one.
// - The events of a device stand in the order in which they happened, and so do the requests that
//   requests_of() makes of them.
// - Memory is bounded for every file: see recording_limits.
//
// Thread safety: values only. Cost: linear in the bytes; memory is 32 bytes an event, 8 a value
// that a pickle may refer to, and the tables.
export module vmm.recording;

import vmm.observe;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

export enum class recorded_action : std::uint8_t {
  other,
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  oom,
  snapshot,
  iteration,
  damaged,  ///< of no recording that was read without a problem
};

export struct recorded_event {
  std::uint64_t at = 0;            ///< address; of oom: free memory of the device
  std::uint64_t size_bytes = 0;    ///< of a block as requested; of oom and segments as rounded
  std::uint64_t time_us : 48 = 0;  ///< since recording::time_origin_us
  std::uint64_t stream : 16 = 0;   ///< in recording::streams
  std::uint32_t context = 0;
  std::uint16_t pool = 0;  ///< in recording::pools
  recorded_action action = recorded_action::other;
};

/// Where an event comes from.
export struct recorded_context {
  std::uint32_t stack = 0;
  std::uint32_t tag = 0;  ///< a text: user_metadata
};
export struct recorded_frame {
  std::uint32_t file = 0;  ///< texts
  std::uint32_t function = 0;
  std::uint32_t line = 0;
};

export enum class block_state : std::uint8_t { free, live, pending, damaged };
export struct recorded_block {
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;   ///< as rounded up
  std::uint64_t asked_bytes = 0;  ///< 0 if the file lacks it
  std::uint32_t context = 0;
  block_state state = block_state::free;
};
export struct recorded_segment {
  std::uint64_t base = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t device = 0;
  std::uint32_t first_block = 0;
  std::uint32_t block_count = 0;
  std::uint16_t stream = 0;
  std::uint16_t pool = 0;
  bool is_small = false;
  bool is_expandable = false;
  bool is_damaged = false;
};
/// Records [first, first + count) of a table.
export struct recorded_range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
/// A line of allocator_settings; divisions of a power of two are "roundup_power2_divisions:N".
export struct recorded_setting {
  std::string name{};
  std::string text{};
  double number = 0;
};

export enum class recording_form : std::uint8_t { torch_snapshot, rmm_log, trace, history };

/// What a file holds, of all devices.
export struct recording {
  recording_form form = recording_form::torch_snapshot;
  std::vector<recorded_event> events{};
  std::vector<recorded_range> traces{};  ///< of events, one for each device
  std::vector<recorded_segment> segments{};
  std::vector<recorded_block> blocks = std::vector<recorded_block>(1);
  std::vector<recorded_context> contexts = std::vector<recorded_context>(1);
  std::vector<recorded_range> stacks = std::vector<recorded_range>(1);  ///< of stack_frames
  std::vector<std::uint32_t> stack_frames{};
  std::vector<recorded_frame> frames = std::vector<recorded_frame>(1);
  std::deque<std::string> texts = std::deque<std::string>(1);
  std::vector<std::uint64_t> streams = std::vector<std::uint64_t>(1);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pools{{0, 0}};
  std::vector<recorded_setting> settings{};
  std::uint64_t time_origin_us = 0;
  bool has_annotation_list = false;       ///< since PyTorch 2.5, with annotations or without
  std::uint64_t dropped_text_count = 0;   ///< texts that the tables had no room for
  std::uint64_t dropped_stack_count = 0;  ///< stacks likewise
  std::uint64_t lost_event_count = 0;     ///< of a history: those before the first
  std::uint64_t cut_line_count = 0;       ///< of a log: its last line, if that is not whole
  /// Of vmm's own file: the whole of it.
  std::optional<history> taken{};

  [[nodiscard]] const std::string& text(std::uint32_t number) const { return texts[number]; }
  /// The setting; nothing where the file has none of this name.
  [[nodiscard]] const recorded_setting* find_setting(std::string_view name) const;
};

/// What is read of a file at the most. A snapshot that PyTorch writes reaches none of them.
namespace recording_limits {
inline constexpr std::uint64_t events = std::uint64_t{1} << 26;
inline constexpr std::uint64_t values_at_once = std::uint64_t{1} << 25;
inline constexpr std::uint64_t open_containers = std::uint64_t{1} << 20;
inline constexpr std::uint64_t referable_values = std::uint64_t{1} << 26;
inline constexpr std::uint64_t text_bytes = std::uint64_t{1} << 28;
inline constexpr std::uint64_t texts = std::uint64_t{1} << 22;
inline constexpr std::uint64_t stack_frames = std::uint64_t{1} << 27;
inline constexpr std::uint64_t settings = 4096;
}  // namespace recording_limits

export struct recording_outcome {
  recording value{};
  std::string problem{};  ///< empty where it was read; begins with the file's name
};

/// Called now and then with the bytes read and those of the file, 0 where it has no end.
export using reading_progress = std::function<void(std::uint64_t, std::uint64_t)>;
export struct reading_options {
  reading_progress progress{};
  /// Of a history, which is read whole; other forms have no largest size.
  std::uint64_t history_bytes_max = std::uint64_t{1} << 30;
};

/// Reads the file at `path`, of any form.
export [[nodiscard]] recording_outcome read_recording(const std::string& path,
                                                      const reading_options& options = {});
/// The same for bytes in memory.
export [[nodiscard]] recording_outcome parse_recording(const std::string& name,
                                                       std::span<const std::byte> bytes);

/// The device that allocated and freed the most; without events, the one that holds the most.
export [[nodiscard]] std::uint64_t busiest_device(const recording& from);
/// Devices of the recording; some may have no events.
export [[nodiscard]] std::uint64_t device_count(const recording& from);
/// Empty, or that the recording has no such device.
export [[nodiscard]] std::string problem_of_device(const recording& from,
                                                   const std::optional<std::uint64_t>& device);
/// The events of a device; none where it has no trace.
export [[nodiscard]] std::span<const recorded_event> events_of(const recording& from,
                                                               std::uint64_t device);

// ---- requests -------------------------------------------------------------------------

export enum class request_kind : std::uint8_t {
  allocate,
  free,            ///< at once
  free_pending,    ///< waits for other streams
  free_completed,  ///< that wait has ended
  empty_cache,     ///< free segments went back to the driver, with no request about them
  shortage,        ///< the driver refused the recorded allocator the segment of the next request
  iteration,
};

/// One call to an allocator; 16 bytes.
export struct request {
  std::uint64_t size_bytes = 0;  ///< as requested
  std::uint32_t slot = 0;        ///< of the block: a number that is reused after its free
  std::uint16_t stream = 0;
  std::uint8_t pool = 0;
  request_kind kind = request_kind::allocate;
};

/// The requests of a device's program, from an empty allocator on: blocks live before the first
/// event are allocated first.
export struct request_stream {
  std::vector<request> requests{};
  std::vector<std::uint32_t> contexts{};  ///< of each request
  std::vector<std::uint64_t> times_us{};  ///< of each request, ascending; 0 without times
  /// Of the first requests, which no event names: where the blocks lay. In order.
  std::vector<std::uint64_t> before_addresses{};
  std::uint64_t slot_count = 0;
  std::uint64_t allocation_count = 0;
  std::uint64_t live_before_count = 0;  ///< requests at the head that no event names
  std::uint64_t live_before_bytes = 0;
  std::uint64_t lost_free_count = 0;     ///< of blocks whose address was allocated again
  std::uint64_t unknown_live_count = 0;  ///< live at the end, but not by the events
  std::uint64_t left_out_count = 0;      ///< events that no program can have made
  std::uint64_t peak_live_bytes = 0;     ///< each request rounded up to 512
  std::uint64_t peak_index = 0;          ///< the request at which it is reached
  bool is_any_pending = false;
  bool has_events = false;
};

export [[nodiscard]] request_stream requests_of(const recording& from, std::uint64_t device);

/// A trace from a file of any form: of a recording the requests of its busiest device. A block is
/// freed when its free has completed.
export [[nodiscard]] read_outcome read_any_trace(const std::string& path);

// ---- for the readers of this module -----------------------------------------------------

/// The tables of a recording: each text, frame, stack, context, stream and pool once.
class recording_tables {
 public:
  explicit recording_tables(recording& into) : into_(into) {}

  /// 0 for the empty text, and for one that the table has no room for.
  [[nodiscard]] std::uint32_t text(std::string_view what);
  [[nodiscard]] std::uint32_t frame(const recorded_frame& what);
  /// 0 for an empty stack, and for one that the table has no room for.
  [[nodiscard]] std::uint32_t stack(std::span<const std::uint32_t> frames);
  [[nodiscard]] std::uint32_t context(const recorded_context& what);
  [[nodiscard]] std::uint16_t stream(std::uint64_t handle);
  [[nodiscard]] std::uint16_t pool(std::uint64_t owner, std::uint64_t number);
  /// Since the origin, which the first call sets.
  [[nodiscard]] std::uint64_t time(std::uint64_t us);

 private:
  [[nodiscard]] bool is_stack(std::uint32_t number, std::span<const std::uint32_t> frames) const;

  recording& into_;
  std::unordered_map<std::string_view, std::uint32_t> texts_{};
  std::map<std::array<std::uint32_t, 3>, std::uint32_t> frames_{};
  std::unordered_map<std::uint64_t, std::uint32_t> stacks_{};  // by hash
  std::unordered_map<std::uint64_t, std::uint32_t> contexts_{};
  std::map<std::uint64_t, std::uint16_t> streams_{{0, std::uint16_t{0}}};
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint16_t> pools_{
      {{0, 0}, std::uint16_t{0}}};
  std::uint64_t text_bytes_ = 0;
  bool has_origin_ = false;
};

/// The bytes of a source one after another, across its blocks.
class byte_reader {
 public:
  byte_reader(byte_source& source, const reading_progress& progress)
      : source_(source), progress_(progress) {}

  /// The bytes that are there, at least one; empty at the end.
  [[nodiscard]] std::string_view peek();
  void skip(std::size_t count) { left_.remove_prefix(count); }
  /// Of the file; 0 of a pipe.
  [[nodiscard]] std::uint64_t file_bytes() const { return source_.size_bytes(); }
  /// Bytes taken so far, as unpacked.
  [[nodiscard]] std::uint64_t offset() const noexcept { return fetched_bytes_ - left_.size(); }
  /// False at the end.
  [[nodiscard]] bool take(unsigned char& byte) {
    if (left_.empty() && peek().empty()) return false;
    byte = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    return true;
  }
  /// `count` bytes, of which `kept_max` are kept. False where there are fewer.
  [[nodiscard]] bool take(std::uint64_t count, std::uint64_t kept_max, std::string& into);
  /// Little endian. False at the end.
  [[nodiscard]] bool take_number(std::size_t count, std::uint64_t& into);

 private:
  byte_source& source_;
  const reading_progress& progress_;
  std::string_view left_{};
  std::uint64_t fetched_bytes_ = 0;
  std::uint64_t block_count_ = 0;
};

/// Each reads the whole source, and returns what is wrong with it, or nothing.
[[nodiscard]] std::string read_pickle(byte_reader& from, recording& into);
[[nodiscard]] std::string read_rmm_log(byte_reader& from, recording& into);
[[nodiscard]] bool looks_like_pickle(std::string_view head);
[[nodiscard]] bool looks_like_rmm_log(std::string_view head);

}  // namespace vmm::tools
