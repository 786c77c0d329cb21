// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a whole history says was there at its end, and how many events of a kind it has. The last
// include of a file: it imports what it uses.
#pragma once

#include "moment.hpp"

struct replica : moment {
  std::map<vmm::history_kind, std::uint64_t> counts{};

  explicit replica(const vmm::history& taken) {
    for (const vmm::history_event& each : taken.events) {
      ++counts[each.kind];
      const bool is_of_pins = each.kind == vmm::history_kind::pinned ||
                              each.kind == vmm::history_kind::unpinned ||
                              each.kind == vmm::history_kind::free_pinned;
      // A range whose growth failed is not in these histories.
      if (each.kind == vmm::history_kind::unmapped)
        EXPECT_TRUE(stale.contains(each.at.value)) << "what is unmapped was not stale";
      if (!is_of_pins) apply({each.kind, {each.at, each.size_bytes}, {}, each.detail});
    }
    EXPECT_EQ(wrong, "");
  }
};

inline std::uint64_t fact(const vmm::history& taken, const std::string& name) {
  for (const vmm::history_fact& each : taken.facts)
    if (each.name == name) return std::stoull(each.value);
  ADD_FAILURE() << "missing fact " << name;
  return 0;
}
