// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "grants.hpp"
#include "history.hpp"
#include "objects.hpp"
#include "pool_object.hpp"
#include "python.hpp"

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.stream;

namespace vmm_c {
namespace {

// Calls `work` with the pool.
template <class Work>
vmm_status on_pool(vmm_pool* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<pool_object> pool(handle);
    return pool ? work(*pool) : fail_handle();
  });
}

// The same for calls that a callback must not make, where the pool would end the process.
template <class Work>
vmm_status outside_callbacks(vmm_pool* handle, Work&& work) noexcept {
  return on_pool(handle, [&](pool_object& on) -> vmm_status {
    const handler_scope handlers;
    return on.is_telling() ? fail_in_callback() : work(on);
  });
}

vmm_status apply(const vmm_pool_options& given, vmm::pool_options& options) {
  if (const vmm_status shared = check_shared(given); shared != VMM_SUCCESS) return shared;
  if (given.policy != nullptr) {
    const vmm::result<vmm::pool_policy> policy = vmm::pool_policy::by_name(given.policy);
    if (!policy) return fail(policy.error());
    options.policy = *policy;
  }
  if (given.capture > VMM_CAPTURE_UNCHECKED)
    return fail_value(
        VMM_ERROR_BAD_OPTION, given.capture,
        "capture is one of VMM_CAPTURE_REFUSE, VMM_CAPTURE_PRIVATE, VMM_CAPTURE_UNCHECKED");
  if (given.stream_arenas > VMM_ARENAS_NEVER)
    return fail_value(VMM_ERROR_BAD_OPTION, given.stream_arenas,
                      "the rule for arenas is one of VMM_ARENAS_WHEN_CONTENDED, VMM_ARENAS_ALWAYS, "
                      "VMM_ARENAS_NEVER");
  const vmm_status announced =
      check_flags(VMM_ERROR_BAD_OPTION, {{given.captures_announced, "captures_announced is 0 or 1"},
                                         {given.streams_forgotten, "streams_forgotten is 0 or 1"}});
  if (announced != VMM_SUCCESS) return announced;
  apply_shared(given, options);
  options.captures_announced = given.captures_announced != 0;
  options.streams_forgotten = given.streams_forgotten != 0;
  options.page_bytes = given.page_bytes;
  options.page_count = given.page_count;
  switch (given.capture) {
    case VMM_CAPTURE_PRIVATE: options.capture = vmm::capture_rule::private_memory; break;
    case VMM_CAPTURE_UNCHECKED: options.capture = vmm::capture_rule::unchecked; break;
    default: options.capture = vmm::capture_rule::refuse; break;
  }
  switch (given.stream_arenas) {
    case VMM_ARENAS_ALWAYS: options.stream_arenas = vmm::arena_rule::always; break;
    case VMM_ARENAS_NEVER: options.stream_arenas = vmm::arena_rule::never; break;
    default: options.stream_arenas = vmm::arena_rule::when_contended; break;
  }
  if (given.read_environment == 0) return VMM_SUCCESS;
  const vmm::result<vmm::pool_options> read = vmm::pool_options::from_environment(options);
  if (!read) return fail(read.error());
  const auto others = vmm::manager_options::from_environment({});
  if (!others) return fail(others.error());
  options = *read;
  return VMM_SUCCESS;
}

vmm_status create(driver_object& driver, const vmm_pool_options* given, vmm_pool** out) {
  if (!driver.made_in.is_here()) return fail_forked();
  vmm_pool_options full;
  (void)vmm_pool_options_init(&full, sizeof(full));
  if (given != nullptr) {
    if (const vmm_status read = read_struct(*given, full); read != VMM_SUCCESS) return read;
  }
  if (!names_stream(driver, full.first_stream)) return fail_stream();
  vmm::pool_options options;
  if (const vmm_status applied = apply(full, options); applied != VMM_SUCCESS) return applied;
  options.first_stream = stream_of(driver, full.first_stream);
  auto made = std::make_unique<pool_object>(driver, options);
  if (const vmm::status ready = made->pool.set_up(); !ready) return fail(ready.error());
  return hand_out(std::move(made), driver, out);
}

vmm_status allocate(pool_object& on, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                    vmm_stream stream, void** at) {
  if (!names_stream(on.driver, stream)) [[unlikely]]
    return fail_stream();
  const vmm::result<vmm::address> got =
      on.pool.allocate(size_bytes, alignment_bytes, stream_of(on.driver, stream));
  if (!got) [[unlikely]]
    return fail(got.error());
  *at = pointer_to(*got);
  return VMM_SUCCESS;
}

