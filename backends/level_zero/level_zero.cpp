// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - addresses, memory and rights.
module;
#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :accounts;
import :state;

namespace vmm {

using level_zero::accounts;
using level_zero::driver_state;
using level_zero::error_of;
using level_zero::moved_from;
using level_zero::no_answer;
using guard = std::lock_guard<std::mutex>;
using unlockable = std::unique_lock<std::mutex>;

namespace {

error elsewhere(call where) noexcept {
  return error{errc::not_supported, where, 0, "",
               "an object of this backend serves its own device: open one for the other device"};
}

// What went before cannot be undone.
error lost(error failure) noexcept {
  check(failure.code != errc::none, "a failure has a code");
  failure.code = errc::device_lost;
  failure.detail = "the driver failed midway, and again when it was to undo the first part";
  return failure;
}

void* pointer(std::uint64_t at) noexcept { return reinterpret_cast<void*>(at); }

// Where the driver looks first when the caller has no wish. The validation layer of some loaders
// refuses a null start, which the specification allows.
constexpr std::uint64_t any_start = 1ull << 40;

}  // namespace

namespace level_zero {

result<std::uint64_t> driver_state::page_size(call where, std::uint64_t size_bytes) {
  check(context != nullptr, "the driver is called before there is a context");
  std::size_t page_bytes = 0;
  const ze_result_t code = ze.query_page_size(context, device, size_bytes, &page_bytes);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  if (!std::has_single_bit(page_bytes)) {
    return error{errc::internal, where, 0, "", "the driver's page size is not a power of two"};
  }
  return page_bytes;
}

result<address_range> driver_state::reserve_native(std::uint64_t size_bytes, address hint) {
  check(size_bytes % large_page_bytes == 0, "what is reserved is made of large pages");
  void* base = nullptr;
  ze_result_t code = ZE_RESULT_ERROR_INVALID_ARGUMENT;
  if (hint) code = ze.reserve(context, pointer(hint.value), size_bytes, &base);
  // A hint is optional: a driver's result for it says nothing about other addresses.
  if (code != ZE_RESULT_SUCCESS) {
    code = ze.reserve(context, pointer(any_start), size_bytes, &base);
  }
  // Some drivers refuse instead of looking elsewhere, which a null start has them do.
  if (code == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY || code == ZE_RESULT_ERROR_INVALID_ARGUMENT) {
    if (ze.reserve(context, nullptr, size_bytes, &base) == ZE_RESULT_SUCCESS) {
      code = ZE_RESULT_SUCCESS;
    }
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::reserve, code);
  const auto at = reinterpret_cast<std::uintptr_t>(base);
  if (at == 0 || at + size_bytes < at) return no_answer(call::reserve);
  return address_range{{at}, size_bytes};
}

status driver_state::free_native(call where, address_range given) {
  check(!given.empty(), "a reservation of the driver is an empty range");
  const ze_result_t code = ze.free(context, pointer(given.base.value), given.size_bytes);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  return {};
}

// The driver takes no alignment. What it gives is tried first; else the range is taken out of a
// larger one. If the driver refuses to release it, the object is unusable. A hint that cannot be
// the result is not passed on: drivers accept only page-aligned ones.
result<address_range> driver_state::reserve_aligned(const reserve_request& request,
                                                    std::uint64_t alignment_bytes) {
  check(alignment_bytes % large_page_bytes == 0, "an alignment is one of large pages at least");
  const bool may_be_met = request.hint.value % alignment_bytes == 0;
  result<address_range> given =
      reserve_native(request.size_bytes, may_be_met ? request.hint : address{});
  if (!given) return given.error();
  if (given->base.value % alignment_bytes != 0) {
    if (status back = free_native(call::reserve, *given); !back) return lost(back.error());
    const std::uint64_t enough = request.size_bytes + alignment_bytes;
    given = reserve_native(round_up(enough, large_page_bytes), {});
    if (!given) return given.error();
  }
  const address base{round_up(given->base.value, alignment_bytes)};
  const address_range range{base, request.size_bytes};
  check(given->contains(range), "a range lies in what was reserved for it");
  const status added = [&] {
    const guard lock(memory_lock);
    return records.add_reservation(range, *given);
  }();
  if (added) return range;
  // Addresses that are another reservation's stay that one's.
  if (added.error().code == errc::internal) return added.error();
  if (status back = free_native(call::reserve, *given); !back) return lost(back.error());
  return added.error();
}

// Gives the device all rights to a mapping, or none: the driver's map or unmap. Some drivers map,
// fail to make the memory resident, and leave the mapping: it is taken away again.
ze_result_t driver_state::switch_native(std::uint64_t at, const mapping& which, bool on) {
  check(which.native != 0 && which.size_bytes != 0, "a mapping has memory behind it");
  if (!on) return ze.unmap(context, pointer(at), which.size_bytes);
  const auto memory = reinterpret_cast<ze_physical_mem_handle_t>(which.native);
  const ze_result_t code = ze.map(context, pointer(at), which.size_bytes, memory, 0,
                                  ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE);
  if (code != ZE_RESULT_SUCCESS) {
    static_cast<void>(ze.unmap(context, pointer(at), which.size_bytes));
  }
  return code;
}

// All or nothing, on a chain in transit. One driver call for each mapping: drivers skip what a
// longer range covers.
status driver_state::switch_run(call where, mapping& first, bool on) {
  check(first.is_in_transit, "what is switched is the caller's");
  const access wanted = on ? access::read_write : access::none;
  for (mapping* each = &first; each != nullptr; each = each->next) {
    if (each->rights == wanted) continue;
    const ze_result_t code = switch_native(each->at, *each, on);
    each->is_switched = code == ZE_RESULT_SUCCESS;
    if (each->is_switched) continue;
    error failure = error_of(where, code);
    for (mapping* back = &first; back != each; back = back->next) {
      if (!back->is_switched) continue;
      back->is_switched = switch_native(back->at, *back, !on) != ZE_RESULT_SUCCESS;
      if (back->is_switched) failure = lost(failure);
    }
    return failure;
  }
  return {};
}

// Makes the driver's calls for a range of whole mappings, which are in transit meanwhile: only
// calls that change or use one of them wait. `lock` is memory_lock's, and held on return.
result<accounts::run> driver_state::switch_range(unlockable& lock, call where, address_range range,
                                                 bool on) {
  check(lock.owns_lock(), "accounts are read under their lock");
  auto run = records.whole_mappings(where, range);
  while (run && accounts::is_in_transit(*run)) {
    arrived.wait(lock);
    run = records.whole_mappings(where, range);
  }
  if (!run) return run;
  mapping& first = accounts::depart(*run);
  lock.unlock();
  const status switched = switch_run(where, first, on);
  lock.lock();
  accounts::arrive(*run, on ? access::read_write : access::none);
  arrived.notify_all();
  if (!switched) return switched.error();
  return run;
}

status driver_state::check_usable(call where, address_range range) {
  check(context != nullptr, "bytes are requested before there is a context");
  unlockable lock(memory_lock);
  arrived.wait(lock, [&] { return !records.touches_transit(range); });
  return records.check_usable(where, range);
}

}  // namespace level_zero

// ---- the driver's members ----------------------------------------------------------------------

result<granularity> level_zero_driver::query_granularity(const physical_request& request) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::query_granularity);
  if (!(request.where == home())) return elsewhere(call::query_granularity);
  const std::uint64_t large = s.large_page_bytes;
  if (request.size_bytes == 0) return granularity{large, large};
  const auto page = s.page_size(call::query_granularity, request.size_bytes);
  if (!page) return page.error();
  check(std::max(*page, large) % *page == 0, "powers of two divide each other");
  return granularity{*page, std::max(*page, large)};
}

