// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The counts of VMM_MODE=vmm for the report, which a signal handler may write. A field has the name
// of its key in the report's JSON, and its place in figures(), which lists them in order. Calls of
// the driver are counted in every mode (accounts.h).
#pragma once

#include <atomic>
#include <cstdint>

namespace vmm::preload::managed {

template <class Number>
struct serving_counts {
  Number blocks_served{};
  Number frees_behind_all{};  // behind all work, also where a capture puts the event off
  Number host_waits{};
  Number copies_remapped{};
};
static_assert(sizeof(serving_counts<std::uint64_t>) == 4 * sizeof(std::uint64_t),
              "a new field also goes into figures(), and twice into report.cpp: as text and JSON");
inline constinit serving_counts<std::atomic<std::uint64_t>> counts{};

inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) noexcept {
  counter.fetch_add(more, std::memory_order_relaxed);
}

[[nodiscard]] inline serving_counts<std::uint64_t> figures() noexcept {
  constexpr auto order = std::memory_order_relaxed;
  return {counts.blocks_served.load(order), counts.frees_behind_all.load(order),
          counts.host_waits.load(order), counts.copies_remapped.load(order)};
}

}  // namespace vmm::preload::managed
