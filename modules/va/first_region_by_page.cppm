// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va:first_region_by_page - for each page, the first region that begins in it. Not exported.
//
// Regions tile a range and link their neighbours, so the region that covers a page's first granule
// is the one before the next region that begins at or behind it. A bitmap over groups of 16 pages,
// which are one cache line, with bitmaps over its words, finds that one.
//
// I1  A group's bit is set exactly when a record of it is not 0; a word's bit in the level above
//     exactly when the word is not 0.
//
// Thread safety: none of its own. Cost: constant (a cache line, and where a group gets its first
// record or loses its last one a word a level, 64 groups to the word).
export module vmm.va:first_region_by_page;

import vmm.backend;
import vmm.base;
import vmm.std;
import :host_memory;

namespace vmm {

class first_region_by_page {
 public:
  first_region_by_page() = default;
  /// Errors: out_of_host_memory.
  [[nodiscard]] static result<first_region_by_page> create(std::uint32_t page_count) noexcept;

  [[nodiscard]] inline std::uint32_t at(std::uint32_t page) const noexcept {
    debug_check([&] { return page < page_count_; }, "the page does not exist");
    return firsts_[page];
  }

  /// Records the first region that begins in `page`; 0: none does.
  inline void set(std::uint32_t page, std::uint32_t region) noexcept {
    debug_check([&] { return page < page_count_; }, "a region begins in a missing page");
    const bool changes = (firsts_[page] != 0) != (region != 0);
    firsts_[page] = 0;
    if (changes && !has_any(page / group_pages)) flip(page / group_pages);
    firsts_[page] = region;
    debug_check([&] { return is_marked(page / group_pages) == has_any(page / group_pages); },
                "a group's bit disagrees with its records");
  }
  /// Replaces `from`, if recorded, by `to`, which is not 0 either. Without a branch, since both
  /// cases are equally frequent.
  inline void replace(std::uint32_t page, std::uint32_t from, std::uint32_t to) noexcept {
    debug_check([&] { return page < page_count_; }, "a region begins in a missing page");
    debug_check([&] { return from != 0 && to != 0; }, "a region is replaced by an empty one");
    const std::uint32_t first = firsts_[page];
    debug_check([&] { return first != 0; }, "a region is replaced in a page that has none");
    firsts_[page] = first == from ? to : first;
  }

  /// The first page from `page` on in which a region begins; else page_count().
  [[nodiscard]] std::uint32_t next(std::uint32_t page) const noexcept;
  [[nodiscard]] inline std::uint32_t page_count() const noexcept { return page_count_; }

  /// Null if I1 holds, else the broken part.
  [[nodiscard]] const char* broken_invariant() const noexcept;

 private:
  static constexpr std::uint32_t level_count_max = 6;
  static constexpr std::uint32_t group_pages = 16;

  /// Whether a region begins in a page of the group. All are checked, in a few instructions.
  [[nodiscard]] inline bool has_any(std::uint32_t group) const noexcept {
    debug_check([&] { return group < group_count_; }, "no such group of pages");
    const std::uint32_t* const of = firsts_ + group * group_pages;
    std::uint32_t any = 0;
    for (std::uint32_t page = 0; page < group_pages; ++page) any |= of[page];
    return any != 0;
  }
  [[nodiscard]] inline bool is_marked(std::uint32_t group) const noexcept {
    debug_check([&] { return group / 64 < count_[0]; }, "a group of pages has no bit");
    return (bits_[group / 64] >> (group % 64) & 1) != 0;
  }
  void flip(std::uint32_t group) noexcept;
  [[nodiscard]] std::uint32_t next_group(std::uint32_t group) const noexcept;

  std::uint32_t* firsts_ = nullptr;  // whole groups, at the start of a cache line
  std::uint64_t* bits_ = nullptr;
  reserved_memory memory_{};
  std::array<std::uint32_t, level_count_max> begin_{};  // first word of each level
  std::array<std::uint32_t, level_count_max> count_{};  // words of each level
  std::uint32_t level_count_ = 0;
  std::uint32_t page_count_ = 0;
  std::uint32_t group_count_ = 0;
};

}  // namespace vmm
