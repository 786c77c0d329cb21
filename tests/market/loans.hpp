// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a lot is good for.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.market;

namespace market_test {

// A source without memory, for its loans.
struct empty_source final : vmm::memory_source {
  vmm::status take(const vmm::lot_request&, vmm::lent_list&) override { return {}; }
  void give(std::span<const vmm::lent_handle>) noexcept override {}
  vmm::source_totals totals() const noexcept override { return {}; }
  std::string last_refusal() const override { return {}; }
};

/// Whether a lot serves creates of these sizes, one after the other, without another request.
inline bool serves(std::span<const vmm::market_handle> lot,
                   std::span<const std::uint64_t> sizes_bytes) {
  vmm::lent_list handles;
  for (const vmm::market_handle& each : lot)
    handles.push_back({.id = each.id, .size_bytes = each.size_bytes()});
  std::ranges::sort(handles, std::greater{}, &vmm::lent_handle::size_bytes);
  empty_source source;
  source.loans().put({.handles = std::move(handles)});
  return std::ranges::all_of(sizes_bytes, [&](std::uint64_t left_bytes) {
    vmm::lent_list used;
    source.loans().use(left_bytes, used);
    for (const vmm::lent_handle& each : used) left_bytes -= each.size_bytes;
    return left_bytes == 0;
  });
}

}  // namespace market_test
