// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.stream:mappings - the records of a pool's allocation handles and of their mappings. Not
// exported.
//
// A handle record is one handle with the count of its live granules. A mapping is one range at
// which it is mapped. Moving a handle gives it a new current mapping; the old one stays, stale,
// until the work that uses its addresses has finished and it is unmapped.
//
// I1  A handle's bytes belong to its current mapping. A stale mapping's addresses are not allocated
//     again.
// I2  A handle without a live granule is free and in the list of the stream that freed last in it,
//     or of a batch for which a part of it waits, unless a growth or a trim has claimed it. No
//     other handle is in a list.
// I3  A mapping is stale exactly when it waits in the unmap_list, listed or being polled; a stale
//     mapping that has a handle is in the handle's list too.
// I4  A mapping is an end exactly when it is in the list of ends: nothing is mapped behind it.
// I5  Live granules are never more than the granules of all handles; the peak is never below them.
//
// Which regions lie in a mapping is the segment's. Thread safety: none of its own; under the lock
// of the state. Cost: O(1) for each call, except the search in a bin of sizes above 32 pages, which
// examines eight handles.
export module vmm.stream:mappings;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;
import vmm.va;
import :geometry;

namespace vmm {

struct handle_record;

/// One mapping of a handle. Its length is the handle's. It waits to be unmapped when its handle's
/// memory has moved on. The fields that allocate and free read are on its first cache line.
struct alignas(64) mapping : unmap_entry {
  handle_record* of = nullptr;  // null for one that the driver would not undo after a failure
  std::uint32_t segment = 0;
  std::uint32_t offset = 0;  // granules from the segment's start
  std::uint32_t count_granules = 0;
  std::uint32_t live_granules = 0;  // of a current mapping
  mapping* right = nullptr;         // mapped right behind it
  physical_memory* memory = nullptr;
  mapping* next_of_handle = nullptr;  // stale mappings of one handle, newest first
  mapping* before_of_handle = nullptr;
  struct links {
    mapping* before = nullptr;
    mapping* after = nullptr;
  };
  links in_ends{};            // mappings with nothing behind them
  bool is_end = false;        // nothing is mapped behind it
  bool is_announced = false;  // subscribers were notified that it will be unmapped
  stream_point last_use{};    // stale: unmapped when this has passed
  mapping* next_free = nullptr;

  /// Whether its handle's memory has moved on.
  [[nodiscard]] inline bool is_stale() const noexcept { return is != place::outside; }
  [[nodiscard]] inline granule_range range() const noexcept {
    debug_check([&] { return live_granules <= count_granules; }, "more is live than is mapped");
    return {offset, count_granules};
  }
  [[nodiscard]] inline std::uint32_t end() const noexcept {
    debug_check([&] { return offset + count_granules > offset; }, "a mapping is empty");
    return offset + count_granules;
  }
};

/// One allocation handle. The fields that allocate and free use where it becomes live or free are
/// on its first cache line.
struct alignas(64) handle_record {
  physical_memory* memory = nullptr;
  mapping* current = nullptr;
  mapping* stale_mappings = nullptr;  // linked through next_of_handle
  std::uint32_t count_granules = 0;
  std::uint32_t count_pages = 0;
  std::uint32_t stream = 0;  // of the list of free handles that it is in
  bool is_free = false;
  std::uint64_t free_since = 0;
  handle_record* before = nullptr;  // neighbours in that list
  handle_record* after = nullptr;
  std::uint64_t made_at = 0;   // an epoch before which nothing has used it
  std::uint64_t made_for = 0;  // the announcement that created it; 0: a request
  handle_record* next_free = nullptr;
};

/// The mappings with nothing behind them, in the order in which they became that.
class end_list {
 public:
  void push_back(mapping& m) noexcept {
    check(m.in_ends.before == nullptr && m.in_ends.after == nullptr && first_ != &m,
          "a mapping is put into a list that it is in");
    m.in_ends = {last_, nullptr};
    (last_ != nullptr ? last_->in_ends.after : first_) = &m;
    last_ = &m;
    ++count_;
    debug_check([&] { return is_linked(m); }, "a mapping's neighbours in a list do not name it");
  }
  inline void remove(mapping& m) noexcept {
    check(count_ != 0, "a mapping leaves a list that is empty");
    debug_check([&] { return is_linked(m); }, "a mapping's neighbours in a list do not name it");
    const mapping::links at = m.in_ends;
    (at.before != nullptr ? at.before->in_ends.after : first_) = at.after;
    (at.after != nullptr ? at.after->in_ends.before : last_) = at.before;
    m.in_ends = {};
    --count_;
    check((count_ == 0) == (first_ == nullptr), "a list that is empty has a mapping");
  }
  [[nodiscard]] mapping* before(const mapping& m) const noexcept {
    debug_check([&] { return is_linked(m); }, "a mapping's neighbours in a list do not name it");
    return m.in_ends.before;
  }
  [[nodiscard]] mapping* last() const noexcept {
    debug_check([&] { return (last_ == nullptr) == (count_ == 0); }, "a list's last is lost");
    return last_;
  }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Whether the links and the count hold and all of them are ends. O(mappings).
  [[nodiscard]] bool valid() const noexcept {
    std::uint64_t seen_count = 0;
    for (const mapping* m = first_; m != nullptr; m = m->in_ends.after) {
      if (seen_count == count_ || !is_linked(*m) || !m->is_end) return false;
      ++seen_count;
    }
    return seen_count == count_;
  }

