// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a history says of live blocks and of mapped memory, worked out from its events alone. The
// last include of a file: it imports what it uses.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.observe;

struct replica {
  std::map<std::uint64_t, std::uint64_t> live{};     // size by address
  std::map<std::uint64_t, std::uint64_t> current{};  // mappings whose memory is there
  std::map<std::uint64_t, std::uint64_t> stale{};
  std::uint64_t live_bytes = 0;
  std::uint64_t held_bytes = 0;
  std::map<vmm::history_kind, std::uint64_t> counts{};

  explicit replica(const vmm::history& taken) {
    for (const vmm::history_event& each : taken.events) apply(each);
  }

 private:
  using kind = vmm::history_kind;
  void take(std::map<std::uint64_t, std::uint64_t>& from, std::uint64_t at, std::uint64_t size) {
    const auto found = from.find(at);
    if (found == from.end() || found->second != size) {
      ADD_FAILURE() << "an event ends what is not there, at " << at;
      return;
    }
    from.erase(found);
  }
  void apply(const vmm::history_event& each) {
    ++counts[each.kind];
    const std::uint64_t at = each.at.value;
    if (each.kind == kind::allocated || each.kind == kind::captured) {
      EXPECT_TRUE(live.emplace(at, each.size_bytes).second) << "a live block is handed out again";
      live_bytes += each.size_bytes;
    }
    if (each.kind == kind::freed || each.kind == kind::kept) {
      take(live, at, each.size_bytes);
      live_bytes -= each.size_bytes;
    }
    if (each.kind == kind::resized) {
      const auto before = live.find(each.detail);
      EXPECT_NE(before, live.end()) << "a block is resized that is not live";
      if (before != live.end()) {
        live_bytes -= before->second;
        live.erase(before);
      }
      EXPECT_TRUE(live.emplace(at, each.size_bytes).second) << "a block moves onto another";
      live_bytes += each.size_bytes;
    }
    if (each.kind == kind::mapped) {
      if (each.detail != 0) {
        take(current, each.detail, each.size_bytes);
        stale.emplace(each.detail, each.size_bytes);
      }
      EXPECT_TRUE(current.emplace(at, each.size_bytes).second);
    }
    if (each.kind == kind::unmapped) take(stale, at, each.size_bytes);
    if (each.kind == kind::released) take(current, at, each.size_bytes);
    if (each.kind == kind::footprint) held_bytes = each.size_bytes;
  }
};

inline std::uint64_t fact(const vmm::history& taken, const std::string& name) {
  for (const vmm::history_fact& each : taken.facts)
    if (each.name == name) return std::stoull(each.value);
  ADD_FAILURE() << "missing fact " << name;
  return 0;
}