vmm_status allocate_dedicated(pool_object& on, std::uint64_t size_bytes, vmm_stream stream,
                              void** at) {
  if (!names_stream(on.driver, stream)) return fail_stream();
  const vmm::result<vmm::address> got =
      on.pool.allocate_dedicated(size_bytes, stream_of(on.driver, stream));
  if (!got) return fail(got.error());
  *at = pointer_to(*got);
  return VMM_SUCCESS;
}

std::uint32_t kind_of(vmm::pool_region_kind kind) noexcept {
  switch (kind) {
    case vmm::pool_region_kind::live: return VMM_REGION_LIVE;
    case vmm::pool_region_kind::free: return VMM_REGION_FREE;
    case vmm::pool_region_kind::hole: return VMM_REGION_HOLE;
    case vmm::pool_region_kind::stale: return VMM_REGION_STALE;
    case vmm::pool_region_kind::busy: return VMM_REGION_BUSY;
  }
  return VMM_REGION_BUSY;
}

vmm_pool_statistics statistics_of(vmm::stream_pool& pool) {
  const auto now = pool.statistics();
  vmm_pool_statistics out{};
  out.reserved_bytes = now.reserved_bytes;
  out.mapped_bytes = now.mapped_bytes;
  out.live_bytes = now.live_bytes;
  out.peak_live_bytes = now.peak_live_bytes;
  out.peak_mapped_bytes = now.peak_mapped_bytes;
  out.reusable_bytes = now.reusable_bytes;
  out.captured_bytes = now.captured_bytes;
  out.hole_bytes = now.hole_bytes;
  out.stale_bytes = now.stale_bytes;
  out.live_count = now.live_count;
  out.stale_count = now.stale_count;
  out.pinned_count = now.pinned_count;
  out.stream_count = now.stream_count;
  out.slow_count = now.slow_count;
  out.created_count = now.created_count;
  out.moved_count = now.moved_count;
  out.moved_bytes = now.moved_bytes;
  out.other_stream_count = now.other_stream_count;
  out.device_wait_count = now.device_wait_count;
  out.event_count = now.event_count;
  out.host_wait_count = now.host_wait_count;
  out.suspended_bytes = now.suspended_bytes;
  out.arena_count = now.arena_count;
  out.arena_bytes = now.arena_bytes;
  out.held_bytes = now.held_bytes;
  out.pending_bytes = now.pending_bytes;
  return out;
}

vmm_shortage shortage_of(vmm::stream_pool& pool) {
  const auto last = pool.last_shortage();
  vmm_shortage out{};
  out.request_bytes = last.request_bytes;
  out.stream = native(last.stream);
  out.failure = status_of(last.failure);
  out.trimmed = last.trimmed ? 1 : 0;
  out.waited = last.waited ? 1 : 0;
  out.live_bytes = last.live_bytes;
  out.reusable_bytes = last.reusable_bytes;
  out.largest_free_bytes = last.largest_free_bytes;
  out.held_bytes = last.held_bytes;
  out.budget_bytes = last.budget_bytes;
  return out;
}

}  // namespace

std::optional<vmm_status> with_pool(const void* handle, pool_work work, void* context) {
  const call_on<pool_object> pool(handle);
  if (!pool) return std::nullopt;
  return pool->is_telling() ? fail_in_callback() : work(pool->pool, context);
}

}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_pool_options_init(vmm_pool_options* options, uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size, [](vmm_pool_options& out) {
    const vmm::pool_options defaults;
    out.reservation_bytes = defaults.reservation_bytes;
    out.page_bytes = defaults.page_bytes;
    out.page_count = defaults.page_count;
    out.budget_bytes = defaults.budget_bytes;
    out.wait_when_short = defaults.wait_when_short ? 1 : 0;
    out.capture = VMM_CAPTURE_REFUSE;
    out.report_live = 1;
  });
}

vmm_status vmm_pool_create(vmm_driver* driver, const vmm_pool_options* options,
                           vmm_pool** pool) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (pool == nullptr) return fail_null();
    *pool = nullptr;
    const call_on<driver_object> on(driver);
    const handler_scope handlers;
    return on ? create(*on, options, pool) : fail_handle();
  });
}