 private:
  [[nodiscard]] bool is_linked(const mapping& m) const noexcept {
    const mapping::links at = m.in_ends;
    return (at.before != nullptr ? at.before->in_ends.after : first_) == &m &&
           (at.after != nullptr ? at.after->in_ends.before : last_) == &m;
  }

  mapping* first_ = nullptr;
  mapping* last_ = nullptr;
  std::uint64_t count_ = 0;
};

/// One stream's free handles, by size in pages and by age within a size.
class free_handle_bins {
 public:
  inline void add(handle_record& h) noexcept;
  inline void remove(handle_record& h) noexcept;
  [[nodiscard]] inline bool empty() const noexcept { return filled_ == 0; }

  /// The oldest of the smallest handles that have `pages` or more, or in a bin of several sizes
  /// one with `granules`; or null.
  [[nodiscard]] handle_record* at_least(std::uint32_t pages, std::uint32_t granules) const noexcept;
  /// The oldest of the largest, or null.
  [[nodiscard]] inline handle_record* largest() const noexcept {
    if (filled_ == 0) return nullptr;
    debug_check([&] { return oldest() != nullptr; }, "a list that is not empty has no handle");
    return bins_[63 - static_cast<std::uint32_t>(std::countl_zero(filled_))].first;
  }
  /// Behind `h` in the order of largest(): the rest of its bin, then the next smaller one.
  [[nodiscard]] handle_record* next_smaller(const handle_record& h) const noexcept;
  /// The one that has been free for longest, or null.
  [[nodiscard]] handle_record* oldest() const noexcept;
  /// Whether all of them are free for `stream` and in its lists. O(handles).
  [[nodiscard]] bool valid(std::uint32_t stream) const noexcept;

 private:
  struct list {
    handle_record* first = nullptr;
    handle_record* last = nullptr;
  };
  static constexpr std::uint32_t exact_pages = 32;

  [[nodiscard]] static inline std::uint32_t bin_of(std::uint32_t pages) noexcept {
    debug_check([&] { return pages != 0; }, "a handle has no page");
    if (pages <= exact_pages) return pages - 1;
    return 26 + static_cast<std::uint32_t>(std::bit_width(pages));
  }

