// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - addresses, memory and rights.
module;
#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import :accounts;
import :state;

namespace vmm {

using level_zero::accounts;
using level_zero::driver_state;
using level_zero::error_of;
using guard = std::lock_guard<std::mutex>;

namespace {

error elsewhere(call where) noexcept {
  return error{errc::not_supported, where, 0, "",
               "an object of this backend serves its own device: open one for the other device"};
}

void* pointer(std::uint64_t at) noexcept { return reinterpret_cast<void*>(at); }

// Where the driver looks first when the caller has no wish. The validation layer of some loaders
// refuses a null start, which the specification allows.
constexpr std::uint64_t any_start = 1ull << 40;

}  // namespace

namespace level_zero {

result<std::uint64_t> driver_state::page_size(call where, std::uint64_t size_bytes) {
  std::size_t page_bytes = 0;
  const ze_result_t code = ze.query_page_size(context, device, size_bytes, &page_bytes);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  if (!std::has_single_bit(page_bytes)) {
    return error{errc::internal, where, 0, "", "the driver's page size is no power of two"};
  }
  return page_bytes;
}

result<address_range> driver_state::reserve_native(std::uint64_t size_bytes, address hint) {
  void* base = nullptr;
  void* const wish = pointer(hint ? hint.value : any_start);
  ze_result_t code = ze.reserve(context, wish, size_bytes, &base);
  // Some drivers refuse instead of looking elsewhere, which a null start has them do.
  if (code == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY || code == ZE_RESULT_ERROR_INVALID_ARGUMENT) {
    if (ze.reserve(context, nullptr, size_bytes, &base) == ZE_RESULT_SUCCESS) {
      code = ZE_RESULT_SUCCESS;
    }
  }
  if (code != ZE_RESULT_SUCCESS) return error_of(call::reserve, code);
  return address_range{{reinterpret_cast<std::uintptr_t>(base)}, size_bytes};
}

// The driver takes no alignment. What it gives is tried first; else the range is taken out of a
// larger one.
result<address_range> driver_state::reserve_aligned(const reserve_request& request,
                                                    std::uint64_t alignment_bytes) {
  result<address_range> given = reserve_native(request.size_bytes, request.hint);
  if (!given) return given.error();
  if (given->base.value % alignment_bytes != 0) {
    const ze_result_t code = ze.free(context, pointer(given->base.value), given->size_bytes);
    if (code != ZE_RESULT_SUCCESS) return error_of(call::reserve, code);
    const std::uint64_t enough = request.size_bytes + alignment_bytes;
    given = reserve_native(round_up(enough, large_page_bytes), {});
    if (!given) return given.error();
  }
  const address base{round_up(given->base.value, alignment_bytes)};
  const address_range range{base, request.size_bytes};
  if (const status added = held.add_reservation(range, *given); !added) {
    static_cast<void>(ze.free(context, pointer(given->base.value), given->size_bytes));
    return added.error();
  }
  return range;
}

// Gives the device all rights to a mapping, or none: the driver's map or unmap.
ze_result_t driver_state::switch_native(std::uint64_t at, const mapping& which, bool on) {
  if (!on) return ze.unmap(context, pointer(at), which.size_bytes);
  const auto memory = reinterpret_cast<ze_physical_mem_handle_t>(which.native);
  return ze.map(context, pointer(at), which.size_bytes, memory, 0,
                ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE);
}

// All or nothing. One driver call for each mapping: drivers skip what a longer range covers.
status driver_state::switch_run(call where, const accounts::run& which, bool on) {
  const access wanted = on ? access::read_write : access::none;
  for (auto each = which.first; each != which.last; ++each) {
    mapping& here = each->second;
    here.is_switched = here.rights != wanted;
    if (!here.is_switched) continue;
    const ze_result_t code = switch_native(each->first, here, on);
    if (code == ZE_RESULT_SUCCESS) {
      here.rights = wanted;
      continue;
    }
    error failure = error_of(where, code);
    for (auto back = which.first; back != each; ++back) {
      if (!back->second.is_switched) continue;
      if (switch_native(back->first, back->second, !on) != ZE_RESULT_SUCCESS) {
        failure.code = errc::device_lost;
        failure.detail = "the driver failed midway, and again when it was to undo the first part";
        continue;
      }
      back->second.rights = on ? access::none : access::read_write;
    }
    return failure;
  }
  return {};
}

}  // namespace level_zero

// ---- the driver's members ----------------------------------------------------------------------

result<granularity> level_zero_driver::query_granularity(const physical_request& request) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::query_granularity);
  if (!(request.where == home())) return elsewhere(call::query_granularity);
  const std::uint64_t large = s.large_page_bytes;
  if (request.size_bytes == 0) return granularity{large, large};
  const auto page = s.page_size(call::query_granularity, request.size_bytes);
  if (!page) return page.error();
  return granularity{*page, std::max(*page, large)};
}

