// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The user's settings by environment variables; docs/preload.md has the table.
//
// Nothing is read before the program looks up a name of the driver. A wrong value is reported once
// and leaves the mode off.
//
// Thread safety: all of it. Racing first readers read the same.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace vmm::preload {

enum class run_mode : std::uint8_t { unread, off, monitor, managed, cache };

/// The treatment of cuIpcGetMemHandle in VMM_MODE=vmm.
enum class ipc_rule : std::uint8_t {
  share,   // blocks are shared by the library itself
  refuse,  // a block returns the driver's error
  plain,   // cuMemAlloc stays the driver's
};

/// The treatment of a copy of a whole block to another in VMM_MODE=vmm.
enum class copy_rule : std::uint8_t {
  off,    // it is copied
  alias,  // both show the same memory until one of them is freed
  move,   // the target takes the source's memory, and the source has none
};

/// Of settings::keep_bytes: a share of the program's peak.
constexpr std::uint64_t keep_share = ~std::uint64_t{0};

struct settings {
  run_mode mode = run_mode::off;
  bool report_as_json = false;
  const char* report_to = "";  ///< "": no report at the end; "stderr"; else a file
  const char* trace_to = "";   ///< a file; "": no trace
  bool report_on_signal = false;
  ipc_rule ipc = ipc_rule::share;
  bool is_free_waiting = false;           ///< cuMemFree waits, as the driver's does
  std::uint64_t keep_bytes = keep_share;  ///< of freed memory, in the mode managed
  copy_rule copy = copy_rule::off;
  std::uint64_t cache_limit_bytes = std::uint64_t{4} << 30;
};

[[nodiscard]] const settings& chosen_settings() noexcept;
[[nodiscard]] const char* mode_name(run_mode mode) noexcept;
[[nodiscard]] inline bool is_managed() noexcept {
  return chosen_settings().mode == run_mode::managed;
}
[[nodiscard]] inline bool is_caching() noexcept {
  return chosen_settings().mode == run_mode::cache;
}

/// Whether every call goes straight to the driver: the mode is off, or this is the forked child of
/// a process that used the driver, where the driver refuses everything.
[[nodiscard]] bool is_passive() noexcept;
/// Sets it.
void become_passive() noexcept;

/// Does something once in a process; other threads wait meanwhile. A forked child repeats what its
/// parent had begun and not finished: a lock would stay taken there for ever.
class once_here {
 public:
  template <class Work>
  void run(Work&& work) noexcept {
    const int here = getpid();
    for (int seen = state_.load(std::memory_order_acquire); seen != done;
         seen = state_.load(std::memory_order_acquire)) {
      if (seen == here) {
        sched_yield();  // another thread is at it
      } else if (state_.compare_exchange_strong(seen, here, std::memory_order_acquire)) {
        work();
        state_.store(done, std::memory_order_release);
      }
    }
  }

 private:
  static constexpr int done = -1;
  std::atomic<int> state_ = 0;  // 0: not begun; else the process that has begun
};

/// One line on stderr, "vmm_preload: " before it.
void complain(const char* text, const char* more = "") noexcept;
/// The same, followed by the text of the system's code.
void complain_of(const char* text, const char* more, int failure) noexcept;

}  // namespace vmm::preload
