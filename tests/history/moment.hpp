// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a history says of live blocks and of mapped memory, worked out from its events alone. The
// last include except others with imports: it imports what it uses.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.observe;

using places = std::map<std::uint64_t, std::uint64_t>;  // size by address

/// What was there at one moment.
struct moment {
  places live{};
  places current{};
  places stale{};
  std::map<std::uint64_t, std::uint64_t> pins{};
  std::uint64_t held_bytes = 0;
  std::string wrong{};

  void apply(const vmm::history_note& each) {
    const std::uint64_t at = each.where.base.value;
    const std::uint64_t size = each.where.size_bytes;
    switch (each.kind) {
      case kind::allocated:
      case kind::captured: add(live, at, size, "a live block is handed out"); return;
      case kind::freed:
      case kind::kept:
        insist(!pins.contains(at), "a pinned block goes");
        take(live, at, size, "a block is freed that is not live");
        return;
      case kind::pinned:
        insist(live.contains(at), "a pin is of no block");
        ++pins[at];
        return;
      case kind::unpinned:
        insist(pins.contains(at), "an unpin is of no pin");
        if (--pins[at] == 0) pins.erase(at);
        return;
      case kind::free_pinned: insist(pins.contains(at), "it is not pinned"); return;
      case kind::resized: {
        const auto before = live.find(each.detail);
        insist(before != live.end(), "a block is resized that is not live");
        if (before != live.end()) live.erase(before);
        add(live, at, size, "a block moves onto another");
        return;
      }
      case kind::mapped:
        if (each.detail != 0) {
          take(current, each.detail, size, "memory moves from where it is not");
          add(stale, each.detail, size, "a stale mapping is made twice");
        }
        add(current, at, size, "memory is mapped onto memory");
        return;
      case kind::unmapped:
        if (stale.contains(at)) return take(stale, at, size, "a part is unmapped");
        add(stale, at, size, "what was never mapped overlaps");  // of a growth that failed
        stale.erase(at);
        return;
      case kind::released: take(current, at, size, "what is released was not there"); return;
      case kind::footprint: held_bytes = size; return;
      default: return;
    }
  }
  [[nodiscard]] std::uint64_t live_bytes() const { return sum(live); }
  [[nodiscard]] static std::uint64_t sum(const places& of) {
    std::uint64_t out = 0;
    for (const auto& [at, size] : of) out += size;
    return out;
  }

 private:
  using kind = vmm::history_kind;
  void insist(bool holds, const char* what) {
    if (!holds && wrong.empty()) wrong = what;
  }
  void add(places& to, std::uint64_t at, std::uint64_t size, const char* what) {
    const auto next = to.lower_bound(at);
    insist(next == to.end() || next->first >= at + size, what);
    insist(next == to.begin() || std::prev(next)->first + std::prev(next)->second <= at, what);
    to[at] = size;
  }
  void take(places& from, std::uint64_t at, std::uint64_t size, const char* what) {
    const auto found = from.find(at);
    insist(found != from.end() && found->second == size, what);
    if (found != from.end()) from.erase(found);
  }
};
