// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Counters of VMM_MODE=vmm for the report, which a signal handler may write.
#pragma once

#include <atomic>
#include <cstdint>

namespace vmm::preload::managed {

template <class Number>
struct call_counts {
  Number served{};
  Number deferred{};  // frees behind all work
  Number waited{};    // times that the host waited
  Number remapped{};  // copies
};
inline constinit call_counts<std::atomic<std::uint64_t>> counts{};

inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) noexcept {
  counter.fetch_add(more, std::memory_order_relaxed);
}

[[nodiscard]] inline call_counts<std::uint64_t> figures() noexcept {
  constexpr auto order = std::memory_order_relaxed;
  return {counts.served.load(order), counts.deferred.load(order), counts.waited.load(order),
          counts.remapped.load(order)};
}

}  // namespace vmm::preload::managed
