// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer:unmap_queue - mapped ranges that wait until no work uses them.
//
// Unmapping does not wait for the device, so a range whose work is unfinished waits here, and is
// polled later, oldest first. The owner defines the poll (a ticket, a point on a stream).
//
// I1  A range is in one queue, once; it is counted there until it has been unmapped.
// I2  One thread at a time polls a range and unmaps it. The range stays counted meanwhile, so that
//     no other thread takes the queue for empty: such a thread waits for the result
//     (wait_for_asked()).
// I3  A range that stays (its work is unfinished, or the driver refused) goes to the end, and is
//     polled again: one stuck range does not delay the others.
//
// unmap_queue is an unmap_list with a lock of its own. If the ranges are already under a lock, like
// a pool's stale mappings, their owner has an unmap_list there and polls it.
//
// Thread safety: unmap_list none, its owner has the lock; unmap_queue all of it. No lock is held
// over a driver call except `asked_`, shared, which only wait_for_asked() takes exclusively. Cost:
// O(1) a range besides what the owner's functions cost; no heap allocation.
module;
#include "../base/thread_annotations.h"

export module vmm.optimizer:unmap_queue;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// The base class of ranges in an unmap_list or an unmap_queue.
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

  /// Adds the range at the end.
  void push(unmap_entry& range, std::uint64_t size_bytes) noexcept;
  /// Takes the oldest for the caller to poll; null if none is listed. It stays counted.
  [[nodiscard]] unmap_entry* take_oldest() noexcept;
  /// Returns a polled range to the end.
  void put_back(unmap_entry& kept) noexcept;
  /// Removes an unmapped range, polled or listed, from the count.
  void remove(unmap_entry& unmapped) noexcept;

  /// The oldest listed range; null without one.
  [[nodiscard]] unmap_entry* oldest() const noexcept {
    debug_check([this] { return (first_ == nullptr) == (count_ == asked_count_); },
                "a listed range is not found in its list");
    return first_;
  }
  /// Each range that is listed, oldest first.
  template <class Visitor>
  void for_each(Visitor&& visitor) const {
    for (unmap_entry* range = first_; range != nullptr; range = range->after) visitor(*range);
  }
  /// Ranges listed or being polled.
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
  std::size_t unaudited_count_ = 0;  // changes since the last full validation
};

/// The outcome for a polled range.
export enum class unmap_answer : std::uint8_t {
  unmapped,  // it no longer waits
  waits,     // its work is unfinished, or the query failed
  refused,   // the driver did not unmap it
};

/// The ranges in order, for every thread.
export class unmap_queue {
 public:
  unmap_queue() = default;
  unmap_queue(const unmap_queue&) = delete;
  unmap_queue& operator=(const unmap_queue&) = delete;

  /// Adds the range at the end.
  void push(unmap_entry& range, std::uint64_t size_bytes) noexcept;

  /// Polls the oldest range that no thread is polling: `ask(unmap_entry&)` unmaps it if it may, and
  /// returns an unmap_answer; `gone(unmap_entry&)` gets a range that no longer waits, and may
  /// destroy it. Returns `waits` if no range was polled.
  template <class Ask, class Gone>
  unmap_answer reap_one(Ask&& ask, Gone&& gone) {
    const sync::shared_guard asking(asked_);
    unmap_entry* const range = take_oldest();
    if (range == nullptr) return unmap_answer::waits;
    check(range->is == unmap_entry::place::asked, "a range is polled that was not taken");
    const unmap_answer answer = std::forward<Ask>(ask)(*range);
    finish(*range, answer);
    if (answer == unmap_answer::unmapped) std::forward<Gone>(gone)(*range);
    return answer;
  }

  /// Polls at most `count_max` ranges, oldest first, each once. Returns the number unmapped; a
  /// later call polls the others.
  template <class Ask, class Gone>
  std::size_t reap(std::size_t count_max, Ask&& ask, Gone&& gone) {
    std::size_t unmapped_count = 0;
    for (std::size_t left = std::min(count_max, size()); left > 0; --left) {
      if (reap_one(ask, gone) == unmap_answer::unmapped) ++unmapped_count;
    }
    check(unmapped_count <= count_max, "more ranges were unmapped than polled");
    return unmapped_count;
  }

  /// Calls `look(unmap_entry&)` for the oldest range that no thread is polling, under the lock: it
  /// makes no driver call. False if no range is listed.
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

  /// Returns once every poll in progress at the time of the call has ended. Not from within `ask`
  /// and `gone`.
  void wait_for_asked() noexcept;
  /// A range outside of the queue was refused: it counts with those inside.
  void count_refusal() noexcept;

  /// Ranges that wait, including those being polled.
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;
  /// Times that the driver refused to unmap a range whose work had finished.
  [[nodiscard]] std::uint64_t refused_count() const noexcept;
  [[nodiscard]] status validate() const noexcept;

 private:
  [[nodiscard]] unmap_entry* take_oldest() noexcept;
  void finish(unmap_entry& asked, unmap_answer answer) noexcept;

  sync::shared_mutex asked_;  // shared while a range is polled; before mutex_
  mutable sync::mutex mutex_;
  unmap_list list_ VMM_GUARDED_BY(mutex_);
  std::uint64_t refused_count_ VMM_GUARDED_BY(mutex_) = 0;
};

}  // namespace vmm
