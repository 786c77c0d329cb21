// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "handlers.h"

#include <cstdint>
#include <optional>

#include "accounts.h"
#include "cache.h"
#include "ipc.h"
#include "process.h"
#include "serve.h"
#include "settings.h"

namespace vmm::preload::handlers {
namespace {

using accounts::live_entry;
using accounts::live_kind;

constexpr std::size_t pitch_unit_bytes = 512;

// Distinguishes streams in a trace; the per-thread stream is the thread's.
std::uint64_t stream_key(stream_id stream, bool per_thread) noexcept {
  static thread_local char mine;
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  if (number == legacy_stream || (number == 0 && !per_thread)) return 0;
  if (number == per_thread_stream || number == 0) return reinterpret_cast<std::uintptr_t>(&mine);
  return number;
}

// Memory allocated without a stream ends with its context.
void note_memory(device_pointer at, std::size_t size, std::uint64_t stream) noexcept {
  const std::size_t slot = accounts::slot_of(accounts::current_device());
  const context_id context = stream == 0 ? accounts::current_context() : nullptr;
  accounts::note_made({live_kind::memory, at, size, stream, slot, context});
}

// Releases all idle memory to the driver.
bool release_idle(bool may_wait) noexcept {
  if (is_managed()) return managed::release_idle(may_wait) != 0;
  return is_caching() && cache::release_kept() != 0;
}

// For a request that the driver serves. Where it is out of memory: idle memory is released, then
// that of freed blocks, for which the call waits. Requests that the library serves have their steps
// in outer_ladder (serve.cpp).
template <class... Arguments>
result_code call_driver(const call_site& site, Arguments... arguments) {
  result_code answer = site(arguments...);
  if (answer == code::out_of_memory && release_idle(false)) answer = site(arguments...);
  if (answer == code::out_of_memory && is_managed() && release_idle(true))
    answer = site(arguments...);
  return answer;
}

template <class... Arguments>
result_code allocate_plain(const call_site& site, std::size_t size, std::uint64_t stream,
                           device_pointer* at, Arguments... arguments) {
  const result_code answer = call_driver(site, at, arguments...);
  if (answer == code::success && at != nullptr && *at != 0) note_memory(*at, size, stream);
  return answer;
}

// The result where a pool served the request or the budget has no room for it; none: the driver
// is called.
std::optional<result_code> take_answer(const managed::answer& made, device_pointer* at,
                                       std::size_t size, std::uint64_t stream) noexcept {
  if (made.at == 0) {
    accounts::note_unmanaged(made.why);
    if (made.why == unmanaged_reason::over_budget) return code::out_of_memory;
    return std::nullopt;
  }
  *at = made.at;
  note_memory(made.at, size, stream);
  return code::success;
}

// Frees an entry of the table of live memory by `free`, which returns the driver's result.
template <class Free>
result_code free_counted(live_kind kind, std::uint64_t at, Free&& free) {
  live_entry entry;
  const bool is_known = accounts::take_live(kind, at, entry);
  if (is_known) accounts::count_call_for(entry.slot);
  const result_code answer = free();
  if (!is_known) return answer;
  if (answer == code::success) {
    accounts::note_gone(kind, entry);
  } else {
    accounts::put_back(kind, at, entry);
  }
  return answer;
}

result_code code_of(managed::free_answer answer) noexcept {
  return answer == managed::free_answer::done ? code::success : code::invalid_value;
}

}  // namespace

// ---- memory -------------------------------------------------------------------------------------

result_code allocate(const call_site& site, device_pointer* at, std::size_t size) {
  if (is_managed() && at != nullptr && size != 0) {
    if (const auto done = take_answer(managed::allocate(size), at, size, 0)) return *done;
  }
  return allocate_plain(site, size, 0, at, size);
}

result_code allocate_pitch(const call_site& site, device_pointer* at, std::size_t* pitch,
                           std::size_t width, std::size_t height, unsigned element) {
  const bool is_right = at != nullptr && pitch != nullptr && width != 0 && height != 0 &&
                        (element == 4 || element == 8 || element == 16) &&
                        width <= (std::size_t{1} << 46) / height;
  const std::size_t row = (width + pitch_unit_bytes - 1) / pitch_unit_bytes * pitch_unit_bytes;
  if (is_managed() && is_right) {
    const auto done = take_answer(managed::allocate(row * height), at, row * height, 0);
    if (done == code::success) *pitch = row;
    if (done) return *done;
  }
  const result_code answer = call_driver(site, at, pitch, width, height, element);
  if (answer == code::success && is_right) note_memory(*at, *pitch * height, 0);
  return answer;
}

result_code free_now(const call_site& site, device_pointer at) {
  return free_counted(live_kind::memory, at, [&]() -> result_code {
    if (!is_managed() || at == 0) return site(at);
    const managed::free_answer answer = managed::free_now(at);
    return answer == managed::free_answer::foreign ? site(at) : code_of(answer);
  });
}

result_code allocate_async(const call_site& site, device_pointer* at, std::size_t size,
                           stream_id stream) {
  const std::uint64_t key = stream_key(stream, site.per_thread);
  if (is_managed() && at != nullptr && size != 0) {
    const auto made = managed::allocate(size, {stream, site.per_thread});
    if (const auto done = take_answer(made, at, size, key)) return *done;
  }
  return allocate_plain(site, size, key, at, size, stream);
}

result_code free_async(const call_site& site, device_pointer at, stream_id stream) {
  return free_counted(live_kind::memory, at, [&]() -> result_code {
    if (!is_managed() || at == 0) return site(at, stream);
    const managed::free_answer answer = managed::free_async(at, {stream, site.per_thread});
    return answer == managed::free_answer::foreign ? site(at, stream) : code_of(answer);
  });
}

result_code allocate_from_pool(const call_site& site, device_pointer* at, std::size_t size,
                               pool_id pool, stream_id stream) {
  const std::uint64_t key = stream_key(stream, site.per_thread);
  if (is_managed() && at != nullptr && size != 0) {
    if (!managed::serves_pool(pool, {stream, site.per_thread})) {
      accounts::note_unmanaged(unmanaged_reason::pool_of_the_user);
    } else {
      const auto made = managed::allocate(size, {stream, site.per_thread});
      if (const auto done = take_answer(made, at, size, key)) return *done;
    }
  }
  return allocate_plain(site, size, key, at, size, pool, stream);
}

result_code allocate_managed(const call_site& site, device_pointer* at, std::size_t size,
                             unsigned flags) {
  if (is_managed()) accounts::note_unmanaged(unmanaged_reason::other_memory);
  return allocate_plain(site, size, 0, at, size, flags);
}

// ---- copies -------------------------------------------------------------------------------------

namespace {

bool is_remapped(device_pointer target, device_pointer source, std::size_t size) noexcept {
  return is_managed() && chosen_settings().copy != copy_rule::off &&
         managed::copy_by_remapping(target, source, size);
}

}  // namespace

result_code copy(const call_site& site, device_pointer target, device_pointer source,
                 std::size_t size) {
  return is_remapped(target, source, size) ? code::success : site(target, source, size);
}

result_code copy_on_stream(const call_site& site, device_pointer target, device_pointer source,
                           std::size_t size, stream_id stream) {
  return is_remapped(target, source, size) ? code::success : site(target, source, size, stream);
}

// ---- physical memory ----------------------------------------------------------------------------

result_code create_physical(const call_site& site, physical_id* handle, std::size_t size,
                            const memory_properties* like, flag_set flags) {
  const bool may_keep = is_caching() && handle != nullptr && like != nullptr &&
                        like->location.type == device_location;
  cache::request wanted;
  if (may_keep) wanted = {size, *like, flags};
  physical_id kept = may_keep ? cache::take(wanted) : 0;
  result_code answer = code::success;
  if (kept != 0) {
    *handle = kept;
  } else {
    answer = call_driver(site, handle, size, like, flags);
    if (answer != code::success) return answer;
    if (may_keep) cache::note_created(*handle, wanted);
  }
  const bool on_device = like->location.type == device_location;
  const std::size_t slot = accounts::slot_of(on_device ? like->location.id : -1);
  accounts::note_made({live_kind::physical, *handle, size, 0, slot, nullptr});
  return answer;
}

result_code release_physical(const call_site& site, physical_id handle) {
  return free_counted(live_kind::physical, handle, [&]() -> result_code {
    return is_caching() && cache::keep(handle) ? code::success : site(handle);
  });
}

result_code map_physical(const call_site& site, device_pointer at, std::size_t size,
                         std::size_t offset, physical_id handle, flag_set flags) {
  const result_code answer = site(at, size, offset, handle, flags);
  if (answer == code::success && is_caching()) cache::note_mapped(at, size, handle);
  return answer;
}

result_code unmap_physical(const call_site& site, device_pointer at, std::size_t size) {
  const result_code answer = site(at, size);
  if (answer == code::success && is_caching()) cache::note_unmapped(at, size);
  return answer;
}

result_code export_physical(const call_site& site, void* shared, physical_id handle, int kind,
                            flag_set flags) {
  if (is_caching()) cache::never_keep(handle);
  return site(shared, handle, kind, flags);
}

result_code retain_physical(const call_site& site, physical_id* handle, void* at) {
  const device_pointer where = reinterpret_cast<std::uintptr_t>(at);
  managed::block_facts block;
  if (is_managed() && managed::find(where, block) != managed::place::elsewhere) {
    // Plain memory has no handle: the program falls back, as without the library.
    return site(handle, reinterpret_cast<void*>(std::uintptr_t{nobodys_address}));
  }
  if (is_caching()) cache::never_keep_range(where, 1);
  const result_code answer = site(handle, at);
  if (answer == code::success && is_caching()) cache::never_keep(*handle);
  return answer;
}

result_code export_range(const call_site& site, void* handle, device_pointer at, std::size_t size,
                         int kind, flag_set flags) {
  if (is_caching()) cache::never_keep_range(at, size);
  return site(handle, at, size, kind, flags);
}

result_code bind_physical(const call_site& site, physical_id team, std::size_t team_offset,
                          physical_id handle, std::size_t offset, std::size_t size,
                          flag_set flags) {
  if (is_caching()) cache::never_keep(handle);
  return site(team, team_offset, handle, offset, size, flags);
}

result_code bind_range(const call_site& site, physical_id team, std::size_t team_offset,
                       device_pointer at, std::size_t size, flag_set flags) {
  if (is_caching()) cache::never_keep_range(at, size);
  return site(team, team_offset, at, size, flags);
}

// ---- streams ------------------------------------------------------------------------------------

result_code destroy_stream(const call_site& site, stream_id stream) {
  managed::forget(stream);
  return site(stream);
}

namespace {

// Noted before it begins: from then on, a mark of all work by another thread would spoil it.
template <class... Arguments>
result_code begin(const call_site& site, stream_id stream, Arguments... arguments) {
  const managed::stream_name named{stream, site.per_thread};
  managed::process().captures.begin(named);
  const result_code answer = site(stream, arguments...);
  if (answer != code::success) managed::process().captures.refuse(named);
  return answer;
}

}  // namespace

result_code begin_old_capture(const call_site& site, stream_id stream) {
  return begin(site, stream);
}

result_code begin_capture(const call_site& site, stream_id stream, int how) {
  return begin(site, stream, how);
}

result_code begin_graph_capture(const call_site& site, stream_id stream, graph_id graph,
                                const void* nodes, const void* edges, std::size_t count, int how) {
  return begin(site, stream, graph, nodes, edges, count, how);
}

result_code end_capture(const call_site& site, stream_id stream, graph_id* graph) {
  const result_code answer = site(stream, graph);
  managed::process().captures.end({stream, site.per_thread});
  ipc::end_capture();
  return answer;
}

// ---- devices ------------------------------------------------------------------------------------

namespace {

// Calls the driver first: if it refuses, all blocks stay as they are.
template <class WhichContext, class... Arguments>
result_code end_context(const call_site& site, WhichContext&& which, Arguments... arguments) {
  const managed::context_end_guard alone;
  const context_id gone = which(alone);
  const result_code answer = site(arguments...);
  if (answer == code::success) managed::note_ended(gone);
  return answer;
}

}  // namespace

result_code reset_device(const call_site& site, device_id device) {
  if (is_caching()) (void)cache::release_kept();
  const result_code answer = end_context(
      site, [&](const managed::context_end_guard& alone) { return alone.primary_context(device); },
      device);
  if (answer == code::success) accounts::note_reset(accounts::slot_of(device));
  return answer;
}

result_code destroy_context(const call_site& site, context_id context) {
  const result_code answer =
      end_context(site, [&](const managed::context_end_guard&) { return context; }, context);
  if (answer == code::success) accounts::note_context_ended(context);
  return answer;
}

result_code enable_peer(const call_site& site, context_id peer, unsigned flags) {
  const result_code answer = site(peer, flags);
  if (answer == code::success && is_managed()) managed::process().devices.grant_context(peer);
  return answer;
}

result_code set_pool_access(const call_site& site, pool_id pool, const access_description* grants,
                            std::size_t count) {
  const result_code answer = site(pool, grants, count);
  if (answer != code::success || !is_managed()) return answer;
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_grant = grants[i].location.type == device_location && grants[i].rights != 0;
    if (is_grant) managed::process().devices.grant_device(pool, grants[i].location.id);
  }
  return answer;
}

