// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.host:tables (internal) - the tables of a host driver: its memory with the handles to it, and
// its addresses with their mappings.
//
// The kernel has no such tables; the driver detects mistakes by these.
//
// I1  Memory is in the table while a handle or a mapping refers to it; the last one releases it to
//     the system.
// I2  Memory created here does not exceed the capacity, if there is one.
// I3  Mappings do not overlap, each lies inside one reservation, and memory counts the bytes that
//     are mapped of it.
// I4  A failed change leaves the mappings as they were: boundary_cut joins the parts again.
//
// Thread safety: none, host_state::guard is the caller's. Cost: O(log n), and the system call.
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host:tables;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;

namespace vmm::host_tables {

/// Physical memory: an extent of the shared file, or a file of its own.
struct memory {
  std::uint64_t key = 0;
  linux_os::extent pages{};
  int own_file = -1;
  share_kind shareable = share_kind::none;
  bool created_here = false;
  std::uint64_t handles = 0;
  std::uint64_t mapped_bytes = 0;

  [[nodiscard]] bool referred_to() const noexcept { return handles != 0 || mapped_bytes != 0; }
};

/// The options of new memory.
struct memory_rules {
  linux_os::page_kind pages = linux_os::page_kind::normal;
  bool is_lazy = false;              ///< it is committed at the first access
  std::uint64_t capacity_bytes = 0;  ///< 0: no limit but the system's
};

/// The bytes that may still be committed, with a reserve for the rest of the system.
[[nodiscard]] std::uint64_t committable_bytes(const linux_os::memory_figures& now) noexcept;

/// The memory of a driver, and the handles to it.
class memory_table {
 public:
  memory_table() = default;
  memory_table(const memory_table&) = delete;
  memory_table& operator=(const memory_table&) = delete;
  ~memory_table();

  /// Opens the file of memory that is not shareable. Errors: unavailable.
  [[nodiscard]] status open(const memory_rules& rules) noexcept;

  /// Null: not a handle of this driver.
  [[nodiscard]] memory* find(physical_handle handle) const noexcept;
  [[nodiscard]] int file_of(const memory& of) const noexcept {
    return of.own_file >= 0 ? of.own_file : shared_file_;
  }
  /// New memory and its handle. Errors: out_of_memory, out_of_host_memory.
  [[nodiscard]] result<physical_handle> create(const physical_request& request) noexcept;
  /// The first handle of existing memory. Errors: out_of_host_memory.
  [[nodiscard]] result<physical_handle> enter(call where, const memory& facts) noexcept;
  /// One more handle. Errors: out_of_host_memory.
  [[nodiscard]] result<physical_handle> retain(memory& of) noexcept;
  [[nodiscard]] status release(physical_handle handle) noexcept;
  /// Releases memory without references. Errors: device_lost.
  [[nodiscard]] status reclaim(call where, memory& unused) noexcept;

  [[nodiscard]] std::uint64_t created_bytes() const noexcept { return created_bytes_; }
  [[nodiscard]] std::size_t handle_count() const noexcept { return handles_.size(); }
  template <class Visit>
  void each(Visit&& visit) const {
    for (const auto& [key, known] : memories_) visit(known);
  }

 private:
  [[nodiscard]] status check_room(std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] status obtain(memory& fresh) noexcept;
  void forget(physical_handle handle) noexcept;

  memory_rules rules_{};
  int shared_file_ = -1;
  std::uint64_t shared_file_used_bytes_ = 0;
  std::uint64_t created_bytes_ = 0;
  std::uint64_t last_token_ = 0;
  std::unordered_map<std::uint64_t, memory> memories_;  // by key; its nodes stay where they are
  std::unordered_map<std::uint64_t, memory*> handles_;  // by token
};

/// A mapping, or the part of one that unmap or set_access left.
struct mapping {
  std::uint64_t size_bytes = 0;
  memory* behind = nullptr;
  access rights = access::none;
};

using reservation_map = std::map<std::uint64_t, std::uint64_t>;  // base to size
using mapping_map = std::map<std::uint64_t, mapping>;            // by base

[[nodiscard]] linux_os::span span_of(address_range range) noexcept;
[[nodiscard]] linux_os::protection protection_of(access rights) noexcept;
[[nodiscard]] inline bool wraps(address base, std::uint64_t size_bytes) noexcept {
  return size_bytes > std::numeric_limits<std::uint64_t>::max() - base.value;
}

/// The addresses of a driver, and their mappings.
struct address_table {
  reservation_map reservations;
  mapping_map mappings;
  linux_os::spare_mappings spare;

