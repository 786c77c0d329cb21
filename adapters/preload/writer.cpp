// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "writer.h"

#include <cstddef>

import vmm.base;

namespace vmm::preload {
namespace {

struct digits {
  char text[24];
  std::size_t begin = sizeof text;

  explicit digits(std::uint64_t value, std::size_t count_min = 1) noexcept {
    for (std::size_t made = 0; value != 0 || made < count_min; ++made) {
      text[--begin] = static_cast<char>('0' + value % 10);
      value /= 10;
    }
  }
  [[nodiscard]] std::string_view view() const noexcept {
    return {text + begin, sizeof text - begin};
  }
};

}  // namespace

writer& writer::text(std::string_view what) noexcept {
  for (const char each : what) {
    if (used_ == sizeof buffer_) flush();
    buffer_[used_++] = each;
  }
  return *this;
}

writer& writer::number(std::uint64_t value) noexcept { return text(digits(value).view()); }

writer& writer::number_in(std::uint64_t value, std::size_t width) noexcept {
  const digits made(value);
  for (std::size_t i = made.view().size(); i < width; ++i) text(" ");
  return text(made.view());
}

writer& writer::text_in(std::string_view what, std::size_t width) noexcept {
  text(what);
  for (std::size_t i = what.size(); i < width; ++i) text(" ");
  return *this;
}

writer& writer::fraction(std::uint64_t value, std::uint64_t unit, std::size_t width) noexcept {
  const digits whole(value / unit);
  const digits rest(value % unit * 1000 / unit, 3);
  for (std::size_t i = whole.view().size() + 4; i < width; ++i) text(" ");
  return text(whole.view()).text(".").text(rest.view());
}

void writer::flush() noexcept {
  const written_bytes done =
      write_whole(descriptor_, {reinterpret_cast<const std::byte*>(buffer_), used_});
  if (failure_ == 0) failure_ = done.failure;
  used_ = 0;
}

}  // namespace vmm::preload
