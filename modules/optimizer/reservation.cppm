// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:reservation - address space, reserved in few large ranges, handed out in extents.
//
// One large range is reserved at first use, and further ones only when none has room: never one for
// each allocation. If the driver refuses the preferred size, half of it is tried, down to the
// needed size.
//
// I1  Every allocated extent is inside one reservation, and no two overlap.
// I2  A reservation is freed only when all of its extents are free.
//
// Thread safety: all of it. One driver call is made under a lock, reserve: it takes microseconds,
// usually once in a process, and threads that need no new range do not take that lock. Cost: as
// vmm.va.
module;
#include "../base/thread_annotations.h"

export module vmm.optimizer:reservation;

import vmm.backend;
import vmm.base;
import vmm.std;
import vmm.va;

namespace vmm {

/// The size of reservations, and the unit of extents.
export struct reservation_options {
  std::uint64_t reservation_bytes = std::uint64_t{8}
                                    << 40;  ///< size of each reservation that is tried first
  std::uint64_t granularity_bytes = 0;      ///< extents are multiples of it, and aligned to it
};

/// Address space of one driver, in extents.
///
/// Every call: Thread safety: any thread, except the destructor. Cost: as vmm.va, no driver call
/// unless named.
export class reservation_space {
 public:
  /// Requires: a driver that outlives the space; a granularity that is a power of two, and a size
  /// of reservations; else the process ends. Effects: none yet.
  reservation_space(driver_ref driver, const reservation_options& options) noexcept
      : driver_(driver),
        options_(options),
        space_(address_space::create({options.granularity_bytes}).value()),
        largest_bytes_(space_.max_range_bytes()) {
    check(options.reservation_bytes > 0, "address space is reserved in ranges of no size");
    check(largest_bytes_ >= options.granularity_bytes, "no range can have a granule");
  }
  reservation_space(const reservation_space&) = delete;
  reservation_space& operator=(const reservation_space&) = delete;

  /// Requires: all extents are free. Effects: frees every reservation.
  /// Errors: those of free_reservation; the remaining ranges stay usable.
  /// Cost: a driver call for each reservation.
  [[nodiscard]] status close();

  /// Effects: returns an extent, in a further reservation if no present one has space. Errors:
  /// invalid_argument (a size or an alignment that address_request does not allow),
  /// out_of_addresses, out_of_host_memory, those of reserve. Cost: a reserve if no range has space.
  [[nodiscard]] result<extent> allocate(const address_request& request);

  /// Requires: a live extent of this space, with nothing mapped in it. Effects: frees it.
  void free(const extent& gone) noexcept;

  /// Requires: as free, of this call and the two below, but that something may be mapped in what
  /// stays. Effects: lengthens the extent into the free addresses behind it.
  /// Errors: out_of_addresses; nothing is changed.
  [[nodiscard]] status grow(extent& grown, std::uint64_t size_bytes) noexcept;

  /// Cuts the extent and frees its tail. Errors: out_of_host_memory; nothing is changed.
  [[nodiscard]] status shrink(extent& shrunk, std::uint64_t size_bytes) noexcept;

  /// Cuts the extent to its first `keep_bytes` and returns the rest.
  /// Errors: out_of_host_memory; nothing is changed.
  [[nodiscard]] result<extent> split(extent& cut, std::uint64_t keep_bytes) noexcept;

  /// Whether the address lies in one of the reservations.
  [[nodiscard]] bool contains(address at) const noexcept;

  /// Effects: none; returns the sums. Cost: O(reservations).
  [[nodiscard]] address_space_statistics statistics() const noexcept;

  /// Effects: none; checks I1 and every range. Errors: internal, with the broken invariant.
  /// Cost: O(everything).
  [[nodiscard]] status validate() const noexcept;

  /// Calls visitor(address_range, bool is_live) for each extent and hole in address order, under
  /// the lock.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    space_.visit([&visitor](const extent& part, bool is_live) { visitor(part.range, is_live); });
  }

 private:
  [[nodiscard]] status update(extent& changed, const result<extent>& outcome) noexcept
      VMM_REQUIRES(mutex_);
  // Whether the addresses are inside one reserved range. O(ranges).
  [[nodiscard]] bool is_reserved(address_range range) const noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] bool sums_fit() const noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] result<extent> hand_out(const address_request& request) noexcept
      VMM_REQUIRES(mutex_);

  [[nodiscard]] result<extent> try_allocate(const address_request& request) noexcept;

  // A range of the preferred size, or less if the driver has no more, down to the needed size.
  [[nodiscard]] result<address_range> reserve_for(const address_request& request);

  // Adds a fresh range, and takes the request from it before another thread can.
  [[nodiscard]] result<extent> allocate_in(address_range range, const address_request& request);

  [[nodiscard]] status add(address_range range) noexcept VMM_REQUIRES(mutex_);

  struct reserved_range {
    reservation_id id = reservation_id::none;
    address_range range{};
  };

  driver_ref driver_;
  reservation_options options_;
  sync::mutex growth_mutex_;
  mutable sync::mutex mutex_;
  address_space space_ VMM_GUARDED_BY(mutex_);
  const std::uint64_t largest_bytes_;  // the largest size of a range
  std::vector<reserved_range> reserved_ VMM_GUARDED_BY(mutex_);
};

}  // namespace vmm
