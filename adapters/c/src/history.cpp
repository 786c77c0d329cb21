// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Histories of pools, managers and allocators by way of vmm.h, and vmm-top.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "history.hpp"
#include "manager_object.hpp"
#include "objects.hpp"

import vmm.manager;
import vmm.observe;
import vmm.stream;

namespace vmm_c {

template <>
inline constexpr struct_version first_version<vmm_history_options>{32, "vmm_history_options"};

namespace {

vmm_status fail_one_device() noexcept {
  return fail(VMM_ERROR_INVALID_ARGUMENT,
              "a pool or manager is on one device: pass 0; other numbers are for allocators");
}

struct owner {
  const void* handle = nullptr;
  std::int32_t device = 0;
};

// `work` on the pool or manager that the owner is.
template <class Work>
vmm_status on_owner(const owner& of, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const pool_work on_pool = [](vmm::stream_pool& pool, void* context) -> vmm_status {
      return (*static_cast<Work*>(context))(pool);
    };
    const pool_work on_another_device = [](vmm::stream_pool&, void*) { return fail_one_device(); };
    if (const call_on<manager_object> manager(of.handle); manager)
      return of.device == 0 ? work(manager->manager) : fail_one_device();
    const pool_work wanted = of.device == 0 ? on_pool : on_another_device;
    if (const auto done = with_pool(of.handle, wanted, &work)) return *done;
    if (const auto done = with_allocator(of.handle, of.device, on_pool, &work)) return *done;
    return fail_handle();
  });
}

vmm_status read_options(const vmm_history_options* given, vmm::history_options& into) {
  if (given == nullptr) return VMM_SUCCESS;
  vmm_history_options full;
  (void)vmm_history_options_init(&full, sizeof(full));
  if (const vmm_status read = read_struct(*given, full); read != VMM_SUCCESS) return read;
  into.event_count = full.event_count;
  into.clock_interval = full.clock_interval;
  into.shortage_count_max = full.shortage_count_max;
  if (full.shortage_path != nullptr) into.shortage_path = full.shortage_path;
  return VMM_SUCCESS;
}

vmm_status write_taken(const vmm::result<vmm::history>& taken, const char* path) noexcept {
  if (!taken) return fail(taken.error());
  return path == nullptr ? VMM_SUCCESS : answer(vmm::write_history(*taken, path));
}

}  // namespace
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_history_options_init(vmm_history_options* options,
                                    uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size, [](vmm_history_options& out) {
    const vmm::history_options defaults;
    out.event_count = defaults.event_count;
    out.clock_interval = defaults.clock_interval;
    out.shortage_count_max = defaults.shortage_count_max;
  });
}

vmm_status vmm_history_start(const void* owner_handle, int32_t device,
                             const vmm_history_options* options) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    vmm::history_options how;
    if (const vmm_status read = read_options(options, how); read != VMM_SUCCESS) return read;
    return on_owner({owner_handle, device},
                    [&](auto& of) { return answer(of.history().start(how)); });
  });
}

vmm_status vmm_history_dump(const void* owner_handle, int32_t device,
                            const char* path) VMM_NOEXCEPT {
  if (path == nullptr) return fail_null();
  return on_owner({owner_handle, device},
                  [&](auto& of) { return write_taken(of.history().take(), path); });
}

vmm_status vmm_history_stop(const void* owner_handle, int32_t device,
                            const char* path) VMM_NOEXCEPT {
  return on_owner({owner_handle, device},
                  [&](auto& of) { return write_taken(of.history().stop(), path); });
}

vmm_status vmm_history_tag(const char* name, uint32_t* number) VMM_NOEXCEPT {
  if (name == nullptr || number == nullptr) return fail_null();
  *number = vmm::history_tag(name);
  return *number != 0 ? VMM_SUCCESS : fail_host_memory();
}

vmm_status vmm_history_line(const char* file, uint32_t line, const char* function,
                            uint32_t* number) VMM_NOEXCEPT {
  if (file == nullptr || function == nullptr || number == nullptr) return fail_null();
  *number = vmm::history_line(file, line, function);
  return *number != 0 ? VMM_SUCCESS : fail_host_memory();
}

vmm_status vmm_history_label(uint32_t tag, uint32_t line, uint32_t* tag_before,
                             uint32_t* line_before) VMM_NOEXCEPT {
  const vmm::history_label::names now{static_cast<std::uint16_t>(tag), line};
  if (now.tag != tag || !vmm::is_history_label(now))
    return fail(VMM_ERROR_INVALID_ARGUMENT, "no tag or line has this number");
  const vmm::history_label::names before = vmm::set_history_label(now);
  if (tag_before != nullptr) *tag_before = before.tag;
  if (line_before != nullptr) *line_before = before.frame;
  return VMM_SUCCESS;
}

vmm_status vmm_top_publish(uint32_t on) VMM_NOEXCEPT {
  if (on > 1) return fail(VMM_ERROR_INVALID_ARGUMENT, "on is 0 or 1");
  (void)vmm::publish_allocators(on == 1);
  return VMM_SUCCESS;
}

}  // extern "C"