result<memory_info> level_zero_driver::query_memory(location who) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::memory_info);
  if (!(who == home())) return elsewhere(call::memory_info);
  const guard lock(s.memory_lock);
  const std::uint64_t created = std::min(s.records.created_bytes(), s.total_bytes);
  check(created <= s.total_bytes, "no more memory is used than there is");
  return memory_info{s.total_bytes - created, s.total_bytes};
}

result<address_range> level_zero_driver::reserve(const reserve_request& request) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::reserve);
  std::uint64_t page_bytes = s.large_page_bytes;
  if (request.size_bytes > level_zero::large_bytes) {
    const auto page = s.page_size(call::reserve, request.size_bytes);
    if (!page) return page.error();
    page_bytes = std::max(page_bytes, *page);
  }
  const std::uint64_t alignment_bytes = std::max(request.alignment_bytes, page_bytes);
  const bool is_power =
      request.alignment_bytes == 0 || std::has_single_bit(request.alignment_bytes);
  if (request.size_bytes == 0 || request.size_bytes % page_bytes != 0 || !is_power) {
    return error{errc::invalid_argument, call::reserve, 0, "",
                 "a reservation's size is a multiple of the granularity, its alignment a power of "
                 "two"};
  }
  if (request.size_bytes + alignment_bytes + s.large_page_bytes < request.size_bytes) {
    return error_of(call::reserve, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
  }
  const auto range = s.reserve_aligned(request, alignment_bytes);
  check(!range || range->base.value % alignment_bytes == 0, "a reservation keeps its alignment");
  return range;
}