result<memory_info> level_zero_driver::query_memory(location who) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::memory_info);
  if (!(who == home())) return elsewhere(call::memory_info);
  const guard lock(s.memory_lock);
  const std::uint64_t created = std::min(s.held.created_bytes(), s.total_bytes);
  return memory_info{s.total_bytes - created, s.total_bytes};
}

result<address_range> level_zero_driver::reserve(const reserve_request& request) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::reserve);
  const std::uint64_t alignment_bytes = std::max(request.alignment_bytes, s.large_page_bytes);
  if (request.size_bytes == 0 || request.size_bytes % s.large_page_bytes != 0 ||
      !std::has_single_bit(alignment_bytes)) {
    return error{errc::invalid_argument, call::reserve, 0, "",
                 "a reservation's size is a multiple of the granularity, its alignment a power of "
                 "two"};
  }
  if (request.size_bytes + alignment_bytes + s.large_page_bytes < request.size_bytes) {
    return error_of(call::reserve, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
  }
  const guard lock(s.memory_lock);
  return s.reserve_aligned(request, alignment_bytes);
}

status level_zero_driver::free_reservation(address_range range) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::free_reservation);
  const guard lock(s.memory_lock);
  const auto origin = s.held.origin_of(range);
  if (!origin) return origin.error();
  const ze_result_t code = s.ze.free(s.context, pointer(origin->base.value), origin->size_bytes);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::free_reservation, code);
  s.held.remove_reservation(range.base);
  return {};
}

result<physical_handle> level_zero_driver::create(const physical_request& request) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::create);
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
                 "the size is no multiple of the granularity that memory of this size has"};
  }
  const guard lock(s.memory_lock);
  const auto made = s.held.add_memory();
  if (!made) return made.error();
  ze_physical_mem_desc_t like{ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC, nullptr, 0, request.size_bytes};
  ze_physical_mem_handle_t native = nullptr;
  const ze_result_t code = s.ze.physical_create(s.context, s.device, &like, &native);
  if (code != ZE_RESULT_SUCCESS) {
    s.held.remove_memory(*made);
    return error_of(call::create, code);
  }
  (*made)->second = {request.size_bytes, *page, reinterpret_cast<std::uintptr_t>(native), false};
  s.held.count_created(request.size_bytes);
  return static_cast<physical_handle>((*made)->first);
}

status level_zero_driver::release(physical_handle handle) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::release);
  const guard lock(s.memory_lock);
  const auto found = s.held.unmapped_memory(call::release, handle);
  if (!found) return found.error();
  const auto native = reinterpret_cast<ze_physical_mem_handle_t>((*found)->second.native);
  const ze_result_t code = s.ze.physical_destroy(s.context, native);
  if (code != ZE_RESULT_SUCCESS) return error_of(call::release, code);
  s.held.remove_memory(*found);
  return {};
}

status level_zero_driver::map(const map_request& request) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::map);
  const guard lock(s.memory_lock);
  return s.held.map(request);
}

status level_zero_driver::unmap(address_range range) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::unmap);
  const guard lock(s.memory_lock);
  const auto run = s.held.whole_mappings(call::unmap, range);
  if (!run) return run.error();
  const status off = s.switch_run(call::unmap, *run, false);
  if (off) s.held.unmap(*run);
  return off;
}

status level_zero_driver::set_access(address_range range, std::span<const access_grant> grants) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::set_access);
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
  const guard lock(s.memory_lock);
  const auto run = s.held.whole_mappings(call::set_access, range);
  if (!run) return run.error();
  return s.switch_run(call::set_access, *run, grants.front().rights == access::read_write);
}

result<access> level_zero_driver::get_access(address at, location who) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::get_access);
  if (!(who == home())) return elsewhere(call::get_access);
  const guard lock(s.memory_lock);
  return s.held.rights_at(at);
}

result<physical_properties> level_zero_driver::get_properties(physical_handle handle) {
  driver_state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked(call::get_properties);
  const guard lock(s.memory_lock);
  if (s.held.find(handle) == nullptr) {
    return error{errc::invalid_argument, call::get_properties, 0, "", "no live handle"};
  }
  physical_properties granted;
  granted.where = home();
  return granted;
}

}  // namespace vmm
