// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "serve.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "process.h"
#include "serving_counts.h"
#include "settings.h"

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.market;
import vmm.stream;

namespace vmm::preload::managed {
namespace {

/// Releases idle memory of a device's allocators in another library; returns the bytes.
using others_relief = std::uint64_t (*)(std::int32_t device, std::uint64_t wanted_bytes);

struct request {
  owner from = owner::unordered;
  std::size_t size = 0;
  stream_name stream;  // of owner::ordered
};

// Memory that the budget does not allow is not the driver's to give.
unmanaged_reason why_not(errc failure, const device_pools& device, std::size_t size) noexcept {
  switch (failure) {
    case errc::not_permitted: return unmanaged_reason::capture;
    case errc::not_supported:
    case errc::unavailable: return unmanaged_reason::no_virtual_memory;
    default:
      if (device.driver().is_over_budget(size)) return unmanaged_reason::over_budget;
      if (device.tenant() != nullptr && is_shortage(failure)) return unmanaged_reason::over_budget;
      return is_shortage(failure) ? unmanaged_reason::short_of_memory : unmanaged_reason::refused;
  }
}

unmanaged_reason without_pools() noexcept {
  return process().devices.is_barred() ? unmanaged_reason::over_budget
                                       : unmanaged_reason::no_context;
}

// ---- allocate -----------------------------------------------------------------------------------

// If the device is short, its other allocators release idle memory inside of this call.
result<address> allocate_once(device_pools& device, const request& wanted) {
  if (wanted.from == owner::manager) {
    allocate_request of_manager;
    of_manager.size_bytes = wanted.size;
    of_manager.stream = device.service_stream();
    return device.remapping()->allocate(of_manager);
  }
  const stream_id named = wanted.stream.is_default() ? nullptr : wanted.stream.stream;
  const bool has_stream = wanted.from == owner::ordered;
  return device.pool(wanted.from)
      .allocate(wanted.size, has_stream ? handle_of(named) : device.service_stream());
}

// Waits for the work of a stream. False: that cannot be waited for now.
bool wait_for_stream(stream_name stream) noexcept VMM_REQUIRES_SHARED(locks::gate) {
  process_state& p = process();
  if (p.captures.is_captured(stream) || (stream.is_default() && p.captures.is_any())) return false;
  std::vector<event_point> points;
  if (!p.events.record(stream, points)) return false;
  count(counts.host_waits);
  p.events.wait(points);
  p.events.add_spare(points);
  return true;
}

bool wait_for_device(device_pools& device) noexcept VMM_REQUIRES_SHARED(locks::gate) {
  process_state& p = process();
  if (p.captures.is_any()) return false;
  count(counts.host_waits);
  return p.events.wait_for_context(device.context());
}

std::atomic<others_relief> joined = nullptr;

std::uint64_t relieve_others(device_id device, std::uint64_t wanted_bytes) noexcept {
  const others_relief others = joined.load(std::memory_order_acquire);
  return others == nullptr || device < 0 ? 0 : others(device, wanted_bytes);
}

// Outside of the gate, and without a lock: the other library calls the driver, and its allocators
// may wait for a thread that waits for the gate. The device may have ended meanwhile.
bool relieve_by_others(const device_pools& device, std::size_t size) noexcept
    VMM_REQUIRES_SHARED(locks::gate) {
  if (joined.load(std::memory_order_relaxed) == nullptr) return false;
  locks::gate.unlock_shared();
  const std::uint64_t bytes = relieve_others(device.device(), size);
  locks::gate.lock_shared();
  return bytes != 0;
}

// The same for memory of other tenants, which the next attempt gets. First the device's own idle
// memory goes back to the owner.
bool borrow(device_pools& device, std::size_t size) noexcept VMM_REQUIRES_SHARED(locks::gate) {
  tenant_driver* const tenant = device.tenant();
  if (tenant == nullptr) return false;
  (void)device.trim();
  locks::gate.unlock_shared();
  std::uint64_t bytes = 0;
  {
    const sync::shared_guard staying(locks::ending);
    if (device.is_open()) bytes = tenant->borrow({size, tenant_driver_options{}.wait_ns});
  }
  locks::gate.lock_shared();
  return bytes != 0;
}

// The steps outside of the gate, which a pool does not take: it calls no other library, and a
// thread may wait there only. Those of the pool come before (vmm.stream:shortage).
//
// 0  relieve_by_others(): idle memory of libvmm.so's allocators
// 1  wait_for_stream(): the stream's own work
// 2  waiting_frees::wait_for_all(): the work that freed blocks wait for
// 3  wait_for_device(): all work
// 4  borrow(): memory of other tenants, with VMM_OWNER
//
// A new rung is a case of take_step(), each of which is taken once, and a line above; the case
// before it sets next_ to it. Its function requires the gate, and leaves it to wait, as
// all_work_events::wait() does.
class outer_ladder {
 public:
  outer_ladder(device_pools& device, const request& wanted) noexcept
      : device_(device), wanted_(wanted) {}
  ~outer_ladder() {
    if (has_borrowed_) (void)device_.tenant()->borrow({});
  }
  outer_ladder(const outer_ladder&) = delete;
  outer_ladder& operator=(const outer_ladder&) = delete;

