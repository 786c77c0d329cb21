// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The environment variables that vmm's library, programs and tests read: every one, in one place.
// docs/options.md has their values. Any other name with their prefix is reported as misspelt.
#pragma once

#include "standard.hpp"

namespace vmm::tools {

inline constexpr std::string_view variable_prefix = "VMM_";

inline constexpr std::array<std::string_view, 41> known_variables = {
    "VMM_BACKEND",
    "VMM_BUDGET",
    "VMM_CACHE_LIMIT",
    "VMM_CHUNK_SIZE",
    "VMM_COPY",
    "VMM_CUDA_LIBRARY",
    "VMM_CUDA_MEMORY",
    "VMM_DISABLE",
    "VMM_DRIVER_VERSION",
    "VMM_EXCLUDE",
    "VMM_FIRST_SCHEDULE",
    "VMM_FRAG_RATIO",
    "VMM_FREE",
    "VMM_GROWABLE_STEP",
    "VMM_IPC",
    "VMM_KEEP",
    "VMM_KILL_ROUNDS",
    "VMM_LEVEL_ZERO_LIBRARY",
    "VMM_LOG",
    "VMM_MODE",
    "VMM_OWNER",
    "VMM_OWNER_PROGRAM",
    "VMM_POLICY",
    "VMM_POOL_CAPTURE",
    "VMM_POOL_PAGES",
    "VMM_POOL_PAGE_SIZE",
    "VMM_POOL_POLICY",
    "VMM_POOL_ROUNDS",
    "VMM_PRELOAD_FIRST",
    "VMM_PRELOAD_PROGRAMS",
    "VMM_PROVE_COUNT",
    "VMM_REMEMBER",
    "VMM_REPORT",
    "VMM_REPORT_FORMAT",
    "VMM_REPORT_SIGNAL",
    "VMM_SCHEDULES",
    "VMM_SHARE_KILL_ROUNDS",
    "VMM_TENANT",
    "VMM_TOP",
    "VMM_TRACE",
    "VMM_VA_SIZE",
};

/// How many letters must be changed, added or left out to make `right` of `left`.
inline std::size_t distance_of(std::string_view left, std::string_view right) {
  std::string row;  // distances of a part of `left` from each beginning of `right`
  constexpr std::size_t length_max = 64;
  if (left.size() > length_max || right.size() > length_max) return length_max;
  for (std::size_t i = 0; i <= right.size(); ++i) row += static_cast<char>(i);
  for (std::size_t i = 0; i < left.size(); ++i) {
    char diagonal = row[0];
    row[0] = static_cast<char>(i + 1);
    for (std::size_t j = 0; j < right.size(); ++j) {
      const int changed = diagonal + (left[i] == right[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = static_cast<char>(std::min({changed, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return static_cast<std::size_t>(row.back());
}

/// The known variable that is most like `name`; empty when none is like it.
inline std::string_view nearest_variable(std::string_view name) {
  constexpr std::size_t distance_max = 4;
  std::string_view best;
  std::size_t best_distance = distance_max + 1;
  for (const std::string_view known : known_variables) {
    const std::size_t distance = distance_of(name, known);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = known;
  }
  return best;
}

/// One line for each variable of `environment` (as environ: "NAME=VALUE", nullptr at the end) with
/// vmm's prefix that is not one of them.
inline std::string unknown_variables(std::string_view program, const char* const* environment) {
  std::string out;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with(variable_prefix)) continue;
    if (std::find(known_variables.begin(), known_variables.end(), name) != known_variables.end())
      continue;
    const std::string_view nearest = nearest_variable(name);
    out += std::string(program) + ": vmm has no variable " + std::string(name);
    out += nearest.empty() ? "; docs/options.md lists them\n"
                           : "; the nearest is " + std::string(nearest) + "\n";
  }
  return out;
}

}  // namespace vmm::tools