vmm_status vmm_pool_destroy(vmm_pool* pool) VMM_NOEXCEPT {
  if (pool == nullptr) return VMM_SUCCESS;
  return run([&] {
    return destroy<pool_object>(pool, [](pool_object& gone) {
      driver_object& driver = gone.driver;
      delete &gone;
      driver.user_count.fetch_sub(1);
    });
  });
}

vmm_status vmm_pool_allocate(vmm_pool* pool, uint64_t size_bytes, vmm_stream stream,
                             void** at) VMM_NOEXCEPT {
  if (at == nullptr) return fail_null();
  *at = nullptr;
  return outside_callbacks(
      pool, [&](pool_object& on) { return allocate(on, size_bytes, 1, stream, at); });
}

vmm_status vmm_pool_allocate_aligned(vmm_pool* pool, uint64_t size_bytes, uint64_t alignment_bytes,
                                     vmm_stream stream, void** at) VMM_NOEXCEPT {
  if (at == nullptr) return fail_null();
  *at = nullptr;
  return outside_callbacks(
      pool, [&](pool_object& on) { return allocate(on, size_bytes, alignment_bytes, stream, at); });
}

vmm_status vmm_pool_free(vmm_pool* pool, void* at, vmm_stream stream) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (at == nullptr) return VMM_SUCCESS;
    if (!names_stream(on.driver, stream)) return fail_stream();
    return answer(on.pool.free(address_of(at), stream_of(on.driver, stream)));
  });
}

vmm_status vmm_pool_free_sized(vmm_pool* pool, void* at, uint64_t size_bytes,
                               vmm_stream stream) VMM_NOEXCEPT {
  (void)size_bytes;
  return vmm_pool_free(pool, at, stream);
}

vmm_status vmm_pool_free_unordered(vmm_pool* pool, void* at) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (at == nullptr) return VMM_SUCCESS;
    return answer(on.pool.free(address_of(at)));
  });
}

vmm_status vmm_pool_capture_begin(vmm_pool* pool) VMM_NOEXCEPT {
  return outside_callbacks(pool,
                           [&](pool_object& on) { return answer(on.pool.captures().begin()); });
}

vmm_status vmm_pool_capture_end(vmm_pool* pool) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) { return answer(on.pool.captures().end()); });
}

vmm_status vmm_pool_pin(vmm_pool* pool, void* at) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) { return answer(on.pool.pin(address_of(at))); });
}

vmm_status vmm_pool_unpin(vmm_pool* pool, void* at) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) { return answer(on.pool.unpin(address_of(at))); });
}

vmm_status vmm_pool_forget_stream(vmm_pool* pool, vmm_stream stream) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) -> vmm_status {
    if (!names_stream(on.driver, stream)) return fail_stream();
    return answer(on.pool.forget(stream_of(on.driver, stream)));
  });
}

vmm_status vmm_pool_capture_number(vmm_pool* pool, vmm_stream stream,
                                   uint64_t* number) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (number == nullptr) return fail_null();
    if (!names_stream(on.driver, stream)) return fail_stream();
    const vmm::result<std::uint64_t> found =
        on.pool.captures().number(stream_of(on.driver, stream));
    if (!found) return fail(found.error());
    *number = *found;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_pool_capture_release(vmm_pool* pool, uint64_t number,
                                    vmm_stream stream) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) -> vmm_status {
    if (!names_stream(on.driver, stream)) return fail_stream();
    return answer(on.pool.captures().release(number, stream_of(on.driver, stream)));
  });
}

vmm_status vmm_pool_synchronize(vmm_pool* pool) VMM_NOEXCEPT {
  return outside_callbacks(pool, [](pool_object& on) { return answer(on.pool.synchronize()); });
}

vmm_status vmm_pool_trim(vmm_pool* pool, uint64_t limit_bytes,
                         vmm_trim_report* report) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) -> vmm_status {
    if (report != nullptr && !is_sized(*report)) return fail_size(*report);
    return answer_trim(on.pool.trim(limit_bytes), report);
  });
}

