// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <iterator>
#include <map>
#include <new>

module vmm.level_zero;

import vmm.backend;
import :accounts;

namespace vmm::level_zero {
namespace {

error mistake(call where, const char* detail, errc code = errc::invalid_argument) noexcept {
  return error{code, where, 0, "", detail};
}

error no_host_memory(call where) noexcept {
  return mistake(where, "no host memory for the accounts of what is mapped",
                 errc::out_of_host_memory);
}

constexpr const char* no_memory_detail = "no live handle of this driver object";
constexpr const char* mapped_detail = "the memory is mapped: unmap it first";

// [base, base + size) without running over the end of all addresses.
bool is_sane(address_range range) noexcept {
  return range.size_bytes != 0 && range.base.value + range.size_bytes > range.base.value;
}

}  // namespace

status accounts::add_reservation(address_range range, address_range origin) noexcept {
  try {
    reservations_.emplace(range.base.value, reservation{range.size_bytes, origin});
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::reserve);
  }
  return {};
}

result<address_range> accounts::origin_of(address_range range) const noexcept {
  const auto found = reservations_.find(range.base.value);
  if (found == reservations_.end() || found->second.size_bytes != range.size_bytes) {
    return mistake(call::free_reservation, "not exactly a range that reserve answered");
  }
  if (is_touched(range)) {
    return mistake(call::free_reservation,
                   "something is mapped in this reservation: unmap it first", errc::in_use);
  }
  return found->second.origin;
}

result<accounts::memory_table::iterator> accounts::add_memory() noexcept {
  try {
    return memories_.emplace(++last_handle_, memory{}).first;
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create);
  }
}

result<accounts::memory_table::iterator> accounts::unmapped_memory(
    call where, physical_handle handle) noexcept {
  const auto found = memories_.find(static_cast<std::uint64_t>(handle));
  if (found == memories_.end()) return mistake(where, no_memory_detail);
  if (found->second.is_mapped) return mistake(where, mapped_detail, errc::in_use);
  return found;
}

const memory* accounts::find(physical_handle handle) const noexcept {
  const auto found = memories_.find(static_cast<std::uint64_t>(handle));
  return found == memories_.end() ? nullptr : &found->second;
}

void accounts::remove_memory(memory_table::iterator which) noexcept {
  created_bytes_ -= which->second.size_bytes;
  memories_.erase(which);
}

bool accounts::is_reserved(address_range range) const noexcept {
  if (!is_sane(range)) return false;
  const auto after = reservations_.upper_bound(range.base.value);
  if (after == reservations_.begin()) return false;
  const auto& [base, held] = *std::prev(after);
  return address_range{{base}, held.size_bytes}.contains(range);
}

bool accounts::is_touched(address_range range) const noexcept {
  const auto after = mappings_.lower_bound(range.end().value);
  if (after == mappings_.begin()) return false;
  const auto& [base, last] = *std::prev(after);
  return base + last.size_bytes > range.base.value;
}

status accounts::map(const map_request& request) noexcept {
  const auto memory = unmapped_memory(call::map, request.memory);
  if (!memory) return memory.error();
  const auto& [handle, behind] = **memory;
  const address_range range{request.at, request.size_bytes};
  if (request.offset_bytes != 0 || request.size_bytes != behind.size_bytes) {
    return mistake(call::map, "this driver maps a handle as a whole, from its start",
                   errc::not_supported);
  }
  if (request.at.value % behind.page_bytes != 0) {
    return mistake(call::map, "the address is no multiple of the memory's granularity");
  }
  if (!is_reserved(range)) return mistake(call::map, "the range lies in no reservation");
  if (is_touched(range)) {
    return mistake(call::map, "something is mapped in this range: unmap it first", errc::overlap);
  }
  try {
    mappings_.emplace(request.at.value,
                      mapping{request.size_bytes, handle, behind.native, access::none});
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::map);
  }
  (*memory)->second.is_mapped = true;
  return {};
}

result<accounts::run> accounts::whole_mappings(call where, address_range range) noexcept {
  const auto first = is_sane(range) ? mappings_.find(range.base.value) : mappings_.end();
  if (first == mappings_.end()) return mistake(where, "no mapping begins at this address");
  if (!is_reserved(range)) return mistake(where, "the range lies in no single reservation");
  std::uint64_t at = range.base.value;
  auto last = first;
  for (; last != mappings_.end() && last->first == at && at < range.end().value; ++last) {
    at += last->second.size_bytes;
  }
  if (at != range.end().value) {
    return mistake(where, "the range is not made of whole mappings without holes");
  }
  return run{first, last};
}

void accounts::unmap(const run& which) noexcept {
  for (auto each = which.first; each != which.last; ++each) {
    memories_.find(each->second.handle)->second.is_mapped = false;
  }
  mappings_.erase(which.first, which.last);
}

result<access> accounts::rights_at(address at) const noexcept {
  const auto after = mappings_.upper_bound(at.value);
  if (after != mappings_.begin()) {
    const auto& [base, found] = *std::prev(after);
    if (at.value - base < found.size_bytes) return found.rights;
  }
  return mistake(call::get_access, "nothing is mapped at this address");
}

status accounts::check_usable(call where, address_range range) const noexcept {
  if (range.size_bytes == 0) return {};
  if (!is_sane(range)) return mistake(where, "the range runs over the end of all addresses");
  auto each = mappings_.upper_bound(range.base.value);
  if (each != mappings_.begin()) --each;
  std::uint64_t at = range.base.value;
  for (; at < range.end().value; ++each) {
    const bool is_there =
        each != mappings_.end() && each->first <= at && at - each->first < each->second.size_bytes;
    if (!is_there) return mistake(where, "a part of the range is not mapped");
    if (each->second.rights != access::read_write) {
      return mistake(where, "set_access gave no right to a part of the range");
    }
    at = each->first + each->second.size_bytes;
  }
  return {};
}

}  // namespace vmm::level_zero
