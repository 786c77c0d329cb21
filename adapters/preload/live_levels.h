// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a device's live blocks, their peak, and the bytes freed since the limit of retained
// memory was last enforced.
//
// I1  bytes() is the sum of the sizes of the device's live blocks (live_blocks I2).
//
// Lock: blocks, of calls that change the live bytes; others read them without it. Thread safety:
// all of it. Cost: a few loads and stores.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "locks.h"
#include "violation.h"

namespace vmm::preload::managed {

/// The most of a figure since it was last reset. Of a rise and a fall between two queries that stay
/// below the earlier most, it has what was queried.
class high_mark {
 public:
  /// `now` is the figure, `most` the highest ever.
  [[nodiscard]] std::uint64_t of(std::uint64_t now, std::uint64_t most) noexcept {
    const std::uint64_t risen = most > before_.load(std::memory_order_relaxed) ? most : now;
    const std::uint64_t high = std::max(risen, seen_.load(std::memory_order_relaxed));
    seen_.store(high, std::memory_order_relaxed);
    return high;
  }
  void reset(std::uint64_t now, std::uint64_t most) noexcept {
    before_.store(most, std::memory_order_relaxed);
    seen_.store(now, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> before_ = 0;  // the most at the last reset
  std::atomic<std::uint64_t> seen_ = 0;    // the highest that was queried since
};
struct high_marks {
  high_mark held{};
  high_mark live{};
};

class live_levels {
 public:
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept {
    return peak_bytes_.load(std::memory_order_relaxed);
  }
  /// Of a block that becomes live.
  void add(std::size_t size) noexcept VMM_REQUIRES(locks::blocks) {
    const std::uint64_t live = bytes() + size;
    bytes_.store(live, std::memory_order_relaxed);
    if (live > peak_bytes()) peak_bytes_.store(live, std::memory_order_relaxed);
  }
  /// Of a block that was freed.
  void subtract(std::size_t size) noexcept VMM_REQUIRES(locks::blocks) {
    const std::uint64_t live = bytes();
    if (live < size) violated("live_levels I1: more is freed than is live");
    bytes_.store(live - std::min<std::uint64_t>(live, size), std::memory_order_relaxed);
    freed_bytes_.fetch_add(size, std::memory_order_relaxed);
  }

  /// Freed since the last forget_freed().
  [[nodiscard]] std::uint64_t freed_bytes() const noexcept {
    return freed_bytes_.load(std::memory_order_relaxed);
  }
  /// Of the pool of the calls with a stream, as the driver's default pool reports them.
  [[nodiscard]] high_marks& highs() noexcept { return highs_; }
  void forget_freed() noexcept { freed_bytes_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> bytes_ = 0;       // written under locks::blocks
  std::atomic<std::uint64_t> peak_bytes_ = 0;  // the same
  std::atomic<std::uint64_t> freed_bytes_ = 0;
  high_marks highs_;
};

}  // namespace vmm::preload::managed
