// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero:state - what stands behind a level_zero_driver.
//
// I1  memory_lock guards the accounts and is held over the driver's memory calls; work_lock guards
//     streams, events and points and is held while work is queued, never while a caller waits.
//     transfer_lock is held over a whole read or write. They are taken in the order transfer, work,
//     memory.
// I2  A point is a native event that is signalled once. It is set back, and used again, when its
//     signal was seen and nothing refers to it: no event, no queued wait, no waiting thread.
// I3  A stream that waits for points holds them until a marker, queued behind the waits, has
//     passed.
//
// Thread safety: by the locks above. Cost: a point costs no driver call but the one that queues it
// once as many exist as were ever in use at a time.
module;
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "loader.h"

module vmm.level_zero:state;

import vmm.backend;
import :accounts;
import :description;

namespace vmm::level_zero {

/// What the driver answered, in vmm's words.
[[nodiscard]] error error_of(call where, ze_result_t code) noexcept;
/// The enumerator in level_zero/ze_api.h.
[[nodiscard]] const char* name_of(ze_result_t code) noexcept;

struct point {
  ze_event_handle_t native = nullptr;
  std::uint32_t references = 0;
};

/// Makes points and takes them back. Its pools live as long as it.
class point_store {
 public:
  point_store() = default;
  ~point_store() { close(); }
  point_store(const point_store&) = delete;
  point_store& operator=(const point_store&) = delete;

  void use(const entry_points& ze, ze_context_handle_t context) noexcept {
    ze_ = &ze;
    context_ = context;
  }
  /// A point that is not signalled, with one reference.
  [[nodiscard]] result<point*> take(call where) noexcept;
  void refer(point& which) noexcept { ++which.references; }
  void forget(point* which) noexcept;
  /// A point that was taken and never queued.
  void put_back(point& which) noexcept;
  void close() noexcept;

 private:
  static constexpr std::uint32_t pool_size = 64;

  [[nodiscard]] status grow(call where);
  [[nodiscard]] ze_result_t reuse() noexcept;

  const entry_points* ze_ = nullptr;
  ze_context_handle_t context_ = nullptr;
  std::vector<ze_event_pool_handle_t> pools_;
  std::deque<point> points_;
  std::vector<point*> free_;
  std::vector<point*> retired_;  // without references; perhaps not signalled yet
};

struct queued_waits {
  point* marker = nullptr;
  std::vector<point*> points;
};

struct stream_state {
  ze_command_list_handle_t list = nullptr;
  std::vector<point*> waits;  // behind the last marker
  std::deque<queued_waits> marked;
};

struct driver_state {
  process_mark made_in;
  entry_points ze;
  ze_driver_handle_t driver = nullptr;
  ze_device_handle_t device = nullptr;
  ze_context_handle_t context = nullptr;
  std::int32_t ordinal = 0;
  std::uint32_t queue_ordinal = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t large_page_bytes = 0;
  features can;
  level_zero_description description;

  std::mutex memory_lock;
  accounts held;

  std::mutex work_lock;
  point_store points;
  std::map<std::uint64_t, stream_state> streams;  // 0 is the default one
  std::map<std::uint64_t, point*> events;         // null: never recorded
  std::vector<stream_state> leaving;              // destroyed, with work that may be unfinished
  std::uint64_t last_token = 0;

  std::mutex transfer_lock;
  ze_command_list_handle_t transfers = nullptr;  // synchronous

  driver_state() = default;
  ~driver_state();
  driver_state(const driver_state&) = delete;
  driver_state& operator=(const driver_state&) = delete;

  // Opening.
  [[nodiscard]] status find_device();
  [[nodiscard]] status read_device();
  [[nodiscard]] status make_context();

  // Memory; under memory_lock.
  [[nodiscard]] result<std::uint64_t> page_size(call where, std::uint64_t size_bytes);
  [[nodiscard]] result<address_range> reserve_native(std::uint64_t size_bytes, address hint);
  [[nodiscard]] result<address_range> reserve_aligned(const reserve_request& request,
                                                      std::uint64_t alignment_bytes);
  [[nodiscard]] ze_result_t switch_native(std::uint64_t at, const mapping& which, bool on);
  [[nodiscard]] status switch_run(call where, const accounts::run& which, bool on);

  // Work; under work_lock.
  [[nodiscard]] result<ze_command_list_handle_t> make_list(bool is_synchronous);
  [[nodiscard]] result<stream_state*> find_stream(call where, stream_handle stream);
  [[nodiscard]] result<std::map<std::uint64_t, point*>::iterator> find_event(call where,
                                                                             event_handle event);
  [[nodiscard]] result<point*> append_point(call where, stream_state& stream);
  [[nodiscard]] status mark_waits(call where, stream_state& stream);
  void drop_passed_waits(stream_state& stream) noexcept;
  void end_left_streams() noexcept;
};

}  // namespace vmm::level_zero
