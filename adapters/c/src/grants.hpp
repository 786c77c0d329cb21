// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Lists of rights, as C has them. It imports what it uses, so it comes after every include but
// those that do the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "objects.hpp"

import vmm.backend;

namespace vmm_c {

[[nodiscard]] inline std::optional<vmm::location> location_of(std::uint32_t place,
                                                              std::int32_t number) noexcept {
  switch (place) {
    case VMM_PLACE_DEVICE: return vmm::device(number);
    case VMM_PLACE_HOST:
      if (number != 0) return std::nullopt;
      return vmm::host();
    case VMM_PLACE_HOST_NODE: return vmm::host_node(number);
    default: return std::nullopt;
  }
}

/// The grants of a call; `work` gets them.
template <class Work>
vmm_status with_grants(const vmm_grant* given, std::uint64_t count, Work&& work) {
  std::array<vmm::access_grant, vmm::grant_list::grants_max> grants{};
  if (given == nullptr) return fail_null();
  if (count == 0 || count > grants.size())
    return fail(VMM_ERROR_INVALID_ARGUMENT, "a call takes 1 to VMM_GRANTS_MAX grants");
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<vmm::location> where = location_of(given[i].place, given[i].device);
    if (!where || given[i].device < 0 || given[i].reserved != 0)
      return fail(VMM_ERROR_INVALID_ARGUMENT,
                  "a grant names one of VMM_PLACE_* and the number of a device or node, 0 on the "
                  "host, and reserved is 0");
    if (given[i].rights > VMM_RIGHTS_READ_WRITE)
      return fail_value(
          VMM_ERROR_INVALID_ARGUMENT, given[i].rights,
          "rights are one of VMM_RIGHTS_NONE, VMM_RIGHTS_READ, VMM_RIGHTS_READ_WRITE");
    grants[i] = {*where, static_cast<vmm::access>(given[i].rights)};
  }
  return work(std::span<const vmm::access_grant>(grants).first(count));
}

}  // namespace vmm_c
