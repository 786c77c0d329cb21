// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;

namespace vmm {

status reservation_space::close() {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(space_.statistics().live_bytes == 0, "address space with live extents is released");
  while (!reserved_.empty()) {
    if (status freed = driver_->free_reservation(reserved_.back().range); !freed) return freed;
    const result<address_range> removed = space_.remove_range(reserved_.back().id);
    check(removed.has_value(), "I2: a range without extents is in use");
    check(*removed == reserved_.back().range, "the removed range is not the freed one");
    reserved_.pop_back();
    check(sums_fit(), "the ranges held are not those of the address space");
  }
  check(space_.statistics().reserved_bytes == 0, "I2: a range without a holder is left");
  return {};
}

bool reservation_space::is_reserved(address_range range) const noexcept {
  return std::any_of(reserved_.begin(), reserved_.end(),
                     [&](const reserved_range& each) { return each.range.contains(range); });
}

bool reservation_space::sums_fit() const noexcept {
  std::uint64_t sum_bytes = 0;
  for (const reserved_range& each : reserved_) sum_bytes += each.range.size_bytes;
  return sum_bytes == space_.statistics().reserved_bytes &&
         reserved_.size() == space_.statistics().ranges;
}

result<extent> reservation_space::allocate(const address_request& request) {
  result<extent> found = try_allocate(request);
  if (found || found.error().code != errc::out_of_addresses) return found;
  const sync::lock_guard<sync::mutex> growing(growth_mutex_);
  found = try_allocate(request);  // another thread may have reserved meanwhile
  if (found || found.error().code != errc::out_of_addresses) return found;
  const result<address_range> range = reserve_for(request);
  if (!range) return range.error();
  return allocate_in(*range, request);
}

void reservation_space::free(const extent& gone) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(!gone.range.empty() && gone.id, "an invalid extent is freed");
  debug_check(
      [&] {
        sync::assume_locked(mutex_);
        return is_reserved(gone.range);
      },
      "a freed extent belongs to another address space");
  space_.free(gone.id);
}

status reservation_space::grow(extent& grown, std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(grown.id && !grown.range.empty(), "an invalid extent grows");
  return update(grown, space_.grow(grown.id, size_bytes));
}

status reservation_space::shrink(extent& shrunk, std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(shrunk.id && size_bytes <= shrunk.range.size_bytes, "an extent shrinks to a larger size");
  return update(shrunk, space_.shrink(shrunk.id, size_bytes));
}

result<extent> reservation_space::split(extent& cut, std::uint64_t keep_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(cut.id && keep_bytes < cut.range.size_bytes, "an extent is cut behind its end");
  const address end = cut.range.end();
  const result<extent> rest = space_.split(cut.id, keep_bytes);
  if (!rest) return rest;
  cut.range.size_bytes = keep_bytes;
  check(rest->range.base == cut.range.end() && rest->range.end() == end,
        "the parts of an extent differ from the whole");
  return rest;
}

bool reservation_space::contains(address at) const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return space_.contains(at);
}

address_space_statistics reservation_space::statistics() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return space_.statistics();
}

status reservation_space::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (!sums_fit())
    return refuse(errc::internal, "the ranges held are not those of the address space");
  return space_.validate();
}

status reservation_space::update(extent& changed, const result<extent>& outcome) noexcept {
  if (!outcome) return outcome.error();
  check(outcome->range.base == changed.range.base, "an extent's base changes with its size");
  debug_check(
      [&] {
        sync::assume_locked(mutex_);
        return is_reserved(outcome->range);
      },
      "an extent reaches out of its reservation");
  changed = *outcome;
  return {};
}

result<extent> reservation_space::try_allocate(const address_request& request) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return hand_out(request);
}

// An extent may come from any range: while one thread reserved, another may have freed.
result<extent> reservation_space::hand_out(const address_request& request) noexcept {
  const result<extent> found = space_.allocate(request);
  if (!found) return found;
  const address_range& range = found->range;
  const std::uint64_t alignment_bytes =
      std::max(request.alignment_bytes, options_.granularity_bytes);
  check(found->id && range.size_bytes == request.size_bytes,
        "an extent does not have the requested length");
  check(range.base.value % alignment_bytes == 0, "an extent does not have the requested alignment");
  debug_check(
      [&] {
        sync::assume_locked(mutex_);
        return is_reserved(range);
      },
      "an extent lies in no reservation");
  return found;
}

result<address_range> reservation_space::reserve_for(const address_request& request) {
  const std::uint64_t unit = options_.granularity_bytes;
  const std::uint64_t slack_bytes = std::max(request.alignment_bytes, unit) - unit;
  const std::uint64_t needed_bytes = round_up(request.size_bytes, unit) + slack_bytes;
  if (needed_bytes > largest_bytes_)
    return refuse(errc::out_of_addresses, detail_text()
                                              .add_number(needed_bytes)
                                              .add(" bytes of addresses exceed the largest range, ")
                                              .add_number(largest_bytes_)
                                              .add(" bytes")
                                              .keep("the request exceeds the largest range"));
  std::uint64_t wished_bytes = std::min(round_up(options_.reservation_bytes, unit), largest_bytes_);
  wished_bytes = std::max(wished_bytes, needed_bytes);
  check(wished_bytes % unit == 0 && needed_bytes > 0, "a reservation has no whole granules");
  check(wished_bytes <= largest_bytes_, "more is reserved than any range can be");
  for (;;) {
    check(wished_bytes >= needed_bytes, "less is reserved than is needed");
    result<address_range> range = driver_->reserve({wished_bytes, unit, address{}});
    check(!range || (range->base && range->size_bytes >= wished_bytes),
          "a reservation does not have the requested size");
    if (range) return range;
    const errc code = range.error().code;
    const bool smaller_may_do = code == errc::out_of_memory || code == errc::out_of_addresses;
    if (!smaller_may_do || wished_bytes == needed_bytes) return range;
    wished_bytes = std::max(round_up(wished_bytes / 2, unit), needed_bytes);
  }
}

result<extent> reservation_space::allocate_in(address_range range, const address_request& request) {
  status added;
  {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    added = add(range);
    if (added) {
      const result<extent> found = hand_out(request);
      check(found || found.error().code != errc::out_of_addresses,
            "a range that was reserved for a request has no room for it");
      return found;
    }
  }
  (void)driver_->free_reservation(range);  // the failure to report is the first one
  return added.error();
}

status reservation_space::add(address_range range) noexcept {
  try {
    reserved_.reserve(reserved_.size() + 1);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a further reservation");
  }
  const result<reservation_id> id = space_.add_range(range);
  if (!id) return id.error();
  check(!is_reserved(range), "I1: a driver reserves addresses twice");
  reserved_.push_back({*id, range});
  check(sums_fit(), "the ranges held are not those of the address space");
  return {};
}

}  // namespace vmm
