// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base:texts - details of errors with a name: of a library, a number. For vmm's own modules.
//
// The texts of an error are never freed (I2 of vmm.backend:result). A text that is composed when a
// call fails is therefore kept to the end of the process. Such texts are few: only calls that open
// something make them.
//
// A text that keep() returns is valid and constant until the process ends. Equal texts are kept
// once, and kept_count_max texts at most; keep() returns `otherwise` if the limit or memory is
// exhausted.
//
// Thread safety: a detail_text belongs to one thread; keep() may be called by any, also in a forked
// child: it takes no lock. Cost: keep() compares with each text that is kept, and allocates once.
export module vmm.base:texts;

import vmm.std;
import :support;

namespace vmm {

/// Texts that are kept, and the bytes of each with its end.
export inline constexpr std::size_t kept_count_max = 256;
export inline constexpr std::size_t detail_bytes_max = 640;

/// One text that is put together. What does not fit is left out, and "..." stands for it.
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