  address_table() = default;
  address_table(const address_table&) = delete;
  address_table& operator=(const address_table&) = delete;
  ~address_table();

  [[nodiscard]] bool reserved(address_range range) const noexcept;
  [[nodiscard]] bool any_mapped(address_range range) const noexcept;
  [[nodiscard]] bool all_mapped(address_range range) const noexcept;
  [[nodiscard]] const mapping* mapping_at(address at) const noexcept;
  /// Errors: invalid_argument (a part without memory, or without the right).
  [[nodiscard]] status usable(call where, address_range range, access wanted) const noexcept;
  /// Gives every mapping in the range the rights of the table.
  [[nodiscard]] bool restore_rights(address_range range) noexcept;

  /// Runs a call that lowers the count of kernel mappings; at the limit it may use the spare ones.
  template <class Work>
  [[nodiscard]] int with_spare(Work&& work) noexcept {
    int failure = work();
    check(failure >= 0, "an error of the kernel is below zero");
    if (failure != ENOMEM) return failure;
    spare.lend();
    failure = work();
    spare.take_back();
    check(failure >= 0, "an error of the kernel is below zero");
    return failure;
  }
};

/// Cuts the mappings that cross the ends of a range, and joins them again unless the cut is kept.
class boundary_cut {
 public:
  boundary_cut(mapping_map& mappings, address_range range) noexcept
      : mappings_(mappings), range_(range) {
    check(!range.empty(), "mappings are cut at a range of no size");
    whole_ = allocates([&] {
      cut_base_ = cut(range_.base.value);
      cut_end_ = cut(range_.end().value);
    });
  }
  boundary_cut(const boundary_cut&) = delete;
  boundary_cut& operator=(const boundary_cut&) = delete;
  ~boundary_cut() {
    if (cut_end_) mend(range_.end().value);
    if (cut_base_) mend(range_.base.value);
    debug_check([this] { return !(cut_base_ || cut_end_) || !mappings_.empty(); },
                "restored mappings are missing");
  }

  [[nodiscard]] bool made() const noexcept { return whole_; }
  void keep() noexcept {
    check(whole_, "a cut is recorded that was not made");
    cut_base_ = cut_end_ = false;
  }

 private:
  bool cut(std::uint64_t at) {
    const auto after = mappings_.upper_bound(at);
    if (after == mappings_.begin()) return false;
    const auto left = std::prev(after);
    const std::uint64_t left_bytes = at - left->first;
    if (left_bytes == 0 || left_bytes >= left->second.size_bytes) return false;
    mapping right = left->second;
    right.size_bytes -= left_bytes;
    mappings_.emplace_hint(after, at, right);
    left->second.size_bytes = left_bytes;
    check(right.size_bytes != 0 && left->second.behind == right.behind, "a mapping is cut wrongly");
    return true;
  }

  void mend(std::uint64_t at) noexcept {
    const auto right = mappings_.find(at);
    check(right != mappings_.end() && right != mappings_.begin(), "I4: a cut mapping lost a half");
    check(std::prev(right)->second.behind == right->second.behind, "halves of two mappings meet");
    std::prev(right)->second.size_bytes += right->second.size_bytes;
    mappings_.erase(right);
  }

  mapping_map& mappings_;
  address_range range_;
  bool cut_base_ = false;
  bool cut_end_ = false;
  bool whole_ = false;
};

}  // namespace vmm::host_tables

namespace vmm {

/// The state of a host_driver.
struct host_state {
  process_mark made_in;
  granularity granule{};
  features can{};
  host_tables::memory_rules rules{};

  mutable std::shared_mutex guard;
  host_tables::memory_table memories;
  host_tables::address_table addresses;  // destroyed first: its mappings refer to memory

  host_state() = default;
  host_state(const host_state&) = delete;
  host_state& operator=(const host_state&) = delete;
  ~host_state() { check(made_in.is_here(), "a forked child destroys its parent's memory"); }

  [[nodiscard]] bool aligned(std::uint64_t value) const noexcept {
    check(granule.minimum_bytes != 0, "a driver has no granularity");
    return value % granule.minimum_bytes == 0;
  }
  [[nodiscard]] bool well_formed(address_range range) const noexcept {
    return !range.empty() && aligned(range.base.value) && aligned(range.size_bytes) &&
           !host_tables::wraps(range.base, range.size_bytes);
  }
};

}  // namespace vmm
