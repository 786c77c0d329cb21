// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "device_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

import vmm.backend;
import vmm.stream;
import vmm.sync;

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

// Calls about events that spoil no capture, announced or not: no event of ours is in one.
class relaxed_calls {
 public:
  explicit relaxed_calls(device_driver& driver) noexcept
      : driver_(driver), before_(driver.exchange_capture_mode(vmm::capture_mode::relaxed)) {}
  ~relaxed_calls() { (void)driver_.exchange_capture_mode(before_); }
  relaxed_calls(const relaxed_calls&) = delete;
  relaxed_calls& operator=(const relaxed_calls&) = delete;

 private:
  device_driver& driver_;
  const vmm::capture_mode before_;
};

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
  const vmm::result<vmm::physical_handle> made = forwarding_driver::create(request);
  if (!made) return made;
  const guard lock(lock_);
  try {
    sizes_[*made] = request.size_bytes;
  } catch (const std::bad_alloc&) {
    (void)forwarding_driver::release(*made);
    return no_host_memory(vmm::call::create);
  }
  raise(held_, request.size_bytes);
  raise(handles_, 1);
  return made;
}

vmm::status device_driver::release(vmm::physical_handle handle) {
  const vmm::status outcome = forwarding_driver::release(handle);
  if (!outcome) return outcome;
  const guard lock(lock_);
  if (const auto found = sizes_.find(handle); found != sizes_.end()) {
    lower(held_, found->second);
    lower(handles_, 1);
    sizes_.erase(found);
  }
  return outcome;
}

vmm::status device_driver::map(const vmm::map_request& request) {
  const vmm::status outcome = forwarding_driver::map(request);
  if (!outcome) return outcome;
  const guard lock(lock_);
  try {
    mappings_[request.at.value] = request.size_bytes;
  } catch (const std::bad_alloc&) {
    (void)forwarding_driver::unmap({request.at, request.size_bytes});
    return no_host_memory(vmm::call::map);
  }
  return outcome;
}

vmm::status device_driver::unmap(vmm::address_range range) {
  const vmm::status outcome = forwarding_driver::unmap(range);
  if (!outcome) return outcome;
  const guard lock(lock_);
  mappings_.erase(mappings_.lower_bound(range.base.value),
                  mappings_.lower_bound(range.end().value));
  return outcome;
}

vmm::status device_driver::set_access(vmm::address_range range,
                                      std::span<const vmm::access_grant> grants) {
  const guard lock(lock_);
  if (peers_.empty()) return forwarding_driver::set_access(range, grants);
  try {
    std::vector<vmm::access_grant> all(grants.begin(), grants.end());
    all.insert(all.end(), peers_.begin(), peers_.end());
    return forwarding_driver::set_access(range, all);
  } catch (const std::bad_alloc&) {
    return no_host_memory(vmm::call::set_access);
  }
}

vmm::status device_driver::add_peer(vmm::location who) {
  const guard lock(lock_);
  const vmm::access_grant grant{who, vmm::access::read_write};
  for (const vmm::access_grant& each : peers_) {
    if (each.who == who) return {};
  }
  peers_.reserve(peers_.size() + 1);
  for (const auto& [base, size_bytes] : mappings_) {
    if (const vmm::status granted =
            forwarding_driver::set_access({{base}, size_bytes}, {&grant, 1});
        !granted) {
      return granted;
    }
  }
  peers_.push_back(grant);
  return {};
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
  if (!made_in_.is_here()) return;
  for (waiting_block& each : waiting_) {
    (void)has_passed(each, true);
    spare_events_.insert(spare_events_.end(), each.events.begin(), each.events.end());
  }
  for (const vmm::event_handle each : spare_events_) (void)driver_.destroy_event(each);
}

vmm::result<vmm::address> device_memory::allocate(std::uint64_t size_bytes,
                                                  vmm::stream_handle stream, bool captures) {
  if (has_waiting_.load(std::memory_order_relaxed)) collect(captures);
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
      return got;
    }
  }
  (void)pool_.free(*got, stream);
  return no_host_memory(vmm::call::none);
}

vmm::result<bool> device_memory::free(std::uint64_t at, bool captures) {
  live_block gone;
  bool waits = false;
  {
    const short_guard lock(lock_);
    if (!blocks_.take(at, gone)) return false;
    waits = captures || gone.users != nullptr;
    counts_.remove(sizes_of(gone), waits);
  }
  if (!waits) [[likely]] {
    give_back(std::move(gone));
    return true;
  }
  const relaxed_calls relaxed(driver_);
  {
    const guard lock(wait_lock_);
    retire(std::move(gone));
  }
  if (gone.at != 0) give_back(std::move(gone));
  return true;
}

vmm::result<bool> device_memory::record(std::uint64_t at, vmm::stream_handle stream) {
  const short_guard lock(lock_);
  return blocks_.add_user(at, static_cast<std::uint64_t>(stream));
}

void device_memory::end_wait(const live_block& block) noexcept {
  const short_guard lock(lock_);
  counts_.end_wait(sizes_of(block));
}

