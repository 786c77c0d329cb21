// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:unmap_queue - mapped ranges that wait until no work uses them.
//
// Unmapping does not wait for the device, so a range whose work is unfinished waits here, and is
// asked about later, oldest first. What is asked (a ticket, a point on a stream) is the owner's.
//
// I1  A range is in one queue, once; it is counted there until it has been unmapped.
// I2  One thread at a time asks about a range and unmaps it. It stays counted meanwhile, so that no
//     other thread takes the queue for empty: that one waits for the answer (wait_for_asked()).
// I3  A range that stays (its work is unfinished, or the driver refused) goes to the end, and is
//     asked about again: one stuck range does not hold up the others.
//
// unmap_queue is an unmap_list with a lock of its own. Where the ranges are under a lock anyway, as
// a pool's stale mappings are, their owner has an unmap_list there and does the asking.
//
// Thread safety: unmap_list none, its owner has the lock; unmap_queue all of it. No lock is held
// over a driver call but `asked`, shared, which only wait_for_asked() takes alone. Cost: O(1) a
// range besides what the owner's functions cost; no heap allocation.
module;
#include "../sync/thread_annotations.h"

export module vmm.optimizer:unmap_queue;

import vmm.backend;
import vmm.std;
import vmm.support;
import vmm.sync;

namespace vmm {

/// What a range embeds (by inheritance) to wait in an unmap_list or an unmap_queue.
export struct unmap_entry {
  enum class place : std::uint8_t { outside, listed, asked };

  unmap_entry* before = nullptr;
  unmap_entry* after = nullptr;
  std::uint64_t waiting_bytes = 0;  ///< of addresses, as counted
  place is = place::outside;
};

/// The ranges in order, without a lock of its own.
export class unmap_list {
 public:
  unmap_list() = default;
  unmap_list(const unmap_list&) = delete;
  unmap_list& operator=(const unmap_list&) = delete;

  /// To the end.
  void push(unmap_entry& range, std::uint64_t size_bytes) noexcept;
  /// The oldest, which is the caller's to ask about; null when none is listed. It stays counted.
  [[nodiscard]] unmap_entry* take_oldest() noexcept;
  /// An asked range stays: to the end.
  void put_back(unmap_entry& kept) noexcept;
  /// A range that was unmapped, asked or listed: it is no longer counted.
  void remove(unmap_entry& unmapped) noexcept;

  /// The oldest that is listed; null when none is.
  [[nodiscard]] unmap_entry* oldest() const noexcept {
    debug_check([this] { return (first_ == nullptr) == (count_ == asked_count_); },
                "a range waits that nobody took, and is not found");
    return first_;
  }
  /// Ranges listed or asked.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t asked_count() const noexcept { return asked_count_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  /// Checks I1 and the sums. O(n).
  [[nodiscard]] status validate() const noexcept;

 private:
  void link_last(unmap_entry& range) noexcept;
  void unlink(unmap_entry& range) noexcept;
  void audit() noexcept;

  unmap_entry* first_ = nullptr;
  unmap_entry* last_ = nullptr;
  std::size_t count_ = 0;
  std::size_t asked_count_ = 0;
  std::uint64_t size_bytes_ = 0;
  std::size_t unaudited_count_ = 0;  // changes since the last look at everything
};

/// What became of a range that was asked about.
export enum class unmap_answer : std::uint8_t {
  unmapped,  // it waits no more
  waits,     // its work is unfinished, or that could not be told
  refused,   // the driver did not unmap it
};

/// The ranges in order, for every thread.
export class unmap_queue {
 public:
  unmap_queue() = default;
  unmap_queue(const unmap_queue&) = delete;
  unmap_queue& operator=(const unmap_queue&) = delete;

  /// To the end.
  void push(unmap_entry& range, std::uint64_t size_bytes) noexcept;

  /// Asks about the oldest range that no thread asks about: `ask(unmap_entry&)`, an unmap_answer,
  /// unmaps it where it may; `gone(unmap_entry&)` gets it when it waits no more, and may end it.
  /// `waits` where nothing was asked.
  template <class Ask, class Gone>
  unmap_answer reap_one(Ask&& ask, Gone&& gone) {
    const sync::shared_guard asking(asked_);
    unmap_entry* const range = take_oldest();
    if (range == nullptr) return unmap_answer::waits;
    check(range->is == unmap_entry::place::asked, "a range is asked about that nobody took");
    const unmap_answer answer = std::forward<Ask>(ask)(*range);
    settle(*range, answer);
    if (answer == unmap_answer::unmapped) std::forward<Gone>(gone)(*range);
    return answer;
  }

  /// Asks about `count_max` ranges at most, oldest first, each once. Returns how many were
  /// unmapped; those that stay are asked about by a later call.
  template <class Ask, class Gone>
  std::size_t reap(std::size_t count_max, Ask&& ask, Gone&& gone) {
    std::size_t unmapped_count = 0;
    for (std::size_t left = std::min(count_max, size()); left > 0; --left) {
      if (reap_one(ask, gone) == unmap_answer::unmapped) ++unmapped_count;
    }
    check(unmapped_count <= count_max, "more ranges were unmapped than asked about");
    return unmapped_count;
  }

  /// Calls `look(unmap_entry&)` for the oldest range that no thread asks about, under the lock: it
  /// makes no driver call. False when there is none.
  template <class Look>
  [[nodiscard]] bool look_at_oldest(Look&& look) {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    unmap_entry* const range = list_.oldest();
    if (range == nullptr) return false;
    check(range->is == unmap_entry::place::listed, "the oldest range that waits is taken");
    std::forward<Look>(look)(*range);
    return true;
  }
  /// Moves the oldest range to the end if `is_it(const unmap_entry&)`.
  template <class IsIt>
  void defer_oldest(IsIt&& is_it) {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    unmap_entry* const range = list_.oldest();
    if (range == nullptr || !std::forward<IsIt>(is_it)(*range)) return;
    check(list_.take_oldest() == range, "the oldest range is not the first");
    list_.put_back(*range);
  }

  /// Returns when no thread asks about a range that it asked about when this was called. Not from
  /// within `ask` and `gone`.
  void wait_for_asked() noexcept;
  /// A range outside of the queue was refused: it counts with those inside.
  void count_refusal() noexcept;

  /// Ranges that wait, those that are being asked about with them.
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  /// Times that the driver refused to unmap a range whose work had finished.
  [[nodiscard]] std::uint64_t refused_count() const noexcept;
  [[nodiscard]] status validate() const noexcept;

 private:
  [[nodiscard]] unmap_entry* take_oldest() noexcept;
  void settle(unmap_entry& asked, unmap_answer answer) noexcept;

  sync::shared_mutex asked_;  // shared while a range is asked about; before mutex_
  mutable sync::mutex mutex_;
  unmap_list list_ VMM_GUARDED_BY(mutex_);
  std::uint64_t refused_count_ VMM_GUARDED_BY(mutex_) = 0;
};

}  // namespace vmm