result_code set_device_pool(const call_site& site, device_id device, pool_id pool) {
  const result_code answer = site(device, pool);
  if (answer == code::success && is_managed()) managed::process().devices.choose_pool(device, pool);
  return answer;
}

// The driver's pool serves what is left to it: figures are added to its own.
result_code get_pool_attribute(const call_site& site, pool_id pool, int attribute, void* value) {
  const result_code answer = site(pool, attribute, value);
  if (answer == code::success && is_managed())
    *static_cast<std::uint64_t*>(value) += managed::figure_of_pool(pool, attribute);
  return answer;
}

result_code set_pool_attribute(const call_site& site, pool_id pool, int attribute, void* value) {
  const result_code answer = site(pool, attribute, value);
  if (answer == code::success && is_managed()) managed::reset_figure_of_pool(pool, attribute);
  return answer;
}

result_code trim_pool(const call_site& site, pool_id pool, std::size_t kept_size) {
  const result_code answer = site(pool, kept_size);
  if (answer == code::success && is_managed()) managed::trim_pool(pool, kept_size);
  return answer;
}

// ---- names --------------------------------------------------------------------------------------

result_code find_old(const call_site& site, const char* name, void** found, int version,
                     flag_set flags) {
  const result_code answer = site(name, found, version, flags);
  if (answer == code::success && found != nullptr && *found != nullptr) {
    *found = replacement_of(*found);
  }
  return answer;
}

result_code find_new(const call_site& site, const char* name, void** found, int version,
                     flag_set flags, int* why) {
  const result_code answer = site(name, found, version, flags, why);
  if (answer == code::success && found != nullptr && *found != nullptr) {
    *found = replacement_of(*found);
  }
  return answer;
}

}  // namespace vmm::preload::handlers
