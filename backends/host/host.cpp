// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A host_driver's set-up, addresses, memory and mappings. work.cpp has the calls on bytes, and on
// handles of other processes.
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;
import :tables;

namespace vmm {

using namespace host_tables;

namespace {

bool is_power_of_two(std::uint64_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;
}

}  // namespace

host_driver::host_driver(std::unique_ptr<host_state> made) noexcept : state_(std::move(made)) {
  check(state_ != nullptr, "a host_driver is made without its state");
}
host_driver::~host_driver() { leave_if_forked(); }
host_driver::host_driver(host_driver&&) noexcept = default;
host_driver& host_driver::operator=(host_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
    check(other.state_ == nullptr, "an object that was moved from has a state");
  }
  return *this;
}

// The table may have been changing at the fork, and the ranges and descriptors in it are the
// parent's.
void host_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->made_in.is_here()) leave_behind(state_.release());
  check(state_ == nullptr || state_->made_in.is_here(),
        "a parent's state is about to be destroyed");
}

namespace {

features host_features(const host_options& options) noexcept {
  features can;
  can.offset_map = can.short_map = true;
  can.partial_unmap = can.spanning_unmap = can.partial_access = true;
  can.release_while_mapped = true;
  can.exact_hint = true;
  can.lazy_commit = options.commit == commit_mode::lazy;
  can.fresh_memory_zero = true;
  can.host_accessible = true;
  can.copy = can.retain = true;
  can.host_location = true;
  can.export_posix_fd = true;
  can.alias = alias_level::coherent;
  can.read_only = read_only_level::enforced;
  can.max_mapping_count = linux_os::mapping_limit();
  return can;
}

result<granularity> chosen_granularity(const host_options& options) noexcept {
  const std::uint64_t page =
      options.huge_pages ? linux_os::huge_page_bytes : linux_os::page_size_bytes();
  const std::uint64_t minimum = options.minimum_bytes == 0 ? page : options.minimum_bytes;
  if (!is_power_of_two(minimum) || minimum < page) {
    return refuse(errc::bad_option,
                  "host_options::minimum_bytes is 0 or a power of two of at least a page");
  }
  if (options.recommended_bytes == 0 || options.recommended_bytes % minimum != 0) {
    return refuse(errc::bad_option, "host_options::recommended_bytes is a multiple of the minimum");
  }
  check(minimum % page == 0, "the granule is not a multiple of the page size");
  return granularity{minimum, options.recommended_bytes};
}

}  // namespace

result<host_driver> host_driver::open(const host_options& options) noexcept {
  const result<granularity> granule = chosen_granularity(options);
  if (!granule) return granule.error();
  std::unique_ptr<host_state> made;
  if (!allocates([&] { made = std::make_unique<host_state>(); })) return no_host_memory(call::none);
  made->granule = *granule;
  made->can = host_features(options);
  made->rules.pages = options.huge_pages ? linux_os::page_kind::huge : linux_os::page_kind::normal;
  made->rules.is_lazy = options.commit == commit_mode::lazy;
  made->rules.capacity_bytes = options.capacity_bytes;
  if (const status opened = made->memories.open(made->rules); !opened) return opened.error();
  made->addresses.spare.take_back();
  return host_driver{std::move(made)};
}

const features& host_driver::feature_set() const noexcept {
  check(state_ != nullptr, moved_from);
  return state_->can;
}

result<granularity> host_driver::query_granularity(const physical_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::query_granularity);
  if (request.where != host()) {
    return unknown_place(call::query_granularity, request.where);
  }
  return state_->granule;
}

result<memory_info> host_driver::query_memory(location where) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::memory_info);
  if (where != host()) return unknown_place(call::memory_info, where);
  const linux_os::memory_figures now = linux_os::query_memory(state_->rules.pages);
  if (now.failure != 0) return figures_error(call::memory_info, errc::unavailable, now.failure);
  memory_info info{committable_bytes(now), now.total_bytes};
  if (state_->rules.pages == linux_os::page_kind::huge) info.free_bytes = now.available_bytes;
  const std::uint64_t capacity = state_->rules.capacity_bytes;
  if (capacity == 0) return info;
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  check(state_->memories.created_bytes() <= capacity, "I3: more was created than there may be");
  info.free_bytes = std::min(info.free_bytes, capacity - state_->memories.created_bytes());
  info.total_bytes = capacity;
  return info;
}

