// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Text to a descriptor from anywhere, a signal handler included: no heap, no lock, no stdio. A
// failed write ends no program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vmm::preload {

class writer {
 public:
  explicit writer(int descriptor) noexcept : descriptor_(descriptor) {}
  ~writer() { flush(); }
  writer(const writer&) = delete;
  writer& operator=(const writer&) = delete;

  writer& text(std::string_view what) noexcept;
  writer& number(std::uint64_t value) noexcept;
  /// Right-aligned in `width` columns.
  writer& number_in(std::uint64_t value, std::size_t width) noexcept;
  writer& text_in(std::string_view what, std::size_t width) noexcept;
  /// `value` / `unit` with three decimals.
  writer& fraction(std::uint64_t value, std::uint64_t unit, std::size_t width) noexcept;
  void flush() noexcept;
  /// The system's code if a write failed; else 0.
  [[nodiscard]] int failure() const noexcept { return failure_; }

 private:
  int descriptor_;
  int failure_ = 0;
  std::size_t used_ = 0;
  char buffer_[1024];
};

}  // namespace vmm::preload
