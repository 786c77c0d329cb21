// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a range allocator must do, written from its description and with none of its ideas: two
// ordered maps and linear searches. Tests and the fuzzer hold the real one to it.
#ifndef VMM_TESTS_VA_RANGE_MODEL_HPP
#define VMM_TESTS_VA_RANGE_MODEL_HPP

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

class range_model {
 public:
  explicit range_model(std::uint32_t count_granules, std::uint32_t origin)
      : count_(count_granules), origin_(origin), free_{{0, count_granules}} {}

  struct block {
    std::uint32_t offset;
    std::uint32_t count;
  };

  /// Granules to skip at `offset` until it is aligned.
  [[nodiscard]] std::uint64_t padding(std::uint32_t offset, std::uint32_t alignment) const {
    const std::uint64_t place = std::uint64_t{origin_} + offset;
    return (alignment - place % alignment) % alignment;
  }

  struct request {
    std::uint32_t count;
    std::uint32_t alignment;
  };

  [[nodiscard]] bool can_take(request wanted) const {
    return std::any_of(free_.begin(), free_.end(), [&](const auto& hole) {
      return padding(hole.first, wanted.alignment) + wanted.count <= hole.second;
    });
  }

  /// Size of the smallest hole that holds `count`; the last block of the range counts only when no
  /// other does.
  [[nodiscard]] std::uint32_t best_size(std::uint32_t count) const {
    std::uint32_t best = 0;
    for (const auto& [offset, size] : free_) {
      const bool at_end = offset + size == count_;
      if (size >= count && !at_end && (best == 0 || size < best)) best = size;
    }
    return best != 0 || free_.empty() ? best : std::prev(free_.end())->second;
  }

  /// The free block that holds all of [offset, offset + count); a count of 0 when there is none.
  [[nodiscard]] block hole_around(block wanted) const {
    auto hole = free_.upper_bound(wanted.offset);
    if (hole == free_.begin()) return {0, 0};
    --hole;
    const bool inside =
        std::uint64_t{hole->first} + hole->second >= std::uint64_t{wanted.offset} + wanted.count;
    return inside ? block{hole->first, hole->second} : block{0, 0};
  }

  void take(block taken) {
    const block hole = hole_around(taken);
    free_.erase(hole.offset);
    if (taken.offset != hole.offset) free_[hole.offset] = taken.offset - hole.offset;
    const std::uint32_t end = taken.offset + taken.count;
    if (end != hole.offset + hole.count) free_[end] = hole.offset + hole.count - end;
    live_[taken.offset] = taken.count;
    high_water_ = std::max(high_water_, end);
  }

  void give(std::uint32_t offset) {
    const std::uint32_t count = live_.at(offset);
    live_.erase(offset);
    auto hole = free_.emplace(offset, count).first;
    const auto after = std::next(hole);
    if (after != free_.end() && offset + count == after->first) {
      hole->second += after->second;
      free_.erase(after);
    }
    if (hole == free_.begin()) return;
    const auto before = std::prev(hole);
    if (before->first + before->second == offset) {
      before->second += hole->second;
      free_.erase(hole);
    }
  }

  /// Free granules directly to the right of a live block.
  [[nodiscard]] std::uint32_t room_after(std::uint32_t offset) const {
    const auto hole = free_.find(offset + live_.at(offset));
    return hole == free_.end() ? 0 : hole->second;
  }

  void resize(block resized) {
    give(resized.offset);
    take(resized);
  }

  void split(block left) {
    const std::uint32_t count = live_.at(left.offset);
    live_[left.offset] = left.count;
    live_[left.offset + left.count] = count - left.count;
  }

  [[nodiscard]] std::uint32_t largest_free() const {
    std::uint32_t largest = 0;
    for (const auto& hole : free_) largest = std::max(largest, hole.second);
    return largest;
  }

  [[nodiscard]] const std::map<std::uint32_t, std::uint32_t>& free() const { return free_; }
  [[nodiscard]] const std::map<std::uint32_t, std::uint32_t>& live() const { return live_; }
  [[nodiscard]] std::uint32_t high_water() const { return high_water_; }

 private:
  std::uint32_t count_;
  std::uint32_t origin_;
  std::uint32_t high_water_ = 0;
  std::map<std::uint32_t, std::uint32_t> free_;
  std::map<std::uint32_t, std::uint32_t> live_;
};

#endif
