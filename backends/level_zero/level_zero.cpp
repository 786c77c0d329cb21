// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - the object, addresses, memory and rights.
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
using level_zero::error_of;
using level_zero::level_zero_state;
using level_zero::lost;
using level_zero::moved_from;
using level_zero::no_value;
using guard = std::lock_guard<std::mutex>;
using unlockable = std::unique_lock<std::mutex>;

namespace {

error elsewhere(call where) noexcept {
  return error{errc::not_supported, where, 0, "",
               "an object of this backend serves its own device: open one for the other device"};
}

}  // namespace

result<level_zero_driver> level_zero_driver::open(const level_zero_options& options) {
  result<std::unique_ptr<level_zero::level_zero_state>> opened =
      level_zero::level_zero_state::open(options);
  if (!opened) return opened.error();
  return level_zero_driver(std::move(*opened));
}

level_zero_driver::level_zero_driver(std::unique_ptr<level_zero::level_zero_state> opened) noexcept
    : state_(std::move(opened)) {
  check(state_ != nullptr, "a driver object is made from an opened state");
}
level_zero_driver::~level_zero_driver() { leave_if_unusable(); }
level_zero_driver::level_zero_driver(level_zero_driver&&) noexcept = default;
level_zero_driver& level_zero_driver::operator=(level_zero_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_unusable();
    state_ = std::move(other.state_);
    check(other.state_ == nullptr, "an object that was moved from has nothing");
  }
  return *this;
}

// The context is the parent's: a driver's state does not survive a fork. What a process leaves
// when it ends, the system takes.
void level_zero_driver::leave_if_unusable() noexcept {
  if (state_ != nullptr && !state_->is_usable()) leave_behind(state_.release());
  check(state_ == nullptr || state_->is_usable(), "an unusable object is not destroyed");
}

const features& level_zero_driver::feature_set() const noexcept {
  check(state_ != nullptr, level_zero::moved_from);
  return state_->can;
}
location level_zero_driver::home() const noexcept {
  check(state_ != nullptr, level_zero::moved_from);
  return vmm::device(state_->asked.device);
}
const level_zero_description& level_zero_driver::description() const noexcept {
  check(state_ != nullptr, level_zero::moved_from);
  return state_->description;
}
std::uint64_t level_zero_driver::native_context() const noexcept {
  check(state_ != nullptr, level_zero::moved_from);
  return reinterpret_cast<std::uintptr_t>(state_->context);
}
std::uint64_t level_zero_driver::native_device() const noexcept {
  check(state_ != nullptr, level_zero::moved_from);
  return reinterpret_cast<std::uintptr_t>(state_->device);
}

// ---- addresses, memory and rights ---------------------------------------------------------------

// ---- the driver's members ----------------------------------------------------------------------

result<granularity> level_zero_driver::query_granularity(const physical_request& request) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::query_granularity);
  if (!(request.where == home())) return elsewhere(call::query_granularity);
  const std::uint64_t large = s.large_page_bytes;
  if (request.size_bytes == 0) return granularity{large, large};
  const auto page = s.page_size(call::query_granularity, request.size_bytes);
  if (!page) return page.error();
  check(std::max(*page, large) % *page == 0, "powers of two divide each other");
  return granularity{*page, std::max(*page, large)};
}

result<memory_info> level_zero_driver::query_memory(location place) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::memory_info);
  if (!(place == home())) return elsewhere(call::memory_info);
  const guard lock(s.memory_lock);
  const std::uint64_t created = std::min(s.records.created_bytes(), s.total_bytes);
  check(created <= s.total_bytes, "no more memory is used than there is");
  return memory_info{s.total_bytes - created, s.total_bytes};
}

result<address_range> level_zero_driver::reserve(const reserve_request& request) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
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
  level_zero_state& s = *state_;
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
  level_zero_state& s = *state_;
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
  if (native == nullptr) return no_value(call::create);
  room->mapped() = {request.size_bytes, *page, reinterpret_cast<std::uintptr_t>(native)};
  const auto handle = static_cast<physical_handle>(room->key());
  check(handle != physical_handle::none, "a live handle equals physical_handle::none");
  const guard lock(s.memory_lock);
  s.records.add_memory(std::move(*room));
  return handle;
}

status level_zero_driver::release(physical_handle handle) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
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
  level_zero_state& s = *state_;
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
  level_zero_state& s = *state_;
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
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::set_access);
  if (grants.empty()) {
    return error{errc::invalid_argument, call::set_access, 0, "", "the list of grants is empty"};
  }
  for (const access_grant& each : grants) {
    if (!(each.grantee == home())) return elsewhere(call::set_access);
    if (each.rights != grants.front().rights || each.rights == access::read) {
      return error{
          errc::not_supported, call::set_access, 0, "",
          "this backend grants all rights or none: no driver reports whether it enforces others"};
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

result<access> level_zero_driver::get_access(address at, location place) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
  if (!s.is_usable()) return s.refuse_unusable(call::get_access);
  if (!(place == home())) return elsewhere(call::get_access);
  const guard lock(s.memory_lock);
  return s.records.rights_at(at);
}

result<physical_properties> level_zero_driver::get_properties(physical_handle handle) {
  check(state_ != nullptr, moved_from);
  level_zero_state& s = *state_;
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