// What a block that is freed now must wait for. Where it must not wait it is left in `gone`.
void device_memory::retire(live_block&& gone) {
  if (is_in_capture(gone)) {
    held_back_.push_back(std::move(gone));
    gone.at = 0;
    return;
  }
  if (gone.users == nullptr) {
    end_wait(gone);
    return;
  }
  waiting_block waits;
  waits.block = std::move(gone);
  gone.at = 0;
  if (mark_users(waits)) {
    waiting_.push_back(std::move(waits));
    has_waiting_.store(true, std::memory_order_relaxed);
  } else {
    // A stream that takes no event is gone.
    for (const vmm::event_handle each : waits.events) spare_events_.push_back(each);
    held_back_.push_back(std::move(waits.block));
  }
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

vmm::result<vmm::event_handle> device_memory::take_event() {
  if (spare_events_.empty()) return driver_.create_event();
  const vmm::event_handle event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

vmm::status device_memory::mark_users(waiting_block& waits) {
  if (!driver_.feature_set().streams) return {};
  for (const std::uint64_t stream : *waits.block.users) {
    const vmm::result<vmm::event_handle> event = take_event();
    if (!event) return event.error();
    waits.events.push_back(*event);
    if (const vmm::status marked = driver_.record_event(*event, vmm::stream_handle{stream});
        !marked) {
      return marked;
    }
  }
  return {};
}

bool device_memory::has_passed(waiting_block& waits, bool may_block) {
  while (!waits.events.empty()) {
    const vmm::event_handle event = waits.events.back();
    if (may_block && !driver_.synchronize_event(event)) return false;
    const vmm::result<bool> passed = driver_.query_event(event);
    if (!passed || !*passed) return false;
    spare_events_.push_back(event);
    waits.events.pop_back();
  }
  return true;
}

// Moves what has waited long enough to `done`. The oldest come first; two that have not passed are
// taken for a sign that the others have not either.
void device_memory::complete(std::vector<live_block>& done) {
  constexpr int misses_max = 2;
  int misses = 0;
  for (auto each = waiting_.begin(); each != waiting_.end() && misses < misses_max;) {
    if (has_passed(*each, false)) {
      done.push_back(std::move(each->block));
      each = waiting_.erase(each);
    } else {
      ++misses;
      ++each;
    }
  }
  has_waiting_.store(!waiting_.empty(), std::memory_order_relaxed);
  for (const live_block& each : done) end_wait(each);
}

// Blocks that were held back for captures, of which none is announced any more.
void device_memory::release_held(std::vector<live_block>& done) {
  std::vector<live_block> held;
  held.swap(held_back_);
  for (live_block& each : held) {
    retire(std::move(each));
    if (each.at != 0) done.push_back(std::move(each));
  }
}

void device_memory::collect(bool captures) {
  const relaxed_calls relaxed(driver_);
  std::vector<live_block> done;
  {
    const guard lock(wait_lock_);
    if (!captures) release_held(done);
    std::vector<live_block> passed;
    complete(passed);
    std::move(passed.begin(), passed.end(), std::back_inserter(done));
  }
  for (live_block& each : done) give_back(std::move(each));
}

// The last step before memory is called short: true where anything came of it.
bool device_memory::wait_for_frees(bool captures) {
  const relaxed_calls relaxed(driver_);
  std::vector<live_block> done;
  {
    const guard lock(wait_lock_);
    if (!captures) release_held(done);
    std::vector<live_block> passed;
    for (waiting_block& each : waiting_) {
      if (has_passed(each, true)) passed.push_back(std::move(each.block));
    }
    std::erase_if(waiting_, [](const waiting_block& each) { return each.block.at == 0; });
    has_waiting_.store(!waiting_.empty(), std::memory_order_relaxed);
    for (const live_block& each : passed) end_wait(each);
    std::move(passed.begin(), passed.end(), std::back_inserter(done));
  }
  {
    const short_guard lock(lock_);
    ++wait_count_;
  }
  const bool any = !done.empty();
  for (live_block& each : done) give_back(std::move(each));
  return any;
}

// What the pool does not take now, it takes when captures have ended.
void device_memory::give_back(live_block&& gone) {
  if (pool_.free({gone.at}, stream_in(gone))) return;
  {
    const short_guard lock(lock_);
    counts_.wait_again(sizes_of(gone));
  }
  const guard lock(wait_lock_);
  held_back_.push_back(std::move(gone));
}

// ---- numbers -----------------------------------------------------------------------------------

void device_memory::set_limit(std::uint64_t limit_bytes) noexcept {
  driver_.set_limit(limit_bytes);
  std::uint64_t expected_bytes = limit_bytes;
  if (limit_bytes == 0) {
    const auto memory = driver_.query_memory(driver_.home());
    if (memory) expected_bytes = memory->total_bytes;
  }
  pool_.expect_limit(expected_bytes);
}

void device_memory::write_statistics(vmm_allocator_statistics& out) noexcept {
  {
    const short_guard lock(lock_);
    counts_.write(out);
    out.short_count = short_count_;
    out.retry_count = retry_count_;
    out.wait_count = wait_count_;
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
    wait_count_ = 0;
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
    const guard waits(wait_lock_);
    {
      const short_guard lock(lock_);
      out.reserve(out.size() + blocks_.count() + waiting_.size() + held_back_.size());
      blocks_.for_each([&](const live_block& each) { out.push_back(shown(each, device, false)); });
    }
    for (const waiting_block& each : waiting_) out.push_back(shown(each.block, device, true));
    for (const live_block& each : held_back_) out.push_back(shown(each, device, true));
  }
  std::sort(out.begin(), out.end(), [](const vmm_allocation& left, const vmm_allocation& right) {
    return reinterpret_cast<std::uint64_t>(left.base) < reinterpret_cast<std::uint64_t>(right.base);
  });
}

}  // namespace vmm_c
