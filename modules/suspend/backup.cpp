// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "system.hpp"

module vmm.suspend;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr std::uint64_t pinned_handle_bytes_max = std::uint64_t{1} << 30;
constexpr std::uint64_t space_bytes_unit = std::uint64_t{1} << 21;
constexpr int release_attempts = 3;

error no_room() noexcept {
  return refuse(errc::out_of_host_memory, "no host memory is left for the contents");
}

// Room in the directory, or a descriptor, may be there later; a directory is named anew.
error no_file(const char* directory, int failure) noexcept {
  constexpr const char* without_name = "no file for the contents could be created in the directory";
  const bool is_short = backup_os::is_shortage(failure);
  const errc other = backup_os::is_broken(failure) ? errc::unavailable : errc::bad_option;
  error refused =
      refuse(is_short ? errc::out_of_host_memory : other,
             detail_text()
                 .add(without_name)
                 .add(" '")
                 .add(directory)
                 .add("': ")
                 .add(backup_os::reason_of(failure))
                 .add(is_short ? "; free some, or name another directory"
                               : "; name a directory in which this user can create files")
                 .keep(without_name));
  refused.native = failure;
  return refused;
}

}  // namespace

backup_tier resolve(backup_tier tier, const features& can) noexcept {
  if (tier != backup_tier::best) return tier;
  const bool has_pinned = can.streams && (can.host_location || can.host_node_location);
  return has_pinned ? backup_tier::pinned : backup_tier::pageable;
}

status check_directory(const char* directory) {
  const int failure = backup_os::try_directory(directory);
  return failure == 0 ? status{} : no_file(directory, failure);
}

backup_arena::~backup_arena() {
  if (!made_in_.is_here()) {
    leave_parts_behind(spaces_);
    return;
  }
  for (int left = release_attempts; left > 0 && !spaces_.empty(); --left)
    (void)release_unused(nullptr);
  if (spaces_.empty()) return;
  check(
      std::none_of(spaces_.begin(), spaces_.end(), [](const auto& each) { return each->is_taken; }),
      "backups in use are destroyed");
  leave_parts_behind(spaces_);  // the driver has them still
}

std::uint64_t backup_arena::size_bytes() const noexcept {
  std::uint64_t sum_bytes = 0;
  for (const auto& each : spaces_) sum_bytes += each->size_bytes;
  check(spaces_.empty() == (sum_bytes == 0), "a space has no bytes");
  return sum_bytes;
}

std::uint64_t backup_arena::taken_bytes() const noexcept {
  std::uint64_t sum_bytes = 0;
  for (const auto& each : spaces_)
    sum_bytes += each->is_taken || each->is_busy ? each->size_bytes : 0;
  check(sum_bytes <= size_bytes(), "more is taken than exists");
  return sum_bytes;
}

// The smallest that is large enough.
backup_space* backup_arena::find(const wanted& want) noexcept {
  backup_space* found = nullptr;
  check(want.tier != backup_tier::best, "a space is looked for in no tier");
  for (const auto& each : spaces_) {
    const bool fits = !each->is_taken && !each->is_busy && each->is_whole &&
                      each->tier == want.tier && each->size_bytes >= want.size_bytes &&
                      (each->driver == nullptr || each->driver == &want.driver);
    if (fits && (found == nullptr || each->size_bytes < found->size_bytes)) found = each.get();
  }
  return found;
}

result<backup_space*> backup_arena::take(const wanted& given) {
  check(given.size_bytes != 0, "a space of no bytes is taken");
  wanted want = given;
  want.tier = resolve(want.tier, want.driver.feature_set());
  want.size_bytes = round_up(want.size_bytes, space_bytes_unit);
  backup_space* taken = find(want);
  if (taken == nullptr) {
    try {
      auto fresh = std::make_unique<backup_space>();
      spaces_.reserve(spaces_.size() + 1);
      fresh->tier = want.tier;
      fresh->size_bytes = want.size_bytes;
      const status made = make(want, *fresh);
      if (!made && end(*fresh)) return made.error();
      fresh->is_whole = made.has_value();
      taken = fresh.get();
      spaces_.push_back(std::move(fresh));
      if (!made) return made.error();
    } catch (const std::bad_alloc&) {
      return refuse(errc::out_of_host_memory, "no host memory is left for a backup");
    }
  }
  check(!taken->is_taken && taken->size_bytes >= given.size_bytes, "a space does not fit");
  taken->is_taken = true;
  return taken;
}

