// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.tracker - what is where: from an address to the allocation it lies in. [D1, D2]
//
// A tracked range is the record of one allocation: where it is, its three sizes, the pieces behind
// it in order, the stream it belongs to. The tracker indexes records that its user owns and makes
// no driver call.
//
// I1  user_bytes <= mapped_bytes <= reserved_bytes, and the pieces are mapped_bytes together.
// user_bytes is 0 only
//     where the contents have gone: moved to another allocation, or lost with the device.
// I2  No two records overlap in [base, base + reserved_bytes).
// I3  A claimed record is changed by the thread that claimed it and by nobody else, through
// relocate(); claiming it
//     again is refused, so of two threads that free one address exactly one succeeds.
//
// Thread safety: all of it. Fields of a record are read by its claimer, or by others through find()
// and visit(). Cost: O(log n) a call, no heap allocation but in find(), which copies the list of
// handles.
module;
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../sync/thread_annotations.h"

export module vmm.tracker;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.sync;

namespace vmm {

/// The three sizes of an allocation, which are never mixed. [C5]
export struct range_sizes {
  std::uint64_t user_bytes = 0;      ///< what was asked for
  std::uint64_t mapped_bytes = 0;    ///< what has physical memory behind it
  std::uint64_t reserved_bytes = 0;  ///< what address space it takes, with its room to grow
};

/// The record of one allocation. The user of the tracker derives from it and owns it.
export struct tracked_range : index_node {
  address base{};
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  piece_list pieces;     ///< in address order
  bool claimed = false;  ///< the tracker's
};

/// A copy of a record, with the handles in address order.
export struct range_info {
  address base{};
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  std::vector<physical_handle> handles;
};

export class tracker {
 public:
  tracker() = default;
  tracker(const tracker&) = delete;
  tracker& operator=(const tracker&) = delete;

  /// Adds a record, claimed by the calling thread. Errors: overlap.
  [[nodiscard]] status insert_claimed(tracked_range& range) noexcept;

  /// The record whose base is `base`, for this thread alone until unclaim() or erase().
  /// Errors: not_allocated (no record there), invalid_argument (inside an allocation, not at its
  /// base), in_use (another thread has claimed it).
  [[nodiscard]] result<tracked_range*> claim(address base) noexcept;
  void unclaim(tracked_range& range) noexcept;
  /// Takes a claimed record out.
  void erase(tracked_range& range) noexcept;

  /// Where a claimed record lies, how large it is and whose it is from now on.
  struct placement {
    address base{};
    range_sizes sizes{};
    stream_handle stream = stream_handle::default_stream;
  };
  /// Moves or resizes a claimed record, and exchanges its pieces with `pieces`: the only way to
  /// change them, so that find() never sees a list in the making. Errors: overlap; record and list
  /// are unchanged.
  [[nodiscard]] status relocate(tracked_range& range, const placement& to,
                                piece_list& pieces) noexcept;

  /// A copy of the record that `at` lies in, in its address space, its base or not.
  /// Errors: not_allocated, out_of_host_memory.
  [[nodiscard]] result<range_info> find(address at) const noexcept;
  /// Whether all of `range` lies in the user bytes of one allocation.
  [[nodiscard]] bool covers(address_range range) const noexcept;

  /// Calls visitor(const tracked_range&) for each record in address order, under the lock: it must
  /// not call back.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    const sync::shared_guard lock(mutex_);
    for (const index_node* node = by_base_.first(); node != nullptr; node = by_base_.next(*node)) {
      visitor(static_cast<const tracked_range&>(*node));
    }
  }

  /// The lowest base of all records; none when there are none. O(log n).
  [[nodiscard]] address lowest() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// The three sizes of all records added up. O(1).
  [[nodiscard]] range_sizes totals() const noexcept;
  /// Checks I1 and I2 for every record. O(n).
  [[nodiscard]] bool validate() const noexcept;

 private:
  [[nodiscard]] tracked_range* containing(address at) const noexcept VMM_REQUIRES_SHARED(mutex_);
  [[nodiscard]] bool overlaps_other(address_range range, const tracked_range* self) const noexcept
      VMM_REQUIRES_SHARED(mutex_);

  void count(const range_sizes& added, const range_sizes& taken) noexcept VMM_REQUIRES(mutex_);

  mutable sync::shared_mutex mutex_;
  ordered_index by_base_ VMM_GUARDED_BY(mutex_);
  range_sizes totals_ VMM_GUARDED_BY(mutex_){};
};

}  // namespace vmm
