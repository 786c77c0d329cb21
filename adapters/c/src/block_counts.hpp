// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How many blocks of a device live, their bytes, and the peaks of both: fifteen levels of
// vmm_allocator.h, of which an allocation or a free writes one line of cache.
//
// I1  No peak is below what it counts. While a class stays within quiet_count and quiet_bytes no
//     level of either class, nor of both, gets above its peak.
//
// A size class keeps its live levels and its totals; the levels of both classes, of blocks whose
// free waits, and of freed blocks are computed when they are queried.
//
// Threads: none; the caller has a lock. Cost: O(1).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "vmm_allocator.h"

namespace vmm_c {

class block_counts {
 public:
  static constexpr std::uint64_t small_bytes_max = std::uint64_t{1} << 20;

  struct sizes {
    std::uint64_t size_bytes = 0;
    std::uint64_t requested_bytes = 0;
  };

  void add(const sizes& block) noexcept {
    per_class& in = class_of(block.size_bytes);
    in.live += of(block);
    in.added += of(block);
    if (in.live.count > in.quiet_count || in.live.bytes > in.quiet_bytes) [[unlikely]]
      raise_peaks();
  }
  // The block is free, and other work may use it for a while where `waits`.
  void remove(const sizes& block, bool waits) noexcept {
    per_class& in = class_of(block.size_bytes);
    const amounts gone = of(block);
    in.live -= gone;
    if (!waits) return;
    waiting_[class_number(block.size_bytes)] += gone;
    in.quiet_count -= gone.count;
    in.quiet_bytes -= gone.bytes;
  }
  // Freed blocks wait again.
  void wait_again(const sizes& block) noexcept {
    waiting_[class_number(block.size_bytes)] += of(block);
    raise_peaks();
  }
  // Pending bytes are freed.
  void end_wait(const sizes& block) noexcept {
    waiting_[class_number(block.size_bytes)] -= of(block);
  }

  void write(vmm_allocator_statistics& out) const noexcept {
    for (std::size_t level = 0; level < VMM_LEVEL_COUNT; ++level) {
      const amounts live = live_in(level);
      const amounts waits = waiting_in(level);
      const amounts added = added_in(level) - reset_added_[level];
      const amounts gone = added_in(level) - live - reset_gone_[level];
      const amounts ended = added_in(level) - live - waits - reset_ended_[level];
      const peaks& most = peaks_[level];
      out.allocations[level] = {live.count, most.live.count, added.count, gone.count};
      out.allocated_bytes[level] = {live.bytes, most.live.bytes, added.bytes, gone.bytes};
      out.requested_bytes[level] = {live.requested + waits.requested, most.active_requested,
                                    added.requested, ended.requested};
      out.active[level] = {live.count + waits.count, most.active_count, added.count, ended.count};
      out.active_bytes[level] = {live.bytes + waits.bytes, most.active_bytes, added.bytes,
                                 ended.bytes};
    }
  }
  // Sets peaks to the current levels.
  void reset_peaks() noexcept {
    peaks_ = {};
    raise_peaks();
  }
  // Restarts the counts of additions and removals.
  void reset_counts() noexcept {
    for (std::size_t level = 0; level < VMM_LEVEL_COUNT; ++level) {
      reset_added_[level] = added_in(level);
      reset_gone_[level] = added_in(level) - live_in(level);
      reset_ended_[level] = reset_gone_[level] - waiting_in(level);
    }
  }

 private:
  struct amounts {
    std::int64_t count = 0;
    std::int64_t bytes = 0;
    std::int64_t requested = 0;

