// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.tracker;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;

namespace vmm {
namespace {

address_range space_of(const tracked_range& range) noexcept {
  return {range.base, range.sizes.reserved_bytes};
}

bool sizes_fit(const range_sizes& sizes) noexcept {
  return sizes.user_bytes <= sizes.mapped_bytes && sizes.mapped_bytes <= sizes.reserved_bytes &&
         sizes.reserved_bytes > 0;
}

// I1. O(pieces).
bool memories_fit(const memory_list& memories, const range_sizes& sizes) noexcept {
  std::uint64_t sum_bytes = 0;
  for (const physical_memory* part : memories) sum_bytes += part->size_bytes;
  return sum_bytes == sizes.mapped_bytes;
}

}  // namespace

tracked_range* tracker::containing(address at) const noexcept {
  auto* const below = static_cast<tracked_range*>(by_base_.at_most(at.value));
  check(below == nullptr || below->base.value == below->key, "a record is not where it is indexed");
  return below != nullptr && space_of(*below).contains(at) ? below : nullptr;
}

// A full validation once per as many changes as there are records: amortised O(1).
void tracker::audit() noexcept {
  check(by_base_.empty() == (totals_.reserved_bytes == 0), "sizes are counted of no record");
  check(sizes_fit(totals_) || by_base_.empty(), "the sums of all sizes disagree");
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ <= by_base_.size()) return;
    unaudited_count_ = 0;
    const auto is_valid = [this] {
      sync::assume_locked(mutex_);
      return validate_all().has_value();
    };
    paranoid_check(is_valid, "a change broke the tracker");
  }
}

bool tracker::overlaps_other(address_range range, const tracked_range* self) const noexcept {
  check(!range.empty() && range.base < range.end(), "a record has no addresses, or too many");
  const index_node* node = by_base_.at_most(range.end().value - 1);
  if (node != nullptr && node == self) node = by_base_.previous(*node);
  return node != nullptr && space_of(static_cast<const tracked_range&>(*node)).overlaps(range);
}

status tracker::insert_claimed(tracked_range& range) noexcept {
  check(sizes_fit(range.sizes), "I1: a record's sizes disagree");
  check(range.base.value != 0, "a record has no address");
  check(!range.linked && !range.claimed, "a record is tracked twice");
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  if (overlaps_other(space_of(range), nullptr)) {
    return refuse(errc::overlap, "the range overlaps an allocation that is already tracked");
  }
  range.claimed = true;
  by_base_.insert(range, range.base.value);
  const auto is_found = [&] {
    sync::assume_locked(mutex_);
    return containing(range.base) == &range;
  };
  debug_check(is_found, "an added record is missing");
  count(range.sizes, range_sizes{});
  debug_check([&] { return memories_fit(range.memories, range.sizes); },
              "pieces are not what is mapped");
  audit();
  return {};
}

result<tracked_range*> tracker::claim(address base, pinned_record pinned) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  tracked_range* const found = containing(base);
  if (found == nullptr) {
    return refuse(errc::not_allocated,
                  "the address is in no live block: it was freed before, or never allocated");
  }
  if (found->base != base) {
    return refuse(errc::invalid_argument,
                  "the address lies inside an allocation: pass the one that allocate returned");
  }
  if (found->owned) {
    return refuse(errc::in_use,
                  "the allocation is a segment of a growable range: resize or close the range");
  }
  if (found->claimed) {
    return refuse(errc::in_use, "another thread is freeing, resizing or copying this allocation");
  }
  if (found->pin_count != 0 && pinned == pinned_record::refused) {
    return refuse(errc::in_use, "the allocation is exported: end the export first");
  }
  check(found->linked && sizes_fit(found->sizes), "a record that was claimed is broken");
  found->claimed = true;
  return found;
}

void tracker::pin(tracked_range& range) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "I3: a record is pinned that was not claimed");
  check(range.pin_count < std::numeric_limits<std::uint32_t>::max(), "a record has too many pins");
  ++range.pin_count;
}

void tracker::unpin(tracked_range& range) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is unpinned that was not claimed");
  check(range.pin_count > 0, "a record loses a pin that it does not have");
  --range.pin_count;
}

void tracker::unclaim(tracked_range& range) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is given up that was not claimed");
  check(range.key == range.base.value && sizes_fit(range.sizes), "a record is given up broken");
  debug_check([&] { return memories_fit(range.memories, range.sizes); },
              "pieces are not what is mapped");
  range.claimed = false;
  range.owned = false;
}

void tracker::set_suspended(tracked_range& range, bool is_suspended) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is suspended that was not claimed");
  check(range.pin_count == 0, "a record is suspended that is exported");
  range.is_suspended = is_suspended;
}

void tracker::erase(tracked_range& range) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is taken out that was not claimed");
  check(range.key == range.base.value, "a moved record is removed");
  check(range.pin_count == 0, "a record is taken out that is exported");
  by_base_.erase(range);
  check(!range.linked, "a removed record is still in the index");
  range.claimed = false;
  range.owned = false;
  count(range_sizes{}, range.sizes);
  audit();
}

