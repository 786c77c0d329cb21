// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero - native events, used once and set back.
module;
#include "loader.h"

module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :state;

namespace vmm::level_zero {

void point_store::use(const entry_points& ze, ze_context_handle_t context) noexcept {
  check(ze_ == nullptr && points_.empty(), "a store of points is used for one context");
  check(context != nullptr, "points are made in a context");
  ze_ = &ze;
  context_ = context;
}

// Queries that many of the retired points, beginning where the last call ended. Signalled points
// become free. A failed query leaves the point where it is.
void point_store::reuse(std::size_t look_count_max) noexcept {
  check(ze_ != nullptr, "points are used before there is a context");
  for (std::size_t i = std::min(look_count_max, retired_.size()); i > 0; --i) {
    if (next_look_ >= retired_.size()) next_look_ = 0;
    point* const old = retired_[next_look_];
    check(old->references == 0, "state I2: a point that is referred to is retired");
    ze_result_t code = ze_->event_query(old->native);
    if (code == ZE_RESULT_SUCCESS) code = ze_->event_reset(old->native);
    if (code != ZE_RESULT_SUCCESS) {
      ++next_look_;
      continue;
    }
    retired_[next_look_] = retired_.back();
    retired_.pop_back();
    free_.push_back(old);
  }
}

status point_store::make_event(call where, ze_event_pool_handle_t pool, std::uint32_t index,
                               point& into) noexcept {
  check(into.native == nullptr, "a point has one native event");
  const ze_event_desc_t like{ZE_STRUCTURE_TYPE_EVENT_DESC, nullptr, index, ZE_EVENT_SCOPE_FLAG_HOST,
                             ZE_EVENT_SCOPE_FLAG_HOST};
  const ze_result_t code = ze_->event_create(pool, &like, &into.native);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  if (into.native == nullptr) return no_value(where);
  return {};
}

// The points from `first` on, and their pool. All or nothing.
status point_store::make_pool(call where, std::size_t first,
                              ze_event_pool_handle_t& pool) noexcept {
  const auto count = static_cast<std::uint32_t>(points_.size() - first);
  check(count >= pool_count_min, "a pool of events without events");
  const ze_event_pool_desc_t pool_like{ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, nullptr,
                                       ZE_EVENT_POOL_FLAG_HOST_VISIBLE, count};
  const ze_result_t code = ze_->event_pool_create(context_, &pool_like, 0, nullptr, &pool);
  if (code != ZE_RESULT_SUCCESS) return error_of(where, code);
  if (pool == nullptr) return no_value(where);
  for (std::uint32_t made = 0; made < count; ++made) {
    const status one = make_event(where, pool, made, points_[first + made]);
    if (one) continue;
    for (std::uint32_t i = 0; i < made; ++i) {
      static_cast<void>(ze_->event_destroy(points_[first + i].native));
    }
    static_cast<void>(ze_->event_pool_destroy(pool));
    return one;
  }
  return {};
}

// One pool more, as large as all before it. May throw std::bad_alloc, which changes nothing but the
// capacity of lists.
status point_store::grow(call where) {
  const std::size_t before = points_.size();
  const std::size_t more = std::max<std::size_t>(pool_count_min, before);
  pools_.reserve(pools_.size() + 1);
  free_.reserve(before + more);
  retired_.reserve(before + more);
  points_.resize(before + more);
  ze_event_pool_handle_t pool = nullptr;
  const status made = make_pool(where, before, pool);
  if (!made) {
    points_.resize(before);
    return made;
  }
  pools_.push_back(pool);
  for (std::size_t i = before; i < points_.size(); ++i) free_.push_back(&points_[i]);
  check(free_.size() >= more, "a pool of events gives its points");
  return {};
}

// A few queries find a passed point if work finishes in order. Otherwise all are queried, and if
// fewer than a quarter are free then, more are created: stuck work keeps its points, and the others
// are reused.
result<point*> point_store::take(call where) noexcept {
  constexpr std::size_t few_looks = 8;
  if (free_.empty()) reuse(few_looks);
  if (free_.empty()) {
    reuse(retired_.size());
    if (free_.size() <= points_.size() / 4) {
      try {
        const status grown = grow(where);
        if (!grown && free_.empty()) return grown.error();
      } catch (const std::bad_alloc&) {
        if (free_.empty()) {
          return error{errc::out_of_host_memory, where, 0, "", "no host memory for events"};
        }
      }
    }
  }
  check(!free_.empty(), "there is a free point");
  point* const taken = free_.back();
  check(taken->references == 0 && taken->native != nullptr, "a free point is referenced");
  free_.pop_back();
  taken->references = 1;
  return taken;
}

void point_store::refer(point& which) noexcept {
  check(which.references != 0, "an unreferenced point gets a reference");
  ++which.references;
}

void point_store::forget(point* which) noexcept {
  if (which == nullptr) return;
  check(which->references != 0, "a point loses more references than it has");
  if (--which->references != 0) return;
  check(retired_.size() < retired_.capacity(), "there is room for each point");  // by grow()
  retired_.push_back(which);
}

void point_store::put_back(point& which) noexcept {
  check(which.references == 1, "a point that was never queued has one reference");
  check(free_.size() < free_.capacity(), "there is room for each point");
  which.references = 0;
  free_.push_back(&which);
}

bool point_store::validate() const noexcept {
  const auto idle = static_cast<std::size_t>(std::count_if(
      points_.begin(), points_.end(), [](const point& each) { return each.references == 0; }));
  const auto is_idle = [](const point* each) { return each->references == 0; };
  return idle == free_.size() + retired_.size() &&
         std::all_of(free_.begin(), free_.end(), is_idle) &&
         std::all_of(retired_.begin(), retired_.end(), is_idle);
}

void point_store::close() noexcept {
  paranoid_check([&] { return validate(); }, "the points of a Level Zero object are inconsistent");
  for (const point& each : points_) static_cast<void>(ze_->event_destroy(each.native));
  for (const auto pool : pools_) static_cast<void>(ze_->event_pool_destroy(pool));
  free_.clear();
  retired_.clear();
  points_.clear();
  pools_.clear();
}

}  // namespace vmm::level_zero
