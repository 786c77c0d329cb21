// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;
import :tables;

namespace vmm::host_tables {
namespace {

// Sparse and never filled: extents are not reused, so no allocator of file offsets is needed.
constexpr std::uint64_t shared_file_bytes = 1ull << 62;
// Left to the rest of the system when memory is committed; less on small machines.
constexpr std::uint64_t keep_free_bytes_max = 256ull << 20;
constexpr std::uint64_t keep_free_part = 16;

}  // namespace

std::uint64_t committable_bytes(const linux_os::memory_figures& now) noexcept {
  check(now.failure == 0, "figures that could not be read are used");
  const std::uint64_t keep = std::min(keep_free_bytes_max, now.total_bytes / keep_free_part);
  return now.available_bytes > keep ? now.available_bytes - keep : 0;
}

memory_table::~memory_table() {
  for (const auto& [key, each] : memories_) {
    if (each.own_file >= 0) linux_os::close(each.own_file);
  }
  if (shared_file_ >= 0) linux_os::close(shared_file_);
}

status memory_table::open(const memory_rules& rules) noexcept {
  check(shared_file_ < 0, "a driver's file is opened twice");
  const linux_os::opened file = linux_os::open_memory_file(shared_file_bytes, rules.pages, false);
  if (file.failure != 0) {
    error why = file_error(call::none, errc::unavailable, file.failure,
                           "this system has no memory files (memfd_create)");
    why.code = errc::unavailable;
    return why;
  }
  check(file.descriptor >= 0, "an open file has no descriptor");
  shared_file_ = file.descriptor;
  rules_ = rules;
  return {};
}

memory* memory_table::find(physical_handle handle) const noexcept {
  const auto found = handles_.find(static_cast<std::uint64_t>(handle));
  if (found == handles_.end()) return nullptr;
  check(found->second != nullptr && found->second->handles != 0,
        "tables I1: a handle has no memory");
  return found->second;
}

status memory_table::check_room(std::uint64_t size_bytes) const noexcept {
  const std::uint64_t capacity = rules_.capacity_bytes;
  check(capacity == 0 || created_bytes_ <= capacity,
        "tables I2: more was created than there may be");
  if (capacity != 0 && size_bytes > capacity - created_bytes_) {
    return bad_call(call::create, errc::out_of_memory,
                    "host_options::capacity_bytes would be exceeded");
  }
  // Of huge pages the kernel never promises more than there are: it refuses when it commits them.
  if (rules_.is_lazy || rules_.pages == linux_os::page_kind::huge) return {};
  const linux_os::memory_figures now = linux_os::query_memory(rules_.pages);
  if (now.failure != 0) return figures_error(call::create, errc::out_of_memory, now.failure);
  if (size_bytes > committable_bytes(now)) {
    return bad_call(
        call::create, errc::out_of_memory,
        "the request exceeds the system's available memory; committing it would end the process");
  }
  return {};
}

result<physical_handle> memory_table::create(const physical_request& request) noexcept {
  memory fresh;
  fresh.pages.size_bytes = request.size_bytes;
  fresh.shareable = request.shareable;
  fresh.created_here = true;
  if (const status room = check_room(request.size_bytes); !room) return room.error();
  const result<physical_handle> handle = enter(call::create, fresh);
  if (!handle) return handle;
  check(find(*handle) != nullptr, "entered memory is missing from its table");
  if (const status obtained = obtain(*find(*handle)); !obtained) {
    forget(*handle);
    return obtained.error();
  }
  created_bytes_ += request.size_bytes;
  check(created_bytes_ >= request.size_bytes, "more memory was created than can be counted");
  return handle;
}

status memory_table::obtain(memory& fresh) noexcept {
  check(fresh.own_file < 0 && fresh.pages.size_bytes != 0,
        "memory is obtained twice, or of no size");
  int file = shared_file_;
  if (fresh.shareable != share_kind::none) {
    const linux_os::opened made =
        linux_os::open_memory_file(fresh.pages.size_bytes, rules_.pages, true);
    if (made.failure != 0)
      return file_error(call::create, errc::out_of_memory, made.failure,
                        "the kernel makes no file for shareable memory");
    file = fresh.own_file = made.descriptor;
  } else {
    if (fresh.pages.size_bytes > shared_file_bytes - shared_file_used_bytes_) {
      return bad_call(call::create, errc::out_of_memory,
                      "the driver's file has no offsets left: open a new driver");
    }
    fresh.pages.offset_bytes = shared_file_used_bytes_;
  }
  check(file >= 0, "memory has no file");
  const int failure = rules_.is_lazy ? 0 : linux_os::commit(file, fresh.pages);
  if (failure != 0) {
    if (fresh.own_file >= 0) linux_os::close(fresh.own_file);
    return kernel_error(call::create, errc::out_of_memory, failure,
                        "the system has no memory left");
  }
  if (fresh.own_file < 0) shared_file_used_bytes_ += fresh.pages.size_bytes;
  check(shared_file_used_bytes_ <= shared_file_bytes, "memory lies past the end of the file");
  return {};
}

result<physical_handle> memory_table::enter(call where, const memory& facts) noexcept {
  const std::uint64_t token = last_token_ + 1;
  check(!memories_.contains(token) && !handles_.contains(token), "a handle is returned twice");
  memory* entered = nullptr;
  const bool done = allocates([&] {
    entered = &memories_.try_emplace(token, facts).first->second;
    handles_.try_emplace(token, entered);
  });
  if (!done) {
    memories_.erase(token);
    return no_host_memory(where);
  }
  check(entered != nullptr && token > last_token_, "a handle is returned twice");
  entered->key = token;
  entered->handles = 1;
  last_token_ = token;
  return physical_handle{token};
}

result<physical_handle> memory_table::retain(memory& of) noexcept {
  const std::uint64_t token = last_token_ + 1;
  check(!handles_.contains(token), "a handle is returned twice");
  if (!allocates([&] { handles_.try_emplace(token, &of); })) return no_host_memory(call::retain);
  check(of.referred_to(), "tables I1: unreferenced memory is mapped");
  last_token_ = token;
  ++of.handles;
  return physical_handle{token};
}

status memory_table::release(physical_handle handle) noexcept {
  memory* behind = find(handle);
  if (behind == nullptr) return unknown_handle(call::release);
  const std::size_t erased = handles_.erase(static_cast<std::uint64_t>(handle));
  check(erased == 1, "a handle is released that is in no table");
  check(behind->handles != 0, "a count of handles would fall below zero");
  --behind->handles;
  return behind->referred_to() ? status{} : reclaim(call::release, *behind);
}

// Takes back an enter().
void memory_table::forget(physical_handle handle) noexcept {
  const std::size_t erased = handles_.erase(static_cast<std::uint64_t>(handle)) +
                             memories_.erase(static_cast<std::uint64_t>(handle));
  check(erased == 2, "removed memory was not entered");
}

status memory_table::reclaim(call where, memory& unused) noexcept {
  check(!unused.referred_to(), "referenced memory is released");
  if (unused.own_file >= 0) {
    linux_os::close(unused.own_file);
  } else if (const int failure = linux_os::decommit(shared_file_, unused.pages); failure != 0) {
    return kernel_error(where, errc::device_lost, failure, "the kernel refuses to release memory");
  }
  check(!unused.created_here || created_bytes_ >= unused.pages.size_bytes,
        "more memory is released than was created");
  if (unused.created_here) created_bytes_ -= unused.pages.size_bytes;
  const std::size_t erased = memories_.erase(unused.key);
  check(erased == 1, "released memory is missing from its table");
  return {};
}

}  // namespace vmm::host_tables
