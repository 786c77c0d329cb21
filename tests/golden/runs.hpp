// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What golden files are taken of: seeded programs of the stream-ordered pool and of the manager,
// and replays of the shipped traces.
#pragma once

#include "table.hpp"

namespace golden {

/// A seeded program: its line, and what the line's hashes are taken over.
struct seeded_run {
  row line;
  std::string calls;       ///< a line for each driver call
  std::string statistics;  ///< name=value, a line each, when the program ends
  std::string problem;     ///< empty when nothing went wrong
};

[[nodiscard]] seeded_run run_pool(std::uint64_t seed);
[[nodiscard]] seeded_run run_manager(std::uint64_t seed);

inline constexpr std::string_view policies[] = {"va_pool", "keep_mapped", "virtual_caching", "pool",
                                                "vpmm"};

/// Why no replay can run in this build; empty when they can.
[[nodiscard]] std::string why_no_replays();
/// Replays every trace under "pool", ten under another policy. A line that could not be made has no
/// figures.
[[nodiscard]] table run_replays(std::string_view policy);

}  // namespace golden
