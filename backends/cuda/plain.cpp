// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <span>

module vmm.cuda;

import vmm.backend;
import :plain;

namespace vmm {
namespace {

using lock = std::lock_guard<std::mutex>;

error refused(errc code, call where, const char* detail) noexcept {
  return error{code, where, 0, "", detail};
}

error no_host_memory(call where) noexcept {
  return refused(errc::out_of_host_memory, where, "no host memory is left for a record");
}

// Of what the environment or an option turned off, so that it says so.
constexpr const char* only_mapped =
    "only memory that is mapped can do this, and cuda_memory::plain (VMM_CUDA_MEMORY) is not";

}  // namespace

error plain_space::unsupported(call where) noexcept {
  return refused(errc::not_supported, where, only_mapped);
}

void plain_space::restrict_features(features& can) noexcept {
  can.contents_stay = true;
  can.max_reservation_bytes = 0;  // less than the device has; how much is not known
  can.alias = alias_level::none;
  can.read_only = read_only_level::refused;
  for (bool* each :
       {&can.access_per_location, &can.release_while_mapped, &can.unmap_may_stall,
        &can.fresh_memory_zero, &can.retain, &can.host_location, &can.host_node_location,
        &can.export_posix_fd, &can.export_fabric, &can.multicast, &can.compression, &can.rdma})
    *each = false;
}

// ---- reservations ------------------------------------------------------------------------------

result<std::uint64_t> plain_space::check_reserve(const reserve_request& request) const noexcept {
  const bool is_power =
      request.alignment_bytes == 0 || std::has_single_bit(request.alignment_bytes);
  const std::uint64_t alignment_bytes = std::max(request.alignment_bytes, limits_.granule_bytes);
  if (!is_whole(request.size_bytes) || !is_power) {
    return refused(errc::invalid_argument, call::reserve,
                   "a reservation is a multiple of the granularity, its alignment a power of two");
  }
  if (request.size_bytes > limits_.device_bytes || alignment_bytes > limits_.device_bytes) {
    return refused(errc::out_of_addresses, call::reserve,
                   "plain memory is all there from the beginning: the device has no such size");
  }
  return alignment_bytes;
}

status plain_space::add(address_range range, address origin) noexcept {
  const lock hold(mutex_);
  try {
    reservations_[range.base.value] = {range.size_bytes, origin, false};
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::reserve);
  }
  return {};
}

result<address> plain_space::begin_removal(address_range range) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::free_reservation);
  const lock hold(mutex_);
  const auto found = reservations_.find(range.base.value);
  const bool is_known = found != reservations_.end() && !found->second.is_going &&
                        found->second.size_bytes == range.size_bytes;
  if (!is_known) {
    return refused(errc::invalid_argument, call::free_reservation,
                   "a reservation is freed once, and whole");
  }
  if (is_mapped(range)) {
    return refused(errc::in_use, call::free_reservation,
                   "something is mapped in the reservation: unmap it first");
  }
  found->second.is_going = true;
  return found->second.origin;
}

void plain_space::end_removal(address_range range, bool is_gone) noexcept {
  const lock hold(mutex_);
  const auto found = reservations_.find(range.base.value);
  check(found != reservations_.end(), "a reservation was removed twice");
  found->second.is_going = false;
  if (is_gone) reservations_.erase(found);
}

bool plain_space::is_reserved(address_range range) const noexcept {
  auto found = reservations_.upper_bound(range.base.value);
  if (found == reservations_.begin()) return false;
  --found;
  const address_range whole{{found->first}, found->second.size_bytes};
  return !found->second.is_going && whole.contains(range);
}

// ---- handles -----------------------------------------------------------------------------------

result<physical_handle> plain_space::create(const physical_request& request) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::create);
  if (!(request.where == limits_.home) || request.shareable != share_kind::none ||
      request.rdma_capable)
    return unsupported(call::create);
  if (!is_whole(request.size_bytes)) {
    return refused(errc::invalid_argument, call::create,
                   "physical memory is a multiple of the granularity");
  }
  const lock hold(mutex_);
  if (request.size_bytes > limits_.device_bytes - created_bytes_) {
    return refused(errc::out_of_memory, call::create,
                   "the device has no physical memory left: release or trim some, then try again");
  }
  try {
    memories_[last_handle_ + 1] = {request.size_bytes, false};
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create);
  }
  created_bytes_ += request.size_bytes;
  return physical_handle{++last_handle_};
}

