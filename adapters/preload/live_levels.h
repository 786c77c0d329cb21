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
  void forget_freed() noexcept { freed_bytes_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> bytes_ = 0;       // written under locks::blocks
  std::atomic<std::uint64_t> peak_bytes_ = 0;  // the same
  std::atomic<std::uint64_t> freed_bytes_ = 0;
};

}  // namespace vmm::preload::managed
