// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

module vmm.reservation;

import vmm.backend;
import vmm.sync;
import vmm.va;

namespace vmm {

status reservation_space::close() {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  check(space_.statistics().live_bytes == 0,
        "address space is given up while extents of it are in use");
  while (!held_.empty()) {
    if (status freed = driver_->free_reservation(held_.back().range); !freed) return freed;
    const result<address_range> removed = space_.remove_range(held_.back().id);
    check(removed.has_value(), "a range without extents is in use");
    held_.pop_back();
  }
  return {};
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
  space_.free(gone.id);
}

status reservation_space::grow(extent& grown, std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return update(grown, space_.grow(grown.id, size_bytes));
}

status reservation_space::shrink(extent& shrunk, std::uint64_t size_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return update(shrunk, space_.shrink(shrunk.id, size_bytes));
}

result<extent> reservation_space::split(extent& cut, std::uint64_t keep_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  const result<extent> rest = space_.split(cut.id, keep_bytes);
  if (rest) cut.range.size_bytes = keep_bytes;
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

bool reservation_space::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return space_.validate().has_value();
}

status reservation_space::update(extent& changed, const result<extent>& outcome) noexcept {
  if (!outcome) return outcome.error();
  changed = *outcome;
  return {};
}

result<extent> reservation_space::try_allocate(const address_request& request) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return space_.allocate(request);
}

result<address_range> reservation_space::reserve_for(const address_request& request) {
  const std::uint64_t unit = options_.granularity_bytes;
  const std::uint64_t slack_bytes = std::max(request.alignment_bytes, unit) - unit;
  const std::uint64_t needed_bytes = round_up(request.size_bytes, unit) + slack_bytes;
  if (needed_bytes > largest_bytes_)
    return refuse(errc::out_of_addresses, "the request is larger than any range can be");
  std::uint64_t wished_bytes = std::min(round_up(options_.reservation_bytes, unit), largest_bytes_);
  wished_bytes = std::max(wished_bytes, needed_bytes);
  for (;;) {
    result<address_range> range = driver_->reserve({wished_bytes, unit, address{}});
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
    if (added) return space_.allocate(request);
  }
  (void)driver_->free_reservation(range);  // the failure to report is the first one
  return added.error();
}

status reservation_space::add(address_range range) noexcept {
  try {
    held_.reserve(held_.size() + 1);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a further reservation");
  }
  const result<reservation_id> id = space_.add_range(range);
  if (!id) return id.error();
  held_.push_back({*id, range});
  return {};
}

}  // namespace vmm
