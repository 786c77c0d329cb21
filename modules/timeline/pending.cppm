// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.timeline:pending - frees that wait until work that may use the block has finished.
//
// I1  An entry is created before its block is given up; later calls need no host memory.
// I2  An entry is in one place: with its creator, among the pending ones, or among the deferred
//     ones, for which no point can be recorded yet.
//
// Thread safety: all of it; the lock is held over the callbacks of take_finished() and visit(), and
// over no wait. Cost: O(1), except take_finished(), which is O(misses allowed + entries taken), and
// visit().
module;
#include "../base/thread_annotations.h"

export module vmm.timeline:pending;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

/// Freed blocks that are still in use. `Point` stands for the end of their work.
export template <class Block, class Point>
class pending_frees {
 public:
  struct entry {
    Block block{};
    std::vector<Point> points{};
    std::unique_ptr<entry> next{};
  };
  using owner = std::unique_ptr<entry>;

  /// Entries in the order in which they were freed.
  class list {
   public:
    list() = default;
    list(list&& other) noexcept { append(std::move(other)); }
    list& operator=(list&& other) noexcept {
      list gone(std::move(*this));
      append(std::move(other));
      return *this;
    }
    ~list() {
      while (take_first() != nullptr) {
      }  // one by one: no entry destroys another
    }
    [[nodiscard]] bool is_empty() const noexcept { return first_ == nullptr; }
    [[nodiscard]] const entry* first() const noexcept { return first_.get(); }
    [[nodiscard]] owner take_first() noexcept {
      check((first_ == nullptr) == (last_ == nullptr), "I2: a list of frees has one end");
      owner taken = std::move(first_);
      if (taken != nullptr) first_ = std::move(taken->next);
      if (first_ == nullptr) last_ = nullptr;
      return taken;
    }
    void append(owner&& one) noexcept {
      check(one != nullptr && one->next == nullptr, "I2: an entry is in two lists");
      entry* const added = one.get();
      (last_ == nullptr ? first_ : last_->next) = std::move(one);
      last_ = added;
    }
    void append(list&& others) noexcept {
      if (others.is_empty()) return;
      check(&others != this && others.last_ != nullptr, "I2: a list is added to itself");
      (last_ == nullptr ? first_ : last_->next) = std::move(others.first_);
      last_ = std::exchange(others.last_, nullptr);
    }
    /// visitor(entry&) for each.
    template <class Visitor>
    void visit(Visitor&& visitor) const {
      for (entry* each = first_.get(); each != nullptr; each = each->next.get()) visitor(*each);
    }

   private:
    owner first_{};
    entry* last_ = nullptr;
  };

  /// `has_pending` is whether any entry is pending, for reads without the lock: it may be late.
  /// Requires: it outlives this.
  explicit pending_frees(std::atomic<bool>& has_pending) noexcept : has_pending_(has_pending) {}
  pending_frees(const pending_frees&) = delete;
  pending_frees& operator=(const pending_frees&) = delete;

  /// An entry with room for this number of points. Errors: out_of_host_memory.
  [[nodiscard]] static result<owner> make(std::size_t points_max) noexcept {
    owner made(new (std::nothrow) entry);
    const error no_memory = refuse(errc::out_of_host_memory, "no host memory is left for a free");
    if (made == nullptr) return no_memory;
    if (status room = reserve_more(made->points, points_max); !room) return room.error();
    check(made->points.capacity() >= points_max, "I1: an entry has less room than was requested");
    return made;
  }
  /// Effects: the entry waits for its points.
  void push(owner&& one) noexcept {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    check(one != nullptr && !one->points.empty(), "a free is pending behind no point");
    pending_.append(std::move(one));
    has_pending_.store(true, std::memory_order_relaxed);
  }
  /// Effects: the entry waits until take_deferred().
  void defer(owner&& one) noexcept {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    check(one != nullptr && one->points.empty(), "a free with points is deferred");
    deferred_.append(std::move(one));
  }
  /// Effects: removes the entries whose points are all `finished(point)`, oldest first. Stops after
  /// a number of unfinished ones.
  template <class Finished>
  [[nodiscard]] list take_finished(std::size_t misses_max, Finished&& finished) {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    list taken;
    list left;
    for (std::size_t misses = 0; misses < misses_max && !pending_.is_empty();) {
      owner one = pending_.take_first();
      while (!one->points.empty() && finished(one->points.back())) one->points.pop_back();
      const bool is_done = one->points.empty();
      misses += is_done ? 0 : 1;
      (is_done ? taken : left).append(std::move(one));
    }
    check(!left.is_empty() || pending_.is_empty(), "frees are skipped without a miss");
    left.append(std::move(pending_));
    pending_ = std::move(left);
    has_pending_.store(!pending_.is_empty(), std::memory_order_relaxed);
    return taken;
  }
  [[nodiscard]] list take_deferred() noexcept {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    return std::move(deferred_);
  }
  /// A copy of the points of all entries that are pending. Errors: out_of_host_memory.
  [[nodiscard]] result<std::vector<Point>> points() const {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    std::vector<Point> all;
    status room;
    pending_.visit([&](const entry& each) {
      if (room) room = reserve_more(all, each.points.size());
      if (room) all.insert(all.end(), each.points.begin(), each.points.end());
    });
    if (!room) return room.error();
    return all;
  }
  /// A copy of the points of the entry that has been pending longest. Errors: out_of_host_memory.
  [[nodiscard]] result<std::vector<Point>> oldest_points() const {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    std::vector<Point> all;
    const entry* const oldest = pending_.first();
    if (oldest == nullptr) return all;
    if (status room = reserve_more(all, oldest->points.size()); !room) return room.error();
    all.insert(all.end(), oldest->points.begin(), oldest->points.end());
    return all;
  }
  /// Effects: removes the points of which `gone(point)` is true. An entry that has none left is
  /// finished.
  template <class Gone>
  void drop_points(Gone&& gone) {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    pending_.visit([&](entry& each) { std::erase_if(each.points, gone); });
  }
  /// visitor(const Block&) for each block, pending or deferred, under the lock.
  template <class Visitor>
  void visit(Visitor&& visitor) const {
    const sync::lock_guard<sync::mutex> lock(mutex_);
    const auto show = [&](const entry& each) { visitor(each.block); };
    pending_.visit(show);
    deferred_.visit(show);
  }

 private:
  mutable sync::mutex mutex_;
  list pending_ VMM_GUARDED_BY(mutex_);
  list deferred_ VMM_GUARDED_BY(mutex_);
  std::atomic<bool>& has_pending_;
};

}  // namespace vmm
