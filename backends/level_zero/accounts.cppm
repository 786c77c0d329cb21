// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero:accounts - what one driver object has reserved, created and mapped.
//
// A driver of Level Zero may see none of its caller's mistakes; here they are seen. No driver call
// is made here: values of the driver are numbers.
//
// I1  Mappings do not overlap, and each lies inside one reservation.
// I2  A memory is mapped at most once, and whole.
// I3  A handle's number is never used again.
//
// Thread safety: none of its own; driver_state has the lock. Cost: O(log n) in what there is, and
// O(1) for each mapping in a range.
module;
#include <cstdint>
#include <map>

module vmm.level_zero:accounts;

import vmm.backend;

namespace vmm::level_zero {

struct reservation {
  std::uint64_t size_bytes = 0;
  address_range origin{};  // what the driver gave: the range may lie inside
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
  bool is_switched = false;  // by the set_access or unmap that is under way
};

class accounts {
 public:
  using mapping_table = std::map<std::uint64_t, mapping>;
  using memory_table = std::map<std::uint64_t, memory>;
  /// A run of mappings without holes.
  struct run {
    mapping_table::iterator first;
    mapping_table::iterator last;  // one behind
  };

  /// Errors of this and all below: invalid_argument if nothing else is named; out_of_host_memory
  /// for what adds.
  [[nodiscard]] status add_reservation(address_range range, address_range origin) noexcept;
  /// What the driver gave for exactly this range. Errors: in_use (something is mapped).
  [[nodiscard]] result<address_range> origin_of(address_range range) const noexcept;
  void remove_reservation(address at) noexcept { reservations_.erase(at.value); }

  /// Room for a memory, which the caller fills in or removes.
  [[nodiscard]] result<memory_table::iterator> add_memory() noexcept;
  /// A memory that is not mapped. Errors: in_use.
  [[nodiscard]] result<memory_table::iterator> unmapped_memory(call where,
                                                               physical_handle handle) noexcept;
  [[nodiscard]] const memory* find(physical_handle handle) const noexcept;
  void remove_memory(memory_table::iterator which) noexcept;
  void count_created(std::uint64_t size_bytes) noexcept { created_bytes_ += size_bytes; }
  [[nodiscard]] std::uint64_t created_bytes() const noexcept { return created_bytes_; }

  /// Errors: overlap, in_use (the memory is mapped), not_supported (a part of it).
  [[nodiscard]] status map(const map_request& request) noexcept;
  /// The whole mappings of which a range is made.
  [[nodiscard]] result<run> whole_mappings(call where, address_range range) noexcept;
  void unmap(const run& which) noexcept;
  [[nodiscard]] result<access> rights_at(address at) const noexcept;
  /// Whether all of a range may be read and written. An empty one may.
  [[nodiscard]] status check_usable(call where, address_range range) const noexcept;

  [[nodiscard]] mapping_table& mappings() noexcept { return mappings_; }
  [[nodiscard]] memory_table& memories() noexcept { return memories_; }
  [[nodiscard]] const std::map<std::uint64_t, reservation>& reservations() const noexcept {
    return reservations_;
  }

 private:
  [[nodiscard]] bool is_reserved(address_range range) const noexcept;
  [[nodiscard]] bool is_touched(address_range range) const noexcept;

  std::map<std::uint64_t, reservation> reservations_;  // by address
  memory_table memories_;                              // by handle
  mapping_table mappings_;                             // by address
  std::uint64_t last_handle_ = 0;
  std::uint64_t created_bytes_ = 0;
};

}  // namespace vmm::level_zero
