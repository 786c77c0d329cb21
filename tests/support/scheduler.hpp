// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What joins the library to the scheduler: its locks and atomics are steps, and so is each call of
// the simulated driver. It imports what it uses, so it is the last include of a file, except others
// with imports.
#pragma once

#include "scheduler.h"

import vmm.backend;
import vmm.base;
import vmm.fake;

/// For its life the library's locks and atomics are steps of the schedule.
class observed_locks final : public vmm::sync::schedule_observer {
 public:
  observed_locks() { vmm::sync::set_schedule_observer(this); }
  ~observed_locks() { vmm::sync::set_schedule_observer(nullptr); }
  observed_locks(const observed_locks&) = delete;
  observed_locks& operator=(const observed_locks&) = delete;

  void reach(vmm::sync::step what, const void* object) noexcept override {
    schedule::reach(event_of(what), object);
  }

 private:
  [[nodiscard]] static schedule::event event_of(vmm::sync::step what) noexcept {
    switch (what) {
      case vmm::sync::step::lock: return schedule::event::lock;
      case vmm::sync::step::lock_again: return schedule::event::lock_again;
      case vmm::sync::step::lock_shared: return schedule::event::lock_shared;
      case vmm::sync::step::unlock: return schedule::event::unlock;
      case vmm::sync::step::unlock_shared: return schedule::event::unlock_shared;
      case vmm::sync::step::load:
      case vmm::sync::step::store:
      case vmm::sync::step::change: return schedule::event::atomic;
    }
    return schedule::event::atomic;
  }
};

/// The simulated driver, each call of which is a step. Its own lock is unseen by ThreadSanitizer: a
/// real driver need not order two threads that call it.
class scheduled_driver : public vmm::fake_driver {
 private:
  class unseen_scope {
   public:
    unseen_scope() { schedule::begin_unseen(); }
    ~unseen_scope() { schedule::end_unseen(); }
    unseen_scope(const unseen_scope&) = delete;
    unseen_scope& operator=(const unseen_scope&) = delete;
  };

  template <class Call>
  static auto unseen(Call&& call) {
    const unseen_scope scope;
    return call();
  }
  template <class Call>
  auto at_step(Call&& call) {
    schedule::reach(schedule::event::driver, nullptr);
    return unseen(std::forward<Call>(call));
  }

 public:
  explicit scheduled_driver(const vmm::fake::profile& plays) : vmm::fake_driver(plays) {}

// A call of the driver that is a step.
#define VMM_STEP(call, parameters, ...)                             \
  [[nodiscard]] auto call parameters {                              \
    return at_step([&] { return fake_driver::call(__VA_ARGS__); }); \
  }
  VMM_STEP(query_granularity, (const vmm::physical_request& request), request)
  VMM_STEP(query_memory, (vmm::location where), where)
  VMM_STEP(reserve, (const vmm::reserve_request& request), request)
  VMM_STEP(free_reservation, (vmm::address_range range), range)
  VMM_STEP(create, (const vmm::physical_request& request), request)
  VMM_STEP(release, (vmm::physical_handle handle), handle)
  VMM_STEP(map, (const vmm::map_request& request), request)
  VMM_STEP(unmap, (vmm::address_range range), range)
  VMM_STEP(set_access, (vmm::address_range range, std::span<const vmm::access_grant> grants), range,
           grants)
  VMM_STEP(get_access, (vmm::address at, vmm::location grantee), at, grantee)

  VMM_STEP(create_stream, ())
  VMM_STEP(destroy_stream, (vmm::stream_handle stream), stream)
  VMM_STEP(synchronize_stream, (vmm::stream_handle stream), stream)
  VMM_STEP(create_event, ())
  VMM_STEP(destroy_event, (vmm::event_handle event), event)
  VMM_STEP(record_event, (vmm::event_handle event, vmm::stream_handle stream), event, stream)
  VMM_STEP(record_all, (vmm::event_handle event), event)
  VMM_STEP(synchronize_all, ())
  VMM_STEP(query_event, (vmm::event_handle event), event)
  VMM_STEP(wait_event, (vmm::stream_handle stream, vmm::event_handle event), stream, event)
  VMM_STEP(synchronize_event, (vmm::event_handle event), event)

  VMM_STEP(query_capture, (vmm::stream_handle stream), stream)
  [[nodiscard]] bool is_uncaptured(vmm::stream_handle stream) noexcept {
    return at_step([&] { return fake_driver::is_uncaptured(stream); });
  }
  // Of the calling thread alone: no other thread sees when it happens.
  auto exchange_capture_mode(vmm::capture_mode mode) {
    return unseen([&] { return fake_driver::exchange_capture_mode(mode); });
  }

  VMM_STEP(copy, (const vmm::copy_request& request), request)
  VMM_STEP(fill, (const vmm::fill_request& request), request)
  VMM_STEP(write, (vmm::address at, std::span<const std::byte> source), at, source)
  VMM_STEP(read, (std::span<std::byte> target, vmm::address at), target, at)

  VMM_STEP(launch, (vmm::stream_handle stream, const vmm::fake::kernel& what), stream, what)
  VMM_STEP(begin_capture, (vmm::stream_handle stream, vmm::capture_mode mode), stream, mode)
  VMM_STEP(end_capture, (vmm::stream_handle stream), stream)
  VMM_STEP(launch_graph, (vmm::fake::graph_handle graph, vmm::stream_handle stream), graph, stream)
  VMM_STEP(destroy_graph, (vmm::fake::graph_handle graph), graph)
#undef VMM_STEP
  /// Finishes the next work of one stream that has some that can finish; which one, `number` says.
  void finish_some(std::uint64_t number) {
    at_step([&] {
      const std::size_t ready = ready_count();
      return ready == 0 || fake_driver::finish_ready(number % ready).has_value();
    });
  }
};
static_assert(vmm::stream_backend<scheduled_driver>);
static_assert(vmm::capture_backend<scheduled_driver>);
static_assert(vmm::copy_backend<scheduled_driver>);
