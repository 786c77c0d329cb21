// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :plain;
import :state;

namespace vmm::cuda {
namespace {

using lock = std::lock_guard<std::mutex>;

error refused(errc code, call where, const char* detail) noexcept {
  check(code != errc::none && detail != nullptr, "a refusal has no code, or no text");
  return error{code, where, 0, "", detail};
}

error no_host_memory(call where) noexcept {
  return refused(errc::out_of_host_memory, where, "no host memory is left for a record");
}

constexpr const char* empty_mapping = "a mapping is empty";

// The error for calls that the environment or an option turned off; it names the reason.
constexpr const char* only_mapped =
    "this call needs mapped memory, and that of cuda_memory::plain (VMM_CUDA_MEMORY) is not";

}  // namespace

plain_memory::plain_memory(cuda_state& state, const limits& known) noexcept
    : state_(state), limits_(known) {
  check(std::has_single_bit(known.granule_bytes), "the granularity is not a power of two");
  check(known.device_bytes >= known.granule_bytes, "the device's memory is smaller than a granule");
}

error plain_memory::needs_mapping(call where) const noexcept {
  check(where != call::none, "a refusal names no call");
  if (!state_.made_in.is_here()) return refuse_forked(where);
  return refused(errc::not_supported, where, only_mapped);
}

void plain_memory::restrict_features(features& can) noexcept {
  can.contents_stay = true;
  can.max_reservation_bytes = 0;  // less than the device has; the amount is unknown
  can.alias = alias_level::none;
  can.read_only = read_only_level::refused;
  for (bool* each :
       {&can.access_per_location, &can.release_while_mapped, &can.unmap_may_stall,
        &can.fresh_memory_zero, &can.retain, &can.host_location, &can.host_node_location,
        &can.export_posix_fd, &can.export_fabric, &can.multicast, &can.multicast_capable,
        &can.compression, &can.rdma, &can.peers, &can.export_dma_buf})
    *each = false;
  check(!can.offset_map && !can.short_map, "a part of plain memory is reported as mapped");
}

// ---- reservations ------------------------------------------------------------------------------

result<std::uint64_t> plain_memory::check_reserve(const reserve_request& request) const noexcept {
  const bool is_power =
      request.alignment_bytes == 0 || std::has_single_bit(request.alignment_bytes);
  const std::uint64_t alignment_bytes = std::max(request.alignment_bytes, limits_.granule_bytes);
  if (!is_power) {
    return refused(
        errc::invalid_argument, call::reserve,
        refuse_number(request.alignment_bytes, "an alignment is a power of two, or 0").detail);
  }
  if (!is_whole(request.size_bytes)) {
    return refused(errc::invalid_argument, call::reserve,
                   "a reservation is a multiple of the granularity");
  }
  if (request.size_bytes > limits_.device_bytes || alignment_bytes > limits_.device_bytes) {
    return refused(
        errc::out_of_addresses, call::reserve,
        "plain memory is allocated when it is reserved: the size exceeds the device's memory");
  }
  check(alignment_bytes % limits_.granule_bytes == 0, "an alignment is less than a granule");
  return alignment_bytes;
}

// A device that is full is short of memory, not of addresses as after cuMemAddressReserve.
result<address> plain_memory::allocate(std::uint64_t size_bytes) {
  check(size_bytes > limits_.granule_bytes, "memory is taken without room to align in it");
  CUdeviceptr origin = 0;
  const status taken = state_.run(
      call::reserve, [&](const entry_points& cu) { return cu.mem_alloc(&origin, size_bytes); });
  if (taken) {
    check(origin != 0, "the driver allocated memory and gave no address");
    return address{origin};
  }
  error why = taken.error();
  if (why.native == CUDA_ERROR_OUT_OF_MEMORY) {
    why.code = errc::out_of_memory;
    why.detail = "the device has no memory of this size left: free some, or reserve less";
  }
  return why;
}

status plain_memory::add(address_range range, address origin) noexcept {
  check(is_whole(range.size_bytes) && origin <= range.base,
        "a reservation is not whole granules, or begins before its memory");
  const lock locked(mutex_);
  try {
    const bool is_new =
        reservations_.emplace(range.base.value, reservation{range.size_bytes, origin}).second;
    check(is_new, "I3: the driver gave memory that it had given before");
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::reserve);
  }
  paranoid_check([this] { return is_valid(); }, "the records of plain memory disagree");
  return {};
}

// The driver does not document its alignment: the range is cut from a larger one.
result<address_range> plain_memory::reserve(const reserve_request& request) {
  if (!state_.made_in.is_here()) return refuse_forked(call::reserve);
  const result<std::uint64_t> alignment_bytes = check_reserve(request);
  if (!alignment_bytes) return alignment_bytes.error();
  const result<address> origin = allocate(request.size_bytes + *alignment_bytes);
  if (!origin) return origin.error();
  const address_range range{{round_up(origin->value, *alignment_bytes)}, request.size_bytes};
  check(range.base - *origin <= *alignment_bytes, "a range lies outside of its memory");
  check(range.base.value % *alignment_bytes == 0, "a range does not have the requested alignment");
  check(range.end() - *origin <= request.size_bytes + *alignment_bytes,
        "a range ends behind its memory");
  const status added = add(range, *origin);
  if (added) return range;
  static_cast<void>(state_.run(call::reserve,
                               [&](const entry_points& cu) { return cu.mem_free(origin->value); }));
  return added.error();
}