status level_zero_driver::free_reservation(address_range range) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::free_reservation);
  unlockable lock(s.memory_lock);
  auto taken = s.records.take_reservation(range);
  if (!taken) return taken.error();
  lock.unlock();
  const status freed = s.free_native(call::free_reservation, taken->mapped().origin);
  if (freed) return freed;
  lock.lock();
  if (!s.records.put_back(std::move(*taken))) return lost(freed.error());
  return freed;
}

result<physical_handle> level_zero_driver::create(const physical_request& request) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::create);
  if (!(request.where == home())) return elsewhere(call::create);
  if (request.shareable != share_kind::none || request.rdma_capable) {
    return error{errc::not_supported, call::create, 0, "",
                 "this backend makes no memory that can be shared or that RDMA can reach"};
  }
  if (request.size_bytes == 0) {
    return error{errc::invalid_argument, call::create, 0, "", "memory of no bytes"};
  }
  const auto page = s.page_size(call::create, request.size_bytes);
  if (!page) return page.error();
  if (request.size_bytes % *page != 0) {
    return error{errc::invalid_argument, call::create, 0, "",
                 "the size is not a multiple of the granularity for this size"};
  }
  auto room = accounts::room_for_memory();
  if (!room) return room.error();
  ze_physical_mem_desc_t like{ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC, nullptr, 0, request.size_bytes};
  ze_physical_mem_handle_t native = nullptr;
  const ze_result_t code = s.ze.physical_create(s.context, s.device, &like, &native);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::create, code);
  if (native == nullptr) return no_answer(call::create);
  room->mapped() = {request.size_bytes, *page, reinterpret_cast<std::uintptr_t>(native)};
  const auto handle = static_cast<physical_handle>(room->key());
  check(handle != physical_handle::none, "a live handle equals physical_handle::none");
  const guard lock(s.memory_lock);
  s.records.add_memory(std::move(*room));
  return handle;
}

status level_zero_driver::release(physical_handle handle) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::release);
  unlockable lock(s.memory_lock);
  auto taken = s.records.take_memory(call::release, handle);
  if (!taken) return taken.error();
  debug_check([&] { return s.records.find(handle) == nullptr; }, "a released handle is dead");
  lock.unlock();
  const auto native = reinterpret_cast<ze_physical_mem_handle_t>(taken->mapped().native);
  const ze_result_t code = s.ze.physical_destroy(s.context, native);
  if (code == ZE_RESULT_SUCCESS) return {};
  lock.lock();
  s.records.add_memory(std::move(*taken));
  return error_of(call::release, code);
}

status level_zero_driver::map(const map_request& request) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::map);
  const guard lock(s.memory_lock);
  const status mapped = s.records.map(request);
  debug_check(
      [&] {
        if (!mapped) return true;
        const auto rights = s.records.rights_at(request.at);
        return rights && *rights == access::none;
      },
      "a fresh mapping has no rights");
  return mapped;
}

status level_zero_driver::unmap(address_range range) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::unmap);
  unlockable lock(s.memory_lock);
  const auto run = s.switch_range(lock, call::unmap, range, false);
  if (!run) return run.error();
  s.records.unmap(*run);
  debug_check([&] { return !s.records.rights_at(range.base); }, "an unmap takes mappings away");
  return {};
}

status level_zero_driver::set_access(address_range range, std::span<const access_grant> grants) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::set_access);
  if (grants.empty()) {
    return error{errc::invalid_argument, call::set_access, 0, "", "the list of grants is empty"};
  }
  for (const access_grant& each : grants) {
    if (!(each.who == home())) return elsewhere(call::set_access);
    if (each.rights != grants.front().rights || each.rights == access::read) {
      return error{errc::not_supported, call::set_access, 0, "",
                   "the device gives all rights or none: no driver says whether it keeps others"};
    }
  }
  const access wanted = grants.front().rights;
  check(wanted == access::none || wanted == access::read_write, "the driver gives all or none");
  unlockable lock(s.memory_lock);
  const auto run = s.switch_range(lock, call::set_access, range, wanted == access::read_write);
  if (!run) return run.error();
  debug_check([&] { return *s.records.rights_at(range.base) == wanted; },
              "set_access did not change the access of the range");
  return {};
}

result<access> level_zero_driver::get_access(address at, location who) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::get_access);
  if (!(who == home())) return elsewhere(call::get_access);
  const guard lock(s.memory_lock);
  return s.records.rights_at(at);
}

result<physical_properties> level_zero_driver::get_properties(physical_handle handle) {
  check(state_ != nullptr, moved_from);
  driver_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::get_properties);
  const guard lock(s.memory_lock);
  if (s.records.find(handle) == nullptr) {
    return error{errc::invalid_argument, call::get_properties, 0, "", "no live handle"};
  }
  physical_properties granted;
  granted.where = home();
  return granted;
}

}  // namespace vmm
