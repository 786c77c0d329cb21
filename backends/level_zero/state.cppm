// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero:state - the state of a level_zero_driver.
//
// I1  memory_lock guards the accounts, and work_lock streams, events and points. Neither is held
//     over a driver call that may be slow: memory calls are made on what is in transit or in no
//     table (I6 and I7 of :accounts), commands are appended in the stream's turn, and waits hold
//     nothing. Lists and native events are destroyed under work_lock, when they are idle, and
//     native events are created, queried and reset under it. A stream's turn is taken before
//     work_lock; transfer_lock is held over a whole read or write, and taken before memory_lock.
// I2  A point is a native event that is signalled once. It is set back, and used again, when its
//     signal was seen and nothing refers to it: no event, no queued wait, no waiting thread.
// I3  A stream that waits for points holds them until a marker, queued behind the waits, has
//     passed.
// I4  A list is destroyed when nothing in it is unfinished: the last marker of a destroyed stream
//     has passed, or the object that goes has waited for it.
// I5  Commands are appended to a list by the thread that has the stream's turn: Level Zero forbids
//     two at once. Its other calls may be made from any thread at any time, except those that
//     destroy an object. A stream whose turn a thread has, or for which a thread waits, is pinned
//     and stays.
//
// After exit() has begun to destroy objects that are newer than the drivers' start, no driver is
// called: its own static objects may be destroyed.
//
// Thread safety: by the locks above. Cost: a point costs no driver call but the one that queues it
// once as many exist as are in use at a time, and a third more; until then four queries at most for
// each, on average.
module;
#include "loader.h"

module vmm.level_zero:state;

import vmm.backend;
import vmm.base;
import vmm.std;
import :accounts;
import :description;

namespace vmm::level_zero {

/// The driver's result as an error of vmm.
[[nodiscard]] error error_of(call where, ze_result_t code) noexcept;
/// The enumerator in level_zero/ze_api.h.
[[nodiscard]] const char* name_of(ze_result_t code) noexcept;
/// A driver's success without a result.
[[nodiscard]] error no_value(call where) noexcept;
/// The error of a call whose first part stands because the driver failed to undo it.
[[nodiscard]] error lost(error failure) noexcept;
[[nodiscard]] error no_work_memory(call where) noexcept;

/// The size for which open() queries the large page. Larger sizes may have larger pages.
inline constexpr std::uint64_t large_bytes = 1ull << 30;

/// The text of the check in every member of level_zero_driver.
inline constexpr const char* moved_from = "a level_zero_driver that was moved from is used";

struct point {
  ze_event_handle_t native = nullptr;
  std::uint32_t references = 0;
};

/// Creates points and recycles them. Its pools live as long as it.
class point_store {
 public:
  point_store() = default;
  ~point_store() { close(); }
  point_store(const point_store&) = delete;
  point_store& operator=(const point_store&) = delete;

  void use(const entry_points& ze, ze_context_handle_t context) noexcept;
  /// A point that is not signalled, with one reference.
  [[nodiscard]] result<point*> take(call where) noexcept;
  void refer(point& which) noexcept;
  void forget(point* which) noexcept;
  /// A point that was taken and never queued.
  void put_back(point& which) noexcept;
  void close() noexcept;
  /// Whether no point is both free and retired, or referred to and one of these.
  [[nodiscard]] bool validate() const noexcept;

 private:
  static constexpr std::uint32_t pool_count_min = 64;  // points of a pool

  [[nodiscard]] status grow(call where);
  [[nodiscard]] status make_pool(call where, std::size_t first,
                                 ze_event_pool_handle_t& pool) noexcept;
  [[nodiscard]] status make_event(call where, ze_event_pool_handle_t pool, std::uint32_t index,
                                  point& into) noexcept;
  void reuse(std::size_t look_count_max) noexcept;

  const entry_points* ze_ = nullptr;
  ze_context_handle_t context_ = nullptr;
  std::vector<ze_event_pool_handle_t> pools_;
  std::deque<point> points_;
  std::vector<point*> free_;
  std::vector<point*> retired_;  // without references; perhaps not signalled yet
  std::size_t next_look_ = 0;    // in retired_
};

struct queued_waits {
  point* marker = nullptr;
  std::vector<point*> points;
};

struct stream_state {
  ze_command_list_handle_t list = nullptr;  // constant
  std::mutex turn;                          // over what is appended to the list
  // Whether work was appended, or a caller has the list's own handle.
  std::atomic<bool> is_used = false;
  bool is_ended = false;        // in its last turn
  std::uint32_t pin_count = 0;  // under work_lock, as all below
  std::vector<point*> waits;    // behind the last marker; only more in the stream's turn
  /// The last one has no marker while that is being queued.
  std::deque<queued_waits> marked;
};

struct level_zero_state;

/// The calling thread's turn at a stream, until it ends. work_lock is not held then.
class stream_turn {
 public:
  stream_turn(level_zero_state& of, stream_state& stream) noexcept : of_(&of), stream_(&stream) {}
  ~stream_turn();
  stream_turn(stream_turn&& other) noexcept
      : of_(other.of_), stream_(std::exchange(other.stream_, nullptr)) {}
  stream_turn(const stream_turn&) = delete;
  stream_turn& operator=(const stream_turn&) = delete;
  stream_turn& operator=(stream_turn&&) = delete;
  [[nodiscard]] stream_state& stream() const noexcept { return *stream_; }

