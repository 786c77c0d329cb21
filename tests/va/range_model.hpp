// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a range allocator must do, written from its description and with none of its ideas: two
// ordered lists and linear searches. Tests and the fuzzer hold the real one to it.
#pragma once

#include "../../tools/program/standard.hpp"

class range_model {
 public:
  explicit range_model(std::uint32_t count_granules, std::uint32_t origin)
      : count_(count_granules), origin_(origin), free_{{0, count_granules}} {}

  struct block {
    std::uint32_t offset;
    std::uint32_t count;
  };
  /// In the order of their offsets. A vector: the fuzzer allocates no node for each change.
  using blocks = std::vector<block>;

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
    return std::any_of(free_.begin(), free_.end(), [&](const block& hole) {
      return padding(hole.offset, wanted.alignment) + wanted.count <= hole.count;
    });
  }

  /// Size of the smallest hole that holds `count`; the last block of the range counts only when no
  /// other does.
  [[nodiscard]] std::uint32_t best_size(std::uint32_t count) const {
    std::uint32_t best = 0;
    for (const block& hole : free_) {
      const bool is_last = hole.offset + hole.count == count_;
      if (hole.count >= count && !is_last && (best == 0 || hole.count < best)) best = hole.count;
    }
    return best != 0 || free_.empty() ? best : free_.back().count;
  }

  /// The free block that holds all of [offset, offset + count); or a count of 0.
  [[nodiscard]] block hole_around(block wanted) const {
    std::size_t behind = first_from(free_, wanted.offset);
    if (behind < free_.size() && free_[behind].offset == wanted.offset) ++behind;
    if (behind == 0) return {0, 0};
    const block hole = free_[behind - 1];
    const bool inside =
        std::uint64_t{hole.offset} + hole.count >= std::uint64_t{wanted.offset} + wanted.count;
    return inside ? hole : block{0, 0};
  }

  void take(block taken) {
    const block hole = hole_around(taken);
    remove(free_, hole.offset);
    if (taken.offset != hole.offset) put(free_, {hole.offset, taken.offset - hole.offset});
    const std::uint32_t end = taken.offset + taken.count;
    if (end != hole.offset + hole.count) put(free_, {end, hole.offset + hole.count - end});
    put(live_, taken);
    high_water_ = std::max(high_water_, end);
  }

  void give(std::uint32_t offset) {
    block given = remove(live_, offset);
    const std::size_t after = first_from(free_, offset);
    if (after < free_.size() && free_[after].offset == offset + given.count)
      given.count += remove(free_, free_[after].offset).count;
    if (after > 0 && free_[after - 1].offset + free_[after - 1].count == offset) {
      free_[after - 1].count += given.count;
    } else {
      put(free_, given);
    }
  }

  /// Free granules directly to the right of a live block.
  [[nodiscard]] std::uint32_t room_after(std::uint32_t offset) const {
    const std::uint32_t end = offset + live_[index_of(live_, offset)].count;
    const std::size_t after = first_from(free_, end);
    return after < free_.size() && free_[after].offset == end ? free_[after].count : 0;
  }

  void resize(block resized) {
    give(resized.offset);
    take(resized);
  }

  void split(block left) {
    block& whole = live_[index_of(live_, left.offset)];
    const block right{left.offset + left.count, whole.count - left.count};
    whole = left;
    put(live_, right);
  }

  [[nodiscard]] std::uint32_t largest_free() const {
    std::uint32_t largest = 0;
    for (const block& hole : free_) largest = std::max(largest, hole.count);
    return largest;
  }

  [[nodiscard]] const blocks& free() const { return free_; }
  [[nodiscard]] const blocks& live() const { return live_; }
  [[nodiscard]] std::uint32_t high_water() const { return high_water_; }

 private:
  // Index of the first block that begins at `offset` or behind it.
  [[nodiscard]] static std::size_t first_from(const blocks& in, std::uint32_t offset) {
    const auto found =
        std::lower_bound(in.begin(), in.end(), offset,
                         [](const block& each, std::uint32_t at) { return each.offset < at; });
    return static_cast<std::size_t>(found - in.begin());
  }
  // Index of the block that begins at `offset`. The model cannot go on without it: the query was
  // for no block of the range.
  [[nodiscard]] static std::size_t index_of(const blocks& in, std::uint32_t offset) {
    const std::size_t index = first_from(in, offset);
    if (index < in.size() && in[index].offset == offset) return index;
    std::fprintf(stderr, "range_model: no block begins at granule %lu\n",
                 static_cast<unsigned long>(offset));
    std::abort();
  }
  static void put(blocks& in, block added) {
    in.insert(in.begin() + static_cast<std::ptrdiff_t>(first_from(in, added.offset)), added);
  }
  static block remove(blocks& from, std::uint32_t offset) {
    const auto gone = from.begin() + static_cast<std::ptrdiff_t>(index_of(from, offset));
    const block was = *gone;
    from.erase(gone);
    return was;
  }

  std::uint32_t count_;
  std::uint32_t origin_;
  std::uint32_t high_water_ = 0;
  blocks free_;
  blocks live_;
};
