// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "cache.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "routes.h"
#include "settings.h"

import vmm.base;
import vmm.observe;

namespace vmm::preload::cache {
namespace {

struct record {
  request made_for;
  std::uint32_t mapping_count = 0;
  bool is_ours_alone = true;
};

struct mapping {
  std::size_t size = 0;
  physical_id handle = 0;
};

struct kept_handle {
  physical_id handle = 0;
  request made_for;
};

struct store {
  std::mutex lock;
  std::unordered_map<physical_id, record> handles;  // made here and not released
  std::map<device_pointer, mapping> mappings;
  std::vector<kept_handle> kept;  // the oldest first
  std::uint64_t live_bytes = 0;   // of `handles`
  top_use shown;
};

std::atomic<std::uint64_t> reused_count;
std::atomic<std::uint64_t> kept_count;
std::atomic<std::uint64_t> kept_bytes;
std::atomic<std::uint64_t> live_count;
std::atomic<std::uint64_t> live_bytes;
std::atomic<std::uint64_t> peak_bytes;

store& the() noexcept {
  static store* const only = new store;
  return *only;
}

bool is_same(const request& one, const request& other) noexcept {
  return one.size == other.size && one.flags == other.flags &&
         std::memcmp(&one.like, &other.like, sizeof one.like) == 0;
}

bool is_disjoint(const store& s) noexcept {
  return std::none_of(s.kept.begin(), s.kept.end(),
                      [&](const kept_handle& each) { return s.handles.contains(each.handle); });
}

// Under the lock, after each change.
void count(const store& s) noexcept {
  std::uint64_t bytes = 0;
  for (const kept_handle& each : s.kept) bytes += each.made_for.size;
  debug_check([&] { return is_disjoint(s); }, "I1: a retained handle is the program's, too");
  debug_check([&] { return bytes <= chosen_settings().cache_limit_bytes; },
              "I2: more is retained than the limit");
  kept_count.store(s.kept.size(), std::memory_order_relaxed);
  kept_bytes.store(bytes, std::memory_order_relaxed);
  live_count.store(s.handles.size(), std::memory_order_relaxed);
  live_bytes.store(s.live_bytes, std::memory_order_relaxed);
  const std::uint64_t peak = peak_bytes.load(std::memory_order_relaxed);
  peak_bytes.store(std::max(peak, bytes + s.live_bytes), std::memory_order_relaxed);
}

void forget(store& s, physical_id handle) noexcept {
  const auto found = s.handles.find(handle);
  if (found == s.handles.end()) return;
  s.live_bytes -= found->second.made_for.size;
  s.handles.erase(found);
}

// The program has it now.
void know(store& s, physical_id handle, const request& like) {
  forget(s, handle);
  s.handles.emplace(handle, record{like});
  s.live_bytes += like.size;
}

// For vmm-top, from a thread of its own.
void sample(const void*, top_sample& out) noexcept {
  out.kind = top_kind::handle_cache;
  out.set_names("same size", "cuda");
  out.live_bytes = live_bytes.load(std::memory_order_relaxed);
  out.live_count = live_count.load(std::memory_order_relaxed);
  out.free_bytes = kept_bytes.load(std::memory_order_relaxed);
  out.held_bytes = out.live_bytes + out.free_bytes;
  out.peak_held_bytes = peak_bytes.load(std::memory_order_relaxed);
}

void release(physical_id handle) noexcept {
  using function = result_code (*)(physical_id);
  const auto real = reinterpret_cast<function>(real_of(entry_id::cuMemRelease));
  if (real != nullptr) (void)real(handle);
}

// Under the lock: makes room by letting the oldest go, which are released later.
bool make_room(store& s, std::size_t size, std::vector<kept_handle>& gone) {
  const std::uint64_t limit = chosen_settings().cache_limit_bytes;
  if (size > limit) return false;
  std::uint64_t bytes = kept_bytes.load(std::memory_order_relaxed);
  std::size_t count = 0;
  while (bytes + size > limit) bytes -= s.kept[count++].made_for.size;
  const auto end = s.kept.begin() + static_cast<std::ptrdiff_t>(count);
  gone.assign(s.kept.begin(), end);
  s.kept.erase(s.kept.begin(), end);
  return true;
}

}  // namespace

counts figures() noexcept {
  return {reused_count.load(std::memory_order_relaxed), kept_count.load(std::memory_order_relaxed),
          kept_bytes.load(std::memory_order_relaxed)};
}

physical_id take(const request& wanted) noexcept {
  store& s = the();
  const std::lock_guard<std::mutex> turn(s.lock);
  for (std::size_t i = s.kept.size(); i-- != 0;) {
    if (!is_same(s.kept[i].made_for, wanted)) continue;
    const physical_id handle = s.kept[i].handle;
    try {
      know(s, handle, wanted);
    } catch (const std::bad_alloc&) {
      return 0;
    }
    s.kept.erase(s.kept.begin() + static_cast<std::ptrdiff_t>(i));
    count(s);
    reused_count.fetch_add(1, std::memory_order_relaxed);
    return handle;
  }
  return 0;
}

// Without host memory the handle is not known, and so never kept.
void note_created(physical_id handle, const request& wanted) noexcept {
  static once_here first;
  store& s = the();
  {
    const std::lock_guard<std::mutex> turn(s.lock);
    try {
      know(s, handle, wanted);
    } catch (const std::bad_alloc&) {
      forget(s, handle);
    }
    count(s);
  }
  first.run([&] { s.shown.publish({&s, &sample}, false); });
}

bool keep(physical_id handle) noexcept {
  store& s = the();
  std::vector<kept_handle> gone;
  bool is_kept = false;
  {
    const std::lock_guard<std::mutex> turn(s.lock);
    const auto found = s.handles.find(handle);
    if (found == s.handles.end()) return false;
    const record known = found->second;
    forget(s, handle);
    // Memory that is still mapped lives until it is unmapped, and its number may name other memory
    // before that.
    if (known.mapping_count != 0) {
      std::erase_if(s.mappings, [&](const auto& each) { return each.second.handle == handle; });
    }
    try {
      if (known.is_ours_alone && known.mapping_count == 0 &&
          make_room(s, known.made_for.size, gone)) {
        s.kept.push_back({handle, known.made_for});
        is_kept = true;
      }
    } catch (const std::bad_alloc&) {
      is_kept = false;
    }
    count(s);
  }
  for (const kept_handle& each : gone) release(each.handle);
  return is_kept;
}

void note_mapped(device_pointer at, std::size_t size, physical_id handle) noexcept {
  store& s = the();
  const std::lock_guard<std::mutex> turn(s.lock);
  const auto found = s.handles.find(handle);
  if (found == s.handles.end()) return;
  try {
    s.mappings[at] = {size, handle};
    ++found->second.mapping_count;
  } catch (const std::bad_alloc&) {
    found->second.is_ours_alone = false;  // its mappings are not known
  }
}

void note_unmapped(device_pointer at, std::size_t size) noexcept {
  store& s = the();
  const std::lock_guard<std::mutex> turn(s.lock);
  auto each = s.mappings.lower_bound(at);
  while (each != s.mappings.end() && each->first < at + size) {
    const auto found = s.handles.find(each->second.handle);
    if (found != s.handles.end() && found->second.mapping_count != 0) {
      --found->second.mapping_count;
    }
    each = s.mappings.erase(each);
  }
}

void never_keep(physical_id handle) noexcept {
  store& s = the();
  const std::lock_guard<std::mutex> turn(s.lock);
  const auto found = s.handles.find(handle);
  if (found != s.handles.end()) found->second.is_ours_alone = false;
}

void never_keep_range(device_pointer at, std::size_t size) noexcept {
  store& s = the();
  const std::lock_guard<std::mutex> turn(s.lock);
  auto each = s.mappings.upper_bound(at);
  if (each != s.mappings.begin()) --each;
  for (; each != s.mappings.end() && each->first < at + size; ++each) {
    if (each->first + each->second.size <= at) continue;
    const auto found = s.handles.find(each->second.handle);
    if (found != s.handles.end()) found->second.is_ours_alone = false;
  }
}

std::uint64_t release_kept() noexcept {
  store& s = the();
  std::vector<kept_handle> gone;
  std::uint64_t bytes = 0;
  {
    const std::lock_guard<std::mutex> turn(s.lock);
    bytes = kept_bytes.load(std::memory_order_relaxed);
    gone.swap(s.kept);
    count(s);
  }
  for (const kept_handle& each : gone) release(each.handle);
  return bytes;
}

std::uint64_t kept_on(int device) noexcept {
  store& s = the();
  const std::lock_guard<std::mutex> turn(s.lock);
  std::uint64_t bytes = 0;
  for (const kept_handle& each : s.kept) {
    if (each.made_for.like.location.id == device) bytes += each.made_for.size;
  }
  return bytes;
}

}  // namespace vmm::preload::cache