 private:
  level_zero_state* of_;
  stream_state* stream_;
};

struct level_zero_state {
  process_mark made_in;
  entry_points ze;
  ze_driver_handle_t driver = nullptr;
  ze_device_handle_t device = nullptr;
  ze_context_handle_t context = nullptr;
  level_zero_options asked;
  std::uint32_t queue_ordinal = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t large_page_bytes = 0;
  features can;
  level_zero_description description;

  std::mutex memory_lock;
  std::condition_variable arrived;  // notified when a transit ends
  accounts records;

  std::mutex work_lock;
  point_store points;
  std::map<std::uint64_t, stream_state> streams;  // 0 is the default one
  std::map<std::uint64_t, point*> events;         // null: never recorded
  std::map<std::uint64_t, stream_state> leaving;  // destroyed, with work that may be unfinished

  std::mutex transfer_lock;
  ze_command_list_handle_t transfers = nullptr;  // synchronous

  level_zero_state() = default;
  ~level_zero_state();
  level_zero_state(const level_zero_state&) = delete;
  level_zero_state& operator=(const level_zero_state&) = delete;

  /// Whether this process may call the driver: it was not forked, and is not ending.
  [[nodiscard]] bool is_usable() const noexcept;
  /// The error if it may not.
  [[nodiscard]] error refuse_unusable(call where) const noexcept;

  /// Errors: those of level_zero_driver::open().
  [[nodiscard]] static result<std::unique_ptr<level_zero_state>> open(
      const level_zero_options& options);

  // Opening.
  [[nodiscard]] status start_drivers();
  [[nodiscard]] status find_device();
  [[nodiscard]] status read_device();
  [[nodiscard]] status read_queues();
  [[nodiscard]] status make_context();
  [[nodiscard]] status try_memory();
  [[nodiscard]] status make_lists();
  void finish_work() noexcept;

  // Memory; without memory_lock, except for switch_range.
  [[nodiscard]] result<std::uint64_t> page_size(call where, std::uint64_t size_bytes);
  [[nodiscard]] result<address_range> reserve_native(std::uint64_t size_bytes, address hint);
  [[nodiscard]] status free_native(call where, address_range given);
  [[nodiscard]] result<address_range> reserve_aligned(const reserve_request& request,
                                                      std::uint64_t alignment_bytes);
  [[nodiscard]] ze_result_t switch_native(std::uint64_t at, const mapping& which, bool on);
  [[nodiscard]] status switch_run(call where, mapping& first, bool on);
  [[nodiscard]] result<accounts::run> switch_range(std::unique_lock<std::mutex>& lock, call where,
                                                   address_range range, bool on);

  // Work; under work_lock, which its holders release while they append.
  [[nodiscard]] result<ze_command_list_handle_t> make_list(bool is_synchronous);
  [[nodiscard]] result<stream_state*> find_stream(call where, stream_handle stream);
  [[nodiscard]] result<std::map<std::uint64_t, point*>::iterator> find_event(call where,
                                                                             event_handle event);
  [[nodiscard]] result<point*> append_point(std::unique_lock<std::mutex>& lock, call where,
                                            stream_state& stream);
  [[nodiscard]] status mark_waits(std::unique_lock<std::mutex>& lock, call where,
                                  stream_state& stream);
  [[nodiscard]] status queue_wait(std::unique_lock<std::mutex>& lock, stream_state& waiting,
                                  point& what);
  void drop_passed_waits(stream_state& stream) noexcept;
  void end_left_streams() noexcept;
  /// Takes work_lock for moments. Waits for the work of streams that were destroyed.
  [[nodiscard]] status synchronize_left_streams();

  /// Whether there is such an event; takes work_lock for a moment.
  [[nodiscard]] status look_for_event(call where, event_handle event);
  /// Takes work_lock for a moment, and waits for the turn without it.
  [[nodiscard]] result<stream_turn> take_turn(call where, stream_handle stream);
  /// Whether all of a range may be read and written. Waits for changes in transit there.
  [[nodiscard]] status check_usable(call where, address_range range);
};

}  // namespace vmm::level_zero
