// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "waiting_frees.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "accounts.h"
#include "device_pools.h"
#include "serving_counts.h"
#include "settings.h"
#include "violation.h"

import vmm.backend;
import vmm.base;
import vmm.timeline;

namespace vmm::preload::managed {
namespace {

// The number of blocks found unfinished after which the others count as unfinished, too.
constexpr std::size_t misses_max = 8;

}  // namespace

void waiting_frees::push(pending_blocks::owner&& one) noexcept {
  bytes_.fetch_add(one->block.held_bytes(), std::memory_order_relaxed);
  list_.push(std::move(one));
}

void waiting_frees::leave_to_collect(pending_blocks::owner&& one) noexcept {
  bytes_.fetch_add(one->block.held_bytes(), std::memory_order_relaxed);
  list_.defer(std::move(one));
}

void waiting_frees::count_taken(const pending_blocks::owner& one) noexcept {
  const std::uint64_t before = bytes_.fetch_sub(one->block.held_bytes(), std::memory_order_relaxed);
  if (before < one->block.size) violated("waiting_frees I2: a block waits that is not counted");
}

void waiting_frees::hand_back(pending_blocks::owner&& one) noexcept {
  if (!device_.is_open()) return;  // the memory ended with the context
  const live_block& block = one->block;
  // The one mistake that no program outlives: its memory would be in two hands.
  check(!live_.overlaps(block.at(), block.size),
        "waiting_frees I1: memory that is live again would be freed");
  const status freed = device_.take_back(block);
  if (freed) return;
  if (freed.error().code == errc::out_of_host_memory) return leave_to_collect(std::move(one));
  if (is_wrong_address(freed.error().code))
    violated("waiting_frees I1: a freed block is not one of its allocator");
  accounts::note_unmanaged(unmanaged_reason::refused);
}

void waiting_frees::free(pending_blocks::owner&& one) noexcept {
  count(counts.frees_behind_all);
  free_behind_all(std::move(one));
}

void waiting_frees::free_behind_all(pending_blocks::owner&& one) noexcept {
  if (captures_.is_any()) return leave_to_collect(std::move(one));
  std::vector<event_point>& points = one->points;
  count(counts.host_waits, events_.record_users(device_.context(), device_.users(), points));
  if (chosen_settings().is_free_waiting && !points.empty()) {
    count(counts.host_waits, points.size());
    events_.wait(points);
    events_.add_spare(points);
  }
  points.empty() ? hand_back(std::move(one)) : push(std::move(one));
}

void waiting_frees::free(pending_blocks::owner&& one, stream_name stream) noexcept {
  const bool may_record = !stream.is_default() || !captures_.is_any();
  if (may_record && events_.record(stream, one->points)) return push(std::move(one));
  free(std::move(one));
}

void waiting_frees::collect() noexcept {
  if (bytes() == 0 || captures_.is_any()) return;
  pending_blocks::list passed = list_.take_finished(misses_max, [&](const event_point& point) {
    if (!events_.has_passed(point)) return false;
    events_.add_spare(point);
    return true;
  });
  pending_blocks::list left = list_.take_deferred();
  for (pending_blocks::owner each = passed.take_first(); each != nullptr;
       each = passed.take_first()) {
    count_taken(each);
    hand_back(std::move(each));
  }
  for (pending_blocks::owner each = left.take_first(); each != nullptr; each = left.take_first()) {
    count_taken(each);
    free_behind_all(std::move(each));
  }
}

bool waiting_frees::wait_for_oldest() noexcept {
  const result<std::vector<event_point>> points = list_.oldest_points();
  if (!points || points->empty()) return false;
  count(counts.host_waits);
  events_.wait(*points);
  collect();
  return true;
}

bool waiting_frees::wait_for_all() noexcept {
  const result<std::vector<event_point>> points = list_.points();
  if (!points || points->empty() || captures_.is_any()) return false;
  count(counts.host_waits);
  events_.wait(*points);
  while (true) {
    const std::uint64_t before = bytes();
    collect();
    if (bytes() == before) return true;
  }
}

void waiting_frees::forget_context(context_id gone) noexcept {
  list_.drop_points([&](const event_point& point) { return point.context == gone; });
}

const char* waiting_frees::find_broken() const {
  std::uint64_t sum = 0;
  const char* broken = nullptr;
  list_.visit([&](const live_block& each) {
    sum += each.held_bytes();
    if (each.device != &device_) broken = "waiting_frees I1: a block waits on another device";
    if (live_.overlaps(each.at(), each.size))
      broken = "waiting_frees I1: a block waits whose memory is live";
  });
  if (sum != bytes()) return "waiting_frees I2: the bytes are not those of the blocks that wait";
  return broken;
}

}  // namespace vmm::preload::managed
