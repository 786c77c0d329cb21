// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "device_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "block_exports.hpp"

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.stream;
import vmm.timeline;

namespace vmm_c {
namespace {

using guard = vmm::sync::lock_guard<vmm::sync::mutex>;
using short_guard = vmm::sync::lock_guard<vmm::sync::spin_lock>;

vmm::error no_host_memory(vmm::call where) noexcept {
  return {vmm::errc::out_of_host_memory, where, 0, "", "no host memory is left for records"};
}

void raise(vmm_level& level, std::uint64_t by) noexcept {
  level.current += static_cast<std::int64_t>(by);
  level.added += static_cast<std::int64_t>(by);
  level.peak = std::max(level.peak, level.current);
}
void lower(vmm_level& level, std::uint64_t by) noexcept {
  level.current -= static_cast<std::int64_t>(by);
  level.removed += static_cast<std::int64_t>(by);
}
void reset_peak(vmm_level& level) noexcept { level.peak = level.current; }
void reset_count(vmm_level& level) noexcept {
  level.added = 0;
  level.removed = 0;
}

block_counts::sizes sizes_of(const live_block& block) noexcept {
  return {block.size_bytes(), block.requested_bytes};
}

vmm::stream_handle stream_in(const live_block& block) noexcept {
  return vmm::stream_handle{block.stream};
}

}  // namespace

// ---- the driver --------------------------------------------------------------------------------

vmm::result<vmm::physical_handle> device_driver::create(const vmm::physical_request& request) {
  {
    const guard lock(lock_);
    const auto held = static_cast<std::uint64_t>(held_.current);
    if (limit_bytes_ != 0 && held + request.size_bytes > limit_bytes_) {
      return vmm::error{vmm::errc::over_budget, vmm::call::create, 0, "",
                        "the limit of the allocator on this device would be exceeded"};
    }
  }
  vmm::physical_request wider = request;
  if (feature_set().export_posix_fd) wider.shareable = vmm::share_kind::posix_fd;
  const vmm::result<vmm::physical_handle> made = forwarding_driver::create(wider);
  if (!made) return made;
  const guard lock(lock_);
  if (!sizes_.put(static_cast<std::uint64_t>(*made), request.size_bytes)) {
    (void)forwarding_driver::release(*made);
    return no_host_memory(vmm::call::create);
  }
  raise(held_, request.size_bytes);
  raise(handles_, 1);
  return made;
}

vmm::status device_driver::release(vmm::physical_handle handle) {
  // The record is removed first: the driver may reuse the handle's number at once.
  const auto number = static_cast<std::uint64_t>(handle);
  std::uint64_t size_bytes = 0;
  bool is_known = false;
  {
    const guard lock(lock_);
    is_known = sizes_.take(number, size_bytes);
  }
  const vmm::status outcome = forwarding_driver::release(handle);
  if (!is_known) return outcome;
  const guard lock(lock_);
  if (outcome || !sizes_.put(number, size_bytes)) {
    lower(held_, size_bytes);
    lower(handles_, 1);
  }
  return outcome;
}

void device_driver::set_limit(std::uint64_t limit_bytes) noexcept {
  const guard lock(lock_);
  limit_bytes_ = limit_bytes;
}

void device_driver::write_levels(vmm_allocator_statistics& out) const noexcept {
  const guard lock(lock_);
  out.held_bytes = held_;
  out.handles = handles_;
  out.limit_bytes = limit_bytes_;
}

void device_driver::reset_peaks() noexcept {
  const guard lock(lock_);
  reset_peak(held_);
  reset_peak(handles_);
}

void device_driver::reset_counts() noexcept {
  const guard lock(lock_);
  reset_count(held_);
  reset_count(handles_);
}

// ---- blocks ------------------------------------------------------------------------------------

device_memory::~device_memory() {
  if (!made_in_.is_here()) {
    vmm::leave_behind(clock_.release());
    return;
  }
  end_sharing_of(*this);
  const auto points = pending_.points();
  if (points) {
    for (const vmm::ticket_ref& each : *points) (void)clock_->wait(each);
  }
}

vmm::result<vmm::address> device_memory::allocate(std::uint64_t size_bytes,
                                                  vmm::stream_handle stream, bool captures) {
  if (has_pending_.load(std::memory_order_relaxed)) collect(captures);
  vmm::result<vmm::address> got = pool_.allocate(size_bytes, stream);
  if (!got && vmm::is_shortage(got.error().code)) [[unlikely]] {
    if (wait_for_frees(captures)) got = pool_.allocate(size_bytes, stream);
    const short_guard lock(lock_);
    const bool is_short = !got && vmm::is_shortage(got.error().code);
    (got ? retry_count_ : short_count_) += got || is_short ? 1U : 0U;
  }
  if (!got) [[unlikely]]
    return got;
  {
    const short_guard lock(lock_);
    const live_block made{got->value, size_bytes, static_cast<std::uint64_t>(stream), nullptr};
    if (blocks_.make_room() && blocks_.add(made.at, size_bytes, made.stream)) [[likely]] {
      counts_.add(sizes_of(made));
      vmm::debug_check(
          [this] { return ++unaudited_count_ % 100 != 0 || find_broken_table() == nullptr; },
          "device_memory I2: the table of blocks is not in order");
      return got;
    }
  }
  (void)pool_.free(*got, stream);
  return no_host_memory(vmm::call::none);
}

// A free that has to wait makes its entry before the block leaves the table: the later steps need
// no host memory.
vmm::result<bool> device_memory::free(std::uint64_t at, bool captures) {
  live_block gone;
  pending_blocks::owner entry;
  bool waits = false;
  for (bool is_taken = false; !is_taken;) {
    std::size_t users = 0;
    {
      const short_guard lock(lock_);
      const auto outcome = blocks_.take(at, gone, [&](std::size_t count) {
        users = count;
        waits = captures || count != 0;
        return !waits || (entry != nullptr && count <= entry->points.capacity());
      });
      if (outcome == block_index::take_outcome::absent) return false;
      is_taken = outcome == block_index::take_outcome::taken;
      if (is_taken) counts_.remove(sizes_of(gone), waits);
    }
    if (is_taken) break;
    vmm::result<pending_blocks::owner> made = pending_blocks::make(users);
    if (!made) return made.error();
    entry = std::move(*made);
  }
  if (exported_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
    end_export(*this, at);
  if (!waits) [[likely]]
    return return_to_pool(std::move(gone), nullptr);
  const vmm::relaxed_capture relaxed(driver_);
  entry->block = std::move(gone);
  (void)retire(std::move(entry));
  return true;
}

vmm::result<bool> device_memory::record(std::uint64_t at, vmm::stream_handle stream) {
  const short_guard lock(lock_);
  return blocks_.add_user(at, static_cast<std::uint64_t>(stream));
}

bool device_memory::end_wait(pending_blocks::owner&& gone) {
  live_block block = std::move(gone->block);
  {
    const short_guard lock(lock_);
    counts_.end_wait(sizes_of(block));
  }
  return return_to_pool(std::move(block), std::move(gone)).has_value();
}

// True: the block needed no wait and is back in the pool.
bool device_memory::retire(pending_blocks::owner&& gone) {
  if (is_in_capture(gone->block) || !record_users(*gone)) {
    pending_.defer(std::move(gone));
    return false;
  }
  if (gone->points.empty()) return end_wait(std::move(gone));
  pending_.push(std::move(gone));
  return false;
}

bool device_memory::is_in_capture(const live_block& block) {
  if (!driver_.feature_set().capture) return false;
  const auto is_captured = [&](std::uint64_t stream) {
    const auto seen = driver_.query_capture(vmm::stream_handle{stream});
    return !seen || seen->state != vmm::capture_state::none;
  };
  if (is_captured(block.stream)) return true;
  return block.users != nullptr &&
         std::any_of(block.users->begin(), block.users->end(), is_captured);
}

// Makes a point on each recorded stream. False: a stream accepts no event now.
bool device_memory::record_users(pending_blocks::entry& gone) {
  gone.points.clear();
  if (gone.block.users == nullptr) return true;
  for (const std::uint64_t user : *gone.block.users) {
    vmm::result<vmm::ticket_ref> point = clock_->record(vmm::stream_handle{user});
    if (!point) {
      gone.points.clear();
      return false;
    }
    if (!point->known_passed()) gone.points.push_back(std::move(*point));
  }
  return true;
}

// Oldest first, up to two that have not passed: the others probably have not either. True: a block
// went back.
bool device_memory::collect_finished(std::size_t misses_max) {
  pending_blocks::list done = pending_.take_finished(misses_max, [&](const vmm::ticket_ref& point) {
    const vmm::result<bool> passed = clock_->passed(point);
    return passed && *passed;
  });
  bool any = false;
  for (pending_blocks::owner each = done.take_first(); each != nullptr; each = done.take_first())
    any = end_wait(std::move(each)) || any;
  return any;
}

// Blocks that were deferred for captures, all of which have ended.
bool device_memory::retire_deferred() {
  pending_blocks::list deferred = pending_.take_deferred();
  bool any = false;
  for (pending_blocks::owner each = deferred.take_first(); each != nullptr;
       each = deferred.take_first())
    any = retire(std::move(each)) || any;
  return any;
}

void device_memory::collect(bool captures) {
  const vmm::relaxed_capture relaxed(driver_);
  constexpr std::size_t misses_max = 2;
  if (!captures) (void)retire_deferred();
  (void)collect_finished(misses_max);
}

// The last step before a shortage is reported. True: a block went back.
bool device_memory::wait_for_frees(bool captures) {
  const vmm::relaxed_capture relaxed(driver_);
  bool any = !captures && retire_deferred();
  if (const auto points = pending_.points(); points) {
    for (const vmm::ticket_ref& each : *points) (void)clock_->wait(each);
  }
  any = collect_finished(std::numeric_limits<std::size_t>::max()) || any;
  const short_guard lock(lock_);
  ++host_wait_count_;
  return any;
}

// A block that the pool refuses now goes back when captures have ended. Without host memory for its
// entry, the block stays live.
vmm::result<bool> device_memory::return_to_pool(live_block&& gone, pending_blocks::owner&& entry) {
  const vmm::status freed = pool_.free({gone.at}, stream_in(gone));
  if (freed) return true;
  if (entry == nullptr) {
    vmm::result<pending_blocks::owner> made = pending_blocks::make(0);
    if (made) entry = std::move(*made);
  }
  {
    const short_guard lock(lock_);
    if (entry == nullptr) {
      if (blocks_.add(gone.at, gone.requested_bytes, gone.stream)) counts_.add(sizes_of(gone));
      return freed.error();
    }
    counts_.wait_again(sizes_of(gone));
  }
  entry->block = std::move(gone);
  pending_.defer(std::move(entry));
  return true;
}

// ---- invariants --------------------------------------------------------------------------------

const char* device_memory::find_broken_table() const noexcept {
  if (const char* const broken = blocks_.find_broken(); broken != nullptr) return broken;
  std::int64_t bytes = 0;
  blocks_.for_each(
      [&](const live_block& each) { bytes += static_cast<std::int64_t>(each.size_bytes()); });
  vmm_allocator_statistics levels{};
  counts_.write(levels);
  const bool is_counted =
      levels.allocations[VMM_LEVEL_ALL].current == static_cast<std::int64_t>(blocks_.count()) &&
      levels.allocated_bytes[VMM_LEVEL_ALL].current == bytes;
  return is_counted ? nullptr : "device_memory I2: the levels are not those of the table";
}

const char* device_memory::find_broken() {
  std::map<std::uint64_t, std::uint64_t> left;  // live in the pool, and not yet found here
  const auto regions = pool_.regions();
  if (!regions) return nullptr;  // not set up, or no host memory for a list
  for (const vmm::pool_region& each : *regions) {
    if (each.kind == vmm::pool_region_kind::live)
      left[each.range.base.value] = each.range.size_bytes;
  }
  const char* broken = nullptr;
  std::int64_t waiting_count = 0;
  const auto look = [&](const live_block& each) {
    const auto found = left.find(each.at);
    if (found == left.end() || found->second < each.size_bytes()) {
      broken = "device_memory I1: a block is in two places, or not the pool's";
    } else {
      left.erase(found);
    }
  };
  vmm_allocator_statistics levels{};
  {
    const short_guard lock(lock_);
    if (const char* const wrong = find_broken_table(); wrong != nullptr) return wrong;
    counts_.write(levels);
    blocks_.for_each(look);
  }
  pending_.visit([&](const live_block& each) {
    ++waiting_count;
    look(each);
  });
  const std::int64_t active_count = levels.active[VMM_LEVEL_ALL].current;
  if (active_count - levels.allocations[VMM_LEVEL_ALL].current != waiting_count)
    return "device_memory I1: the levels are not those of the frees that wait";
  const auto is_above = [](const vmm_level& each) { return each.current > each.peak; };
  for (const auto* const levels_of : {levels.allocations, levels.allocated_bytes, levels.active}) {
    if (std::any_of(levels_of, levels_of + VMM_LEVEL_COUNT, is_above))
      return "block_counts I1: a level is above its peak";
  }
  return broken;
}

// ---- numbers -----------------------------------------------------------------------------------

void device_memory::set_limit(std::uint64_t limit_bytes) noexcept {
  driver_.set_limit(limit_bytes);
  std::uint64_t expected_bytes = limit_bytes;
  if (limit_bytes == 0) {
    const auto memory = driver_.query_memory(driver_.home());
    if (memory) expected_bytes = memory->total_bytes;
  }
  pool_.expect_memory_limit(expected_bytes);
}

void device_memory::write_statistics(vmm_allocator_statistics& out) noexcept {
  {
    const short_guard lock(lock_);
    counts_.write(out);
    out.short_count = short_count_;
    out.retry_count = retry_count_;
    out.host_wait_count = host_wait_count_;
  }
  driver_.write_levels(out);
}

void device_memory::reset_peaks() noexcept {
  {
    const short_guard lock(lock_);
    counts_.reset_peaks();
  }
  driver_.reset_peaks();
}

void device_memory::reset_counts() noexcept {
  {
    const short_guard lock(lock_);
    counts_.reset_counts();
    short_count_ = 0;
    retry_count_ = 0;
    host_wait_count_ = 0;
  }
  driver_.reset_counts();
}

// ---- lists -------------------------------------------------------------------------------------

namespace {

vmm_allocation shown(const live_block& block, std::int32_t device, bool is_pending) noexcept {
  return {reinterpret_cast<void*>(block.at),
          block.requested_bytes,
          block.size_bytes(),
          reinterpret_cast<void*>(block.stream),
          device,
          is_pending ? 1U : 0U};
}

}  // namespace

bool device_memory::find(std::uint64_t at, std::int32_t device, vmm_allocation& found) {
  const short_guard lock(lock_);
  live_block block;
  if (!blocks_.find(at, block)) return false;
  found = shown(block, device, false);
  return true;
}

void device_memory::list(std::int32_t device, std::vector<vmm_allocation>& out) {
  {
    const short_guard lock(lock_);
    out.reserve(out.size() + blocks_.count());
    blocks_.for_each([&](const live_block& each) { out.push_back(shown(each, device, false)); });
  }
  pending_.visit([&](const live_block& each) { out.push_back(shown(each, device, true)); });
  std::sort(out.begin(), out.end(), [](const vmm_allocation& left, const vmm_allocation& right) {
    return reinterpret_cast<std::uint64_t>(left.base) < reinterpret_cast<std::uint64_t>(right.base);
  });
}

}  // namespace vmm_c
