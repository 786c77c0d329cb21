// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:first_fit - the lowest place with room, over places that are at least a slot long. Not
// exported.
//
// A place of a slot's length or more is the only one that begins in its slot, so an array indexed
// by slot holds them all, and a tree of maxima over it, sixteen words (a cache line) a node, leads
// to the first that is large enough. Nothing is balanced and nothing allocated.
//
// I1  A word above the leaves is the largest of the sixteen below it; a leaf is 0 when no place
// begins
//     in its slot.
//
// Thread safety: none of its own. Cost: one cache line a level (4 levels for 2^16 slots) to find,
// and at most as many to change.
module;
#include <array>
#include <cstddef>
#include <cstdint>

export module vmm.va:first_fit;

import vmm.backend;
import :host_memory;

namespace vmm {

class first_fit {
 public:
  static constexpr std::uint32_t none = ~0u;

  first_fit() = default;
  /// Room for places in slots [0, slot_count). Errors: out_of_host_memory.
  [[nodiscard]] static result<first_fit> create(std::uint32_t slot_count) noexcept;

  /// Writes down, or changes, the place that begins in `slot`; a size of 0 takes it out.
  void set(std::uint32_t slot, std::uint32_t size) noexcept {
    std::uint32_t index = slot;
    for (std::uint32_t level = 0;; ++level) {
      std::uint32_t& word = words_[begin_[level] + index];
      const std::uint32_t old = word;
      word = size;
      if (old == size || level + 1 == level_count_) return;
      const std::uint32_t above = words_[begin_[level + 1] + index / fanout];
      if (size < above) {
        if (old < above) return;  // the largest is another one
        size = largest_beside(level, index);
      }
      index /= fanout;
    }
  }

  /// The lowest slot whose place is `size` long or longer; none when there is none.
  [[nodiscard]] std::uint32_t find(std::uint32_t size) const noexcept {
    if (level_count_ == 0) return none;
    std::uint32_t index = 0;
    for (std::uint32_t level = level_count_; level-- > 0;) {
      const std::uint32_t* const words = words_ + begin_[level] + index * fanout;
      std::uint32_t child = 0;
      while (child < fanout && words[child] < size) ++child;
      if (child == fanout) return none;  // at the top only: below it the maximum promises one
      index = index * fanout + child;
    }
    return index;
  }

  [[nodiscard]] std::uint32_t size_at(std::uint32_t slot) const noexcept { return words_[slot]; }

  /// nullptr when I1 holds and `place_count` places are written down, else what is broken.
  [[nodiscard]] const char* broken_invariant(std::uint32_t place_count) const noexcept;

 private:
  static constexpr std::uint32_t fanout = 16;
  static constexpr std::uint32_t level_count_max = 8;

  [[nodiscard]] std::uint32_t largest_beside(std::uint32_t level,
                                             std::uint32_t index) const noexcept {
    const std::uint32_t* const words = words_ + begin_[level] + index / fanout * fanout;
    std::uint32_t size_max = 0;
    for (std::uint32_t child = 0; child < fanout; ++child) {
      if (words[child] > size_max) size_max = words[child];
    }
    return size_max;
  }

  reserved_memory memory_{};
  std::uint32_t* words_ = nullptr;
  std::array<std::uint32_t, level_count_max> begin_{};  // first word of each level, leaves first
  std::array<std::uint32_t, level_count_max> count_{};  // words of each level, a multiple of fanout
  std::uint32_t level_count_ = 0;
};

}  // namespace vmm