  list bins_[64];
  std::uint64_t filled_ = 0;
};

/// Where a walk over the free handles stands: each stream's largest first. The caller keeps it, and
/// the lock of growth, from one step to the next.
struct free_handle_walk {
  handle_record* next = nullptr;  // null: the next stream has not been begun
  std::size_t streams_begun = 0;
  std::uint64_t bytes_left = 0;
  std::uint64_t looks_left = 0;
  std::uint64_t waiting_bytes = 0;  // of handles that were passed: unfinished work may use them
  std::uint64_t made_for = 0;       // not 0: only what this announcement made and nothing has used
};

/// The one owner of the records.
class mappings {
 public:
  explicit mappings(const pool_geometry& sizes) noexcept
      : unit_granules_(sizes.unit_granules), page_granules_(sizes.page_granules) {}
  mappings(const mappings&) = delete;
  mappings& operator=(const mappings&) = delete;
  ~mappings();

  // ---- records ----
  /// A record of a new handle; null when the host has no memory. It counts as the pool's memory
  /// from add_handle() on.
  [[nodiscard]] handle_record* new_handle(physical_memory& memory) noexcept;
  /// A record of a mapping of `of` in a segment, whose offset is not set; null as above.
  [[nodiscard]] mapping* new_mapping(handle_record& of, std::uint32_t segment) noexcept;
  void add_handle(handle_record& fresh) noexcept;
  void remove_handle(const handle_record& gone) noexcept;
  /// Gives a record back: of a handle that does not count, of a mapping that is in no list.
  void drop(handle_record& gone) noexcept;
  void drop(mapping& gone) noexcept;
  [[nodiscard]] inline std::uint64_t handle_count() const noexcept {
    debug_check([this] { return handle_count_ <= handles_.live_count(); },
                "a handle that counts has no record");
    return handle_count_;
  }
  [[nodiscard]] inline std::uint64_t handle_granules() const noexcept {
    debug_check([this] { return (handle_count_ == 0) == (handle_granules_ == 0); },
                "a handle has no granules");
    return handle_granules_;
  }

  // ---- free handles ----
  /// Makes the list of a record of a stream. Errors: out_of_host_memory.
  [[nodiscard]] status provide_stream(std::uint32_t stream) noexcept;
  [[nodiscard]] inline const free_handle_bins& free_of(std::uint32_t stream) const noexcept {
    check(stream < free_of_.size(), "a record of a stream has no list of free handles");
    return free_of_[stream];
  }
  /// The handle has no live granule since `at`: it is in the list of that stream.
  void enter_free(handle_record& h, const stream_point& at) noexcept;
  void leave_free(handle_record& h) noexcept;

  // ---- live granules ----
  inline void count_live(std::uint32_t granules) noexcept {
    live_granules_ += granules;
    if (live_granules_ > peak_live_granules_) peak_live_granules_ = live_granules_;
    debug_check([&] { return live_granules_ <= handle_granules_; }, "more is live than exists");
  }
  inline void subtract_live(std::uint32_t granules) noexcept {
    debug_check([&] { return live_granules_ >= granules; }, "more is freed than is live");
    live_granules_ -= granules;
  }
  [[nodiscard]] inline std::uint64_t live_granules() const noexcept {
    debug_check([&] { return live_granules_ <= peak_live_granules_; },
                "the peak is below the live granules");
    return live_granules_;
  }
  [[nodiscard]] inline std::uint64_t peak_live_granules() const noexcept {
    debug_check([this] { return live_granules_ <= peak_live_granules_; },
                "the peak is below the live granules");
    return peak_live_granules_;
  }

  /// The last field that calls read or update, for a test of its cache line.
  [[nodiscard]] const void* last_read() const noexcept { return &free_of_; }

