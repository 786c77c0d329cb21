// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA contexts: the current one, a device's primary one, and that of a stream.
//
// The context of a stream is remembered from the first query to forget() or the end of the context.
//
// Lock: streams. Thread safety: all of it. Cost: of() a shared lock and a look-up, the first time a
// driver call.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "abi.h"
#include "driver_calls.h"
#include "locks.h"

namespace vmm::preload::managed {

[[nodiscard]] inline std::uint64_t number_of(const void* handle) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(handle));
}

/// A stream as a call named it: 0 is the stream of each thread in the forms for such programs.
struct stream_name {
  stream_id stream = nullptr;
  bool per_thread = false;

  /// The stream that differs from thread to thread.
  [[nodiscard]] bool is_per_thread() const noexcept {
    const std::uint64_t number = number_of(stream);
    return number == per_thread_stream || (number == 0 && per_thread);
  }
  [[nodiscard]] bool is_default() const noexcept {
    const std::uint64_t number = number_of(stream);
    return number == legacy_stream || (number == 0 && !per_thread);
  }
};

class context_table {
 public:
  explicit context_table(const driver_calls& cu) noexcept : cu_(cu) {}
  context_table(const context_table&) = delete;
  context_table& operator=(const context_table&) = delete;

  /// Null: none is current.
  [[nodiscard]] context_id current() const noexcept;
  /// The device of the current context; -1 without one.
  [[nodiscard]] device_id current_device() const noexcept;
  /// A device's primary context; null if it is not active. Creates none.
  [[nodiscard]] context_id primary_of(device_id device) const noexcept;
  /// Null: the driver does not have the stream.
  [[nodiscard]] context_id of(stream_name name) noexcept VMM_EXCLUDES(locks::streams);

  void forget(stream_id stream) noexcept VMM_EXCLUDES(locks::streams);
  void forget_context(context_id gone) noexcept VMM_EXCLUDES(locks::streams);

 private:
  const driver_calls& cu_;
  std::unordered_map<stream_id, context_id> of_streams_ VMM_GUARDED_BY(locks::streams);
};

/// Makes a context current for its life.
class current_context {
 public:
  current_context(const driver_calls& cu, context_id wanted) noexcept;
  ~current_context();
  current_context(const current_context&) = delete;
  current_context& operator=(const current_context&) = delete;

  /// False: the driver cannot make the context current. No work runs there.
  [[nodiscard]] bool is_current() const noexcept { return is_current_; }

 private:
  const driver_calls& cu_;
  bool is_pushed_ = false;
  bool is_current_ = false;
};

}  // namespace vmm::preload::managed