namespace {

// An aligned range of the requested size, at an address of the kernel's choice. ENOMEM is the
// kernel's error for too large a size; ENOSPC stands for too many mappings.
linux_os::placed reserve_aligned(std::uint64_t size_bytes, std::uint64_t alignment_bytes) noexcept {
  check(alignment_bytes >= linux_os::page_size_bytes(), "an alignment is less than a page");
  const std::uint64_t extra = alignment_bytes - linux_os::page_size_bytes();
  const linux_os::placed wide = linux_os::reserve({0, size_bytes + extra});
  if (wide.failure == ENOMEM && linux_os::no_mapping_left()) return {0, ENOSPC};
  if (wide.failure != 0 || extra == 0) return wide;
  const std::uint64_t base = round_up(wide.base, alignment_bytes);
  const std::uint64_t head = base - wide.base;
  check(head <= extra, "an aligned range begins behind the one that was reserved");
  const std::uint64_t tail = extra - head;
  int failure = 0;
  if (tail != 0) failure = linux_os::unreserve({base + size_bytes, tail});
  if (failure == 0 && head != 0) failure = linux_os::unreserve({wide.base, head});
  if (failure == 0) return {base, 0};
  (void)linux_os::unreserve({wide.base, size_bytes + extra});
  return {0, failure == ENOMEM ? ENOSPC : failure};
}

}  // namespace

result<address_range> host_driver::reserve(const reserve_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::reserve);
  const std::uint64_t size = request.size_bytes;
  const std::uint64_t wanted = request.alignment_bytes;
  if (size == 0 || !state_->aligned(size)) {
    return bad_call(call::reserve, errc::invalid_argument,
                    "the size is not a multiple of the granularity, or is 0");
  }
  if (wanted != 0 && !is_power_of_two(wanted)) {
    return bad_call(call::reserve, errc::invalid_argument,
                    refuse_number(wanted, "an alignment is a power of two, or 0").detail);
  }
  const granularity& granule = state_->granule;
  const std::uint64_t alignment =
      std::max(granule.minimum_bytes, wanted == 0 ? linux_os::huge_page_bytes : wanted);
  if (wraps({size}, alignment)) {
    return bad_call(call::reserve, errc::out_of_addresses,
                    "the size and its alignment exceed the address space");
  }
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  linux_os::placed place{0, EEXIST};
  const std::uint64_t hint_unit = wanted == 0 ? granule.minimum_bytes : alignment;
  if (request.hint && request.hint.value % hint_unit == 0)
    place = linux_os::reserve({request.hint.value, size});
  if (place.failure != 0) place = reserve_aligned(size, alignment);
  if (place.failure != 0) {
    if (place.failure == ENOSPC) return too_many_mappings(call::reserve);
    return kernel_error(call::reserve, errc::out_of_addresses, place.failure,
                        "no range of that size is free in this process, or its limit on address "
                        "space is lower (ulimit -v)");
  }
  if (!allocates([&] { state_->addresses.reservations.emplace(place.base, size); })) {
    (void)state_->addresses.with_spare([&] { return linux_os::unreserve({place.base, size}); });
    return no_host_memory(call::reserve);
  }
  check(place.base != 0 && place.base % granule.minimum_bytes == 0,
        "a range is reserved at no address, or not aligned");
  check(wanted == 0 || place.base % wanted == 0, "a range does not have the requested alignment");
  debug_check([&] { return !state_->addresses.any_mapped({{place.base}, size}); },
              "I1: fresh addresses have a mapping");
  return address_range{{place.base}, size};
}