// Takes the record of a reservation out. Errors: invalid_argument, in_use (something is mapped).
result<plain_memory::reservation_table::node_type> plain_memory::take(
    address_range range) noexcept {
  const lock locked(mutex_);
  const auto found = reservations_.find(range.base.value);
  if (found == reservations_.end() || found->second.size_bytes != range.size_bytes) {
    return refused(errc::invalid_argument, call::free_reservation,
                   "a reservation is freed once, and whole");
  }
  if (is_mapped(range)) {
    return refused(errc::in_use, call::free_reservation,
                   "something is mapped in the reservation: unmap it first");
  }
  check(found->second.origin <= range.base, "a reservation begins before its memory");
  return reservations_.extract(found);
}

// The memory is still allocated, so no other reservation can be there.
void plain_memory::put_back(reservation_table::node_type&& record) noexcept {
  check(!record.empty(), "a record is put back that was never taken out");
  const lock locked(mutex_);
  const auto put = reservations_.insert(std::move(record));
  check(put.inserted, "I3: the driver gave memory that it did not take back");
  paranoid_check([this] { return is_valid(); }, "the records of plain memory disagree");
}

status plain_memory::free_reservation(address_range range) {
  if (!state_.made_in.is_here()) return refuse_forked(call::free_reservation);
  result<reservation_table::node_type> record = take(range);
  if (!record) return record.error();
  const address origin = record->mapped().origin;
  check(origin <= range.base, "a reservation begins before its memory");
  const status freed = state_.run(
      call::free_reservation, [&](const entry_points& cu) { return cu.mem_free(origin.value); });
  if (!freed) put_back(std::move(*record));
  return freed;
}

bool plain_memory::is_reserved(address_range range) const noexcept {
  auto found = reservations_.upper_bound(range.base.value);
  if (found == reservations_.begin()) return false;
  --found;
  const address_range whole{{found->first}, found->second.size_bytes};
  check(!whole.empty() && found->second.origin <= whole.base, "a reservation has no memory");
  return whole.contains(range);
}

// ---- handles -----------------------------------------------------------------------------------

result<physical_handle> plain_memory::create(const physical_request& request) {
  if (!state_.made_in.is_here()) return refuse_forked(call::create);
  if (!(request.where == limits_.home) || request.shareable != share_kind::none ||
      request.rdma_capable)
    return needs_mapping(call::create);
  if (!is_whole(request.size_bytes)) {
    return refused(errc::invalid_argument, call::create,
                   "physical memory is a multiple of the granularity");
  }
  const lock locked(mutex_);
  if (request.size_bytes > limits_.device_bytes - created_bytes_) {
    return refused(errc::out_of_memory, call::create,
                   "the device has no physical memory left: release or trim some, then try again");
  }
  check(!memories_.contains(last_handle_ + 1), "a number is given to two handles");
  try {
    memories_[last_handle_ + 1] = {request.size_bytes, false};
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create);
  }
  created_bytes_ += request.size_bytes;
  check(created_bytes_ <= limits_.device_bytes, "I2: more was created than the device has");
  ++last_handle_;
  paranoid_check([this] { return is_valid(); }, "the records of plain memory disagree");
  return physical_handle{last_handle_};
}

status plain_memory::release(physical_handle handle) {
  if (!state_.made_in.is_here()) return refuse_forked(call::release);
  const lock locked(mutex_);
  const auto found = memories_.find(static_cast<std::uint64_t>(handle));
  if (found == memories_.end())
    return refused(errc::invalid_argument, call::release, "no such handle");
  if (found->second.is_mapped)
    return refused(errc::in_use, call::release, "the memory is mapped: unmap it first");
  check(created_bytes_ >= found->second.size_bytes, "more is released than was created");
  created_bytes_ -= found->second.size_bytes;
  memories_.erase(found);
  check(!memories_.empty() || created_bytes_ == 0, "bytes are counted although no memory exists");
  paranoid_check([this] { return is_valid(); }, "the records of plain memory disagree");
  return {};
}

result<physical_properties> plain_memory::get_properties(physical_handle handle) {
  if (!state_.made_in.is_here()) return refuse_forked(call::get_properties);
  const lock locked(mutex_);
  if (!memories_.contains(static_cast<std::uint64_t>(handle)))
    return refused(errc::invalid_argument, call::get_properties, "no such handle");
  check(static_cast<std::uint64_t>(handle) <= last_handle_, "a handle was never made");
  return physical_properties{limits_.home, share_kind::none, false, false};
}

// ---- mappings ----------------------------------------------------------------------------------

bool plain_memory::is_mapped(address_range range) const noexcept {
  const auto behind = mappings_.lower_bound(range.end().value);
  if (behind == mappings_.begin()) return false;
  const auto last = std::prev(behind);
  check(last->second.size_bytes != 0, empty_mapping);
  return last->first + last->second.size_bytes > range.base.value;
}

