// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Bytes that choose the operations of a program: the fuzzer's, or those of a random generator; and
// how many programs are wanted.
#pragma once

#include "../../tools/program/standard.hpp"

class byte_source {
 public:
  explicit byte_source(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return at_ >= bytes_.size(); }
  [[nodiscard]] std::uint32_t byte() { return empty() ? 0 : bytes_[at_++]; }
  [[nodiscard]] std::uint32_t below(std::uint32_t limit) {
    const std::uint32_t value = byte() << 8 | byte();
    return limit == 0 ? 0 : value % limit;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// The number that the environment has.
[[nodiscard]] inline std::uint64_t wish(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// The bytes of one random program: 128 to 639 of them.
[[nodiscard]] inline std::vector<std::uint8_t> random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> bytes(128 + random() % 512);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}
