// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Help on request, one line for a wrong command line, and whole numbers.
#ifndef VMM_TOOLS_PROGRAM_USAGE_HPP
#define VMM_TOOLS_PROGRAM_USAGE_HPP

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "variables.hpp"

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

/// "unknown option --polcy; the nearest is --policy": the options are those of the usage.
[[nodiscard]] inline std::string unknown_option(std::string_view word, std::string_view usage) {
  const std::string_view given = word.substr(0, word.find('='));
  std::string_view nearest;
  std::size_t nearest_distance = given.size() / 3 + 1;
  for (std::size_t at = usage.find("--"); at != std::string_view::npos;
       at = usage.find("--", at + 1)) {
    const std::size_t end = usage.find_first_not_of("-abcdefghijklmnopqrstuvwxyz_", at);
    const std::string_view option = usage.substr(at, end - at);
    const std::size_t distance = distance_of(given, option);
    if (distance >= nearest_distance) continue;
    nearest = option;
    nearest_distance = distance;
  }
  std::string out = "unknown option " + std::string(word);
  if (!nearest.empty()) out += "; the nearest is " + std::string(nearest);
  return out;
}

/// Prints one line on standard error: what is wrong with the command line, and where the options
/// are listed.
inline void refuse_line(const char* program, const std::string& problem) {
  std::fprintf(stderr, "%s: %s (%s --help lists the options)\n", program, problem.c_str(), program);
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
