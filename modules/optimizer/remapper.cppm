// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:remapper - the one place that maps, unmaps and gives access.
//
// I1  map() is all or nothing: a set-access or a map that fails leaves no mapping behind. [A7]
// I2  Before a piece is mapped for a stream, that stream is ordered behind the piece's last use, on
//     the device.
// I3  Where the driver will not undo either, the outcome says how many leading pieces still stand
//     mapped, so that the caller keeps their addresses out of use until a later try succeeds.
//     Nothing is forgotten.
//
// Thread safety: all of it, for ranges that one thread works on at a time. Cost: one map call a
// piece, one set-access call a range (the driver charges for each mapping all the same), one unmap
// call a range where it may span several mappings. No heap allocation.
module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

export module vmm.optimizer:remapper;

import vmm.backend;
import vmm.physical;
import vmm.timeline;

namespace vmm {

/// The locations that use memory of one kind, each with its rights: the device that works on it,
/// and, where it lies elsewhere, that place.
export class grant_list {
 public:
  grant_list() = default;
  grant_list(const access_grant& only) noexcept : grants_{only, {}}, count_(1) {}
  grant_list(const access_grant& first, const access_grant& second) noexcept
      : grants_{first, second}, count_(2) {}

  [[nodiscard]] std::span<const access_grant> all() const noexcept {
    return std::span(grants_).first(count_);
  }

 private:
  std::array<access_grant, 2> grants_{};
  std::size_t count_ = 0;
};

/// Reads and writes for the device that works (`home`) and for the place where memory lies
/// (`where`): one grant where that is the same. The rights do not differ, so that a driver without
/// access_per_location takes them too.
export [[nodiscard]] inline grant_list grants_for(location home, location where) noexcept {
  const access_grant works{home, access::read_write};
  if (home == where) return works;
  return {works, access_grant{where, access::read_write}};
}

/// Pieces side by side from `at` on.
export struct mapping_plan {
  address at{};
  std::span<piece* const> pieces;
  stream_handle stream = stream_handle::default_stream;

  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    std::uint64_t sum_bytes = 0;
    for (const piece* part : pieces) sum_bytes += part->size_bytes;
    return sum_bytes;
  }
};

/// What became of a plan: the failure, if any, and how many of its leading pieces are mapped now.
export struct remap_outcome {
  status result;
  std::size_t mapped_count = 0;
  bool lost = false;    ///< what was mapped before could not be put back
  bool of_new = false;  ///< lost, and the count is of the new plan's pieces
};

export class remapper {
 public:
  remapper(driver_ref driver, timeline& time, physical_pool& memory,
           const grant_list& grants) noexcept
      : driver_(driver), time_(time), memory_(memory), grants_(grants) {}
  remapper(const remapper&) = delete;
  remapper& operator=(const remapper&) = delete;

  /// Maps and gives access. On failure mapped_count is 0 unless undoing failed too.
  [[nodiscard]] remap_outcome map(const mapping_plan& plan);

  /// Undoes the mappings of a plan that nothing uses any more. On failure mapped_count says what
  /// still stands: all of it where one call does the whole range, else a leading part.
  [[nodiscard]] remap_outcome unmap(const mapping_plan& plan);

  /// unmap(), but whole: where only a part would go, that part is mapped again. Only if the driver
  /// refuses that too is the plan `lost`, and mapped_count says what is still to be undone.
  [[nodiscard]] remap_outcome detach(const mapping_plan& plan);

  /// Undoes one plan's mappings, which nothing uses any more, and makes another's. When the new
  /// plan cannot be mapped the old one is mapped again, and mapped_count is all of it; only if the
  /// driver refuses that too is the error device_lost, and what stands is said.
  [[nodiscard]] remap_outcome exchange(const mapping_plan& old_plan, const mapping_plan& new_plan);

  /// Maps what a plan misses behind its first `standing_count` pieces, again if need be. On failure
  /// mapped_count says how many stand; those that this call mapped are without access.
  [[nodiscard]] remap_outcome restore(const mapping_plan& plan, std::size_t standing_count);

  /// What is left to say when neither the new nor the old can be mapped.
  [[nodiscard]] static error contents_lost() noexcept {
    return refuse(
        errc::device_lost,
        "the driver refused a mapping and then refused to put the old one back: free this "
        "allocation, its contents cannot be reached any more");
  }

 private:
  // A fault that strikes the undoing once must not leave a trace; one that stays cannot be
  // outwaited.
  static constexpr int undo_attempts = 3;

  [[nodiscard]] remap_outcome undo(const mapping_plan& plan, std::size_t mapped_count,
                                   const status& cause);

  driver_ref driver_;
  timeline& time_;
  physical_pool& memory_;
  grant_list grants_;
};

}  // namespace vmm
