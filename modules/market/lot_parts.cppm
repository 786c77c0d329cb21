// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:lot_parts (internal) - the lots of a tenant's driver.
//
// Thread safety: values only.
module vmm.market:lot_parts;

import vmm.backend;
import vmm.std;
import :driver;
import :source;

namespace vmm {

// Set in every token of a lot. No driver's handle has it: they are pointers and small numbers.
inline constexpr std::uint64_t lot_token_bit = std::uint64_t{1} << 63;

// A part of a lot.
struct lot_part {
  lent_handle lent{};  // must_clear: not cleared yet
  physical_handle import = physical_handle::none;
  std::uint64_t offset_bytes = 0;  // in the lot

  [[nodiscard]] std::uint64_t end_bytes() const noexcept { return offset_bytes + lent.size_bytes; }
};

struct tenant_driver::lot {
  std::uint64_t token = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t handle_count = 1;
  std::uint32_t mapping_count = 0;
  std::vector<lot_part> parts;

  [[nodiscard]] bool is_dirty() const noexcept {
    return std::any_of(parts.begin(), parts.end(),
                       [](const lot_part& each) { return each.lent.must_clear; });
  }
};

}  // namespace vmm
