// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - the object, what the device is, and the calls that make, place and share memory.
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :native;
import :state;

namespace vmm {

result<cuda_driver> cuda_driver::open(const cuda_options& options) {
  result<std::unique_ptr<cuda::cuda_state>> opened = cuda::cuda_state::open(options);
  if (!opened) return opened.error();
  return cuda_driver(std::move(*opened));
}

cuda_driver::cuda_driver(std::unique_ptr<cuda::cuda_state> opened) noexcept
    : state_(std::move(opened)) {
  check(state_ != nullptr && state_->memory != nullptr,
        "a cuda_driver is made without an opened device");
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
  check(minimum != 0 && recommended % minimum == 0, "the driver reports an invalid granularity");
  return granularity{minimum, recommended};
}

result<memory_info> cuda_driver::query_memory(location place) {
  check(state_ != nullptr, cuda::moved_from);
  if (place.kind != location::place::device)
    return state_->lacks(call::memory_info, "the CUDA driver reports only devices' memory");
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const status outcome = state_->run(call::memory_info, [&](const cuda::entry_points& cu) {
    if (place == home()) return cu.mem_get_info(&free_bytes, &total_bytes);
    CUdevice other = 0;
    CUresult code = cu.device_get(&other, place.ordinal);
    if (code != CUDA_SUCCESS) return code;
    CUcontext theirs = nullptr;
    code = cu.primary_context_retain(&theirs, other);
    if (code != CUDA_SUCCESS) return code;
    check(theirs != nullptr, "the driver retained a context and returned no handle");
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

result<access> cuda_driver::get_access(address at, location place) {
  check(state_ != nullptr, cuda::moved_from);
  return state_->memory->get_access(at, place);
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

// ---- other devices -----------------------------------------------------------------------------

namespace {

// The driver's attributes of two existing devices.
CUresult ask_peer(const cuda::entry_points& cu, const peer_query& query, peer_info& into) {
  check(cu.device_can_access_peer != nullptr, "a call is made that the driver lacks");
  CUdevice from = 0;
  CUdevice to = 0;
  CUresult code = cu.device_get(&from, query.from.ordinal);
  if (code == CUDA_SUCCESS) code = cu.device_get(&to, query.to.ordinal);
  if (code != CUDA_SUCCESS) return code;
  if (query.from == query.to) {
    into = {link_kind::itself, true, 0};
    return CUDA_SUCCESS;
  }
  int reaches = 0;
  code = cu.device_can_access_peer(&reaches, from, to);
  if (code != CUDA_SUCCESS || reaches == 0) return code;
  int rank = 0;
  int atomics = 0;
  code = cu.device_get_p2p_attribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, from, to);
  if (code != CUDA_SUCCESS) return code;
  code = cu.device_get_p2p_attribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                     from, to);
  if (code != CUDA_SUCCESS) return code;
  into = {link_kind::peer, atomics != 0, static_cast<std::uint32_t>(std::max(rank, 0))};
  check(into.is_reachable(), "a reachable device is reported as unreachable");
  return CUDA_SUCCESS;
}

}  // namespace

result<peer_info> cuda_driver::query_peer(const peer_query& query) {
  check(state_ != nullptr, cuda::moved_from);
  using place = location::place;
  if (!state_->can.peers)
    return state_->lacks(call::query_peer, "the CUDA driver does not report links between devices");
  peer_info answer{};
  if (query.from.kind == place::device && query.to.kind == place::device) {
    const status asked = state_->run(call::query_peer, [&](const cuda::entry_points& cu) {
      return ask_peer(cu, query, answer);
    });
    if (!asked) return asked.error();
    return answer;
  }
  if (!state_->made_in.is_here()) return refuse_forked(call::query_peer);
  if (query.from == query.to) return peer_info{link_kind::itself, true, 0};
  const bool made_there =
      query.to.kind == place::host ? state_->can.host_location : state_->can.host_node_location;
  if (query.from.kind == place::device && made_there) answer.link = link_kind::host;
  check(!answer.native_atomics, "atomics to the host are claimed without a driver query");
  return answer;
}

result<dma_buf> cuda_driver::export_range(address_range range) {
  check(state_ != nullptr, cuda::moved_from);
  if (!state_->can.export_dma_buf) {
    return state_->lacks(
        call::export_range,
        "the device makes no DMA-BUF of its memory, or the driver is older than 11.7");
  }
  int descriptor = -1;
  const status outcome = state_->run(call::export_range, [&](const cuda::entry_points& cu) {
    return cu.mem_get_range_handle(&descriptor, range.base.value, range.size_bytes,
                                   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  });
  if (!outcome) return outcome.error();
  check(descriptor >= 0, "the driver made a DMA-BUF and gave no descriptor");
  return dma_buf{descriptor, range.size_bytes};
}

// ---- multicast objects, and fabrics -------------------------------------------------------------

namespace {

constexpr const char* multicast_detail =
    "multicast is off: open the device with cuda_options::allow_multicast on a machine where it "
    "may be used";

// Success where the calls were looked up and found; they are not even looked up unless the options
// allow multicast.
status multicast_ready(const cuda::cuda_state& state, call where) noexcept {
  check(where != call::none, "a refusal names no call");
  if (!state.made_in.is_here()) return refuse_forked(where);
  if (state.can.multicast) return {};
  if (!state.can.multicast_capable)
    return state.lacks(where, "the device has no multicast objects");
  if (!state.multicast_allowed) return error{errc::not_permitted, where, 0, "", multicast_detail};
  return state.lacks(where, "the CUDA driver has no multicast calls: it is older than 12.1");
}

}  // namespace

result<granularity> cuda_driver::query_multicast_granularity(const multicast_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::query_granularity); !ready)
    return ready.error();
  const CUmulticastObjectProp prop = cuda::native(request);
  std::size_t minimum = 0;
  std::size_t recommended = 0;
  const status outcome = state_->run(call::query_granularity, [&](const cuda::entry_points& cu) {
    const CUresult code =
        cu.multicast_get_granularity(&minimum, &prop, CU_MULTICAST_GRANULARITY_MINIMUM);
    if (code != CUDA_SUCCESS) return code;
    return cu.multicast_get_granularity(&recommended, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED);
  });
  if (!outcome) return outcome.error();
  check(minimum != 0 && recommended % minimum == 0, "the driver reports an invalid granularity");
  return granularity{minimum, recommended};
}

result<multicast_handle> cuda_driver::create_multicast(const multicast_request& request) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::create_multicast); !ready)
    return ready.error();
  const CUmulticastObjectProp prop = cuda::native(request);
  CUmemGenericAllocationHandle made = 0;
  return state_->make<multicast_handle>(
      call::create_multicast, made,
      [&](const cuda::entry_points& cu) { return cu.multicast_create(&made, &prop); });
}