status tracker::relocate(tracked_range& range, const placement& to,
                         memory_list& memories) noexcept {
  check(sizes_fit(to.sizes), "I1: a record's sizes disagree");
  check(&memories != &range.memories, "a record exchanges its pieces with itself");
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "I3: a record is moved that was not claimed");
  if (overlaps_other({to.base, to.sizes.reserved_bytes}, &range)) {
    return refuse(errc::overlap, "the range overlaps an allocation that is already tracked");
  }
  debug_check([&] { return memories_fit(memories, to.sizes); }, "pieces are not what is mapped");
  if (to.base != range.base) {
    by_base_.erase(range);
    by_base_.insert(range, to.base.value);
  }
  count(to.sizes, range.sizes);
  range.base = to.base;
  range.sizes = to.sizes;
  if (range.stream != to.stream) range.stream_identity = 0;
  range.stream = to.stream;
  range.memories.swap(memories);
  check(range.key == range.base.value, "a moved record has its old place in the index");
  audit();
  return {};
}

void tracker::cut(tracked_range& range, const range_sizes& sizes, std::size_t keep_count) noexcept {
  check(sizes_fit(sizes), "I1: a record's sizes disagree");
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "I3: a record is cut that was not claimed");
  check(keep_count <= range.memories.size(), "a record keeps more pieces than it has");
  count(sizes, range.sizes);
  range.sizes = sizes;
  range.memories.resize(keep_count);
  debug_check([&] { return memories_fit(range.memories, sizes); }, "pieces are not what is mapped");
  audit();
}

result<range_info> tracker::find(address at) const noexcept {
  const sync::shared_guard lock(mutex_);
  const tracked_range* const found = containing(at);
  if (found == nullptr) {
    return refuse(errc::not_allocated,
                  "the address is in no live block: it was freed before, or never allocated");
  }
  try {
    range_info info{found->base, found->sizes, found->stream, {}};
    info.handles.resize(found->memories.size(), physical_handle::none);
    for (std::size_t i = 0; i < info.handles.size() && !found->is_suspended; ++i)
      info.handles[i] = found->memories[i]->handle;
    check(space_of(*found).contains(at), "a record is found that the address is not in");
    return info;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for the list of handles");
  }
}

bool tracker::covers(address_range range) const noexcept {
  const sync::shared_guard lock(mutex_);
  const tracked_range* const found = containing(range.base);
  if (found == nullptr) return false;
  const std::uint64_t inside = range.base - found->base;
  const std::uint64_t user_bytes = found->sizes.user_bytes;
  check(inside < found->sizes.reserved_bytes, "a record is found that the range is not in");
  return inside <= user_bytes && range.size_bytes <= user_bytes - inside;
}

bool tracker::is_suspended(address at) const noexcept {
  const sync::shared_guard lock(mutex_);
  const tracked_range* const found = containing(at);
  check(found == nullptr || found->base <= at, "a record is found that the address is not in");
  return found != nullptr && found->is_suspended;
}

address tracker::lowest() const noexcept {
  const sync::shared_guard lock(mutex_);
  check(by_base_.empty() || by_base_.first()->key != 0, "a record has no address");
  return by_base_.empty() ? address{} : address{by_base_.first()->key};
}

std::size_t tracker::size() const noexcept {
  const sync::shared_guard lock(mutex_);
  check(by_base_.empty() == (totals_.reserved_bytes == 0), "a record has no addresses");
  return by_base_.size();
}

range_sizes tracker::totals() const noexcept {
  const sync::shared_guard lock(mutex_);
  check(sizes_fit(totals_) || by_base_.empty(), "the sums of all records disagree");
  return totals_;
}

void tracker::count(const range_sizes& added, const range_sizes& taken) noexcept {
  check(totals_.user_bytes + added.user_bytes >= taken.user_bytes,
        "more user bytes are removed than exist");
  check(totals_.mapped_bytes + added.mapped_bytes >= taken.mapped_bytes,
        "more bytes are unmapped than are mapped");
  check(totals_.reserved_bytes + added.reserved_bytes >= taken.reserved_bytes,
        "more addresses are removed than are tracked");
  totals_.user_bytes += added.user_bytes - taken.user_bytes;
  totals_.mapped_bytes += added.mapped_bytes - taken.mapped_bytes;
  totals_.reserved_bytes += added.reserved_bytes - taken.reserved_bytes;
}

status tracker::validate() const noexcept {
  const sync::shared_guard lock(mutex_);
  return validate_all();
}

status tracker::validate_all() const noexcept {
  if (status valid = by_base_.validate(); !valid) return valid;
  address end{};
  range_sizes sums{};
  for (const index_node* node = by_base_.first(); node != nullptr; node = by_base_.next(*node)) {
    const auto& range = static_cast<const tracked_range&>(*node);
    if (range.key != range.base.value || !sizes_fit(range.sizes))
      return refuse(errc::internal, "a record's address is not its key in the tracker");
    if (range.base < end) return refuse(errc::internal, "I2: two records overlap");
    end = space_of(range).end();
    sums.user_bytes += range.sizes.user_bytes;
    sums.mapped_bytes += range.sizes.mapped_bytes;
    sums.reserved_bytes += range.sizes.reserved_bytes;
    if (!memories_fit(range.memories, range.sizes))
      return refuse(errc::internal, "a record's pieces are not what it has mapped");
  }
  if (sums.user_bytes != totals_.user_bytes || sums.mapped_bytes != totals_.mapped_bytes ||
      sums.reserved_bytes != totals_.reserved_bytes)
    return refuse(errc::internal, "the sums of all records are wrong");
  return {};
}

}  // namespace vmm