vmm_status vmm_pool_preallocate(vmm_pool* pool, uint64_t size_bytes, vmm_stream stream,
                                vmm_preallocate_report* report) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) -> vmm_status {
    if (report != nullptr && !is_sized(*report)) return fail_size(*report);
    if (!names_stream(on.driver, stream)) return fail_stream();
    const vmm::preallocate_report done =
        on.pool.preallocate(size_bytes, stream_of(on.driver, stream));
    if (report != nullptr) {
      vmm_preallocate_report numbers{};
      numbers.created_bytes = done.created_bytes;
      numbers.moved_bytes = done.moved_bytes;
      numbers.unmapped_count = done.unmapped_count;
      numbers.left_bytes = done.left_bytes;
      write_struct(*report, numbers);
    }
    return done.failure.code == vmm::errc::none ? VMM_SUCCESS : fail(done.failure);
  });
}

vmm_status vmm_pool_get_statistics(vmm_pool* pool, vmm_pool_statistics* statistics) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (statistics == nullptr) return fail_null();
    if (!is_sized(*statistics)) return fail_size(*statistics);
    write_struct(*statistics, statistics_of(on.pool));
    return VMM_SUCCESS;
  });
}

vmm_status vmm_pool_regions(vmm_pool* pool, vmm_pool_region* regions, uint64_t capacity,
                            uint64_t* count) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (count == nullptr || (regions == nullptr && capacity != 0)) return fail_null();
    const auto listed = on.pool.regions();
    if (!listed) return fail(listed.error());
    *count = listed->size();
    for (std::size_t i = 0; i < listed->size() && i < capacity; ++i) {
      const vmm::pool_region& each = (*listed)[i];
      regions[i] = {pointer_to(each.range.base),
                    each.range.size_bytes,
                    native(each.stream),
                    kind_of(each.kind),
                    {}};
    }
    return VMM_SUCCESS;
  });
}

vmm_status vmm_pool_dump(vmm_pool* pool, char* text, uint64_t capacity,
                         uint64_t* size) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (size == nullptr || (text == nullptr && capacity != 0)) return fail_null();
    const auto dumped = on.pool.dump();
    if (!dumped) return fail(dumped.error());
    *size = dumped->size() + 1;
    if (capacity != 0) text[dumped->copy(text, capacity - 1)] = 0;
    return VMM_SUCCESS;
  });
}

vmm_status vmm_pool_last_shortage(vmm_pool* pool, vmm_shortage* shortage) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (shortage == nullptr) return fail_null();
    if (!is_sized(*shortage)) return fail_size(*shortage);
    write_struct(*shortage, shortage_of(on.pool));
    return VMM_SUCCESS;
  });
}

vmm_status vmm_pool_subscribe(vmm_pool* pool, vmm_remap_callback callback, void* context,
                              uint64_t* subscription) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) -> vmm_status {
    if (callback == nullptr || subscription == nullptr) return fail_null();
    return on.subscribe(callback, context, *subscription);
  });
}

vmm_status vmm_pool_unsubscribe(vmm_pool* pool, uint64_t subscription) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) { return on.unsubscribe(subscription); });
}

vmm_status vmm_pool_remap_epoch(vmm_pool* pool, uint64_t* epoch) VMM_NOEXCEPT {
  return on_pool(pool, [&](pool_object& on) -> vmm_status {
    if (epoch == nullptr) return fail_null();
    *epoch = on.pool.remaps().epoch();
    return VMM_SUCCESS;
  });
}

vmm_status vmm_pool_set_peers(vmm_pool* pool, const vmm_grant* grants,
                              uint64_t count) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) {
    return with_grants(grants, count, [&](std::span<const vmm::access_grant> list) {
      return answer(on.pool.set_peers(list));
    });
  });
}

vmm_status vmm_pool_allocate_dedicated(vmm_pool* pool, uint64_t size_bytes, vmm_stream stream,
                                       void** at) VMM_NOEXCEPT {
  if (at == nullptr) return fail_null();
  *at = nullptr;
  return outside_callbacks(
      pool, [&](pool_object& on) { return allocate_dedicated(on, size_bytes, stream, at); });
}

vmm_status vmm_pool_set_access(vmm_pool* pool, void* at, const vmm_grant* grants,
                               uint64_t count) VMM_NOEXCEPT {
  return outside_callbacks(pool, [&](pool_object& on) {
    return with_grants(grants, count, [&](std::span<const vmm::access_grant> list) {
      return answer(on.pool.set_access(address_of(at), list));
    });
  });
}

vmm_status vmm_pool_validate(vmm_pool* pool) VMM_NOEXCEPT {
  return outside_callbacks(pool, [](pool_object& on) { return answer(on.pool.validate()); });
}

}  // extern "C"
