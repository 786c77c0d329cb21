// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The name of a file that the user gave, with %p for the number of the process. No heap: it is also
// made in a signal handler.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vmm::preload {

class file_name {
 public:
  explicit file_name(std::string_view pattern) noexcept {
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (pattern.substr(i, 2) == "%p") {
        add_number(static_cast<std::uint64_t>(getpid()));
        ++i;
      } else {
        add(pattern.substr(i, 1));
      }
    }
  }
  file_name& add(std::string_view more) noexcept {
    for (const char each : more) {
      if (used_ + 1 < sizeof text_) text_[used_++] = each;
    }
    return *this;
  }
  file_name& add_number(std::uint64_t value) noexcept {
    char digits[20];
    std::size_t begin = sizeof digits;
    do {
      digits[--begin] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    return add({digits + begin, sizeof digits - begin});
  }
  [[nodiscard]] const char* c_str() noexcept {
    text_[used_] = '\0';
    return text_;
  }

 private:
  std::size_t used_ = 0;
  char text_[4096];
};

}  // namespace vmm::preload
