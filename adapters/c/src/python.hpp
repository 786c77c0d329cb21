// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What waits of the C interface do in a process of Python. It imports what it uses, so it is the
// last include of a file except those that do the same.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <optional>

import vmm.share;

namespace vmm_c {

// Of vmm_python_run_handlers(); 0: none.
extern std::atomic<std::uint64_t> handler_thread;
// Whether this thread is that one.
[[nodiscard]] inline bool runs_handlers_here() noexcept {
  const std::uint64_t thread = handler_thread.load(std::memory_order_relaxed);
  return thread != 0 && thread == static_cast<std::uint64_t>(pthread_self());
}
// Runs the handlers of signals, in that thread. True where one has raised, until
// vmm_python_raise().
[[nodiscard]] bool handler_has_raised() noexcept;

// While one exists, waits of this thread for an owner of memory run them, and end where one has
// raised.
class handler_scope {
 public:
  handler_scope() noexcept {
    if (runs_handlers_here()) [[unlikely]]
      inside_.emplace([](void*) { return handler_has_raised(); }, nullptr);
  }

 private:
  std::optional<vmm::share_interruption> inside_;
};

}  // namespace vmm_c
