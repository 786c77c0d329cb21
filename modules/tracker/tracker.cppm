// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.tracker - the layout: from an address to its allocation.
//
// A tracked range is the record of one allocation: where it is, its three sizes, the pieces behind
// it in order, the stream it belongs to. The tracker indexes records that its user owns and makes
// no driver call.
//
// I1  user_bytes <= mapped_bytes <= reserved_bytes, and the pieces are mapped_bytes together.
//     user_bytes is 0 only if the contents were moved to another allocation, or lost with the
//     device; and in the record of an owner, whose size the owner sets.
// I2  No two records overlap in [base, base + reserved_bytes).
// I3  A claimed record is changed only by the thread that claimed it, through relocate(); claiming
//     it again is refused, so of two threads that free one address exactly one succeeds.
//
// Thread safety: all of it. Fields of a record are read by its claimer, or by others through find()
// and visit(). Cost: O(log n) a call, no heap allocation but in find(), which copies the list of
// handles.
module;
#include "../base/thread_annotations.h"

export module vmm.tracker;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;

namespace vmm {

/// The record of one allocation. The user of the tracker derives from it and owns it.
export struct tracked_range : index_node {
  address base{};
  range_sizes sizes{};
  stream_handle stream = stream_handle::default_stream;
  std::uint64_t stream_identity = 0;  ///< of that stream, by timeline::identity_of(); 0: not known
  memory_list memories;               ///< in address order
  bool claimed = false;               ///< the tracker's
  bool owned = false;                 ///< its claimer keeps it claimed: only the owner changes it
  std::uint32_t pin_count = 0;  ///< the tracker's: exports that need the record to stay as it is
  bool is_suspended = false;    ///< the tracker's: its memory is suspended, it can only be freed
};

/// Whether pinned records may be claimed: by calls that neither move nor end them.
export enum class pinned_record : std::uint8_t { refused, allowed };

/// The live allocations of one allocator, by address.
///
/// Every call: Thread safety: any thread. Cost: O(log n), no heap allocation, where none is named.
export class tracker {
 public:
  tracker() = default;
  tracker(const tracker&) = delete;
  tracker& operator=(const tracker&) = delete;

  /// Requires: a record that is in no tracker, and addresses. Effects: adds it, claimed by the
  /// calling thread. Errors: overlap; nothing is changed.
  [[nodiscard]] status insert_claimed(tracked_range& range) noexcept;

  /// Effects: returns the record whose base is `base`, for this thread alone until unclaim() or
  /// erase().
  /// Errors: not_allocated (no record there), invalid_argument (inside an allocation, not at its
  /// base), in_use (another thread has claimed it, or it is pinned).
  [[nodiscard]] result<tracked_range*> claim(
      address base, pinned_record pinned = pinned_record::refused) noexcept;
  /// Requires: a record that this thread has claimed; for unpin, a pinned one. Effects: only calls
  /// that accept pinned records can claim a pinned one.
  void pin(tracked_range& range) noexcept;
  void unpin(tracked_range& range) noexcept;
  /// Requires: a record that this thread has claimed. Effects: any thread may claim it.
  void unclaim(tracked_range& range) noexcept;
  /// Requires: as unclaim; called before its handles are written, and after. Effects: its memory
  /// counts as suspended, or as restored.
  void set_suspended(tracked_range& range, bool is_suspended) noexcept;
  /// Requires: as unclaim. Effects: removes the record, which its owner has again.
  void erase(tracked_range& range) noexcept;

  /// The new place, sizes and stream of a claimed record.
  struct placement {
    address base{};
    range_sizes sizes{};
    stream_handle stream = stream_handle::default_stream;
  };
  /// Requires: a record that this thread has claimed, and memories of the new mapped size.
  /// Effects: moves or resizes it, and exchanges its memories with `memories`: the only way to
  /// change them, so that find() never reads a list that is being changed. Errors: overlap; record
  /// and list are unchanged.
  [[nodiscard]] status relocate(tracked_range& range, const placement& to,
                                memory_list& memories) noexcept;

  /// Requires: a record that this thread has claimed, and sizes whose mapped size its first
  /// `keep_count` pieces have. Effects: sets the record's sizes and pieces. Errors: none.
  void cut(tracked_range& range, const range_sizes& sizes, std::size_t keep_count) noexcept;

  /// Effects: none; returns a copy of the record that contains `at`. The handles of a suspended one
  /// are `none`: they are not read, and may be written without this lock.
  /// Errors: not_allocated, out_of_host_memory. Cost: O(log n + pieces), one heap allocation.
  [[nodiscard]] result<range_info> find(address at) const noexcept;
  /// Whether all of `range` lies in the user bytes of one allocation.
  [[nodiscard]] bool covers(address_range range) const noexcept;
  /// Whether `at` lies in an allocation whose memory is suspended.
  [[nodiscard]] bool is_suspended(address at) const noexcept;

  /// Calls visitor(const tracked_range&) for each record in address order, under the lock: it must
  /// not call back.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    const sync::shared_guard lock(mutex_);
    for (const index_node* node = by_base_.first(); node != nullptr; node = by_base_.next(*node)) {
      visitor(static_cast<const tracked_range&>(*node));
    }
  }

  /// The lowest base of all records; none without records. O(log n).
  [[nodiscard]] address lowest() const noexcept;
  /// The number of records. O(1).
  [[nodiscard]] std::size_t size() const noexcept;
  /// The three sizes of all records added up. O(1).
  [[nodiscard]] range_sizes totals() const noexcept;
  /// Checks I1 and I2 for every record. Errors: internal. O(n).
  [[nodiscard]] status validate() const noexcept;

 private:
  [[nodiscard]] tracked_range* containing(address at) const noexcept VMM_REQUIRES_SHARED(mutex_);
  [[nodiscard]] bool overlaps_other(address_range range, const tracked_range* self) const noexcept
      VMM_REQUIRES_SHARED(mutex_);

  void count(const range_sizes& added, const range_sizes& taken) noexcept VMM_REQUIRES(mutex_);
  [[nodiscard]] status validate_all() const noexcept VMM_REQUIRES_SHARED(mutex_);
  void audit() noexcept VMM_REQUIRES(mutex_);

  mutable sync::shared_mutex mutex_;
  ordered_index by_base_ VMM_GUARDED_BY(mutex_);
  range_sizes totals_ VMM_GUARDED_BY(mutex_){};
  std::size_t unaudited_count_ VMM_GUARDED_BY(mutex_) = 0;  // changes since the last audit
};

}  // namespace vmm