  /// Takes the next step that can be taken. False: none is left.
  [[nodiscard]] bool take_next() noexcept VMM_REQUIRES_SHARED(locks::gate) {
    return take_step() && device_.is_open();
  }

 private:
  enum class step : std::uint8_t { others, stream, waiting, device, owner, none };

  [[nodiscard]] bool take_step() noexcept VMM_REQUIRES_SHARED(locks::gate) {
    switch (next_) {
      case step::others:
        next_ = step::stream;
        if (relieve_by_others(device_, wanted_.size)) return true;
        if (!device_.is_open()) return false;
        [[fallthrough]];
      case step::stream:
        next_ = step::waiting;
        if (wanted_.from == owner::ordered && wait_for_stream(wanted_.stream)) return true;
        [[fallthrough]];
      case step::waiting:
        next_ = step::device;
        if (device_.waiting().wait_for_all()) return true;
        [[fallthrough]];
      case step::device:
        next_ = step::owner;
        if (wait_for_device(device_)) return true;
        if (!device_.is_open()) return false;
        [[fallthrough]];
      case step::owner:
        next_ = step::none;
        has_borrowed_ = borrow(device_, wanted_.size);
        return has_borrowed_;
      case step::none: return false;
    }
    return false;
  }

  device_pools& device_;
  const request& wanted_;
  step next_ = step::others;
  bool has_borrowed_ = false;
};

// With room for a point of each context that waiting_frees::free() records: a free takes no memory.
pending_blocks::owner make_entry(device_pools& device, const request& wanted) noexcept {
  result<pending_blocks::owner> made = pending_blocks::make(device.users().count() + 1);
  if (!made) return nullptr;
  live_block& block = (*made)->block;
  block.size = wanted.size;
  block.device = &device;
  block.from = wanted.from;
  return std::move(*made);
}

// The block becomes live; its entry was made before it.
answer hand_out(address at, pending_blocks::owner&& entry) noexcept {
  process_state& p = process();
  if (!p.blocks.add(entry, at.value)) return {0, unmanaged_reason::refused};
  count(counts.blocks_served);
  return {at.value, unmanaged_reason::count};
}

answer serve(device_pools& device, const request& wanted) VMM_REQUIRES_SHARED(locks::gate) {
  pending_blocks::owner entry = make_entry(device, wanted);
  if (entry == nullptr) return {0, unmanaged_reason::refused};
  outer_ladder ladder(device, wanted);
  result<address> made = allocate_once(device, wanted);
  while (!made && is_shortage(made.error().code) && ladder.take_next())
    made = allocate_once(device, wanted);
  if (!made) return {0, why_not(made.error().code, device, wanted.size)};
  return hand_out(*made, std::move(entry));
}

// A block of whole granules, which a copy can remap. Smaller ones, and those that the manager has
// no memory for, are the pool's.
answer serve_remappable(device_pools& device, std::size_t size) VMM_REQUIRES_SHARED(locks::gate) {
  vmm::manager& of = *device.remapping();
  if (!process().captures.is_any() && of.set_up() && size >= of.granularity_bytes()) {
    const request wanted{owner::manager, size, {}};
    pending_blocks::owner entry = make_entry(device, wanted);
    if (entry == nullptr) return {0, unmanaged_reason::refused};
    const result<address> made = allocate_once(device, wanted);
    if (made) return hand_out(*made, std::move(entry));
  }
  return serve(device, {owner::unordered, size, {}});
}

// May wait outside of the gate. False: the context has ended meanwhile.
bool prepare(device_pools& device) noexcept VMM_REQUIRES_SHARED(locks::gate) {
  device.waiting().collect();
  device.enforce_retention();
  return device.is_open();
}

// Every hundredth call of a debug build checks every invariant.
void audit() noexcept VMM_EXCLUDES(locks::gate) {
  debug_check(
      [] {
        static std::atomic<unsigned> calls = 0;
        if (calls.fetch_add(1, std::memory_order_relaxed) % 100 != 99) return true;
        const char* const broken = find_broken();
        if (broken != nullptr) violated(broken);
        return broken == nullptr;
      },
      "an invariant of the preload library does not hold");
}

}  // namespace

answer allocate(std::size_t size) noexcept {
  if (has_violation.load(std::memory_order_relaxed)) return {0, unmanaged_reason::refused};
  if (chosen_settings().ipc == ipc_rule::plain) return {0, unmanaged_reason::plain_for_ipc};
  audit();
  process_state& p = process();
  const gate_guard shared(locks::gate);
  if (p.captures.is_any()) return {0, unmanaged_reason::capture};
  try {
    device_pools* const device = p.devices.of_current();
    if (device == nullptr) return {0, without_pools()};
    if (!prepare(*device)) return {0, unmanaged_reason::no_context};
    return device->remapping() != nullptr ? serve_remappable(*device, size)
                                          : serve(*device, {owner::unordered, size, {}});
  } catch (const std::bad_alloc&) {
    return {0, unmanaged_reason::refused};
  }
}

answer allocate(std::size_t size, stream_name stream) noexcept {
  if (has_violation.load(std::memory_order_relaxed)) return {0, unmanaged_reason::refused};
  if (stream.is_per_thread()) return {0, unmanaged_reason::per_thread_stream};
  audit();
  const gate_guard shared(locks::gate);
  try {
    device_pools* const device = process().devices.of(stream);
    if (device == nullptr) return {0, without_pools()};
    if (device->has_pool_of_user()) return {0, unmanaged_reason::pool_of_the_user};
    if (!prepare(*device)) return {0, unmanaged_reason::no_context};
    return serve(*device, {owner::ordered, size, stream});
  } catch (const std::bad_alloc&) {
    return {0, unmanaged_reason::refused};
  }
}

bool serves_pool(pool_id pool, stream_name stream) noexcept {
  const gate_guard shared(locks::gate);
  const device_pools* const device = process().devices.of(stream);
  return device != nullptr && device->default_pool() != nullptr && device->default_pool() == pool;
}

// ---- free ---------------------------------------------------------------------------------------

free_answer free_now(device_pointer at) noexcept {
  process_state& p = process();
  audit();
  const gate_guard shared(locks::gate);
  pending_blocks::owner freed = p.blocks.take(at);
  if (freed == nullptr) return p.ranges.contains(at) ? free_answer::wrong : free_answer::foreign;
  waiting_frees& waiting = freed->block.device->waiting();
  waiting.collect();
  waiting.free(std::move(freed));
  return free_answer::done;
}

free_answer free_async(device_pointer at, stream_name stream) noexcept {
  process_state& p = process();
  if (!p.ranges.contains(at)) return free_answer::foreign;
  audit();
  const gate_guard shared(locks::gate);
  // A stream that the driver does not have is the driver's to refuse.
  if (p.captures.is_captured(stream) || p.contexts.of(stream) == nullptr)
    return free_answer::foreign;
  pending_blocks::owner freed = p.blocks.take(at);
  if (freed == nullptr) return free_answer::wrong;
  device_pools& device = *freed->block.device;
  device.waiting().collect();
  const bool is_in_order =
      freed->block.is_ordered() && !stream.is_per_thread() && p.devices.of(stream) == &device;
  const stream_id named = stream.is_default() ? nullptr : stream.stream;
  if (is_in_order && device.pool(owner::ordered).free({at}, handle_of(named)))
    return free_answer::done;
  device.waiting().free(std::move(freed), stream);
  return free_answer::done;
}

// ---- questions ----------------------------------------------------------------------------------

place find(device_pointer at, block_facts& into) noexcept {
  const process_state& p = process();
  return p.ranges.contains(at) ? p.blocks.find(at, into) : place::elsewhere;
}

// ---- all memory ---------------------------------------------------------------------------------

std::uint64_t reusable_bytes() noexcept {
  const gate_guard shared(locks::gate);
  const device_pools* const device = process().devices.of_current();
  return device == nullptr ? 0 : device->reusable_bytes();
}

namespace {

// Null: no open device has it as its default pool.
device_pools* served_by(pool_id pool) noexcept VMM_REQUIRES_SHARED(locks::gate) {
  device_pools* found = nullptr;
  process().devices.visit([&](device_pools& each) {
    if (pool != nullptr && each.default_pool() == pool && each.is_open()) found = &each;
  });
  return found;
}

}  // namespace

std::uint64_t figure_of_pool(pool_id pool, int attribute) noexcept {
  const gate_guard shared(locks::gate);
  device_pools* const device = served_by(pool);
  if (device == nullptr) return 0;
  const pool_statistics now = device->pool(owner::ordered).statistics();
  switch (attribute) {
    case pool_attribute::reserved: return now.held_bytes;
    case pool_attribute::reserved_high:
      return device->levels().highs().held.of(now.held_bytes, now.peak_mapped_bytes);
    case pool_attribute::used: return now.live_bytes;
    case pool_attribute::used_high:
      return device->levels().highs().live.of(now.live_bytes, now.peak_live_bytes);
    default: return 0;
  }
}

void reset_figure_of_pool(pool_id pool, int attribute) noexcept {
  const gate_guard shared(locks::gate);
  device_pools* const device = served_by(pool);
  if (device == nullptr) return;
  const pool_statistics now = device->pool(owner::ordered).statistics();
  if (attribute == pool_attribute::reserved_high)
    device->levels().highs().held.reset(now.held_bytes, now.peak_mapped_bytes);
  if (attribute == pool_attribute::used_high)
    device->levels().highs().live.reset(now.live_bytes, now.peak_live_bytes);
}

void trim_pool(pool_id pool, std::size_t kept_size) noexcept {
  const gate_guard shared(locks::gate);
  device_pools* const device = served_by(pool);
  if (device == nullptr || process().captures.is_any()) return;
  device->waiting().collect();
  stream_pool& of = device->pool(owner::ordered);
  const std::uint64_t live_bytes = of.statistics().live_bytes;
  (void)of.trim(kept_size - std::min<std::uint64_t>(kept_size, live_bytes));
}

// The driver is not in vmm's registry of allocators with idle memory: memory for the driver's own
// allocations is released here.
std::uint64_t release_idle(bool may_wait) noexcept {
  if (!process().cu.is_usable) return 0;
  const device_id current = process().contexts.current_device();
  std::uint64_t bytes = relieve_others(current, std::numeric_limits<std::uint64_t>::max());
  const gate_guard shared(locks::gate);
  for (device_id device = 0; device < device_table::devices_max; ++device) {
    device_pools* const each = process().devices.of_device(device);
    if (each == nullptr) continue;
    each->waiting().collect();
    if (may_wait) (void)each->waiting().wait_for_all();
    bytes += each->trim();
  }
  return bytes;
}

bool copy_by_remapping(device_pointer target, device_pointer source, std::size_t size) noexcept {
  process_state& p = process();
  if (!p.ranges.contains(target) || !p.ranges.contains(source)) return false;
  const gate_guard shared(locks::gate);
  device_pools* const device = p.blocks.find_copyable(target, source, size);
  if (device == nullptr) return false;
  // The work on both blocks must have finished: the target's addresses change hands now.
  if (!wait_for_device(*device) || !device->is_open() || p.captures.is_any()) return false;
  vmm::manager& of = *device->remapping();
  const std::uint64_t before = of.statistics().remapped_copy_count;
  const copy_mode how =
      chosen_settings().copy == copy_rule::move ? copy_mode::move : copy_mode::alias;
  const status copied = of.copy({{target}, {source}, size, device->service_stream()}, how);
  if (of.statistics().remapped_copy_count != before) {
    count(counts.copies_remapped);
    return static_cast<bool>(copied);
  }
  return copied && device->driver().synchronize_stream(device->service_stream());
}

}  // namespace vmm::preload::managed

// libvmm.so, whose allocators are in a registry of their own, joins here. A create of theirs that
// fails releases this library's idle memory first (handlers.cpp).
extern "C" [[gnu::visibility("default"), gnu::used]] void vmm_preload_join(
    vmm::preload::managed::others_relief others) {
  vmm::preload::managed::joined.store(others, std::memory_order_release);
}
