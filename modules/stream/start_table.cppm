// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:start_table - where a live block begins, to its region. Not exported.
//
// I1  At most half of the slots are taken; a key is found by walking from its home slot to the
//     first empty one.
//
// Thread safety: none of its own. Cost: one or two cache lines; reserve() doubles the table when it
// is half full, which is linear and seldom. Memory: 16 to 32 bytes a live block.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

export module vmm.stream:start_table;

import vmm.backend;
import vmm.va;

namespace vmm {

class start_table {
 public:
  /// Room for one more; false when the host has no memory.
  [[nodiscard]] inline bool reserve() noexcept {
    return (std::uint64_t{count_} + 1) * 2 <= slot_count() || grow();
  }

  /// After reserve(). The key is not in the table.
  inline void insert(std::uint32_t offset, region_id region) noexcept {
    std::uint32_t at = home(offset);
    while (slots_[at].region != region_id::none) at = (at + 1) & mask_;
    slots_[at] = {offset, region};
    ++count_;
  }

  /// Takes the block that begins at `offset` out; none when there is none.
  [[nodiscard]] inline region_id take(std::uint32_t offset) noexcept {
    if (count_ == 0) return region_id::none;
    std::uint32_t at = home(offset);
    while (slots_[at].offset != offset || slots_[at].region == region_id::none) {
      if (slots_[at].region == region_id::none) return region_id::none;
      at = (at + 1) & mask_;
    }
    const region_id found = slots_[at].region;
    close_gap(at);
    --count_;
    return found;
  }

  [[nodiscard]] inline region_id find(std::uint32_t offset) const noexcept {
    if (count_ == 0) return region_id::none;
    std::uint32_t at = home(offset);
    while (slots_[at].region != region_id::none) {
      if (slots_[at].offset == offset) return slots_[at].region;
      at = (at + 1) & mask_;
    }
    return region_id::none;
  }

  [[nodiscard]] inline std::uint32_t count() const noexcept { return count_; }
  /// All of them, in no order. O(slots).
  template <class Visitor>
  void each(Visitor&& visitor) const {
    for (std::uint64_t i = 0; i < slot_count(); ++i) {
      if (slots_[i].region != region_id::none) visitor(slots_[i].region);
    }
  }

 private:
  struct slot {
    std::uint32_t offset = 0;
    region_id region = region_id::none;
  };
  static constexpr std::uint32_t first_slots = 1024;

  [[nodiscard]] inline std::uint64_t slot_count() const noexcept {
    return slots_ == nullptr ? 0 : std::uint64_t{mask_} + 1;
  }
  [[nodiscard]] inline std::uint32_t home(std::uint32_t offset) const noexcept {
    return static_cast<std::uint32_t>((offset * std::uint64_t{0x9E3779B97F4A7C15}) >> 32) & mask_;
  }

  // Moves later entries of the walk down, so that no walk ends before its key.
  inline void close_gap(std::uint32_t gap) noexcept {
    std::uint32_t at = (gap + 1) & mask_;
    while (slots_[at].region != region_id::none) {
      const std::uint32_t walked = (at - home(slots_[at].offset)) & mask_;
      if (walked >= ((at - gap) & mask_)) {
        slots_[gap] = slots_[at];
        gap = at;
      }
      at = (at + 1) & mask_;
    }
    slots_[gap] = slot{};
  }

  [[nodiscard]] bool grow() noexcept;

  std::unique_ptr<slot[]> slots_;
  std::uint32_t mask_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace vmm
