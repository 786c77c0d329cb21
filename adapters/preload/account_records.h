// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The records of accounts.h, which the report reads: calls of the driver by thread, live memory by
// device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "accounts.h"

namespace vmm::preload::accounts {

struct call_counters {
  std::atomic<std::uint64_t> count = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::atomic<std::uint64_t> spent = 0;  // as call_clock counts
};

/// Counters of one thread, written by it only. A new thread takes the record of one that has ended.
struct thread_counters {
  thread_counters* next = nullptr;
  std::atomic<bool> is_taken = false;
  std::array<std::array<call_counters, entry_count>, device_slots> calls;
  std::array<std::array<std::atomic<std::uint64_t>, size_slots>, device_slots> sizes{};
};

struct live_totals {
  std::atomic<std::uint64_t> live_bytes = 0;
  std::atomic<std::uint64_t> peak_bytes = 0;
  std::atomic<std::uint64_t> live_count = 0;
  std::atomic<std::uint64_t> peak_count = 0;
};

/// Its layout is known to `doctor --tree` (libvmm/_doctor.py).
struct totals {
  std::array<std::array<live_totals, device_slots>, 2> live;  // by live_kind
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(unmanaged_reason::count)>
      unmanaged{};
  std::atomic<std::uint64_t> forgotten = 0;
};

static_assert(sizeof(totals) == 83 * sizeof(std::uint64_t));

[[nodiscard]] const totals& sums() noexcept;
/// Counts from now on in memory that other processes read, for `doctor --tree`.
void show(void* page) noexcept;
[[nodiscard]] const thread_counters* first_record() noexcept;

}  // namespace vmm::preload::accounts
