// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:address_space - bytes and addresses over ranges that the caller has reserved: usually one
// large range, more when it is full. Makes no driver call.
//
// I1  Ranges do not overlap; each begins and ends on a multiple of the granularity.
// I2  An extent lies inside one range.
//
// Ranges are tried in the order of their ids, so that further ones empty first. A failed call
// changes nothing.
//
// Elsewhere: physical memory (vmm.physical), from address to extent (vmm.tracker), the lock (the
// caller's).
//
// Thread safety: none. Cost: that of range_allocator, times the ranges that are full in allocate;
// O(log ranges) in contains. Host memory is allocated in add_range only.
export module vmm.va:address_space;

import vmm.backend;
import vmm.base;
import vmm.std;
import :range_allocator;
import :size_bins;

namespace vmm {

/// A range from add_range to remove_range. Numbers are reused.
export enum class reservation_id : std::uint32_t { none = 0 };

/// An extent, from the call that returns it until it is freed.
export struct extent_id {
  reservation_id reservation = reservation_id::none;
  block_id block = block_id::none;

  [[nodiscard]] constexpr explicit operator bool() const noexcept {
    return block != block_id::none;
  }
  friend constexpr bool operator==(extent_id a, extent_id b) noexcept {
    return a.reservation == b.reservation && a.block == b.block;
  }
};

/// A contiguous run of addresses inside a reservation.
export struct extent {
  extent_id id{};
  address_range range{};
};

/// The unit of the sizes and addresses of extents.
export struct address_space_options {
  std::uint64_t granularity_bytes = 0;  ///< a power of two; every size is a multiple of it
};

/// A request for addresses: a multiple of the granularity, at an alignment that is 0 (the
/// granularity) or a power of two.
export struct address_request {
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment_bytes = 0;
};

/// Bytes and extents of all ranges together.
export struct address_space_statistics {
  std::uint64_t reserved_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t high_water_bytes = 0;  ///< highest use of each range that is there, added up
  std::uint64_t live_extents = 0;
  std::uint64_t free_extents = 0;
  std::uint32_t ranges = 0;
};

/// Hands out extents. Movable; a moved-from object may only be destroyed or assigned to.
///
/// Every call: Requires: ids name live extents, or ranges, of this object, else the process ends;
/// one thread at a time. Errors: a failed call changes nothing. Cost: where none is named, that of
/// range_allocator.
export class address_space {
 public:
  /// Errors: invalid_argument (the granularity is not a power of two).
  [[nodiscard]] static result<address_space> create(const address_space_options& options) noexcept;

  /// Adds a range that the caller has reserved, and keeps reserved until remove_range. Errors:
  /// invalid_argument (empty, not on the granularity, above max_range_bytes, or past the end of the
  /// address space), overlap, out_of_host_memory.
  [[nodiscard]] result<reservation_id> add_range(address_range range) noexcept;

  /// Gives a range back to the caller. Errors: in_use (an extent in it is live).
  [[nodiscard]] result<address_range> remove_range(reservation_id reservation) noexcept;

  /// The largest range that add_range accepts.
  [[nodiscard]] std::uint64_t max_range_bytes() const noexcept;

  /// The best fit in the first range that has one.
  /// Errors: invalid_argument (a size or an alignment that address_request does not allow),
  /// out_of_addresses (no range has room: add another), out_of_host_memory.
  [[nodiscard]] result<extent> allocate(const address_request& request) noexcept;

  /// Frees the extent; it coalesces with free neighbours. Cannot fail.
  void free(extent_id id) noexcept;

  /// Makes the extent `size_bytes` long by taking free addresses to its right. Needs no
  /// memory. Errors: invalid_argument (not a multiple, or less than now), out_of_addresses (too
  /// little is free there).
  [[nodiscard]] result<extent> grow(extent_id id, std::uint64_t size_bytes) noexcept;

  /// Makes the extent `size_bytes` long and frees its tail.
  /// Errors: invalid_argument (0, not a multiple, or more than now), out_of_host_memory.
  [[nodiscard]] result<extent> shrink(extent_id id, std::uint64_t size_bytes) noexcept;

  /// Cuts a live extent in two: `id` keeps the first `left_bytes`, the returned extent is the rest.
  /// Errors: invalid_argument (not a multiple, or either part would be empty), out_of_host_memory.
  [[nodiscard]] result<extent> split(extent_id id, std::uint64_t left_bytes) noexcept;

  /// Whether the address is in one of the ranges, live or free.
  [[nodiscard]] bool contains(address at) const noexcept;

  /// The place of a live extent. Requires: a live extent of this space.
  [[nodiscard]] address_range where(extent_id id) const noexcept;

  /// The unit of every size.
  [[nodiscard]] inline std::uint64_t granularity_bytes() const noexcept {
    return granularity_bytes_;
  }
  /// Effects: none; returns the sums over all ranges. Cost: O(ranges).
  [[nodiscard]] address_space_statistics statistics() const noexcept;

  /// Calls `visitor(const extent&, bool live)` for every extent, live and free, in address order.
  /// The visitor changes nothing here. The ids of free extents may not be used in other calls.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    for (const std::uint32_t index : order_) {
      const slot& in = slots_[index];
      in.blocks->visit([&](const block_info& block) {
        visitor(extent{{static_cast<reservation_id>(index + 1), block.id}, bytes(in, block.where)},
                block.live);
      });
    }
  }

  /// Checks I1 and every range's own invariants. Errors: internal, with the broken invariant.
  [[nodiscard]] status validate() const noexcept;

 private:
  struct slot {
    address_range range{};
    std::optional<range_allocator> blocks{};  // empty: the slot is not in use
  };

  address_space() = default;

  [[nodiscard]] inline address_range bytes(const slot& in, granule_range run) const noexcept {
    debug_check([&] { return run.end() <= in.range.size_bytes / granularity_bytes_; },
                "a run is out");
    return {in.range.base + run.offset * granularity_bytes_, run.count * granularity_bytes_};
  }
  [[nodiscard]] const slot& slot_of(reservation_id reservation) const noexcept;
  [[nodiscard]] slot& slot_of(reservation_id reservation) noexcept;
  [[nodiscard]] const slot* slot_around(address at) const noexcept;
  [[nodiscard]] std::uint32_t granules(std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] result<granule_request> in_granules(const address_request& request) const noexcept;
  [[nodiscard]] status check_range(address_range range) const noexcept;
  [[nodiscard]] result<std::uint32_t> provide_slot() noexcept;

  std::uint64_t granularity_bytes_ = 0;
  std::vector<slot> slots_{};           // reservation_id is the index and 1
  std::vector<std::uint32_t> order_{};  // indices of the slots in use, by address
};

}  // namespace vmm
