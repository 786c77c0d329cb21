// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;

namespace vmm {

namespace {

constexpr const char* no_range = "cached bytes belong to no range";

}  // namespace

// I1, and that the block is whole.
bool range_cache::is_cacheable(const block& range) noexcept {
  return !range.claimed && range.has_memory && range.locked_count == 0 &&
         range.sizes.mapped_bytes > 0 && range.is == unmap_entry::place::outside;
}

// A full validation once per as many changes as there are ranges: amortised O(1).
void range_cache::audit() noexcept {
  check(by_size_.empty() == (size_bytes_ == 0), no_range);
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ <= by_size_.size()) return;
    unaudited_count_ = 0;
    const auto is_valid = [this] {
      sync::assume_locked(mutex_);
      return validate_all().has_value();
    };
    paranoid_check(is_valid, "a change broke the cache of ranges");
  }
}

void range_cache::put(block& freed) noexcept {
  check(!freed.linked && is_cacheable(freed),
        "cache I1: a range is cached that is in use, or not whole");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  by_size_.insert(freed, freed.sizes.mapped_bytes);
  size_bytes_ += freed.sizes.mapped_bytes;
  check(freed.linked && size_bytes_ >= freed.sizes.mapped_bytes,
        "a range was not put into the cache");
  audit();
}

block* range_cache::take(index_node* found) noexcept {
  if (found == nullptr) return nullptr;
  auto& taken = static_cast<block&>(*found);
  check(is_cacheable(taken) && taken.key == taken.sizes.mapped_bytes,
        "a cached range was changed while it was cached");
  check(size_bytes_ >= taken.sizes.mapped_bytes, "more is taken out of the cache than is in it");
  by_size_.erase(taken);
  size_bytes_ -= taken.sizes.mapped_bytes;
  check(!taken.linked, "a range taken out of the cache is still in it");
  audit();
  return &taken;
}

block* range_cache::take_exact(std::uint64_t mapped_bytes) noexcept {
  check(mapped_bytes > 0, "a range of size 0 is looked for");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  index_node* const found = by_size_.at_least(mapped_bytes);
  return take(found != nullptr && found->key == mapped_bytes ? found : nullptr);
}

block* range_cache::take_smaller(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const taken = mapped_bytes == 0 ? nullptr : take(by_size_.at_most(mapped_bytes - 1));
  check(taken == nullptr || taken->sizes.mapped_bytes < mapped_bytes, "a range is not smaller");
  return taken;
}

block* range_cache::take_larger(std::uint64_t mapped_bytes) noexcept {
  check(mapped_bytes > 0, "a range of size 0 is looked for");
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const taken = take(by_size_.at_least(mapped_bytes + 1));
  check(taken == nullptr || taken->sizes.mapped_bytes > mapped_bytes, "a range is not larger");
  return taken;
}

block* range_cache::take_largest() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  block* const taken = take(by_size_.last());
  check(taken != nullptr || size_bytes_ == 0, no_range);
  return taken;
}

std::size_t range_cache::size() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(by_size_.empty() == (size_bytes_ == 0), no_range);
  return by_size_.size();
}

std::uint64_t range_cache::size_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(by_size_.empty() == (size_bytes_ == 0), no_range);
  return size_bytes_;
}

std::uint64_t range_cache::largest_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const index_node* const last = by_size_.last();
  check((last == nullptr) == (size_bytes_ == 0), no_range);
  return last == nullptr ? 0 : last->key;
}

status range_cache::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return validate_all();
}

status range_cache::validate_all() const noexcept {
  if (status valid = by_size_.validate(); !valid) return valid;
  std::uint64_t sum_bytes = 0;
  for (const index_node* node = by_size_.first(); node != nullptr; node = by_size_.next(*node)) {
    const auto& cached = static_cast<const block&>(*node);
    if (cached.key != cached.sizes.mapped_bytes || !is_cacheable(cached))
      return refuse(errc::internal, "cache I1: a cached range has changed, or cannot be cached");
    sum_bytes += cached.sizes.mapped_bytes;
  }
  if (sum_bytes != size_bytes_)
    return refuse(errc::internal, "the bytes of cached ranges are wrong");
  return {};
}

}  // namespace vmm