    amounts& operator+=(const amounts& by) noexcept {
      count += by.count;
      bytes += by.bytes;
      requested += by.requested;
      return *this;
    }
    amounts& operator-=(const amounts& by) noexcept {
      count -= by.count;
      bytes -= by.bytes;
      requested -= by.requested;
      return *this;
    }
    friend amounts operator+(amounts left, const amounts& right) noexcept { return left += right; }
    friend amounts operator-(amounts left, const amounts& right) noexcept { return left -= right; }
  };
  struct alignas(64) per_class {
    amounts live;
    amounts added;
    std::int64_t quiet_count = -1;
    std::int64_t quiet_bytes = -1;
  };
  static_assert(sizeof(per_class) == 64);
  struct peaks {
    amounts live;
    std::int64_t active_count = 0;
    std::int64_t active_bytes = 0;
    std::int64_t active_requested = 0;
  };
  static constexpr std::size_t class_count = 2;

  [[nodiscard]] static amounts of(const sizes& block) noexcept {
    return {1, static_cast<std::int64_t>(block.size_bytes),
            static_cast<std::int64_t>(block.requested_bytes)};
  }
  [[nodiscard]] static std::size_t class_number(std::uint64_t size_bytes) noexcept {
    return size_bytes <= small_bytes_max ? 0 : 1;
  }
  [[nodiscard]] per_class& class_of(std::uint64_t size_bytes) noexcept {
    return classes_[class_number(size_bytes)];
  }
  // A level of vmm_allocator.h: of both classes, or of one.
  static_assert(VMM_LEVEL_ALL == 0 && VMM_LEVEL_SMALL == 1 && VMM_LEVEL_LARGE == 2);
  [[nodiscard]] amounts live_in(std::size_t level) const noexcept {
    return level == 0 ? classes_[0].live + classes_[1].live : classes_[level - 1].live;
  }
  [[nodiscard]] amounts added_in(std::size_t level) const noexcept {
    return level == 0 ? classes_[0].added + classes_[1].added : classes_[level - 1].added;
  }
  [[nodiscard]] amounts waiting_in(std::size_t level) const noexcept {
    return level == 0 ? waiting_[0] + waiting_[1] : waiting_[level - 1];
  }

  [[gnu::noinline]] void raise_peaks() noexcept {
    for (std::size_t level = 0; level < VMM_LEVEL_COUNT; ++level) {
      const amounts live = live_in(level);
      const amounts waits = waiting_in(level);
      peaks& most = peaks_[level];
      most.live.count = std::max(most.live.count, live.count);
      most.live.bytes = std::max(most.live.bytes, live.bytes);
      most.active_requested = std::max(most.active_requested, live.requested + waits.requested);
      most.active_count = std::max(most.active_count, live.count + waits.count);
      most.active_bytes = std::max(most.active_bytes, live.bytes + waits.bytes);
    }
    const room all = room_below(VMM_LEVEL_ALL);
    for (std::size_t number = 0; number < class_count; ++number) {
      per_class& in = classes_[number];
      const room own = room_below(number + 1);
      // Either class may take half of what both have.
      in.quiet_count = in.live.count + std::min(own.count, all.count / 2);
      in.quiet_bytes = in.live.bytes + std::min(own.bytes, all.bytes / 2);
      if (own.bytes < 0 || all.bytes < 0) in.quiet_bytes = -1;
    }
  }
  // The room of a level, in blocks and bytes, below its peak. Requested bytes never exceed the
  // bytes.
  struct room {
    std::int64_t count = 0;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] room room_below(std::size_t level) const noexcept {
    const amounts live = live_in(level);
    const amounts waits = waiting_in(level);
    const peaks& most = peaks_[level];
    return {std::min(most.live.count, most.active_count - waits.count) - live.count,
            std::min({most.live.bytes, most.active_requested - waits.requested,
                      most.active_bytes - waits.bytes}) -
                live.bytes};
  }

  std::array<per_class, class_count> classes_{};
  std::array<amounts, class_count> waiting_{};
  std::array<peaks, VMM_LEVEL_COUNT> peaks_{};
  std::array<amounts, VMM_LEVEL_COUNT> reset_added_{};
  std::array<amounts, VMM_LEVEL_COUNT> reset_gone_{};
  std::array<amounts, VMM_LEVEL_COUNT> reset_ended_{};
};

}  // namespace vmm_c
