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

export template <backend B>
class remapper {
 public:
  remapper(B& driver, timeline<B>& time, physical_pool<B>& memory,
           const grant_list& grants) noexcept
      : driver_(driver), time_(time), memory_(memory), grants_(grants) {}
  remapper(const remapper&) = delete;
  remapper& operator=(const remapper&) = delete;

  /// Maps and gives access. On failure mapped_count is 0 unless undoing failed too.
  [[nodiscard]] remap_outcome map(const mapping_plan& plan) {
    check(!plan.pieces.empty(), "a mapping plan without pieces");
    for (const piece* part : plan.pieces) {
      if (status ordered = time_.order(plan.stream, part->last_use); !ordered) return {ordered, 0};
    }
    std::size_t mapped_count = 0;
    address at = plan.at;
    for (piece* part : plan.pieces) {
      const status mapped = driver_.map({at, part->size_bytes, part->handle, 0});
      if (!mapped) return undo(plan, mapped_count, mapped);
      memory_.add_mapping(*part);
      ++mapped_count;
      at = at + part->size_bytes;
    }
    const status allowed = driver_.set_access({plan.at, plan.size_bytes()}, grants_.all());
    if (!allowed) return undo(plan, mapped_count, allowed);
    return {status{}, mapped_count};
  }

  /// Undoes the mappings of a plan that nothing uses any more. On failure mapped_count says what
  /// still stands: all of it where one call does the whole range, else a leading part.
  [[nodiscard]] remap_outcome unmap(const mapping_plan& plan) {
    if (plan.pieces.empty()) return {status{}, 0};
    if (driver_.feature_set().spanning_unmap || plan.pieces.size() == 1) {
      const status undone = driver_.unmap({plan.at, plan.size_bytes()});
      if (!undone) return {undone, plan.pieces.size()};
      for (piece* part : plan.pieces) memory_.drop_mapping(*part);
      return {status{}, 0};
    }
    address end = plan.at + plan.size_bytes();
    for (std::size_t left_count = plan.pieces.size(); left_count > 0; --left_count) {
      piece& part = *plan.pieces[left_count - 1];
      const address_range range{address{end.value - part.size_bytes}, part.size_bytes};
      if (status undone = driver_.unmap(range); !undone) return {undone, left_count};
      memory_.drop_mapping(part);
      end = range.base;
    }
    return {status{}, 0};
  }

  /// unmap(), but whole: where only a part would go, that part is mapped again. Only if the driver
  /// refuses that too is the plan `lost`, and mapped_count says what is still to be undone.
  [[nodiscard]] remap_outcome detach(const mapping_plan& plan) {
    const remap_outcome undone = unmap(plan);
    if (undone.result) return undone;
    const remap_outcome restored = restore(plan, undone.mapped_count);
    return {undone.result, restored.mapped_count, !restored.result};
  }

  /// Undoes one plan's mappings, which nothing uses any more, and makes another's. When the new
  /// plan cannot be mapped the old one is mapped again, and mapped_count is all of it; only if the
  /// driver refuses that too is the error device_lost, and what stands is said.
  [[nodiscard]] remap_outcome exchange(const mapping_plan& old_plan, const mapping_plan& new_plan) {
    const remap_outcome undone = detach(old_plan);
    if (undone.lost) return {contents_lost(), undone.mapped_count, true};
    if (!undone.result) return undone;
    const remap_outcome done = map(new_plan);
    if (done.result) return done;
    if (done.mapped_count > 0) return {contents_lost(), done.mapped_count, true, true};
    const remap_outcome restored = restore(old_plan, 0);
    if (restored.result) return {done.result, restored.mapped_count};
    return {contents_lost(), restored.mapped_count, true};
  }

  /// Maps what a plan misses behind its first `standing_count` pieces, again if need be. On failure
  /// mapped_count says how many stand; those that this call mapped are without access.
  [[nodiscard]] remap_outcome restore(const mapping_plan& plan, std::size_t standing_count) {
    if (standing_count == plan.pieces.size()) return {status{}, standing_count};
    const mapping_plan standing{plan.at, plan.pieces.first(standing_count), plan.stream};
    const mapping_plan missing{plan.at + standing.size_bytes(), plan.pieces.subspan(standing_count),
                               plan.stream};
    remap_outcome again = map(missing);
    for (int left = undo_attempts - 1; left > 0 && !again.result && again.mapped_count == 0; --left)
      again = map(missing);
    return {again.result, standing_count + again.mapped_count};
  }

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
                                   const status& cause) {
    std::size_t left_count = mapped_count;
    for (int attempt = 0; attempt < undo_attempts && left_count > 0; ++attempt) {
      left_count = unmap({plan.at, plan.pieces.first(left_count), plan.stream}).mapped_count;
    }
    return {cause, left_count};
  }

  B& driver_;
  timeline<B>& time_;
  physical_pool<B>& memory_;
  grant_list grants_;
};

}  // namespace vmm
