// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Help on request and whole numbers, for programs whose command line is short.
#ifndef VMM_TOOLS_PROGRAM_USAGE_HPP
#define VMM_TOOLS_PROGRAM_USAGE_HPP

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

namespace vmm::tools {

/// Where a word is --help or -h: prints `usage` to standard output and ends the program, with 0 or,
/// where it cannot be written, 1.
inline void answer_help(int count, char** words, const char* usage) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word != "--help" && word != "-h") continue;
    const bool is_written = std::fputs(usage, stdout) >= 0 && std::fflush(stdout) == 0;
    std::exit(is_written ? 0 : 1);
  }
}

/// The whole of `text` as a number from `least` on; nullopt where it is none.
[[nodiscard]] inline std::optional<std::uint64_t> read_count(std::string_view text,
                                                             std::uint64_t least) {
  std::uint64_t value = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = failure == std::errc{} && rest == text.data() + text.size();
  return is_whole && value >= least ? std::optional(value) : std::nullopt;
}

}  // namespace vmm::tools

#endif
