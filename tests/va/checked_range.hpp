// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A range allocator and the naive model side by side. Each operation runs on both; the first
// difference is kept as a sentence. It imports what it checks, so it is the last include of a file.
#pragma once

#include "range_model.hpp"

import vmm.va;

class checked_range {
 public:
  explicit checked_range(const vmm::range_options& options)
      : real_(vmm::range_allocator::create(options).value()),
        model_(options.count_granules, options.origin_granules),
        max_blocks_(options.max_blocks) {}

  /// nullptr while both agree.
  [[nodiscard]] const char* difference() const { return difference_; }
  [[nodiscard]] std::size_t live_count() const { return blocks_.size(); }
  [[nodiscard]] const range_model& model() const { return model_; }
  [[nodiscard]] vmm::range_allocator& real() { return real_; }
  [[nodiscard]] vmm::granule_range where(std::size_t nth) const {
    return real_.where(blocks_[nth]);
  }

  void allocate(vmm::granule_request request) {
    const range_model::request wanted{request.count_granules, request.alignment_granules};
    const bool possible = model_.can_take(wanted);
    const auto block = real_.allocate(request);
    if (!block) {
      if (out_of_records(block.error())) return;
      expect(!possible, "a request was refused that a hole could hold");
      expect(block.error().code == vmm::errc::out_of_addresses, "a refusal has the wrong code");
      return;
    }
    const vmm::granule_range got = real_.where(*block);
    const range_model::block hole = model_.hole_around({got.offset, got.count});
    expect(possible && hole.count != 0, "a place was allocated that is not free");
    expect(got.count == wanted.count, "a block does not have the requested size");
    expect(model_.padding(got.offset, wanted.alignment) == 0,
           "a block does not have the requested alignment");
    if (wanted.alignment == 1)
      expect(hole.count == model_.best_size(wanted.count), "the fit is not the best");
    if (difference_ == nullptr) adopt(*block);
  }

  void free(std::size_t nth) {
    const vmm::block_id block = blocks_[nth];
    const std::uint32_t offset = real_.where(block).offset;
    real_.free(block);
    model_.give(offset);
    blocks_[nth] = blocks_.back();
    blocks_.pop_back();
  }

  void grow(std::size_t nth, std::uint32_t extra) {
    const vmm::granule_range old = where(nth);
    const std::uint32_t room = model_.room_after(old.offset);
    expect(real_.growth_limit(blocks_[nth]) == old.count + room, "the growth limit is wrong");
    const bool grown = real_.grow(blocks_[nth], old.count + extra).has_value();
    expect(grown == (extra <= room), "grow and the model disagree on whether there is room");
    if (!grown) return;
    if (extra != 0) model_.resize({old.offset, old.count + extra});
    expect(where(nth) == vmm::granule_range{old.offset, old.count + extra},
           "a grown block is not where it should be");
  }

  void shrink(std::size_t nth, std::uint32_t less) {
    const vmm::granule_range old = where(nth);
    const bool possible = less < old.count;
    const auto shrunk = real_.shrink(blocks_[nth], possible ? old.count - less : 0);
    if (!shrunk && out_of_records(shrunk.error())) return;
    expect(shrunk.has_value() == possible, "shrink accepts or refuses wrongly");
    if (!shrunk) return;
    if (less != 0) model_.resize({old.offset, old.count - less});
    expect(where(nth) == vmm::granule_range{old.offset, old.count - less},
           "a shrunk block is not where it should be");
  }

  void split(std::size_t nth, std::uint32_t count_left) {
    const vmm::granule_range old = where(nth);
    const bool possible = count_left != 0 && count_left < old.count;
    const auto right = real_.split(blocks_[nth], count_left);
    if (!right && out_of_records(right.error())) return;
    expect(right.has_value() == possible, "split accepts or refuses wrongly");
    if (!right || difference_ != nullptr) return;
    model_.split({old.offset, count_left});
    expect(where(nth) == vmm::granule_range{old.offset, count_left}, "split moved the left part");
    expect(
        real_.where(*right) == vmm::granule_range{old.offset + count_left, old.count - count_left},
        "split moved the right part");
    remember(*right);
  }

  /// Everything that can be compared at once, in address order.
  void compare() {
    auto next_free = model_.free().begin();
    auto next_live = model_.live().begin();
    real_.visit([&](const vmm::block_info& block) {
      auto& next = block.live ? next_live : next_free;
      const auto end = block.live ? model_.live().end() : model_.free().end();
      const bool same =
          next != end && next->offset == block.where.offset && next->count == block.where.count;
      expect(same, "the blocks in address order are not the model's");
      if (next != end) ++next;
    });
    expect(next_free == model_.free().end() && next_live == model_.live().end(),
           "the allocator has lost a block");
    const vmm::range_statistics all = real_.statistics();
    expect(all.live_blocks == model_.live().size() && all.free_blocks == model_.free().size(),
           "a count is wrong");
    expect(all.largest_free_granules == model_.largest_free(), "the largest free block is wrong");
    expect(all.high_water_granules == model_.high_water(), "the high-water mark is wrong");
    const vmm::status valid = real_.validate();
    if (!valid) expect(false, valid.error().detail);
  }

  void free_all() {
    while (!blocks_.empty()) free(blocks_.size() - 1);
    compare();
    expect(real_.statistics().free_blocks == 1, "free blocks did not merge to one");
  }

 private:
  void expect(bool holds, const char* what) {
    if (!holds && difference_ == nullptr) difference_ = what;
  }

  /// Whether a call may have failed because it needed up to two records above max_blocks.
  [[nodiscard]] bool out_of_records(const vmm::error& failure) const {
    return failure.code == vmm::errc::out_of_host_memory && max_blocks_ != 0 &&
           model_.live().size() + model_.free().size() + 2 > max_blocks_;
  }

  void adopt(vmm::block_id block) {
    const vmm::granule_range got = real_.where(block);
    model_.take({got.offset, got.count});
    remember(block);
  }

  void remember(vmm::block_id block) { blocks_.push_back(block); }

  vmm::range_allocator real_;
  range_model model_;
  std::uint32_t max_blocks_;
  std::vector<vmm::block_id> blocks_;
  const char* difference_ = nullptr;
};
