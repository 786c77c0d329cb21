// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:slabs - pieces of physical memory as a pool uses them, and where each is mapped. Not
// exported.
//
// A slab is one piece with the count of its live granules. A view is one mapping of it. Moving a
// slab gives it a new current view; the old one stays mapped, stale, until the work that was given
// its addresses has finished and somebody unmaps it. [G3]
//
// I1  A slab's bytes belong to its current view. A stale view's addresses are used by nobody new.
// I2  A slab without a live granule is in the list of whole slabs of the stream that freed last in
// it.
//
// Thread safety: none of its own. Cost: O(1) for each call, but for the search in a bin of sizes
// above 32 pages, which looks at eight slabs.
module;
#include <bit>
#include <cstdint>

export module vmm.stream:slabs;

import vmm.backend;
import vmm.intrusive;
import vmm.physical;
import vmm.va;
import :progress;

namespace vmm {

struct slab;

/// One mapping. Its length is its piece's.
struct view {
  slab* of = nullptr;  // null for a mapping that the driver would not undo after a failure
  std::uint32_t segment = 0;
  std::uint32_t offset = 0;  // granules from the segment's start
  std::uint32_t count_granules = 0;
  std::uint32_t live_granules = 0;  // of a current view
  piece* memory = nullptr;
  view* next_of_slab = nullptr;  // stale views of one slab, newest first
  view* before_of_slab = nullptr;
  struct links {
    view* before = nullptr;
    view* after = nullptr;
  };
  links in_queue{};     // stale views, oldest first
  links in_ends{};      // views with nothing behind them
  bool is_end = false;  // nothing is mapped behind it
  bool is_stale = false;
  bool is_announced = false;  // who listens has been told that it will be unmapped
  stream_point last_use{};    // stale: unmapped when this has passed
  view* next_free = nullptr;
};

/// One piece of physical memory.
struct slab {
  piece* memory = nullptr;
  view* current = nullptr;
  view* stale_views = nullptr;  // linked through next_of_slab
  std::uint32_t count_granules = 0;
  std::uint32_t count_pages = 0;
  std::uint32_t stream = 0;  // of the list of whole slabs that it is in
  bool is_whole = false;
  std::uint64_t whole_since = 0;
  slab* before = nullptr;  // neighbours in that list
  slab* after = nullptr;
  slab* next_free = nullptr;
};

/// Views in a list, through one pair of their links.
template <view::links view::* Links>
class view_list {
 public:
  void push_back(view& v) noexcept {
    v.*Links = {last_, nullptr};
    (last_ != nullptr ? (last_->*Links).after : first_) = &v;
    last_ = &v;
    ++count_;
    granules_ += v.count_granules;
  }
  inline void remove(view& v) noexcept {
    const view::links at = v.*Links;
    (at.before != nullptr ? (at.before->*Links).after : first_) = at.after;
    (at.after != nullptr ? (at.after->*Links).before : last_) = at.before;
    v.*Links = {};
    --count_;
    granules_ -= v.count_granules;
  }
  [[nodiscard]] view* before(const view& v) const noexcept { return (v.*Links).before; }
  [[nodiscard]] view* after(const view& v) const noexcept { return (v.*Links).after; }
  [[nodiscard]] view* first() const noexcept { return first_; }
  [[nodiscard]] view* last() const noexcept { return last_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t granules() const noexcept { return granules_; }

 private:
  view* first_ = nullptr;
  view* last_ = nullptr;
  std::uint64_t count_ = 0;
  std::uint64_t granules_ = 0;
};

/// One stream's whole slabs, by size in pages and by age within a size.
class slab_bins {
 public:
  inline void add(slab& s, std::uint32_t pages) noexcept {
    const std::uint32_t bin = bin_of(pages);
    list& in = bins_[bin];
    s.before = in.last;
    s.after = nullptr;
    (in.last != nullptr ? in.last->after : in.first) = &s;
    in.last = &s;
    filled_ |= std::uint64_t{1} << bin;
  }
  inline void remove(slab& s, std::uint32_t pages) noexcept {
    const std::uint32_t bin = bin_of(pages);
    list& in = bins_[bin];
    (s.before != nullptr ? s.before->after : in.first) = s.after;
    (s.after != nullptr ? s.after->before : in.last) = s.before;
    s.before = s.after = nullptr;
    if (in.first == nullptr) filled_ &= ~(std::uint64_t{1} << bin);
  }
  [[nodiscard]] inline bool empty() const noexcept { return filled_ == 0; }

  /// The oldest of the smallest slabs that have `pages` or more; null when there is none.
  [[nodiscard]] slab* at_least(std::uint32_t pages, std::uint32_t granules) const noexcept;
  /// The oldest of the largest; null when there is none.
  [[nodiscard]] inline slab* largest() const noexcept {
    if (filled_ == 0) return nullptr;
    return bins_[63 - static_cast<std::uint32_t>(std::countl_zero(filled_))].first;
  }
  /// Behind `s` in the order of largest(): the rest of its bin, then the next smaller one.
  [[nodiscard]] inline slab* next_smaller(const slab& s, std::uint32_t pages) const noexcept {
    if (s.after != nullptr) return s.after;
    const std::uint64_t below = filled_ & ((std::uint64_t{1} << bin_of(pages)) - 1);
    if (below == 0) return nullptr;
    return bins_[63 - static_cast<std::uint32_t>(std::countl_zero(below))].first;
  }
  /// The one that has been whole for longest; null when there is none.
  [[nodiscard]] slab* oldest() const noexcept;

 private:
  struct list {
    slab* first = nullptr;
    slab* last = nullptr;
  };
  static constexpr std::uint32_t exact_pages = 32;

  [[nodiscard]] static inline std::uint32_t bin_of(std::uint32_t pages) noexcept {
    if (pages <= exact_pages) return pages - 1;
    return 26 + static_cast<std::uint32_t>(std::bit_width(pages));
  }

  list bins_[64];
  std::uint64_t filled_ = 0;
};

}  // namespace vmm
