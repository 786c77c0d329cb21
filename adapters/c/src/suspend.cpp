// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "handles.hpp"
#include "structs.hpp"
#include "vmm.h"

#include "manager_object.hpp"
#include "objects.hpp"
#include "pool_object.hpp"
#include "python.hpp"

import vmm.base;
import vmm.manager;
import vmm.stream;
import vmm.suspend;

namespace vmm_c {
namespace {

// Why the object, and its driver, are not destroyed.
template <class Object>
void count_region(Object& region, bool is_added) noexcept {
  const std::uint32_t change = is_added ? 1 : ~std::uint32_t{0};
  region.region_count.fetch_add(change);
  region.driver.region_count.fetch_add(change);
}

// What the handle of a suspender stands for. Its pools and managers count it as a user.
struct suspender_object {
  static constexpr handle_kind kind = handle_kind::suspender;
  static constexpr const char* is_used_text =
      "another thread's call on the suspender has not returned";
  explicit suspender_object(const vmm::suspend_options& options)
      : made(std::make_unique<vmm::suspender>(options)), suspender(*made) {}
  ~suspender_object() {
    made.reset();  // before its pools and managers may go
    for (pool_object* const each : pools) count_region(*each, false);
    for (manager_object* const each : managers) count_region(*each, false);
  }
  suspender_object(const suspender_object&) = delete;
  suspender_object& operator=(const suspender_object&) = delete;

  [[nodiscard]] static bool has_users() noexcept { return false; }

  // A handler of a signal that runs inside a call would wait for its own thread's locks.
  template <class Work>
  [[nodiscard]] vmm_status by_one_thread(Work&& work) {
    if (!runs_handlers_here()) return work();
    if (is_inside)
      return fail(VMM_ERROR_IN_USE,
                  "the suspender waits in a call that this signal handler interrupts: raise an "
                  "exception, which ends the call");
    const struct inside {
      explicit inside(bool& of) noexcept : is(of) { is = true; }
      ~inside() { is = false; }
      bool& is;
    } here(is_inside);
    return work();
  }

