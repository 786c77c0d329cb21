// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "manager_object.hpp"
#include "objects.hpp"
#include "python.hpp"

import vmm.manager;
import vmm.stream;

namespace vmm_c {
namespace {

// A call on a manager: `work` gets it.
template <class Work>
vmm_status on_manager(vmm_manager* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<manager_object> manager(handle);
    const handler_scope handlers;
    return manager ? work(*manager) : fail_handle();
  });
}

vmm_status apply(const vmm_manager_options& given, vmm::manager_options& options) {
  if (const vmm_status shared = check_shared(given); shared != VMM_SUCCESS) return shared;
  if (given.policy != nullptr) {
    const vmm::result<vmm::manager_policy> policy = vmm::manager_policy::by_name(given.policy);
    if (!policy) return fail(policy.error());
    options.policy = *policy;
  }
  constexpr std::uint32_t share_bits = VMM_SHARE_POSIX_FD | VMM_SHARE_WIN32 | VMM_SHARE_FABRIC;
  if ((given.shareable & ~share_bits) != 0)
    return fail_value(VMM_ERROR_BAD_OPTION, given.shareable,
                      "shareable is made of VMM_SHARE_POSIX_FD, VMM_SHARE_WIN32, VMM_SHARE_FABRIC");
  const vmm_status flags =
      check_flags(VMM_ERROR_BAD_OPTION, {{given.compressible, "compressible is 0 or 1"},
                                         {given.rdma_capable, "rdma_capable is 0 or 1"},
                                         {given.streams_forgotten, "streams_forgotten is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  apply_shared(given, options);
  const bool own_ratio = given.fragment_ratio == VMM_POLICY_RATIO;
  if (!own_ratio) options.policy.fragment_ratio = given.fragment_ratio;
  if (given.chunk_bytes != VMM_POLICY_CHUNK) options.policy.chunk_bytes = given.chunk_bytes;
  options.shareable = static_cast<vmm::share_kind>(given.shareable);
  options.compressible = given.compressible != 0;
  options.rdma_capable = given.rdma_capable != 0;
  options.streams_forgotten = given.streams_forgotten != 0;
  if (given.read_environment == 0) return answer(options.validate());
  const vmm::result<vmm::manager_options> read = vmm::manager_options::from_environment(options);
  if (!read) return fail(read.error());
  const auto others = vmm::pool_options::from_environment({});
  if (!others) return fail(others.error());
  options = *read;
  return VMM_SUCCESS;
}

vmm_status create(driver_object& driver, const vmm_manager_options* given, vmm_manager** out) {
  if (!driver.made_in.is_here()) return fail_forked();
  vmm_manager_options full;
  (void)vmm_manager_options_init(&full, sizeof(full));
  if (given != nullptr) {
    if (const vmm_status read = read_struct(*given, full); read != VMM_SUCCESS) return read;
  }
  vmm::manager_options options;
  if (const vmm_status applied = apply(full, options); applied != VMM_SUCCESS) return applied;
  auto made = std::make_unique<manager_object>(driver, options);
  if (const vmm::status ready = made->manager.set_up(); !ready) return fail(ready.error());
  return hand_out(std::move(made), driver, out);
}

vmm_status allocate(manager_object& on, const vmm_block_request& given, void** at) {
  vmm_block_request request{};
  if (const vmm_status read = read_struct(given, request); read != VMM_SUCCESS) return read;
  if (!names_stream(on.driver, request.stream)) return fail_stream();
  const vmm::result<vmm::address> got =
      on.manager.allocate({.size_bytes = request.size_bytes,
                           .growth_bytes = request.growth_bytes,
                           .alignment_bytes = request.alignment_bytes,
                           .stream = stream_of(on.driver, request.stream)});
  if (!got) return fail(got.error());
  *at = pointer_to(*got);
  return VMM_SUCCESS;
}

vmm_status resize(manager_object& on, const vmm_resize_request& given, void** at) {
  vmm_resize_request request{};
  if (const vmm_status read = read_struct(given, request); read != VMM_SUCCESS) return read;
  const vmm_status flags = check_flags(
      VMM_ERROR_INVALID_ARGUMENT,
      {{request.in_place, "in_place is 0 or 1"}, {request.names_stream, "names_stream is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  const vmm::result<vmm::address> moved =
      on.manager.resize({.at = address_of(request.at),
                         .size_bytes = request.size_bytes,
                         .growth_bytes = request.growth_bytes,
                         .may_move = request.in_place == 0,
                         .names_stream = request.names_stream != 0});
  if (!moved) return fail(moved.error());
  *at = pointer_to(*moved);
  return VMM_SUCCESS;
}

vmm_status copy(manager_object& on, const vmm_copy_request& given) {
  vmm_copy_request request{};
  if (const vmm_status read = read_struct(given, request); read != VMM_SUCCESS) return read;
  if (request.reserved != 0)
    return fail(VMM_ERROR_INVALID_ARGUMENT, "a reserved member of a request is 0");
  if (request.mode > VMM_COPY_MOVE)
    return fail_value(VMM_ERROR_INVALID_ARGUMENT, request.mode,
                      "mode is one of VMM_COPY_BYTES, VMM_COPY_ALIAS, VMM_COPY_MOVE");
  if (!names_stream(on.driver, request.stream)) return fail_stream();
  if (!fits(request.target, request.size_bytes) || !fits(request.source, request.size_bytes))
    return fail_range();
  vmm::copy_mode mode = vmm::copy_mode::copy;
  if (request.mode == VMM_COPY_ALIAS) mode = vmm::copy_mode::alias;
  if (request.mode == VMM_COPY_MOVE) mode = vmm::copy_mode::move;
  const vmm::address_range target{address_of(request.target), request.size_bytes};
  const vmm::address_range source{address_of(request.source), request.size_bytes};
  const vmm::status copied = on.manager.copy({.target = target.base,
                                              .source = source.base,
                                              .size_bytes = request.size_bytes,
                                              .stream = stream_of(on.driver, request.stream)},
                                             mode);
  if (!copied && on.driver.has_suspended(target)) return fail(vmm::memory_suspended);
  return answer_access(on.driver, source, copied);
}

vmm_status find(manager_object& on, const void* at, vmm_block_info& out) {
  const auto found = on.manager.find(address_of(at));
  if (!found) return fail(found.error());
  vmm_block_info info{};
  info.base = pointer_to(found->base);
  info.user_bytes = found->sizes.user_bytes;
  info.mapped_bytes = found->sizes.mapped_bytes;
  info.reserved_bytes = found->sizes.reserved_bytes;
  info.stream = native(found->stream);
  info.handle_count = found->handles.size();
  write_struct(out, info);
  return VMM_SUCCESS;
}

vmm_manager_statistics statistics_of(vmm::manager& manager) {
  const auto now = manager.statistics();
  vmm_manager_statistics out{};
  out.granularity_bytes = manager.granularity_bytes();
  out.live_count = now.live_count;
  out.user_bytes = now.user_bytes;
  out.mapped_bytes = now.mapped_bytes;
  out.held_bytes = now.held_bytes;
  out.peak_held_bytes = now.peak_held_bytes;
  out.retained_bytes = now.retained_bytes;
  out.retained_mapped_bytes = now.retained_mapped_bytes;
  out.retired_bytes = now.retired_bytes;
  out.reserved_bytes = now.reserved_bytes;
  out.space_live_bytes = now.space_live_bytes;
  out.space_high_water_bytes = now.space_high_water_bytes;
  out.created_count = now.created_count;
  out.reused_handle_count = now.reused_handle_count;
  out.reused_range_count = now.reused_range_count;
  out.grown_reuse_count = now.grown_reuse_count;
  out.unbound_range_count = now.unbound_range_count;
  out.remapped_copy_count = now.remapped_copy_count;
  out.real_copy_count = now.real_copy_count;
  out.recovery_count = now.recovery_count;
  out.suspended_bytes = now.suspended_bytes;
  out.refused_unmap_count = now.refused_unmap_count;
  return out;
}

std::uint32_t kind_of(vmm::extent_kind kind) noexcept {
  switch (kind) {
    case vmm::extent_kind::live: return VMM_EXTENT_LIVE;
    case vmm::extent_kind::retained: return VMM_EXTENT_RETAINED;
    case vmm::extent_kind::retired: return VMM_EXTENT_RETIRED;
    case vmm::extent_kind::hole: return VMM_EXTENT_HOLE;
  }
  return VMM_EXTENT_HOLE;
}

}  // namespace
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_manager_options_init(vmm_manager_options* options,
                                    uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size, [](vmm_manager_options& out) {
    const vmm::manager_options defaults;
    out.fragment_ratio = VMM_POLICY_RATIO;
    out.chunk_bytes = VMM_POLICY_CHUNK;
    out.reservation_bytes = defaults.reservation_bytes;
    out.budget_bytes = defaults.budget_bytes;
    out.wait_when_short = defaults.wait_when_short ? 1 : 0;
    out.report_live = 1;
  });
}

vmm_status vmm_manager_create(vmm_driver* driver, const vmm_manager_options* options,
                              vmm_manager** manager) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (manager == nullptr) return fail_null();
    *manager = nullptr;
    const call_on<driver_object> on(driver);
    return on ? create(*on, options, manager) : fail_handle();
  });
}

vmm_status vmm_manager_destroy(vmm_manager* manager) VMM_NOEXCEPT {
  if (manager == nullptr) return VMM_SUCCESS;
  return run([&] {
    return destroy<manager_object>(manager, [](manager_object& gone) {
      driver_object& driver = gone.driver;
      delete &gone;
      driver.user_count.fetch_sub(1);
    });
  });
}

vmm_status vmm_manager_allocate(vmm_manager* manager, const vmm_block_request* request,
                                void** at) VMM_NOEXCEPT {
  if (at == nullptr) return fail_null();
  *at = nullptr;
  return on_manager(manager, [&](manager_object& on) {
    return request == nullptr ? fail_null() : allocate(on, *request, at);
  });
}

vmm_status vmm_manager_free(vmm_manager* manager, void* at) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    return at == nullptr ? VMM_SUCCESS : answer(on.manager.free(address_of(at)));
  });
}

