// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;
import :tables;

namespace vmm::host_tables {

linux_os::span span_of(address_range range) noexcept {
  check(!range.empty(), "a range of size 0 is passed to the kernel");
  return {range.base.value, range.size_bytes};
}

linux_os::protection protection_of(access rights) noexcept {
  switch (rights) {
    case access::none: return linux_os::protection::none;
    case access::read: return linux_os::protection::read;
    case access::read_write: return linux_os::protection::read_write;
  }
  check(false, "access is not one of the enumerators");
  return linux_os::protection::none;
}

address_table::~address_table() {
  check(mappings.empty() || !reservations.empty(), "memory is mapped outside of all reservations");
  for (const auto& [base, size_bytes] : reservations) {
    (void)with_spare([&] { return linux_os::unreserve({base, size_bytes}); });
  }
}

bool address_table::reserved(address_range range) const noexcept {
  const auto after = reservations.upper_bound(range.base.value);
  if (after == reservations.begin()) return false;
  const auto& [base, size_bytes] = *std::prev(after);
  check(base <= range.base.value && size_bytes != 0, "a reservation has no addresses");
  return address_range{{base}, size_bytes}.contains(range);
}

bool address_table::any_mapped(address_range range) const noexcept {
  const auto after = mappings.lower_bound(range.end().value);
  if (after == mappings.begin()) return false;
  const auto& [base, last] = *std::prev(after);
  debug_check([&] { return reserved({{base}, last.size_bytes}); },
              "tables I3: a mapping lies outside of its reservation");
  return base + last.size_bytes > range.base.value;
}

bool address_table::all_mapped(address_range range) const noexcept {
  auto next = mappings.upper_bound(range.base.value);
  if (next == mappings.begin()) return false;
  --next;
  std::uint64_t covered_to = range.base.value;
  while (next != mappings.end() && next->first <= covered_to && covered_to < range.end().value) {
    check(next->second.size_bytes != 0, "a mapping is empty");
    covered_to = std::max(covered_to, next->first + next->second.size_bytes);
    ++next;
  }
  return covered_to >= range.end().value;
}

const mapping* address_table::mapping_at(address at) const noexcept {
  const auto after = mappings.upper_bound(at.value);
  if (after == mappings.begin()) return nullptr;
  const auto& [base, last] = *std::prev(after);
  check(base <= at.value && last.behind != nullptr, "tables I3: a mapping has no memory");
  return at.value - base < last.size_bytes ? &last : nullptr;
}

status address_table::usable(call where, address_range range, access wanted) const noexcept {
  check(wanted != access::none, "memory is used with no right");
  if (range.empty()) return {};
  if (wraps(range.base, range.size_bytes) || !all_mapped(range)) {
    return bad_call(where, errc::invalid_argument, "a part of the range has no memory behind it");
  }
  for (auto next = std::prev(mappings.upper_bound(range.base.value));
       next != mappings.end() && next->first < range.end().value; ++next) {
    if (next->second.rights < wanted) {
      return bad_call(where, errc::invalid_argument,
                      "a part of the range lacks the access right: see set_access");
    }
  }
  return {};
}

bool address_table::restore_rights(address_range range) noexcept {
  bool restored = true;
  for (auto next = mappings.lower_bound(range.base.value);
       next != mappings.end() && next->first < range.end().value; ++next) {
    check(range.contains(address_range{{next->first}, next->second.size_bytes}),
          "rights are restored outside of a range");
    const linux_os::span where{next->first, next->second.size_bytes};
    const auto rights = protection_of(next->second.rights);
    restored &= with_spare([&] { return linux_os::protect(where, rights); }) == 0;
  }
  return restored;
}

}  // namespace vmm::host_tables
