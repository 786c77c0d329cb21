// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The objects of the handles of sharing. A channel, an exported and an imported block are for one
// thread at a time in the modules: here each has a lock. A call takes a channel's before a block's.
// In a forked child no lock is taken. It imports what it uses, so it comes after every include but
// those that do the same.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"

#include "manager_object.hpp"
#include "objects.hpp"
#include "python.hpp"

import vmm.share;

namespace vmm_c {

inline constexpr const char* is_inside_text =
    "another thread's call on it goes on: let that return first";

struct listener_object {
  static constexpr handle_kind kind = handle_kind::listener;
  explicit listener_object(vmm::share_listener made) noexcept : listener(std::move(made)) {}
  [[nodiscard]] bool has_users() const noexcept { return false; }

  static constexpr const char* is_used_text = is_inside_text;

  const made_here made_in;
  std::atomic<bool> ends_calls = false;
  std::mutex mutex;
  vmm::share_listener listener;
};

struct channel_object {
  static constexpr handle_kind kind = handle_kind::channel;
  explicit channel_object(vmm::share_channel made) noexcept : channel(std::move(made)) {}
  [[nodiscard]] bool has_users() const noexcept { return false; }

  static constexpr const char* is_used_text = is_inside_text;

  const made_here made_in;
  std::atomic<bool> ends_calls = false;
  std::mutex mutex;
  vmm::share_channel channel;
  // The last event of vmm_share_next(), until it is borrowed or applied.
  std::vector<vmm::share_event> offers;
  std::vector<vmm::share_event> updates;
};

struct export_object {
  static constexpr handle_kind kind = handle_kind::exported;
  export_object(driver_object& on, manager_object* from, vmm::exported_block made) noexcept
      : driver(on), owner(from), block(std::move(made)) {}
  [[nodiscard]] bool has_users() const noexcept { return made_in.is_here() && block.is_lent(); }

  driver_object& driver;
  manager_object* owner;  // of a manager's block
  const made_here made_in;
  std::mutex mutex;
  vmm::exported_block block;
};

struct import_object {
  static constexpr handle_kind kind = handle_kind::imported;
  import_object(driver_object& on, vmm::imported_block made) noexcept
      : driver(on), block(std::move(made)) {}
  [[nodiscard]] bool has_users() const noexcept { return false; }

  driver_object& driver;
  const made_here made_in;
  std::mutex mutex;
  vmm::imported_block block;
};

// Whether a wait of a call on the listener or channel ends.
template <class Object>
bool is_over(void* object) noexcept {
  return static_cast<Object*>(object)->ends_calls.load() || handler_has_raised();
}

// A call on a listener or channel, whose waits destroy() and Python's handlers end.
template <class Object, class Work>
vmm_status on_waiting(Object& object, Work&& work) {
  const vmm::share_interruption interruption(is_over<Object>, &object);
  std::unique_lock<std::mutex> lock(object.mutex, std::try_to_lock);
  if (!lock.owns_lock() && !runs_handlers_here()) lock.lock();
  while (!lock.owns_lock()) {  // where another thread waits for the peer
    if (is_over<Object>(&object)) return fail(VMM_ERROR_UNAVAILABLE, "the wait was interrupted");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)lock.try_lock();
  }
  const vmm_status done = work(object);
  if (done == VMM_SUCCESS || !object.ends_calls.load()) return done;
  return fail(VMM_ERROR_UNAVAILABLE, "another thread closed the listener or channel: make another");
}

// A call on one object, under its lock: `work` gets it.
template <class Object, class Work>
vmm_status on_object(const void* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<Object> object(handle);
    if (!object) return fail_handle();
    if (!object->made_in.is_here()) return fail_forked();
    if constexpr (requires { object->ends_calls; }) {
      return on_waiting(*object, work);
    } else {
      const std::lock_guard<std::mutex> lock(object->mutex);
      return work(*object);
    }
  });
}

}  // namespace vmm_c
