// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The program's use of the driver: calls, sizes, time and live memory for each device.
//
// Each thread counts in a record of its own, with plain additions; records outlive their threads
// and are used again. Live memory is recorded by address in a table of many locks.
//
// Nothing here is destroyed: threads may run, and the report may be written, until the process
// ends. A forked child of a process that used the driver is passive; another one starts from zero.
//
// Thread safety: all of it. Cost of a call (bench_preload): two reads of the processor's counter
// and, except in a free, one query of the current device; an allocation or a free takes one short
// lock more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "routes.h"

namespace vmm::preload {

class writer;

/// Devices 0 to 7, and one place for every other and for calls without a device.
constexpr std::size_t device_slots = 9;
constexpr std::size_t size_slots = 48;  // sizes up to 2^slot

/// The reasons why a call that `vmm` could have served was left to the driver, or failed.
enum class unmanaged_reason : std::uint8_t {
  no_context,         // no current context, or not a device's primary one
  per_thread_stream,  // a stream that differs by thread
  capture,            // a stream is being captured
  pool_of_the_user,   // memory of a pool that the program created or selected
  no_virtual_memory,  // the device or the driver cannot map memory, or could not be opened
  plain_for_ipc,      // VMM_IPC=plain
  short_of_memory,    // the pool had none, and the driver had
  over_budget,        // VMM_BUDGET or the share of a tenant is spent: the driver's error
  refused,            // the pool refused for another reason
  other_memory,       // managed memory of the driver's own kind
  count
};

namespace accounts {

enum class live_kind : std::uint8_t { memory, physical };

struct live_entry {
  std::uint64_t size_bytes = 0;
  std::uint64_t number = 0;      // in the trace
  context_id context = nullptr;  // null: memory that outlives contexts
  std::uint8_t slot = 0;
  bool is_traced = false;
};

/// The clock of note_call(), and a sum of its differences in nanoseconds.
[[nodiscard]] std::uint64_t now() noexcept;
[[nodiscard]] std::uint64_t nanoseconds(std::uint64_t spent) noexcept;

/// The current context's device, or -1. A counted call queries the driver once.
[[nodiscard]] int current_device() noexcept;
[[nodiscard]] std::size_t slot_of(int device) noexcept;
/// The current context, or null.
[[nodiscard]] context_id current_context() noexcept;

/// Called before a call, and to count it after its return: for the device that was named meanwhile,
/// else for the current one.
void begin_call() noexcept;
void count_call_for(std::size_t slot) noexcept;
void note_call(entry_id entry, result_code code, std::uint64_t spent) noexcept;
void note_unmanaged(unmanaged_reason why) noexcept;

/// Memory that a call handed out. `stream_key` distinguishes streams in the trace.
struct made {
  live_kind kind = live_kind::memory;
  std::uint64_t at = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t stream_key = 0;
  std::size_t slot = 0;
  context_id context = nullptr;
};
void note_made(const made& what) noexcept;

/// Removes memory from the table before the driver gets it back; false if it is not in it.
[[nodiscard]] bool take_live(live_kind kind, std::uint64_t at, live_entry& into) noexcept;
/// The memory was freed.
void note_gone(live_kind kind, const live_entry& what) noexcept;
/// The driver refused: it is as before.
void put_back(live_kind kind, std::uint64_t at, const live_entry& what) noexcept;

/// A device was reset, which freed all memory allocated there.
void note_reset(std::size_t slot) noexcept;
/// A context was destroyed, and all memory that was allocated in it.
void note_context_ended(context_id gone) noexcept;

/// Called before each call that is not passive: prepares for forks, the signal and the end. From
/// the first call other than a look-up on, also while it runs, a forked child is passive.
void start(entry_id entry) noexcept;

/// Writes the report to the place in the settings. Safe in a signal handler. 0, or the system's
/// code if it could not be written.
int write_report(int descriptor, bool as_json) noexcept;

}  // namespace accounts
}  // namespace vmm::preload