status host_driver::free_reservation(address_range range) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::free_reservation);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  const auto found = state_->addresses.reservations.find(range.base.value);
  if (found == state_->addresses.reservations.end() || found->second != range.size_bytes) {
    return bad_call(call::free_reservation, errc::invalid_argument,
                    "not exactly one earlier reservation");
  }
  if (state_->addresses.any_mapped(range)) {
    return bad_call(call::free_reservation, errc::in_use,
                    "memory is mapped in the reservation: unmap it first");
  }
  const int failure =
      state_->addresses.with_spare([&] { return linux_os::unreserve(span_of(range)); });
  if (failure != 0) return mapping_error(call::free_reservation, failure);
  state_->addresses.reservations.erase(found);
  debug_check([&] { return !state_->addresses.reserved(range); },
              "a freed reservation is still listed");
  return {};
}

result<physical_handle> host_driver::create(const physical_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::create);
  if (request.where != host()) {
    return unknown_place(call::create, request.where);
  }
  if (request.size_bytes == 0 || !state_->aligned(request.size_bytes)) {
    return bad_call(call::create, errc::invalid_argument,
                    "the size is not a multiple of the granularity, or is 0");
  }
  if (request.shareable != share_kind::none && request.shareable != share_kind::posix_fd) {
    return bad_call(call::create, errc::not_supported,
                    "the host driver shares memory as posix_fd only");
  }
  if (request.rdma_capable) {
    return bad_call(call::create, errc::not_supported,
                    "the host driver makes no RDMA-capable memory");
  }
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  return state_->memories.create(request);
}

status host_driver::release(physical_handle handle) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::release);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  return state_->memories.release(handle);
}

status host_driver::map(const map_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::map);
  const address_range range{request.at, request.size_bytes};
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (!state_->well_formed(range) || !state_->aligned(request.offset_bytes)) {
    return bad_call(call::map, errc::invalid_argument,
                    "address, size and offset are multiples of the granularity");
  }
  memory* behind = state_->memories.find(request.memory);
  if (behind == nullptr) return unknown_handle(call::map);
  const linux_os::extent pages = behind->pages;
  if (request.offset_bytes > pages.size_bytes ||
      range.size_bytes > pages.size_bytes - request.offset_bytes) {
    return bad_call(call::map, errc::invalid_argument, "the range runs past the end of the memory");
  }
  if (!state_->addresses.reserved(range)) {
    return bad_call(call::map, errc::invalid_argument, "the range is not inside one reservation");
  }
  if (state_->addresses.any_mapped(range))
    return bad_call(call::map, errc::overlap, "a part of the range is mapped already");
  const mapping mapped{range.size_bytes, behind, access::none};
  mapping_map::iterator entered;
  if (!allocates(
          [&] { entered = state_->addresses.mappings.emplace(range.base.value, mapped).first; })) {
    return no_host_memory(call::map);
  }
  check(state_->aligned(pages.offset_bytes), "memory begins inside a granule");
  const int file = state_->memories.file_of(*behind);
  const int failure =
      linux_os::map(span_of(range), file, pages.offset_bytes + request.offset_bytes);
  if (failure != 0) {
    state_->addresses.mappings.erase(entered);
    return mapping_error(call::map, failure);
  }
  behind->mapped_bytes += range.size_bytes;
  check(behind->referred_to() && behind->mapped_bytes >= range.size_bytes,
        "a mapping is not counted");
  return {};
}

status host_driver::unmap(address_range range) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::unmap);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (!state_->well_formed(range)) {
    return bad_call(call::unmap, errc::invalid_argument,
                    "address and size are multiples of the granularity");
  }
  if (!state_->addresses.reserved(range)) {
    return bad_call(call::unmap, errc::invalid_argument, "the range is not inside one reservation");
  }
  if (!state_->addresses.any_mapped(range)) return {};
  if (!state_->addresses.all_mapped(range)) {
    return bad_call(call::unmap, errc::invalid_argument, "the range has a hole: unmap its parts");
  }
  boundary_cut cut(state_->addresses.mappings, range);
  if (!cut.made()) return no_host_memory(call::unmap);
  const int failure = state_->addresses.with_spare([&] { return linux_os::unmap(span_of(range)); });
  if (failure != 0) return mapping_error(call::unmap, failure);
  cut.keep();
  status outcome;
  auto next = state_->addresses.mappings.find(range.base.value);
  while (next != state_->addresses.mappings.end() && next->first < range.end().value) {
    memory* behind = next->second.behind;
    check(behind->mapped_bytes >= next->second.size_bytes, "more is unmapped than was mapped");
    behind->mapped_bytes -= next->second.size_bytes;
    next = state_->addresses.mappings.erase(next);
    if (behind->referred_to()) continue;
    if (const status reclaimed = state_->memories.reclaim(call::unmap, *behind); !reclaimed)
      outcome = reclaimed;
  }
  debug_check([&] { return !state_->addresses.any_mapped(range); },
              "an unmapped range is still mapped");
  return outcome;
}