  const made_here made_in;
  bool is_inside = false;  // the thread that runs handlers, which alone uses this
  vmm::sync::mutex mutex;  // of the two lists
  std::vector<pool_object*> pools;
  std::vector<manager_object*> managers;
  std::unique_ptr<vmm::suspender> made;
  vmm::suspender& suspender;
};

// A call on a suspender: `work` gets it. Not in a remap callback: the suspender's lock may be held
// by the same thread, or by one that waits for the callback's pool.
template <class Work>
vmm_status on_suspender(vmm_suspender* handle, Work&& work) noexcept {
  return run([&]() -> vmm_status {
    const call_on<suspender_object> on(handle);
    if (!on) return fail_handle();
    if (!on->made_in.is_here()) return fail_forked();
    if (callbacks_inside != 0) return fail_in_callback();
    const handler_scope handlers;
    return on->by_one_thread([&] { return work(*on); });
  });
}

vmm_status create(const vmm_suspender_options* given, vmm_suspender** out) {
  vmm_suspender_options full;
  (void)vmm_suspender_options_init(&full, sizeof(full));
  if (given != nullptr) {
    if (const vmm_status read = read_struct(*given, full); read != VMM_SUCCESS) return read;
  }
  if (full.tier > VMM_BACKUP_FILE)
    return fail_value(
        VMM_ERROR_BAD_OPTION, full.tier,
        "tier is one of VMM_BACKUP_BEST, VMM_BACKUP_PINNED, VMM_BACKUP_PAGEABLE, VMM_BACKUP_FILE");
  const vmm_status flags = check_flags(VMM_ERROR_BAD_OPTION, {{full.verify, "verify is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  vmm::suspend_options options;
  options.tier = static_cast<vmm::backup_tier>(full.tier);
  options.verify = full.verify != 0;
  if (full.directory != nullptr) options.directory = full.directory;
  if (const vmm::status valid = options.validate(); !valid) return fail(valid.error());
  auto made = std::make_unique<suspender_object>(options);
  void* const handle = add_handle(suspender_object::kind, made.get());
  if (handle == nullptr)
    return fail(VMM_ERROR_OUT_OF_HOST_MEMORY,
                "no handle is left: at most 65,536 can exist at a time");
  (void)made.release();
  *out = static_cast<vmm_suspender*>(handle);
  return VMM_SUCCESS;
}

vmm::stream_pool& allocator_of(pool_object& of) noexcept { return of.pool; }
vmm::manager& allocator_of(manager_object& of) noexcept { return of.manager; }
std::vector<pool_object*>& list_of(suspender_object& on, const pool_object&) { return on.pools; }
std::vector<manager_object*>& list_of(suspender_object& on, const manager_object&) {
  return on.managers;
}

template <class Object>
vmm_status add(suspender_object& on, Object& region, const char* tag, std::uint32_t contents) {
  if (tag == nullptr) return fail_null();
  if (contents > VMM_CONTENTS_DISCARD)
    return fail_value(
        VMM_ERROR_INVALID_ARGUMENT, contents,
        "contents is one of VMM_CONTENTS_KEEP, VMM_CONTENTS_ZERO, VMM_CONTENTS_DISCARD");
  const vmm::sync::lock_guard<vmm::sync::mutex> lock(on.mutex);
  std::vector<Object*>& list = list_of(on, region);
  list.reserve(list.size() + 1);
  const vmm::status added =
      on.suspender.add(allocator_of(region), {tag, static_cast<vmm::suspend_contents>(contents)});
  if (!added) return fail(added.error());
  count_region(region, true);
  list.push_back(&region);
  return VMM_SUCCESS;
}

template <class Object>
vmm_status remove(suspender_object& on, Object& region) {
  const vmm::sync::lock_guard<vmm::sync::mutex> lock(on.mutex);
  std::vector<Object*>& list = list_of(on, region);
  const vmm::status removed = on.suspender.remove(allocator_of(region));
  if (!removed) return fail(removed.error());
  list.erase(std::remove(list.begin(), list.end(), &region), list.end());
  count_region(region, false);
  return VMM_SUCCESS;
}

// The tags of a call; false where one is null.
bool read_tags(const char* const* tags, std::uint64_t count, std::vector<std::string_view>& out) {
  if (tags == nullptr && count != 0) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (tags[i] == nullptr) return false;
    out.emplace_back(tags[i]);
  }
  return true;
}

// The streams of a call as the drivers of the regions name them: each by all drivers with streams,
// and by one at least.
bool read_streams(suspender_object& on, const vmm_suspend_request& request,
                  std::vector<vmm::stream_handle>& out) {
  const vmm::sync::lock_guard<vmm::sync::mutex> lock(on.mutex);
  for (std::uint64_t i = 0; i < request.stream_count; ++i) {
    vmm::stream_handle named{address_of(request.streams[i]).value};
    bool is_named = request.streams[i] == nullptr || (on.pools.empty() && on.managers.empty());
    const auto name = [&](const driver_object& driver) {
      if (driver.is_cuda) named = stream_of(driver, request.streams[i]);
      is_named |= driver.has_streams;
      return !driver.has_streams || names_stream(driver, request.streams[i]);
    };
    const auto is_none = [&](const auto* each) { return !name(each->driver); };
    if (std::any_of(on.pools.begin(), on.pools.end(), is_none)) return false;
    if (std::any_of(on.managers.begin(), on.managers.end(), is_none)) return false;
    if (!is_named) return false;
    out.push_back(named);
  }
  return true;
}

void report_to(vmm_suspend_report& out, const vmm::suspend_report& report) noexcept {
  vmm_suspend_report numbers{};
  numbers.suspended_bytes = report.suspended_bytes;
  numbers.backup_bytes = report.backup_bytes;
  numbers.region_count = report.region_count;
  for (const vmm::retained_memory& each : report.retained) {
    switch (each.why) {
      case vmm::retain_reason::refused: numbers.refused_bytes += each.size_bytes; break;
      case vmm::retain_reason::cached: numbers.cached_bytes += each.size_bytes; break;
      case vmm::retain_reason::unfinished: numbers.unfinished_bytes += each.size_bytes; break;
    }
  }
  write_struct(out, numbers);
}

vmm_status suspend(suspender_object& on, const vmm_suspend_request* given,
                   vmm_suspend_report* report) {
  vmm_suspend_request request{};
  if (given != nullptr) {
    if (const vmm_status read = read_struct(*given, request); read != VMM_SUCCESS) return read;
  }
  if (report != nullptr && !is_sized(*report)) return fail_size(*report);
  const vmm_status flags =
      check_flags(VMM_ERROR_INVALID_ARGUMENT, {{request.use_contents, "use_contents is 0 or 1"}});
  if (flags != VMM_SUCCESS) return flags;
  if (request.contents > VMM_CONTENTS_DISCARD)
    return fail_value(
        VMM_ERROR_INVALID_ARGUMENT, request.contents,
        "contents is one of VMM_CONTENTS_KEEP, VMM_CONTENTS_ZERO, VMM_CONTENTS_DISCARD");
  if (request.streams == nullptr && request.stream_count != 0) return fail_null();
  std::vector<std::string_view> tags;
  std::vector<vmm::stream_handle> streams;
  if (!read_tags(request.tags, request.tag_count, tags)) return fail_null();
  if (!read_streams(on, request, streams)) return fail_stream();
  vmm::suspend_request wanted{.tags = tags, .streams = streams};
  if (request.use_contents != 0)
    wanted.contents = static_cast<vmm::suspend_contents>(request.contents);
  const vmm::result<vmm::suspend_report> done = on.suspender.suspend(wanted);
  if (!done) return fail(done.error());
  if (report != nullptr) report_to(*report, *done);
  return VMM_SUCCESS;
}

vmm_status query(suspender_object& on, const char* tag, vmm_suspender_info& out) {
  static thread_local std::string obstacle;
  vmm_suspender_info info{};
  if (tag != nullptr) {
    const vmm::result<bool> is_suspended = on.suspender.is_suspended(tag);
    if (!is_suspended) return fail(is_suspended.error());
    info.is_suspended = *is_suspended ? 1 : 0;
  }
  vmm::result<std::string> named = on.suspender.last_obstacle();
  if (!named) return fail(named.error());
  obstacle = std::move(*named);
  info.obstacle = obstacle.c_str();
  info.backup_bytes = on.suspender.backup_bytes();
  write_struct(out, info);
  return VMM_SUCCESS;
}

}  // namespace
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_suspender_options_init(vmm_suspender_options* options,
                                      uint64_t struct_size) VMM_NOEXCEPT {
  return init_struct(options, struct_size, [](vmm_suspender_options&) {});
}

vmm_status vmm_suspender_create(const vmm_suspender_options* options,
                                vmm_suspender** suspender) VMM_NOEXCEPT {
  return run([&]() -> vmm_status {
    if (suspender == nullptr) return fail_null();
    *suspender = nullptr;
    return create(options, suspender);
  });
}

vmm_status vmm_suspender_destroy(vmm_suspender* suspender) VMM_NOEXCEPT {
  if (suspender == nullptr) return VMM_SUCCESS;
  return run([&] {
    return destroy<suspender_object>(suspender, [](suspender_object& gone) { delete &gone; });
  });
}

vmm_status vmm_suspender_close(vmm_suspender* suspender, uint32_t lose_contents) VMM_NOEXCEPT {
  if (suspender == nullptr) return VMM_SUCCESS;
  return run([&]() -> vmm_status {
    const vmm_status flags =
        check_flags(VMM_ERROR_INVALID_ARGUMENT, {{lose_contents, "lose_contents is 0 or 1"}});
    if (flags != VMM_SUCCESS) return flags;
    return destroy<suspender_object>(
        suspender, [](suspender_object& gone) { delete &gone; },
        [&](suspender_object& of) -> const char* {
          if (lose_contents != 0 || !of.suspender.keeps_contents()) return nullptr;
          return "the contents of suspended memory would be lost: resume it first, or pass "
                 "lose_contents";
        });
  });
}

vmm_status vmm_suspender_add_pool(vmm_suspender* suspender, vmm_pool* pool, const char* tag,
                                  uint32_t contents) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    const call_on<pool_object> region(pool);
    return region ? add(on, *region, tag, contents) : fail_handle();
  });
}

