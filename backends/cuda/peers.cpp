// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - links between devices, and ranges for other drivers of the system.
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

// What the driver says of two devices that are there.
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
  check(into.is_reachable(), "a device that is reached is said not to be");
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

}  // namespace vmm