namespace {

// The access that a list of grants gives to the only location.
result<access> rights_in(std::span<const access_grant> grants) noexcept {
  if (grants.empty()) {
    return bad_call(call::set_access, errc::invalid_argument, "the list of grants is empty");
  }
  for (const access_grant& grant : grants) {
    if (grant.grantee != host()) return unknown_place(call::set_access, grant.grantee);
    if (grant.rights != grants.front().rights) {
      return bad_call(call::set_access, errc::not_supported, "two grants for host() differ");
    }
  }
  return grants.front().rights;
}

}  // namespace

status host_driver::set_access(address_range range, std::span<const access_grant> grants) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::set_access);
  const result<access> wanted = rights_in(grants);
  if (!wanted) return wanted.error();
  const access rights = *wanted;
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (!state_->well_formed(range)) {
    return bad_call(call::set_access, errc::invalid_argument,
                    "address and size are multiples of the granularity");
  }
  if (!state_->addresses.reserved(range)) {
    return bad_call(call::set_access, errc::invalid_argument,
                    "the range is not inside one reservation");
  }
  if (!state_->addresses.all_mapped(range)) {
    return bad_call(call::set_access, errc::invalid_argument, "a part of the range is not mapped");
  }
  boundary_cut cut(state_->addresses.mappings, range);
  if (!cut.made()) return no_host_memory(call::set_access);
  const int failure = linux_os::protect(span_of(range), protection_of(rights));
  if (failure != 0) {
    const error refused = mapping_error(call::set_access, failure);
    if (state_->addresses.restore_rights(range)) return refused;
    return kernel_error(call::set_access, errc::device_lost, failure,
                        "rights changed in part were not restored");
  }
  cut.keep();
  for (auto next = state_->addresses.mappings.find(range.base.value);
       next != state_->addresses.mappings.end() && next->first < range.end().value; ++next) {
    check(next->second.behind != nullptr, "I2: a mapping has no memory");
    next->second.rights = rights;
  }
  debug_check(
      [&] {
        return state_->addresses.usable(call::set_access, range, access::read).has_value() ==
               (rights != access::none);
      },
      "rights differ from those set");
  return {};
}

result<access> host_driver::get_access(address at, location place) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::get_access);
  if (place != host()) {
    return unknown_place(call::get_access, place);
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const mapping* mapped = state_->addresses.mapping_at(at);
  if (mapped == nullptr)
    return bad_call(call::get_access, errc::invalid_argument, "nothing is mapped there");
  return mapped->rights;
}

host_resource_counts host_driver::resource_counts() const noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return {};
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  host_resource_counts count;
  count.reservations = state_->addresses.reservations.size();
  for (const auto& [base, size_bytes] : state_->addresses.reservations)
    count.reserved_bytes += size_bytes;
  count.handles = state_->memories.handle_count();
  state_->memories.each([&](const memory& each) {
    ++count.memories;
    count.memory_bytes += each.pages.size_bytes;
    count.descriptors += each.own_file >= 0 ? 1 : 0;
  });
  count.mappings = state_->addresses.mappings.size();
  for (const auto& [base, each] : state_->addresses.mappings) count.mapped_bytes += each.size_bytes;
  check(count.mapped_bytes <= count.reserved_bytes, "more is mapped than is reserved");
  check(count.handles + count.mappings != 0 || count.memories == 0,
        "unreferenced memory is still live");
  return count;
}

}  // namespace vmm