vmm_status vmm_manager_free_on(vmm_manager* manager, void* at, vmm_stream last_use) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    if (at == nullptr) return VMM_SUCCESS;
    if (!names_stream(on.driver, last_use)) return fail_stream();
    return answer(on.manager.free(address_of(at), stream_of(on.driver, last_use)));
  });
}

vmm_status vmm_manager_free_idle(vmm_manager* manager, void* at) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    return at == nullptr ? VMM_SUCCESS : answer(on.manager.free_idle(address_of(at)));
  });
}

vmm_status vmm_manager_resize(vmm_manager* manager, const vmm_resize_request* request,
                              void** at) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) {
    return request == nullptr || at == nullptr ? fail_null() : resize(on, *request, at);
  });
}

vmm_status vmm_manager_copy(vmm_manager* manager, const vmm_copy_request* request) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) {
    return request == nullptr ? fail_null() : copy(on, *request);
  });
}

vmm_status vmm_manager_forget_stream(vmm_manager* manager, vmm_stream stream) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    if (!on.made_in.is_here()) return fail_forked();
    if (!names_stream(on.driver, stream)) return fail_stream();
    on.manager.forget(stream_of(on.driver, stream));
    return VMM_SUCCESS;
  });
}

vmm_status vmm_manager_synchronize(vmm_manager* manager, void* at) VMM_NOEXCEPT {
  return on_manager(
      manager, [&](manager_object& on) { return answer(on.manager.synchronize(address_of(at))); });
}

