// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - native events, used once and set back.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <new>
#include <vector>

#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import :state;

namespace vmm::level_zero {

// The first retired points that have been signalled become free. An answer that is no success
// leaves a point where it is: another one is made instead.
ze_result_t point_store::reuse() noexcept {
  constexpr std::size_t look_count_max = 8;
  ze_result_t code = ZE_RESULT_NOT_READY;
  std::size_t at = 0;
  for (std::size_t i = 0; i < look_count_max && at < retired_.size(); ++i) {
    point* const old = retired_[at];
    code = ze_->event_query(old->native);
    if (code == ZE_RESULT_SUCCESS) code = ze_->event_reset(old->native);
    if (code != ZE_RESULT_SUCCESS) {
      ++at;
      continue;
    }
    retired_[at] = retired_.back();
    retired_.pop_back();
    free_.push_back(old);
  }
  return code;
}

// One pool more. May throw std::bad_alloc, which changes nothing but the capacity of lists.
status point_store::grow(call where) {
  pools_.reserve(pools_.size() + 1);
  free_.reserve(points_.size() + pool_size);
  retired_.reserve(points_.size() + pool_size);
  const std::size_t before = points_.size();
  points_.resize(before + pool_size);
  const ze_event_pool_desc_t pool_like{ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, nullptr,
                                       ZE_EVENT_POOL_FLAG_HOST_VISIBLE, pool_size};
  ze_event_pool_handle_t pool = nullptr;
  ze_result_t code = ze_->event_pool_create(context_, &pool_like, 0, nullptr, &pool);
  std::uint32_t made = 0;
  for (; code == ZE_RESULT_SUCCESS && made < pool_size; ++made) {
    const ze_event_desc_t like{ZE_STRUCTURE_TYPE_EVENT_DESC, nullptr, made,
                               ZE_EVENT_SCOPE_FLAG_HOST, ZE_EVENT_SCOPE_FLAG_HOST};
    code = ze_->event_create(pool, &like, &points_[before + made].native);
    if (code != ZE_RESULT_SUCCESS) break;
  }
  if (code == ZE_RESULT_SUCCESS) {
    pools_.push_back(pool);
    for (std::size_t i = before; i < points_.size(); ++i) free_.push_back(&points_[i]);
    return {};
  }
  for (std::uint32_t i = 0; i < made; ++i) {
    static_cast<void>(ze_->event_destroy(points_[before + i].native));
  }
  if (pool != nullptr) static_cast<void>(ze_->event_pool_destroy(pool));
  points_.resize(before);
  return error_of(where, code);
}

result<point*> point_store::take(call where) noexcept {
  if (free_.empty()) static_cast<void>(reuse());
  if (free_.empty()) {
    try {
      if (const status grown = grow(where); !grown) return grown.error();
    } catch (const std::bad_alloc&) {
      return error{errc::out_of_host_memory, where, 0, "", "no host memory for events"};
    }
  }
  point* const taken = free_.back();
  free_.pop_back();
  taken->references = 1;
  return taken;
}

void point_store::forget(point* which) noexcept {
  if (which == nullptr || --which->references != 0) return;
  retired_.push_back(which);  // grow() made room
}

void point_store::put_back(point& which) noexcept {
  which.references = 0;
  free_.push_back(&which);
}

void point_store::close() noexcept {
  for (const point& each : points_) static_cast<void>(ze_->event_destroy(each.native));
  for (const auto pool : pools_) static_cast<void>(ze_->event_pool_destroy(pool));
  free_.clear();
  retired_.clear();
  points_.clear();
  pools_.clear();
}

}  // namespace vmm::level_zero
