// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:first_fit - the lowest place with room, over places that are at least a slot long. Not
// exported.
//
// A place of a slot's length or more is the only one that begins in its slot, so an array indexed
// by slot holds them all, and a tree of maxima over it, a cache line a node, leads to the first
// that is large enough. A node is sixteen words; a leaf, eight sizes and the regions of these
// eight. Nothing is balanced and nothing allocated.
//
// I1  A word above the leaves is at least the largest size below it; a leaf is 0 when no place
//     begins in its slot.
//
// Slots are counted from the low end. The highest slot that ever had a place determines the levels
// in use.
//
// A place that goes or shrinks leaves the words above it as they are: a search that finds one of
// them too large corrects it and continues, so that each change costs once.
//
// Thread safety: none of its own. Cost: one cache line a level (4 levels for 2^16 slots) to find,
// and as many for each word that has become too large since; to change, one line, and one a level
// where a place is larger than all before it.
export module vmm.va:first_fit;

import vmm.backend;
import vmm.base;
import vmm.std;
import :host_memory;

namespace vmm {

class first_fit {
 public:
  static constexpr std::uint32_t none = ~0u;

  first_fit() = default;
  /// Room for places in slots [0, slot_count). Errors: out_of_host_memory.
  [[nodiscard]] static result<first_fit> create(std::uint32_t slot_count) noexcept;

  /// Records or changes the place that begins in `slot`, and its region.
  inline void set(std::uint32_t slot, std::uint32_t size, std::uint32_t region) noexcept {
    debug_check([&] { return leaf(slot) < count_[0]; }, "a place begins in a missing slot");
    debug_check([&] { return size != 0 && region != 0; }, "a place has no region");
    debug_check([&] { return size <= size_max; }, "a place is larger than a range");
    debug_check([&] { return used_count_ <= level_count_; }, "more levels are in use than exist");
    words_[leaf(slot)] = size;
    words_[leaf(slot) + leaf_slots] = region | region_bit;
    std::uint32_t index = slot / leaf_slots;
    if (index >= reach_) [[unlikely]]
      widen(index);
    debug_check([&] { return index < reach_; }, "a slot is outside of the levels in use");
    for (std::uint32_t level = 1; level < used_count_; ++level, index /= fanout) {
      std::uint32_t& above = words_[begin_[level] + index];
      if (size <= above) return;
      above = size;
    }
  }

  inline void remove(std::uint32_t slot) noexcept {
    debug_check([&] { return size_at(slot) != 0; }, "a place is removed that is not recorded");
    words_[leaf(slot)] = 0;
    words_[leaf(slot) + leaf_slots] = 0;
  }

  /// The lowest slot whose place is at least `size` long, or none.
  [[nodiscard]] std::uint32_t find(std::uint32_t size) const noexcept;

  [[nodiscard]] inline std::uint32_t size_at(std::uint32_t slot) const noexcept {
    debug_check([&] { return leaf(slot) < count_[0]; }, "the slot does not exist");
    return words_[leaf(slot)];
  }
  /// The region of the place that begins in a slot; 0: none does.
  [[nodiscard]] inline std::uint32_t region_at(std::uint32_t slot) const noexcept {
    debug_check([&] { return leaf(slot) < count_[0]; }, "the slot does not exist");
    return words_[leaf(slot) + leaf_slots] & ~region_bit;
  }

  /// nullptr if I1 holds and `place_count` places are recorded, else the broken part.
  [[nodiscard]] const char* broken_invariant(std::uint32_t place_count) const noexcept;

 private:
  static constexpr std::uint32_t fanout = 16;
  static constexpr std::uint32_t leaf_slots = fanout / 2;
  static constexpr std::uint32_t region_bit = 1u << 31;
  static constexpr std::uint32_t size_max = (1u << 31) - 1;  // find() compares signed words
  static constexpr std::uint32_t level_count_max = 8;

  [[nodiscard]] static inline std::uint32_t leaf(std::uint32_t slot) noexcept {
    static_assert(std::has_single_bit(leaf_slots));
    return slot + (slot & ~(leaf_slots - 1));
  }
  [[nodiscard]] static inline std::uint32_t sizes_of(std::uint32_t level) noexcept {
    return level == 0 ? leaf_slots : fanout;
  }
  /// Of a node's sizes.
  [[nodiscard]] static inline std::uint32_t largest_of(const std::uint32_t* words,
                                                       std::uint32_t level) noexcept {
    std::uint32_t largest = 0;
    for (std::uint32_t child = 0; child < sizes_of(level); ++child) {
      if (words[child] > largest) largest = words[child];
    }
    debug_check([&] { return largest <= size_max; }, "a place is larger than a range");
    return largest;
  }
  void widen(std::uint32_t leaf_node) noexcept;

  // Ends a cache line of region_map's kinds; the next line has what else find() and set() read.
  std::uint32_t* words_ = nullptr;
  std::array<std::uint32_t, level_count_max> begin_{};  // first word of each level, leaves first
  std::uint32_t used_count_ = 1;                        // levels in use; those above are all 0
  std::uint32_t reach_ = 1;  // nodes of the lowest level that those in use cover
  std::uint32_t level_count_ = 0;
  std::array<std::uint32_t, level_count_max> count_{};  // words of each level, whole nodes
  reserved_memory memory_{};
};

}  // namespace vmm