vmm_status vmm_manager_find(vmm_manager* manager, const void* at,
                            vmm_block_info* info) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    if (info == nullptr) return fail_null();
    return is_sized(*info) ? find(on, at, *info) : fail_size(*info);
  });
}

vmm_status vmm_manager_trim(vmm_manager* manager, uint64_t limit_bytes,
                            vmm_trim_report* report) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    if (report != nullptr && !is_sized(*report)) return fail_size(*report);
    return answer_trim(on.manager.trim(limit_bytes), report);
  });
}

vmm_status vmm_manager_get_statistics(vmm_manager* manager,
                                      vmm_manager_statistics* statistics) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    if (statistics == nullptr) return fail_null();
    if (!is_sized(*statistics)) return fail_size(*statistics);
    write_struct(*statistics, statistics_of(on.manager));
    return VMM_SUCCESS;
  });
}

vmm_status vmm_manager_extents(vmm_manager* manager, vmm_extent* extents, uint64_t capacity,
                               uint64_t* count) VMM_NOEXCEPT {
  return on_manager(manager, [&](manager_object& on) -> vmm_status {
    if (count == nullptr || (extents == nullptr && capacity != 0)) return fail_null();
    const vmm::result<std::vector<vmm::extent_info>> listed = on.manager.extents();
    if (!listed) return fail(listed.error());
    *count = listed->size();
    for (std::size_t i = 0; i < listed->size() && i < capacity; ++i) {
      const vmm::extent_info& each = (*listed)[i];
      extents[i] = {pointer_to(each.where.base),
                    each.where.size_bytes,
                    each.mapped_bytes,
                    kind_of(each.kind),
                    {}};
    }
    return VMM_SUCCESS;
  });
}

vmm_status vmm_manager_validate(vmm_manager* manager) VMM_NOEXCEPT {
  return on_manager(manager, [](manager_object& on) -> vmm_status {
    if (!on.made_in.is_here()) return fail_forked();
    if (on.manager.validate()) return VMM_SUCCESS;
    return fail(VMM_ERROR_INTERNAL, "an invariant of the manager does not hold");
  });
}

}  // extern "C"
