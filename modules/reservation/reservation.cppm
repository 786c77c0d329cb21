// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.reservation - address space, reserved in few large ranges and handed out in extents. [B1, B3]
//
// One large range is reserved on first use, and further ones only when none has room: never one
// reservation an allocation. Where the driver has no room for the size wished for, half of it is
// tried, down to what is needed.
//
// I1  Every extent handed out lies in one reservation of ours, and no two overlap.
// I2  A reservation is freed only when all of its extents have come back.
//
// Thread safety: all of it. One driver call is made under a lock, reserve: it takes microseconds,
// happens once in the usual life of a process, and threads that need no new range never meet that
// lock. Cost: as vmm.va.
module;
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "../sync/thread_annotations.h"

export module vmm.reservation;

import vmm.backend;
import vmm.sync;
import vmm.va;

namespace vmm {

export struct reservation_options {
  std::uint64_t reservation_bytes = std::uint64_t{8}
                                    << 40;  ///< size of each reservation that is tried first
  std::uint64_t granularity_bytes = 0;      ///< extents are multiples of it, and aligned to it
};

export class reservation_space {
 public:
  /// `options.granularity_bytes` is a power of two.
  reservation_space(driver_ref driver, const reservation_options& options) noexcept
      : driver_(driver),
        options_(options),
        space_(address_space::create({options.granularity_bytes, false}).value()),
        largest_bytes_(space_.max_range_bytes()) {}
  reservation_space(const reservation_space&) = delete;
  reservation_space& operator=(const reservation_space&) = delete;

  /// Frees every reservation. All extents must have come back.
  /// Errors: what free_reservation answers; the ranges that are left stay usable.
  [[nodiscard]] status close();

  /// Errors: out_of_addresses, out_of_host_memory, what reserve answers.
  [[nodiscard]] result<extent> allocate(const address_request& request);

  void free(const extent& gone) noexcept;

  /// Lengthens the extent into the free addresses behind it. Errors: out_of_addresses.
  [[nodiscard]] status grow(extent& grown, std::uint64_t size_bytes) noexcept;

  /// Cuts the extent and frees its tail. Errors: out_of_host_memory; nothing is changed.
  [[nodiscard]] status shrink(extent& shrunk, std::uint64_t size_bytes) noexcept;

  /// Cuts the extent to its first `keep_bytes` and returns the rest.
  /// Errors: out_of_host_memory; nothing is changed.
  [[nodiscard]] result<extent> split(extent& cut, std::uint64_t keep_bytes) noexcept;

  /// Whether the address lies in one of the reservations.
  [[nodiscard]] bool contains(address at) const noexcept;

  [[nodiscard]] address_space_statistics statistics() const noexcept;

  [[nodiscard]] bool validate() const noexcept;

  /// Calls visitor(address_range, bool is_live) for each extent and hole in address order, under
  /// the lock.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    space_.visit([&visitor](const extent& part, bool is_live) { visitor(part.range, is_live); });
  }

 private:
  [[nodiscard]] static status update(extent& changed, const result<extent>& outcome) noexcept;

  [[nodiscard]] result<extent> try_allocate(const address_request& request) noexcept;

  // A range of the size wished for, or less where the driver has no more, down to what is needed.
  [[nodiscard]] result<address_range> reserve_for(const address_request& request);

  // Takes a fresh range into use, and the request out of it before another thread can.
  [[nodiscard]] result<extent> allocate_in(address_range range, const address_request& request);

  [[nodiscard]] status add(address_range range) noexcept VMM_REQUIRES(mutex_);

  struct held_range {
    reservation_id id = reservation_id::none;
    address_range range{};
  };

  driver_ref driver_;
  reservation_options options_;
  sync::mutex growth_mutex_;
  mutable sync::mutex mutex_;
  address_space space_ VMM_GUARDED_BY(mutex_);
  const std::uint64_t largest_bytes_;  // the most that a range of the space can have
  std::vector<held_range> held_ VMM_GUARDED_BY(mutex_);
};

}  // namespace vmm