status cuda_driver::add_multicast_device(multicast_handle team, location place) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::add_multicast_device); !ready)
    return ready.error();
  return state_->run(call::add_multicast_device, [&](const cuda::entry_points& cu) {
    CUdevice member = 0;
    const CUresult code = cu.device_get(&member, place.ordinal);
    if (code != CUDA_SUCCESS) return code;
    return cu.multicast_add_device(cuda::native(team), member);
  });
}

status cuda_driver::bind_multicast(const multicast_binding& binding) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::bind_multicast); !ready)
    return ready.error();
  return state_->run(call::bind_multicast, [&](const cuda::entry_points& cu) {
    return cu.multicast_bind(cuda::native(binding.team), binding.team_offset_bytes,
                             cuda::native(binding.memory), binding.memory_offset_bytes,
                             binding.size_bytes, 0);
  });
}

status cuda_driver::bind_multicast_address(const multicast_address_binding& binding) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::bind_multicast); !ready)
    return ready.error();
  return state_->run(call::bind_multicast, [&](const cuda::entry_points& cu) {
    return cu.multicast_bind_address(cuda::native(binding.team), binding.team_offset_bytes,
                                     binding.memory.base.value, binding.memory.size_bytes, 0);
  });
}

status cuda_driver::unbind_multicast(const multicast_binding& binding) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::unbind_multicast); !ready)
    return ready.error();
  return state_->run(call::unbind_multicast, [&](const cuda::entry_points& cu) {
    CUdevice member = 0;
    const CUresult code = cu.device_get(&member, binding.device.ordinal);
    if (code != CUDA_SUCCESS) return code;
    return cu.multicast_unbind(cuda::native(binding.team), member, binding.team_offset_bytes,
                               binding.size_bytes);
  });
}

// ---- fabric handles -----------------------------------------------------------------------------

status cuda_driver::probe_fabric() {
  check(state_ != nullptr, cuda::moved_from);
  physical_request request;
  request.where = home();
  request.shareable = share_kind::fabric;
  const result<granularity> unit = query_granularity(request);
  if (!unit) return unit.error();
  request.size_bytes = unit->minimum_bytes;
  check(request.size_bytes != 0, "a granule has no size");
  const result<physical_handle> memory = create(request);
  if (!memory) return memory.error();
  status outcome;
  if (const result<shared_handle> sent = export_handle(*memory, share_kind::fabric); !sent) {
    outcome = sent.error();
  } else if (const result<physical_handle> received = import_handle(*sent); !received) {
    outcome = received.error();
  } else {
    outcome = release(*received);
  }
  const status released = release(*memory);
  return outcome ? released : outcome;
}

}  // namespace vmm