  // ---- stale mappings ----
  /// The mapping's memory has moved away, or mapping it failed half-way.
  void make_stale(mapping& m, const stream_point& last_use) noexcept;
  /// Takes the oldest listed one for the caller to poll and unmap; null if none is listed. It is
  /// counted until forget_stale().
  [[nodiscard]] mapping* take_oldest_stale() noexcept;
  /// One that was taken could not be unmapped now: it goes to the end.
  void put_back_stale(mapping& kept) noexcept;
  /// It was unmapped: one that was taken, or one that stands in the list.
  void forget_stale(mapping& gone) noexcept;
  /// Those that wait for a point of the record `from` wait for `to`, which covers it. Requires:
  /// none is taken. O(stale mappings).
  void pass_stale_on(std::uint32_t from, const stream_point& to) noexcept;
  /// Includes taken ones.
  [[nodiscard]] inline std::uint64_t stale_count() const noexcept {
    debug_check([&] { return stale_.size() <= mappings_.live_count(); },
                "more mappings are stale than there are");
    return stale_.size();
  }
  [[nodiscard]] inline std::uint64_t stale_bytes() const noexcept {
    debug_check([&] { return (stale_.size_bytes() == 0) == (stale_.size() == 0); },
                "stale mappings have no addresses");
    return stale_.size_bytes();
  }
  /// Whether one is listed that is not taken.
  [[nodiscard]] inline bool has_listed_stale() const noexcept {
    debug_check([&] { return stale_.asked_count() <= stale_.size(); },
                "more mappings are being polled than are stale");
    return stale_.oldest() != nullptr;
  }

  // ---- ends ----
  void set_end(mapping& m, bool is_end) noexcept;
  [[nodiscard]] inline const mapping* last_end() const noexcept {
    check(ends_.last() == nullptr || ends_.last()->is_end, "the last window end is not one");
    return ends_.last();
  }
  [[nodiscard]] inline const mapping* end_before(const mapping& m) const noexcept {
    check(m.is_end, "the list of window ends is followed from a mapping outside of it");
    return ends_.before(m);
  }

  /// Null if I2 to I5 hold as far as this object can check, else the broken part. O(records).
  [[nodiscard]] const char* broken_invariant() const noexcept;

 private:
  void audit() noexcept;

  // First, where the pool's state has what else an allocation or a free writes.
  std::uint64_t live_granules_ = 0;
  std::uint64_t peak_live_granules_ = 0;
  std::uint32_t unit_granules_;
  std::uint32_t page_granules_;
  std::vector<free_handle_bins> free_of_;  // by record of a stream; its first word is on that line
  std::uint64_t handle_granules_ = 0;
  std::uint64_t handle_count_ = 0;
  object_pool<handle_record> handles_;
  object_pool<mapping> mappings_;
  unmap_list stale_;
  end_list ends_;
  std::uint64_t unaudited_ = 0;  // changes since the last full validation
};

inline void free_handle_bins::add(handle_record& h) noexcept {
  const std::uint32_t bin = bin_of(h.count_pages);
  list& in = bins_[bin];
  debug_check([&] { return h.before == nullptr && h.after == nullptr && in.first != &h; },
              "a free handle is entered twice");
  h.before = in.last;
  h.after = nullptr;
  (in.last != nullptr ? in.last->after : in.first) = &h;
  in.last = &h;
  filled_ |= std::uint64_t{1} << bin;
  debug_check([&] { return largest()->count_pages >= h.count_pages || bin >= exact_pages; },
              "a larger handle is not the largest");
}

inline void free_handle_bins::remove(handle_record& h) noexcept {
  const std::uint32_t bin = bin_of(h.count_pages);
  list& in = bins_[bin];
  debug_check(
      [&] {
        return (h.before != nullptr ? h.before->after : in.first) == &h &&
               (h.after != nullptr ? h.after->before : in.last) == &h;
      },
      "a free handle's neighbours do not name it");
  (h.before != nullptr ? h.before->after : in.first) = h.after;
  (h.after != nullptr ? h.after->before : in.last) = h.before;
  h.before = h.after = nullptr;
  debug_check([&] { return (in.first == nullptr) == (in.last == nullptr); },
              "a list of free handles has one end");
  if (in.first == nullptr) filled_ &= ~(std::uint64_t{1} << bin);
}

}  // namespace vmm
