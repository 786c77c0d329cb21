// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero:accounts - the reservations, memory and mappings of one driver object.
//
// A driver of Level Zero may detect none of its caller's mistakes; these records do. No driver call
// is made here: values of the driver are numbers.
//
// I1  Mappings do not overlap, and each lies inside one reservation.
// I2  A memory is mapped at most once, and whole.
// I3  A number of a handle, stream or event is never used again in this process: objects of another
//     driver object are refused like destroyed ones.
// I4  Reservations do not overlap.
// I5  The bytes created are those of all memories.
// I6  Only the holder of a mapping in transit changes or removes it, and its access stays unchanged
//     until it arrives. A run in transit is a chain of mappings, which its holder may walk without
//     the lock, because the table's order may change meanwhile.
// I7  Memory and reservations being released by the driver are in no table, so new ones, also at
//     the same addresses, can be entered. If the release fails, they are put back.
//
// Thread safety: none, except next_token() and room_for_memory(); level_zero_state has the lock.
// Cost: O(log n) in the number of entries, and O(1) for each mapping in a range; validate() is
// O(n log n).
module vmm.level_zero:accounts;

import vmm.backend;
import vmm.std;

namespace vmm::level_zero {

/// A number that no handle, stream or event of any driver object in this process has had.
[[nodiscard]] std::uint64_t next_token() noexcept;

struct reservation {
  std::uint64_t size_bytes = 0;
  address_range origin{};  // the driver's range, which may be larger
};

struct memory {
  std::uint64_t size_bytes = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t native = 0;  // ze_physical_mem_handle_t
  bool is_mapped = false;
};

struct mapping {
  std::uint64_t size_bytes = 0;
  std::uint64_t handle = 0;
  std::uint64_t native = 0;  // of its memory
  access rights = access::none;
  bool is_in_transit = false;  // a set_access or unmap is in progress
  // Of the holder, while it is in transit:
  std::uint64_t at = 0;
  bool is_switched = false;  // the driver's call succeeded
  mapping* next = nullptr;   // in the run
};

class accounts {
 public:
  using mapping_table = std::map<std::uint64_t, mapping>;
  using memory_table = std::map<std::uint64_t, memory>;
  using reservation_table = std::map<std::uint64_t, reservation>;
  /// A run of mappings without holes.
  struct run {
    mapping_table::iterator first;
    mapping_table::iterator final;  // the last one itself, since later entries may go
  };

  /// Errors of this and all below: invalid_argument if nothing else is named; out_of_host_memory of
  /// calls that add. Here: internal, if the driver returned addresses that are already reserved.
  [[nodiscard]] status add_reservation(address_range range, address_range origin) noexcept;
  /// Removes the reservation of exactly this range. Errors: in_use (a part is mapped).
  [[nodiscard]] result<reservation_table::node_type> take_reservation(address_range range) noexcept;
  /// Puts back a removed entry. False if the driver has returned its addresses for another
  /// reservation meanwhile.
  bool put_back(reservation_table::node_type which) noexcept;

  /// Space for a memory, outside of the tables.
  [[nodiscard]] static result<memory_table::node_type> room_for_memory() noexcept;
  /// A new memory, or one that was taken out and not put back; it is not mapped.
  void add_memory(memory_table::node_type which) noexcept;
  /// Removes a memory that is not mapped. Errors: in_use.
  [[nodiscard]] result<memory_table::node_type> take_memory(call where,
                                                            physical_handle handle) noexcept;
  [[nodiscard]] const memory* find(physical_handle handle) const noexcept;
  [[nodiscard]] std::uint64_t created_bytes() const noexcept { return created_bytes_; }

  /// Errors: overlap, in_use (the memory is mapped), not_supported (a part of it).
  [[nodiscard]] status map(const map_request& request) noexcept;
  /// The whole mappings of which a range is made.
  [[nodiscard]] result<run> whole_mappings(call where, address_range range) noexcept;
  [[nodiscard]] static bool is_in_transit(const run& which) noexcept;
  /// Gives the run to the caller, as a chain. Returns its first mapping.
  [[nodiscard]] static mapping& depart(const run& which) noexcept;
  /// Ends the transit of a run: the switched mappings have these rights.
  static void arrive(const run& which, access rights) noexcept;
  void unmap(const run& which) noexcept;
  [[nodiscard]] result<access> rights_at(address at) const noexcept;
  /// Whether a mapping that a range touches is in transit.
  [[nodiscard]] bool touches_transit(address_range range) const noexcept;
  /// Whether all of a range may be read and written. An empty one may.
  [[nodiscard]] status check_usable(call where, address_range range) const noexcept;

  [[nodiscard]] const mapping_table& mappings() const noexcept { return mappings_; }
  [[nodiscard]] const memory_table& memories() const noexcept { return memories_; }
  [[nodiscard]] const reservation_table& reservations() const noexcept { return reservations_; }

  /// Whether I1, I2, I4 and I5 hold.
  [[nodiscard]] bool validate() const noexcept;

 private:
  [[nodiscard]] result<memory_table::iterator> unmapped_memory(call where,
                                                               physical_handle handle) noexcept;
  [[nodiscard]] bool overlaps_reservation(address_range range) const noexcept;
  [[nodiscard]] bool is_reserved(address_range range) const noexcept;
  [[nodiscard]] bool is_touched(address_range range) const noexcept;
  [[nodiscard]] bool mappings_are_valid() const noexcept;
  void look_over() noexcept;

  reservation_table reservations_;  // by address
  memory_table memories_;           // by handle
  mapping_table mappings_;          // by address
  std::uint64_t created_bytes_ = 0;
  std::uint64_t change_count_ = 0;
};

}  // namespace vmm::level_zero