// Whether the range is made of whole mappings, without holes, inside one reservation.
bool plain_memory::is_tiled(address_range range) const noexcept {
  if (range.empty() || !is_reserved(range)) return false;
  std::uint64_t at = range.base.value;
  for (auto next = mappings_.find(at); next != mappings_.end() && next->first == at; ++next) {
    check(next->second.size_bytes != 0, empty_mapping);
    at += next->second.size_bytes;
    if (at >= range.end().value) break;
  }
  return at == range.end().value;
}

status plain_memory::map(const map_request& request) {
  if (!state_.made_in.is_here()) return refuse_forked(call::map);
  const lock locked(mutex_);
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
  if (request.size_bytes != size_bytes) return needs_mapping(call::map);
  if (found->second.is_mapped) return needs_mapping(call::map);
  if (is_mapped(range)) {
    return refused(errc::in_use, call::map, "something is mapped there: unmap it first");
  }
  try {
    mappings_[request.at.value] = {size_bytes, found->first, access::none};
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::map);
  }
  found->second.is_mapped = true;
  check(is_mapped(range), "a mapped range contains no mapping");
  paranoid_check([this] { return is_valid(); }, "the records of plain memory disagree");
  return {};
}

status plain_memory::unmap(address_range range) {
  if (!state_.made_in.is_here()) return refuse_forked(call::unmap);
  const lock locked(mutex_);
  if (!is_tiled(range)) {
    return refused(errc::invalid_argument, call::unmap,
                   "whole mappings side by side are unmapped, inside one reservation");
  }
  const auto begin = mappings_.find(range.base.value);
  const auto end = mappings_.lower_bound(range.end().value);
  for (auto each = begin; each != end; ++each) {
    const auto behind = memories_.find(each->second.of);
    check(behind != memories_.end() && behind->second.is_mapped, "I1: a mapping has no memory");
    behind->second.is_mapped = false;
  }
  mappings_.erase(begin, end);
  check(!is_mapped(range), "an unmapped range contains a mapping");
  paranoid_check([this] { return is_valid(); }, "the records of plain memory disagree");
  return {};
}

status plain_memory::set_access(address_range range, std::span<const access_grant> grants) {
  if (!state_.made_in.is_here()) return refuse_forked(call::set_access);
  for (const access_grant& each : grants) {
    if (!(each.grantee == limits_.home) || each.rights == access::read)
      return needs_mapping(call::set_access);
    if (each.rights != grants.front().rights) return needs_mapping(call::set_access);
  }
  const lock locked(mutex_);
  if (grants.empty() || !is_tiled(range)) {
    return refused(errc::invalid_argument, call::set_access,
                   "one right is given, over whole mappings side by side in one reservation");
  }
  const auto end = mappings_.lower_bound(range.end().value);
  auto each = mappings_.find(range.base.value);
  check(each != mappings_.end(), "a range without a mapping is given rights");
  for (; each != end; ++each) each->second.rights = grants.front().rights;
  check(std::prev(end)->first < range.end().value, "rights are given behind the range");
  return {};
}

result<access> plain_memory::get_access(address at, location place) {
  if (!state_.made_in.is_here()) return refuse_forked(call::get_access);
  if (!(place == limits_.home)) return needs_mapping(call::get_access);
  const lock locked(mutex_);
  auto found = mappings_.upper_bound(at.value);
  if (found != mappings_.begin()) {
    --found;
    check(found->second.size_bytes != 0, empty_mapping);
    if (at.value - found->first < found->second.size_bytes) return found->second.rights;
  }
  return refused(errc::invalid_argument, call::get_access, "nothing is mapped at the address");
}

// ---- what only memory that is mapped can do ----------------------------------------------------

result<physical_handle> plain_memory::retain(address) { return needs_mapping(call::retain); }

result<shared_handle> plain_memory::export_handle(physical_handle, share_kind) {
  return needs_mapping(call::export_handle);
}

result<physical_handle> plain_memory::import_handle(const shared_handle&) {
  return needs_mapping(call::import_handle);
}

// I1 and I2, over all records.
bool plain_memory::is_valid() const noexcept {
  std::uint64_t created_bytes = 0;
  std::uint64_t mapped_count = 0;
  for (const auto& [handle, each] : memories_) {
    created_bytes += each.size_bytes;
    mapped_count += each.is_mapped ? 1 : 0;
    if (handle > last_handle_ || !is_whole(each.size_bytes)) return false;
  }
  std::uint64_t end = 0;
  for (const auto& [at, each] : mappings_) {
    const auto behind = memories_.find(each.of);
    if (behind == memories_.end() || !behind->second.is_mapped) return false;
    if (behind->second.size_bytes != each.size_bytes || at < end) return false;
    if (!is_reserved({{at}, each.size_bytes})) return false;
    end = at + each.size_bytes;
  }
  return created_bytes == created_bytes_ && created_bytes <= limits_.device_bytes &&
         mapped_count == mappings_.size();
}

}  // namespace vmm::cuda
