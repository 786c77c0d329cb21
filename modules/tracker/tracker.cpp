// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

module vmm.tracker;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.sync;

namespace vmm {
namespace {

address_range space_of(const tracked_range& range) noexcept {
  return {range.base, range.sizes.reserved_bytes};
}

bool sizes_fit(const range_sizes& sizes) noexcept {
  return sizes.user_bytes <= sizes.mapped_bytes && sizes.mapped_bytes <= sizes.reserved_bytes &&
         sizes.reserved_bytes > 0;
}

}  // namespace

tracked_range* tracker::containing(address at) const noexcept {
  auto* const below = static_cast<tracked_range*>(by_base_.at_most(at.value));
  return below != nullptr && space_of(*below).contains(at) ? below : nullptr;
}

bool tracker::overlaps_other(address_range range, const tracked_range* self) const noexcept {
  const index_node* node = by_base_.at_most(range.end().value - 1);
  if (node != nullptr && node == self) node = by_base_.previous(*node);
  return node != nullptr && space_of(static_cast<const tracked_range&>(*node)).overlaps(range);
}

status tracker::insert_claimed(tracked_range& range) noexcept {
  check(sizes_fit(range.sizes), "a record's sizes contradict one another");
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  if (overlaps_other(space_of(range), nullptr)) {
    return refuse(errc::overlap, "the range overlaps an allocation that is already tracked");
  }
  range.claimed = true;
  by_base_.insert(range, range.base.value);
  count(range.sizes, range_sizes{});
  return {};
}

result<tracked_range*> tracker::claim(address base) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  tracked_range* const found = containing(base);
  if (found == nullptr) {
    return refuse(errc::not_allocated,
                  "nothing is allocated there: freed before, or never handed out");
  }
  if (found->base != base) {
    return refuse(errc::invalid_argument,
                  "the address lies inside an allocation: pass the one that allocate returned");
  }
  if (found->claimed) {
    return refuse(errc::in_use, "another thread is freeing, resizing or copying this allocation");
  }
  found->claimed = true;
  return found;
}

void tracker::unclaim(tracked_range& range) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is given up that was not claimed");
  range.claimed = false;
}

void tracker::erase(tracked_range& range) noexcept {
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is taken out that was not claimed");
  by_base_.erase(range);
  range.claimed = false;
  count(range_sizes{}, range.sizes);
}

status tracker::relocate(tracked_range& range, const placement& to, piece_list& pieces) noexcept {
  check(sizes_fit(to.sizes), "a record's sizes contradict one another");
  const sync::lock_guard<sync::shared_mutex> lock(mutex_);
  check(range.claimed && range.linked, "a record is moved that was not claimed");
  if (overlaps_other({to.base, to.sizes.reserved_bytes}, &range)) {
    return refuse(errc::overlap, "the range overlaps an allocation that is already tracked");
  }
  if (to.base != range.base) {
    by_base_.erase(range);
    by_base_.insert(range, to.base.value);
  }
  count(to.sizes, range.sizes);
  range.base = to.base;
  range.sizes = to.sizes;
  range.stream = to.stream;
  range.pieces.swap(pieces);
  return {};
}

result<range_info> tracker::find(address at) const noexcept {
  const sync::shared_guard lock(mutex_);
  const tracked_range* const found = containing(at);
  if (found == nullptr) {
    return refuse(errc::not_allocated,
                  "nothing is allocated there: freed before, or never handed out");
  }
  try {
    range_info info{found->base, found->sizes, found->stream, {}};
    info.handles.reserve(found->pieces.size());
    for (const piece* part : found->pieces) info.handles.push_back(part->handle);
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
  return inside <= user_bytes && range.size_bytes <= user_bytes - inside;
}

address tracker::lowest() const noexcept {
  const sync::shared_guard lock(mutex_);
  return by_base_.empty() ? address{} : address{by_base_.first()->key};
}

std::size_t tracker::size() const noexcept {
  const sync::shared_guard lock(mutex_);
  return by_base_.size();
}

range_sizes tracker::totals() const noexcept {
  const sync::shared_guard lock(mutex_);
  return totals_;
}

void tracker::count(const range_sizes& added, const range_sizes& taken) noexcept {
  totals_.user_bytes += added.user_bytes - taken.user_bytes;
  totals_.mapped_bytes += added.mapped_bytes - taken.mapped_bytes;
  totals_.reserved_bytes += added.reserved_bytes - taken.reserved_bytes;
}

bool tracker::validate() const noexcept {
  const sync::shared_guard lock(mutex_);
  if (!by_base_.validate()) return false;
  address end{};
  range_sizes sums{};
  for (const index_node* node = by_base_.first(); node != nullptr; node = by_base_.next(*node)) {
    const auto& range = static_cast<const tracked_range&>(*node);
    if (range.key != range.base.value || !sizes_fit(range.sizes) || range.base < end) return false;
    end = space_of(range).end();
    sums.user_bytes += range.sizes.user_bytes;
    sums.mapped_bytes += range.sizes.mapped_bytes;
    sums.reserved_bytes += range.sizes.reserved_bytes;
    std::uint64_t sum_bytes = 0;
    for (const piece* part : range.pieces) sum_bytes += part->size_bytes;
    if (sum_bytes != range.sizes.mapped_bytes) return false;
  }
  return sums.user_bytes == totals_.user_bytes && sums.mapped_bytes == totals_.mapped_bytes &&
         sums.reserved_bytes == totals_.reserved_bytes;
}

}  // namespace vmm
