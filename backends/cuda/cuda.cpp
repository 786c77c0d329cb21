// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - the object, what the device is, and the calls that make and place memory.
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :native;
import :state;

namespace vmm {

namespace cuda {

current_context::current_context(const entry_points& cu, CUcontext mine) noexcept
    : cu_(cu), mine_(mine) {
  check(mine != nullptr, "no context is made current");
  CUcontext now = nullptr;
  failure_ = cu.context_get_current(&now);
  if (failure_ != CUDA_SUCCESS || now == mine) return;
  failure_ = cu.context_push(mine);
  pushed_ = failure_ == CUDA_SUCCESS;
}

current_context::~current_context() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  const CUresult code = cu_.context_pop(&popped);
  check(code != CUDA_SUCCESS || popped == mine_, "a driver call left a context that is not ours");
}

driver_state::~driver_state() {
  check(context != nullptr || transfers == nullptr, "an object has a stream and no context");
  check(made_in.is_here(), "a child destroys what its parent has");
  if (context == nullptr) return;
  if (transfers != nullptr) {
    const current_context current(cu, context);
    static_cast<void>(cu.stream_destroy(transfers));
  }
  static_cast<void>(cu.primary_context_release(device));
}

}  // namespace cuda

cuda_driver::cuda_driver(std::unique_ptr<cuda::driver_state> opened) noexcept
    : state_(std::move(opened)) {
  check(state_ != nullptr && state_->memory != nullptr,
        "a driver object is made of nothing opened");
}
cuda_driver::~cuda_driver() { leave_if_forked(); }
cuda_driver::cuda_driver(cuda_driver&&) noexcept = default;
cuda_driver& cuda_driver::operator=(cuda_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
    check(other.state_ == nullptr, "an object that was moved from has a state");
  }
  return *this;
}

// The context is the parent's: the CUDA driver's own state does not survive a fork.
void cuda_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->made_in.is_here()) leave_behind(state_.release());
  check(state_ == nullptr || state_->made_in.is_here(),
        "a parent's state is about to be destroyed");
}

const features& cuda_driver::feature_set() const noexcept {
  check(state_ != nullptr, cuda::moved_from);
  return state_->can;
}

location cuda_driver::home() const noexcept {
  check(state_ != nullptr, cuda::moved_from);
  return state_->home();
}

const cuda_description& cuda_driver::description() const noexcept {
  check(state_ != nullptr, cuda::moved_from);
  return state_->description;
}

std::uint64_t cuda_driver::native_context() const noexcept {
  check(state_ != nullptr, cuda::moved_from);
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(state_->context));
}

void* cuda_driver::entry_point(const char* symbol, std::int32_t version) const noexcept {
  check(state_ != nullptr, cuda::moved_from);
  check(symbol != nullptr, "an entry point without a name is looked up");
  if (!state_->made_in.is_here()) return nullptr;
  if (!state_->multicast_allowed && std::string_view(symbol).starts_with("cuMulticast"))
    return nullptr;
  return state_->cu.find(symbol, version);
}

// ---- what the device is ------------------------------------------------------------------------

result<granularity> cuda_driver::query_granularity(const physical_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  const CUmemAllocationProp prop = cuda::native(request, state_->can);
  std::size_t minimum = 0;
  std::size_t recommended = 0;
  const status outcome = state_->run(call::query_granularity, [&](const cuda::entry_points& cu) {
    // The driver succeeds for devices that do not exist, so the device's number is checked first.
    CUdevice there = 0;
    const bool elsewhere =
        request.where.kind == location::place::device && !(request.where == home());
    CUresult code = elsewhere ? cu.device_get(&there, request.where.ordinal) : CUDA_SUCCESS;
    if (code != CUDA_SUCCESS) return code;
    code = cu.mem_get_granularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (code != CUDA_SUCCESS) return code;
    return cu.mem_get_granularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  });
  if (!outcome) return outcome.error();
  check(minimum != 0 && recommended % minimum == 0, "the driver has a granularity that is none");
  return granularity{minimum, recommended};
}

result<memory_info> cuda_driver::query_memory(location who) {
  check(state_ != nullptr, cuda::moved_from);
  if (who.kind != location::place::device)
    return state_->lacks(call::memory_info, "the CUDA driver reports only devices' memory");
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const status outcome = state_->run(call::memory_info, [&](const cuda::entry_points& cu) {
    if (who == home()) return cu.mem_get_info(&free_bytes, &total_bytes);
    CUdevice other = 0;
    CUresult code = cu.device_get(&other, who.ordinal);
    if (code != CUDA_SUCCESS) return code;
    CUcontext theirs = nullptr;
    code = cu.primary_context_retain(&theirs, other);
    if (code != CUDA_SUCCESS) return code;
    check(theirs != nullptr, "the driver retained a context and named none");
    {
      const cuda::current_context current(cu, theirs);
      code = current.failure();
      if (code == CUDA_SUCCESS) code = cu.mem_get_info(&free_bytes, &total_bytes);
    }
    static_cast<void>(cu.primary_context_release(other));
    return code;
  });
  if (!outcome) return outcome.error();
  check(free_bytes <= total_bytes, "a device has more memory free than it has");
  return memory_info{free_bytes, total_bytes};
}

// ---- memory, of the kind that open() chose -----------------------------------------------------

result<address_range> cuda_driver::reserve(const reserve_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->reserve(request);
}

status cuda_driver::free_reservation(address_range range) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->free_reservation(range);
}

result<physical_handle> cuda_driver::create(const physical_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->create(request);
}

status cuda_driver::release(physical_handle handle) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->release(handle);
}

status cuda_driver::map(const map_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->map(request);
}

status cuda_driver::unmap(address_range range) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->unmap(range);
}

status cuda_driver::set_access(address_range range, std::span<const access_grant> grants) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->set_access(range, grants);
}

result<access> cuda_driver::get_access(address at, location who) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->get_access(at, who);
}

result<physical_handle> cuda_driver::retain(address at) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->retain(at);
}

result<physical_properties> cuda_driver::get_properties(physical_handle handle) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->get_properties(handle);
}

result<shared_handle> cuda_driver::export_handle(physical_handle handle, share_kind kind) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->export_handle(handle, kind);
}

result<physical_handle> cuda_driver::import_handle(const shared_handle& shared) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->import_handle(shared);
}

}  // namespace vmm