vmm_status vmm_suspender_add_manager(vmm_suspender* suspender, vmm_manager* manager,
                                     const char* tag, uint32_t contents) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    const call_on<manager_object> region(manager);
    return region ? add(on, *region, tag, contents) : fail_handle();
  });
}

vmm_status vmm_suspender_remove_pool(vmm_suspender* suspender, vmm_pool* pool) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    const call_on<pool_object> region(pool);
    return region ? remove(on, *region) : fail_handle();
  });
}

vmm_status vmm_suspender_remove_manager(vmm_suspender* suspender,
                                        vmm_manager* manager) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    const call_on<manager_object> region(manager);
    return region ? remove(on, *region) : fail_handle();
  });
}

vmm_status vmm_suspender_suspend(vmm_suspender* suspender, const vmm_suspend_request* request,
                                 vmm_suspend_report* report) VMM_NOEXCEPT {
  return on_suspender(suspender,
                      [&](suspender_object& on) { return suspend(on, request, report); });
}

vmm_status vmm_suspender_offer(vmm_suspender* suspender, const char* const* tags,
                               uint64_t tag_count) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    std::vector<std::string_view> named;
    if (!read_tags(tags, tag_count, named)) return fail_null();
    return answer(on.suspender.offer(named));
  });
}

vmm_status vmm_suspender_resume(vmm_suspender* suspender, const char* const* tags,
                                uint64_t tag_count) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    std::vector<std::string_view> named;
    if (!read_tags(tags, tag_count, named)) return fail_null();
    return answer(on.suspender.resume(named));
  });
}

vmm_status vmm_suspender_query(vmm_suspender* suspender, const char* tag,
                               vmm_suspender_info* info) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    if (info == nullptr) return fail_null();
    if (!is_sized(*info)) return fail_size(*info);
    return query(on, tag, *info);
  });
}

vmm_status vmm_suspender_read_backup(vmm_suspender* suspender, void* into, const void* from,
                                     uint64_t size_bytes) VMM_NOEXCEPT {
  return on_suspender(suspender, [&](suspender_object& on) -> vmm_status {
    if (into == nullptr && size_bytes != 0) return fail_null();
    return answer(
        on.suspender.read_backup({static_cast<std::byte*>(into), size_bytes}, address_of(from)));
  });
}

vmm_status vmm_suspender_return_backups(vmm_suspender* suspender) VMM_NOEXCEPT {
  return on_suspender(suspender,
                      [](suspender_object& on) { return answer(on.suspender.return_backups()); });
}

}  // extern "C"
