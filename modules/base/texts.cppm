// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base:texts - error details that are composed of names and numbers. For vmm's own modules.
//
// Texts of errors are never freed (I2 of vmm.backend:result), so a text that a failed call composes
// is kept until the process ends. Such texts are few: only calls that open something make them.
//
// A text that keep() returns is valid and constant until the process ends. Equal texts are kept
// once, and kept_count_max texts at most; keep() returns `otherwise` if the limit or memory is
// exhausted.
//
// Thread safety: a detail_text belongs to one thread; keep() may be called by any, also in a forked
// child, since it takes no lock. Cost: keep() compares with each kept text, and allocates once.
export module vmm.base:texts;

import vmm.std;
import :support;

namespace vmm {

/// The limits: kept texts, and bytes of each with its null.
export inline constexpr std::size_t kept_count_max = 256;
export inline constexpr std::size_t detail_bytes_max = 640;

/// A text under construction. A part that does not fit is replaced by "...".
export class detail_text {
 public:
  /// Effects: appends the part. Cost: O(its length).
  detail_text& add(std::string_view part) noexcept;
  /// Effects: as add, in decimal digits.
  detail_text& add_number(std::uint64_t number) noexcept;
  [[nodiscard]] std::string_view text() const noexcept { return {text_, size_}; }
  /// Requires: `otherwise` lives as long as the process. Effects: returns a null-terminated copy of
  /// the text that lives as long, or `otherwise`.
  [[nodiscard]] const char* keep(const char* otherwise) const noexcept;

 private:
  static constexpr std::string_view cut_mark = "...";
  static constexpr std::size_t room_bytes = detail_bytes_max - cut_mark.size() - 1;

  char text_[detail_bytes_max] = {};
  std::size_t size_ = 0;
  bool is_cut_ = false;
};

}  // namespace vmm
