// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the compiler's message for a driver with a missing or wrongly declared member names it.
// Method: this file does not compile, and refused.cmake reads the compiler's message. The class
// lacks create; its unmap returns another type.
#include "../../tools/program/standard.hpp"

import vmm.backend;

namespace {

struct incomplete_driver {
  std::string_view name() const;
  const vmm::features& feature_set() const;
  vmm::location home() const;
  vmm::result<vmm::granularity> query_granularity(const vmm::physical_request& request);
  vmm::result<vmm::memory_info> query_memory(vmm::location where);
  vmm::result<vmm::address_range> reserve(const vmm::reserve_request& request);
  vmm::status free_reservation(vmm::address_range range);
  vmm::status release(vmm::physical_handle handle);
  vmm::status map(const vmm::map_request& request);
  bool unmap(vmm::address_range range);
  vmm::status set_access(vmm::address_range range, std::span<const vmm::access_grant> grants);
  vmm::result<vmm::access> get_access(vmm::address at, vmm::location grantee);
};

#ifdef VMM_TEST_CHECK
static_assert(vmm::check_backend<incomplete_driver>());
#else
template <vmm::backend Driver>
void use(Driver& driver);

void use_it(incomplete_driver& driver) { use(driver); }
#endif

}  // namespace