status plain_space::release(physical_handle handle) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::release);
  const lock hold(mutex_);
  const auto found = memories_.find(static_cast<std::uint64_t>(handle));
  if (found == memories_.end())
    return refused(errc::invalid_argument, call::release, "no such handle");
  if (found->second.is_mapped)
    return refused(errc::in_use, call::release, "the memory is mapped: unmap it first");
  created_bytes_ -= found->second.size_bytes;
  memories_.erase(found);
  return {};
}

result<physical_properties> plain_space::get_properties(physical_handle handle) const noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::get_properties);
  const lock hold(mutex_);
  if (!memories_.contains(static_cast<std::uint64_t>(handle)))
    return refused(errc::invalid_argument, call::get_properties, "no such handle");
  return physical_properties{limits_.home, share_kind::none, false, false};
}

// ---- mappings ----------------------------------------------------------------------------------

bool plain_space::is_mapped(address_range range) const noexcept {
  const auto behind = mappings_.lower_bound(range.end().value);
  if (behind == mappings_.begin()) return false;
  const auto last = std::prev(behind);
  return last->first + last->second.size_bytes > range.base.value;
}

// Whether the range is made of whole mappings, without holes, inside one reservation.
bool plain_space::is_tiled(address_range range) const noexcept {
  if (range.empty() || !is_reserved(range)) return false;
  std::uint64_t at = range.base.value;
  for (auto next = mappings_.find(at); next != mappings_.end() && next->first == at; ++next) {
    at += next->second.size_bytes;
    if (at >= range.end().value) break;
  }
  return at == range.end().value;
}

status plain_space::map(const map_request& request) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::map);
  const lock hold(mutex_);
  const auto found = memories_.find(static_cast<std::uint64_t>(request.memory));
  if (found == memories_.end()) return refused(errc::invalid_argument, call::map, "no such handle");
  const std::uint64_t size_bytes = found->second.size_bytes;
  const bool is_inside =
      request.size_bytes <= size_bytes && request.offset_bytes <= size_bytes - request.size_bytes;
  const address_range range{request.at, request.size_bytes};
  const bool is_placed = request.at.value % limits_.granule_bytes == 0 && is_reserved(range);
  if (!is_whole(request.size_bytes) || !is_inside || !is_placed) {
    return refused(errc::invalid_argument, call::map,
                   "a mapping is whole granules, inside its memory and one reservation");
  }
  if (request.size_bytes != size_bytes) return unsupported(call::map);
  if (found->second.is_mapped) return unsupported(call::map);
  if (is_mapped(range)) {
    return refused(errc::in_use, call::map, "something is mapped there: unmap it first");
  }
  try {
    mappings_[request.at.value] = {size_bytes, found->first, access::none};
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::map);
  }
  found->second.is_mapped = true;
  return {};
}

status plain_space::unmap(address_range range) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::unmap);
  const lock hold(mutex_);
  if (!is_tiled(range)) {
    return refused(errc::invalid_argument, call::unmap,
                   "whole mappings side by side are unmapped, inside one reservation");
  }
  const auto begin = mappings_.find(range.base.value);
  const auto end = mappings_.lower_bound(range.end().value);
  for (auto each = begin; each != end; ++each)
    memories_.find(each->second.of)->second.is_mapped = false;
  mappings_.erase(begin, end);
  return {};
}

status plain_space::set_access(address_range range, std::span<const access_grant> grants) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::set_access);
  for (const access_grant& each : grants) {
    if (!(each.who == limits_.home) || each.rights == access::read)
      return unsupported(call::set_access);
  }
  const lock hold(mutex_);
  if (grants.size() != 1 || !is_tiled(range)) {
    return refused(errc::invalid_argument, call::set_access,
                   "one right is given, over whole mappings side by side in one reservation");
  }
  const auto end = mappings_.lower_bound(range.end().value);
  for (auto each = mappings_.find(range.base.value); each != end; ++each)
    each->second.rights = grants.front().rights;
  return {};
}

result<access> plain_space::get_access(address at, location who) const noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::get_access);
  if (!(who == limits_.home)) return unsupported(call::get_access);
  const lock hold(mutex_);
  auto found = mappings_.upper_bound(at.value);
  if (found != mappings_.begin()) {
    --found;
    if (at.value - found->first < found->second.size_bytes) return found->second.rights;
  }
  return refused(errc::invalid_argument, call::get_access, "nothing is mapped at the address");
}

}  // namespace vmm