void backup_arena::give_back(backup_space& done) noexcept {
  check(done.is_taken, "I1: a space is given back that was not taken");
  done.is_taken = false;
}

status backup_arena::make(const wanted& want, backup_space& into) {
  if (want.tier == backup_tier::pinned) return make_pinned(want, into);
  const backup_os::mapped_bytes made = want.tier == backup_tier::file
                                           ? backup_os::map_file(want.directory, want.size_bytes)
                                           : backup_os::map_pageable(want.size_bytes);
  check((made.at == nullptr) == (made.failure != 0),
        "a successful mapping is handled as a failure");
  check(into.bytes == nullptr && into.driver == nullptr, "a space is made twice");
  if (made.at == nullptr)
    return want.tier == backup_tier::file ? no_file(want.directory, made.failure) : no_room();
  into.bytes = made.at;
  return {};
}

// Memory of the host, mapped for the device: what fails half-way is left to end().
status backup_arena::make_pinned(const wanted& want, backup_space& into) {
  driver_interface& driver = want.driver;
  const features& can = driver.feature_set();
  if (!can.streams || (!can.host_location && !can.host_node_location)) {
    return refuse(errc::not_supported,
                  "this driver has no pinned memory of the host: use backup_tier::pageable");
  }
  physical_request request;
  request.where = can.host_node_location ? host_node(0) : host();
  const result<granularity> unit = driver.query_granularity(request);
  if (!unit) return unit.error();
  check(unit->recommended_bytes != 0, "memory of the host has no granularity");
  into.handle_bytes =
      round_up(std::min(pinned_handle_bytes_max, want.size_bytes), unit->recommended_bytes);
  const std::uint64_t count = (want.size_bytes + into.handle_bytes - 1) / into.handle_bytes;
  into.handles.reserve(count);
  into.driver = &driver;
  const result<address_range> range = driver.reserve({count * into.handle_bytes, 0, {}});
  if (!range) return range.error();
  into.range = *range;
  into.size_bytes = range->size_bytes;
  check(into.size_bytes >= want.size_bytes, "less is reserved than requested");
  request.size_bytes = into.handle_bytes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const result<physical_handle> made = driver.create(request);
    if (!made) return made.error();
    into.handles.push_back(*made);
    const address at = into.range.base + i * into.handle_bytes;
    if (status mapped = driver.map({at, into.handle_bytes, *made, 0}); !mapped) return mapped;
    ++into.mapped_count;
  }
  const std::array<access_grant, 2> grants{access_grant{driver.home(), access::read_write},
                                           access_grant{request.where, access::read_write}};
  return driver.set_access(into.range, grants);
}

status backup_arena::end(backup_space& gone) noexcept {
  check(!gone.is_taken, "I1: a space ends while a region has it");
  gone.is_whole = false;
  if (gone.bytes != nullptr) backup_os::unmap(std::exchange(gone.bytes, nullptr), gone.size_bytes);
  if (gone.driver == nullptr) return {};
  check(gone.mapped_count <= gone.handles.size(), "more handles are mapped than there are");
  for (; gone.mapped_count != 0; --gone.mapped_count) {
    const address at = gone.range.base + (gone.mapped_count - 1) * gone.handle_bytes;
    if (status undone = gone.driver->unmap({at, gone.handle_bytes}); !undone) return undone;
  }
  for (; !gone.handles.empty(); gone.handles.pop_back()) {
    if (status undone = gone.driver->release(gone.handles.back()); !undone) return undone;
  }
  if (gone.range.empty()) return {};
  const status freed = gone.driver->free_reservation(gone.range);
  if (freed) gone.range = {};
  return freed;
}

status backup_arena::release_unused(const driver_interface* of) noexcept {
  status outcome;
  for (std::size_t i = 0; i < spaces_.size();) {
    backup_space& each = *spaces_[i];
    const bool is_meant = !each.is_taken && !each.is_busy && (of == nullptr || each.driver == of);
    const status ended = is_meant ? end(each) : status{};
    if (!ended && outcome) outcome = ended;
    if (is_meant && ended) {
      spaces_.erase(spaces_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  check(!outcome || of != nullptr || taken_bytes() == size_bytes(),
        "I2: a space is kept without an error");
  return outcome;
}

}  // namespace vmm
