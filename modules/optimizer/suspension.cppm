// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:suspension - memory that leaves its addresses for a while, and new memory there.
//
// A part is one piece at the one address where it is mapped. Its state is the piece's own: mapped
// or not, with a handle or without. Every function takes the parts from wherever they are to where
// it leads, so that a call that failed half-way, and could not be undone, is finished by a later
// one. [M1]
//
// I1  A part that is mapped has a handle. A part without a handle counts as suspended, in no other
//     sum.
// I2  Where a function fails, the parts that it changed are as before, unless the driver refuses
//     the undoing, too, each time; even then no piece is lost and no address is given away.
//
// Thread safety: all of it, for parts that one thread works on. Cost: driver calls by parts.
export module vmm.optimizer:suspension;

import vmm.backend;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.timeline;
import :core;

namespace vmm {

/// Where an allocator stands whose memory is suspended as a whole.
export enum class suspension_phase : std::uint8_t {
  running,
  changing,   // one thread suspends or resumes it
  suspended,  // its blocks are live and have no memory: they can only be freed
};

/// What every call answers that needs the memory of an allocator, or of a block, meanwhile.
export inline constexpr error memory_suspended =
    refuse(errc::in_use, "the memory is suspended, or is being suspended: resume it first");

/// One piece, where it is mapped, and the rights of its range besides those of all.
export struct suspension_part {
  address at{};
  physical_memory* memory = nullptr;
  const grant_list* own_rights = nullptr;
  bool is_bare = false;  ///< it was mapped, and neither its rights nor the undoing were to be had

  [[nodiscard]] address_range range() const noexcept {
    check(memory != nullptr && memory->size_bytes != 0, "a part has no memory");
    return {at, memory->size_bytes};
  }
  [[nodiscard]] bool is_attached() const noexcept {
    check(memory != nullptr, "a part has no memory");
    return memory->mapping_count != 0;
  }
};

/// The parts of one allocator.
export using suspension_list = std::vector<suspension_part>;

/// Unmaps what is mapped. Requires: no unfinished work uses it. Errors: what unmap answers; all is
/// mapped again, if the driver takes it.
export [[nodiscard]] status detach_parts(device_core& core, std::span<suspension_part> parts);
/// Maps what is not mapped, and gives all of it its rights. Requires: parts with handles. Errors:
/// what map and set_access answer; what was not mapped before is not, if the driver lets it.
export [[nodiscard]] status attach_parts(device_core& core, std::span<suspension_part> parts);
/// Makes memory for what has none. Errors: over_budget, what create answers; what was made is given
/// back, if the driver takes it.
export [[nodiscard]] status provide_parts(device_core& core,
                                          std::span<const suspension_part> parts);
/// Gives back the memory of what is not mapped. Answers the bytes that the driver did not take;
/// their pieces keep their handles, for attach_parts().
export [[nodiscard]] std::uint64_t release_parts(device_core& core,
                                                 std::span<const suspension_part> parts) noexcept;
/// Tries as often as a fault needs that strikes once: for whoever undoes. Whether all is mapped.
export bool try_to_attach(device_core& core, std::span<suspension_part> parts) noexcept;
/// Whether nothing is mapped.
export bool try_to_detach(device_core& core, std::span<suspension_part> parts) noexcept;

/// Whether every part is mapped: the driver has put all back.
export [[nodiscard]] bool are_attached(std::span<const suspension_part> parts) noexcept;
/// The bytes of all parts.
export [[nodiscard]] std::uint64_t sum_of(std::span<const suspension_part> parts) noexcept;

}  // namespace vmm
