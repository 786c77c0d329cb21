// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Help and version on request, one line for a wrong command line, and whole numbers.
#pragma once

#include <cerrno>
#include <system_error>

#include "variables.hpp"

namespace vmm::tools {

/// Of the library that the program was built with; in program.cpp.
extern const char* const library_version;

/// If a word is --help or -h, prints `usage` to standard output; if it is --version, the program's
/// name and version. Ends the program with 0 or, if standard output cannot be written, `failed`.
inline void answer_help(int count, char** words, const char* usage, int failed = 1) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const bool is_version = word == "--version";
    if (!is_version && word != "--help" && word != "-h") continue;
    const int written = is_version
                            ? std::printf("%s %s\n", program_invocation_short_name, library_version)
                            : std::fputs(usage, stdout);
    std::exit(written >= 0 && std::fflush(stdout) == 0 ? 0 : failed);
  }
}

/// "unknown option --polcy; the nearest is --policy": the options are those of the usage.
[[nodiscard]] inline std::string unknown_option(std::string_view word, std::string_view usage) {
  if (word == "--") return "-- is not an option: a file named -x is written ./-x";
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
inline void refuse_line(const char* program, std::string problem) {
  for (char& each : problem) {  // words of the command line may have line feeds
    if (each >= 0 && each < ' ') each = '?';
  }
  std::fprintf(stderr, "%s: %s (%s --help lists the options)\n", program, problem.c_str(), program);
}

/// The whole of `text` as a number from `least` on; nullopt if it is malformed.
[[nodiscard]] inline std::optional<std::uint64_t> read_count(std::string_view text,
                                                             std::uint64_t least) {
  std::uint64_t value = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = failure == std::errc{} && rest == text.data() + text.size();
  return is_whole && value >= least ? std::optional(value) : std::nullopt;
}

/// The path of a file that a command line names; - is standard input.
[[nodiscard]] inline std::string input_path(std::string_view word) {
  return std::string(word == "-" ? "/dev/stdin" : word);
}
constexpr const char* empty_name_text = "a file's name is empty";

}  // namespace vmm::tools
