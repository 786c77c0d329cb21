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

  [[nodiscard]] auto query_granularity(const vmm::physical_request& request) {
    return at_step([&] { return fake_driver::query_granularity(request); });
  }
  [[nodiscard]] auto query_memory(vmm::location where) {
    return at_step([&] { return fake_driver::query_memory(where); });
  }
  [[nodiscard]] auto reserve(const vmm::reserve_request& request) {
    return at_step([&] { return fake_driver::reserve(request); });
  }
  [[nodiscard]] auto free_reservation(vmm::address_range range) {
    return at_step([&] { return fake_driver::free_reservation(range); });
  }
  [[nodiscard]] auto create(const vmm::physical_request& request) {
    return at_step([&] { return fake_driver::create(request); });
  }
  [[nodiscard]] auto release(vmm::physical_handle handle) {
    return at_step([&] { return fake_driver::release(handle); });
  }
  [[nodiscard]] auto map(const vmm::map_request& request) {
    return at_step([&] { return fake_driver::map(request); });
  }
  [[nodiscard]] auto unmap(vmm::address_range range) {
    return at_step([&] { return fake_driver::unmap(range); });
  }
  [[nodiscard]] auto set_access(vmm::address_range range,
                                std::span<const vmm::access_grant> grants) {
    return at_step([&] { return fake_driver::set_access(range, grants); });
  }
  [[nodiscard]] auto get_access(vmm::address at, vmm::location grantee) {
    return at_step([&] { return fake_driver::get_access(at, grantee); });
  }

  [[nodiscard]] auto create_stream() {
    return at_step([&] { return fake_driver::create_stream(); });
  }
  [[nodiscard]] auto destroy_stream(vmm::stream_handle stream) {
    return at_step([&] { return fake_driver::destroy_stream(stream); });
  }
  [[nodiscard]] auto synchronize_stream(vmm::stream_handle stream) {
    return at_step([&] { return fake_driver::synchronize_stream(stream); });
  }
  [[nodiscard]] auto create_event() {
    return at_step([&] { return fake_driver::create_event(); });
  }
  [[nodiscard]] auto destroy_event(vmm::event_handle event) {
    return at_step([&] { return fake_driver::destroy_event(event); });
  }
  [[nodiscard]] auto record_event(vmm::event_handle event, vmm::stream_handle stream) {
    return at_step([&] { return fake_driver::record_event(event, stream); });
  }
  [[nodiscard]] auto record_all(vmm::event_handle event) {
    return at_step([&] { return fake_driver::record_all(event); });
  }
  [[nodiscard]] auto synchronize_all() {
    return at_step([&] { return fake_driver::synchronize_all(); });
  }
  [[nodiscard]] auto query_event(vmm::event_handle event) {
    return at_step([&] { return fake_driver::query_event(event); });
  }
  [[nodiscard]] auto wait_event(vmm::stream_handle stream, vmm::event_handle event) {
    return at_step([&] { return fake_driver::wait_event(stream, event); });
  }
  [[nodiscard]] auto synchronize_event(vmm::event_handle event) {
    return at_step([&] { return fake_driver::synchronize_event(event); });
  }

  [[nodiscard]] auto query_capture(vmm::stream_handle stream) {
    return at_step([&] { return fake_driver::query_capture(stream); });
  }
  [[nodiscard]] bool is_uncaptured(vmm::stream_handle stream) noexcept {
    return at_step([&] { return fake_driver::is_uncaptured(stream); });
  }
  // Of the calling thread alone: no other thread sees when it happens.
  auto exchange_capture_mode(vmm::capture_mode mode) {
    return unseen([&] { return fake_driver::exchange_capture_mode(mode); });
  }

  [[nodiscard]] auto copy(const vmm::copy_request& request) {
    return at_step([&] { return fake_driver::copy(request); });
  }
  [[nodiscard]] auto fill(const vmm::fill_request& request) {
    return at_step([&] { return fake_driver::fill(request); });
  }
  [[nodiscard]] auto write(vmm::address at, std::span<const std::byte> source) {
    return at_step([&] { return fake_driver::write(at, source); });
  }
  [[nodiscard]] auto read(std::span<std::byte> target, vmm::address at) {
    return at_step([&] { return fake_driver::read(target, at); });
  }

  [[nodiscard]] auto launch(vmm::stream_handle stream, const vmm::fake::kernel& what) {
    return at_step([&] { return fake_driver::launch(stream, what); });
  }
  [[nodiscard]] auto begin_capture(vmm::stream_handle stream, vmm::capture_mode mode) {
    return at_step([&] { return fake_driver::begin_capture(stream, mode); });
  }
  [[nodiscard]] auto end_capture(vmm::stream_handle stream) {
    return at_step([&] { return fake_driver::end_capture(stream); });
  }
  [[nodiscard]] auto launch_graph(vmm::fake::graph_handle graph, vmm::stream_handle stream) {
    return at_step([&] { return fake_driver::launch_graph(graph, stream); });
  }
  [[nodiscard]] auto destroy_graph(vmm::fake::graph_handle graph) {
    return at_step([&] { return fake_driver::destroy_graph(graph); });
  }
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
