// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - multicast objects, and whether handles can be shared over a fabric.
module;
#include "loader.h"

module vmm.cuda;

import vmm.backend;
import vmm.base;
import vmm.std;
import :native;
import :state;

namespace vmm {
namespace {

constexpr const char* multicast_detail =
    "multicast is off: open the device with cuda_options::allow_multicast on a machine where it "
    "may be used";

// Success where the calls were looked up and found; they are not even looked up unless the options
// allow multicast.
status multicast_ready(const cuda::driver_state& state, call where) noexcept {
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
  check(minimum != 0 && recommended % minimum == 0, "the driver has a granularity that is none");
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

status cuda_driver::add_multicast_device(multicast_handle team, location who) {
  check(state_ != nullptr, cuda::moved_from);
  if (const status ready = multicast_ready(*state_, call::add_multicast_device); !ready)
    return ready.error();
  return state_->run(call::add_multicast_device, [&](const cuda::entry_points& cu) {
    CUdevice member = 0;
    const CUresult code = cu.device_get(&member, who.ordinal);
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
