// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The control side of an owner's socket: `vmm-owner ctl`, and the tenants of vmm-top.
#pragma once

#include "../program/standard.hpp"

import vmm.market;

namespace vmm::tools {

/// An owner's tenants, the largest holders first.
struct owner_report {
  std::string device{};
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;  ///< of handles that the owner has created
  bool is_draining = false;      ///< ends with its last tenant
  std::vector<market_row> rows{};
};

/// Sends a query, set_share or drain to the owner at the path, and reads its report, within
/// two seconds. Empty, or what is wrong.
[[nodiscard]] std::string control_owner(const std::string& path, const market_message& request,
                                        owner_report& into);
/// The reports of all owners in the folder. Owners that do not respond are complaints, and a folder
/// that others can reach or that cannot be read. The folder of VMM_OWNER=auto may be missing.
[[nodiscard]] std::vector<owner_report> read_owners(const std::string& folder,
                                                    std::vector<std::string>& complaints);
[[nodiscard]] std::string to_table(const owner_report& report);
/// Objects for a JSON array, each with its comma before it.
[[nodiscard]] std::string to_json_rows(const owner_report& report, bool is_first);

}  // namespace vmm::tools
