// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;
import :accounts;

namespace vmm::level_zero {
namespace {

error mistake(call where, const char* detail, errc code = errc::invalid_argument) noexcept {
  check(code != errc::none && detail != nullptr, "a mistake has no code, or no text");
  return error{code, where, 0, "", detail};
}

error no_host_memory(call where) noexcept {
  return mistake(where, "no host memory for the records of mappings", errc::out_of_host_memory);
}

constexpr const char* no_live_handle = "no live handle of this driver object";
constexpr const char* mapped_detail = "the memory is mapped: unmap it first";
constexpr const char* wrong_accounts = "the tables of a Level Zero object disagree";

// [base, base + size) without running over the end of all addresses.
bool is_sane(address_range range) noexcept {
  return range.size_bytes != 0 && range.base.value + range.size_bytes > range.base.value;
}

}  // namespace

std::uint64_t next_token() noexcept {
  static std::atomic<std::uint64_t> last = 0;
  const std::uint64_t token = last.fetch_add(1, std::memory_order_relaxed) + 1;
  check(token != 0, "2^64 handles were made");
  return token;
}

status accounts::add_reservation(address_range range, address_range origin) noexcept {
  check(is_sane(range) && origin.contains(range), "a reservation lies in what the driver gave");
  if (overlaps_reservation(range)) {
    return mistake(call::reserve, "the driver returned addresses that are already reserved",
                   errc::internal);
  }
  try {
    reservations_.emplace(range.base.value, reservation{range.size_bytes, origin});
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::reserve);
  }
  look_over();
  return {};
}

bool accounts::overlaps_reservation(address_range range) const noexcept {
  check(is_sane(range), "a reservation has addresses");
  const auto after = reservations_.lower_bound(range.end().value);
  if (after == reservations_.begin()) return false;
  const auto& [base, before] = *std::prev(after);
  check(base < range.end().value && before.size_bytes != 0, "a reservation without addresses");
  return base + before.size_bytes > range.base.value;
}

result<accounts::reservation_table::node_type> accounts::take_reservation(
    address_range range) noexcept {
  const auto found = reservations_.find(range.base.value);
  if (found == reservations_.end() || found->second.size_bytes != range.size_bytes) {
    return mistake(call::free_reservation, "not exactly a range that reserve returned");
  }
  if (is_touched(range)) {
    return mistake(call::free_reservation,
                   "something is mapped in this reservation: unmap it first", errc::in_use);
  }
  check(found->second.origin.contains(range), "a reservation lies in what the driver gave");
  return reservations_.extract(found);
}

bool accounts::put_back(reservation_table::node_type which) noexcept {
  check(!which.empty(), "I7: nothing is put back");
  const address_range range{{which.key()}, which.mapped().size_bytes};
  if (overlaps_reservation(range)) return false;
  const bool is_new = reservations_.insert(std::move(which)).inserted;
  check(is_new, "I4: a reservation begins where another one does");
  look_over();
  return true;
}

result<accounts::memory_table::node_type> accounts::room_for_memory() noexcept {
  try {
    memory_table alone;
    const auto made = alone.emplace(next_token(), memory{}).first;
    check(made->first != 0, "a handle is not none");
    return alone.extract(made);
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::create);
  }
}

result<accounts::memory_table::iterator> accounts::unmapped_memory(
    call where, physical_handle handle) noexcept {
  const auto found = memories_.find(static_cast<std::uint64_t>(handle));
  if (found == memories_.end()) return mistake(where, no_live_handle);
  if (found->second.is_mapped) return mistake(where, mapped_detail, errc::in_use);
  check(found->second.native != 0, "a live handle has no memory of the driver");
  return found;
}

void accounts::add_memory(memory_table::node_type which) noexcept {
  check(!which.empty(), "no memory is added");
  const memory& made = which.mapped();
  check(made.native != 0 && !made.is_mapped, "a new memory is the driver's and not mapped");
  check(made.page_bytes != 0 && made.size_bytes % made.page_bytes == 0,
        "a memory is made of whole pages");
  created_bytes_ += made.size_bytes;
  check(created_bytes_ >= made.size_bytes, "I5: more memory was made than can be counted");
  const bool is_new = memories_.insert(std::move(which)).inserted;
  check(is_new, "I3: a handle has the number of another one");
  look_over();
}

result<accounts::memory_table::node_type> accounts::take_memory(call where,
                                                                physical_handle handle) noexcept {
  const auto found = unmapped_memory(where, handle);
  if (!found) return found.error();
  check(created_bytes_ >= (*found)->second.size_bytes, "more memory goes than was made");
  created_bytes_ -= (*found)->second.size_bytes;
  auto taken = memories_.extract(*found);
  look_over();
  return taken;
}

const memory* accounts::find(physical_handle handle) const noexcept {
  const auto found = memories_.find(static_cast<std::uint64_t>(handle));
  if (found == memories_.end()) return nullptr;
  check(found->second.native != 0, "a live handle has no memory of the driver");
  return &found->second;
}

bool accounts::is_reserved(address_range range) const noexcept {
  if (!is_sane(range)) return false;
  const auto after = reservations_.upper_bound(range.base.value);
  if (after == reservations_.begin()) return false;
  const auto& [base, before] = *std::prev(after);
  check(base <= range.base.value && before.size_bytes != 0, "a reservation without addresses");
  return address_range{{base}, before.size_bytes}.contains(range);
}

bool accounts::is_touched(address_range range) const noexcept {
  const auto after = mappings_.lower_bound(range.end().value);
  if (after == mappings_.begin()) return false;
  const auto& [base, last] = *std::prev(after);
  check(base < range.end().value && last.size_bytes != 0, "a mapping without addresses");
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
    return mistake(call::map, "the address is not a multiple of the memory's granularity");
  }
  if (!is_reserved(range)) return mistake(call::map, "the range lies in no reservation");
  if (is_touched(range)) {
    return mistake(call::map, "something is mapped in this range: unmap it first", errc::overlap);
  }
  try {
    const mapping made{.size_bytes = request.size_bytes, .handle = handle, .native = behind.native};
    const bool is_new = mappings_.emplace(request.at.value, made).second;
    check(is_new, "I1: a mapping begins where another one does");
  } catch (const std::bad_alloc&) {
    return no_host_memory(call::map);
  }
  (*memory)->second.is_mapped = true;
  look_over();
  return {};
}

result<accounts::run> accounts::whole_mappings(call where, address_range range) noexcept {
  const auto first = is_sane(range) ? mappings_.find(range.base.value) : mappings_.end();
  if (first == mappings_.end()) return mistake(where, "no mapping begins at this address");
  if (!is_reserved(range)) return mistake(where, "the range lies in no single reservation");
  std::uint64_t at = range.base.value;
  auto final = first;
  for (auto each = first; each != mappings_.end() && each->first == at; ++each) {
    if (at >= range.end().value) break;
    check(each->second.size_bytes != 0, "a mapping is empty");
    at += each->second.size_bytes;
    final = each;
  }
  if (at != range.end().value) {
    return mistake(where, "the range is not made of whole mappings without holes");
  }
  return run{first, final};
}

bool accounts::is_in_transit(const run& which) noexcept {
  return std::any_of(which.first, std::next(which.final),
                     [](const auto& each) { return each.second.is_in_transit; });
}

mapping& accounts::depart(const run& which) noexcept {
  for (auto each = which.first; each != std::next(which.final); ++each) {
    mapping& here = each->second;
    check(!here.is_in_transit, "I6: a mapping has one holder");
    here.is_in_transit = true;
    here.is_switched = false;
    here.at = each->first;
    here.next = each == which.final ? nullptr : &std::next(each)->second;
  }
  return which.first->second;
}

void accounts::arrive(const run& which, access rights) noexcept {
  for (auto each = which.first; each != std::next(which.final); ++each) {
    mapping& here = each->second;
    check(here.is_in_transit && here.at == each->first, "a mapping that arrives was in transit");
    if (here.is_switched) here.rights = rights;
    here.is_in_transit = here.is_switched = false;
    here.next = nullptr;
  }
}

void accounts::unmap(const run& which) noexcept {
  const auto behind_all = std::next(which.final);
  for (auto each = which.first; each != behind_all; ++each) {
    check(each->second.rights == access::none, "mapped memory is removed from the tables");
    check(!each->second.is_in_transit, "I6: a mapping goes while it is in transit");
    const auto behind = memories_.find(each->second.handle);
    check(behind != memories_.end() && behind->second.is_mapped,
          "I2: a mapping without its memory");
    behind->second.is_mapped = false;
  }
  mappings_.erase(which.first, behind_all);
  look_over();
}

result<access> accounts::rights_at(address at) const noexcept {
  const auto after = mappings_.upper_bound(at.value);
  if (after != mappings_.begin()) {
    const auto& [base, found] = *std::prev(after);
    check(base <= at.value && found.native != 0, "a mapping has no memory of the driver");
    if (at.value - base < found.size_bytes) return found.rights;
  }
  return mistake(call::get_access, "nothing is mapped at this address");
}

bool accounts::touches_transit(address_range range) const noexcept {
  if (!is_sane(range)) return false;
  auto each = mappings_.upper_bound(range.base.value);
  if (each != mappings_.begin()) --each;
  for (; each != mappings_.end() && each->first < range.end().value; ++each) {
    const bool is_behind = each->first + each->second.size_bytes > range.base.value;
    check(each->second.size_bytes != 0, "a mapping is empty");
    if (is_behind && each->second.is_in_transit) return true;
  }
  return false;
}

status accounts::check_usable(call where, address_range range) const noexcept {
  if (range.size_bytes == 0) return {};
  if (!is_sane(range)) return mistake(where, "the range runs past the end of the address space");
  auto each = mappings_.upper_bound(range.base.value);
  if (each != mappings_.begin()) --each;
  std::uint64_t at = range.base.value;
  for (; at < range.end().value; ++each) {
    const bool is_there =
        each != mappings_.end() && each->first <= at && at - each->first < each->second.size_bytes;
    if (!is_there) return mistake(where, "a part of the range is not mapped");
    if (each->second.rights != access::read_write) {
      return mistake(where, "set_access granted no right to a part of the range");
    }
    at = each->first + each->second.size_bytes;
    check(at > range.base.value, "a walk over mappings goes on");
  }
  return {};
}

// After a change; less often if there is much to check.
void accounts::look_over() noexcept {
  const auto is_valid = [&] {
    const std::uint64_t spacing = 1 + (mappings_.size() + memories_.size()) / 32;
    return ++change_count_ % spacing != 0 || validate();
  };
  paranoid_check(is_valid, wrong_accounts);
}

bool accounts::mappings_are_valid() const noexcept {
  std::uint64_t end = 0;
  for (const auto& [base, each] : mappings_) {
    const auto behind = memories_.find(each.handle);
    if (base < end || !is_reserved({{base}, each.size_bytes})) return false;
    if (behind == memories_.end() || !behind->second.is_mapped) return false;
    if (behind->second.size_bytes != each.size_bytes) return false;
    if (behind->second.native != each.native) return false;
    end = base + each.size_bytes;
  }
  return true;
}

bool accounts::validate() const noexcept {
  std::uint64_t end = 0;
  for (const auto& [base, each] : reservations_) {
    const address_range range{{base}, each.size_bytes};
    if (base < end || !is_sane(range) || !each.origin.contains(range)) return false;
    end = range.end().value;
  }
  std::uint64_t size_bytes = 0;
  std::uint64_t mapped_count = 0;
  for (const auto& [handle, each] : memories_) {
    size_bytes += each.size_bytes;
    mapped_count += each.is_mapped ? 1 : 0;
  }
  return size_bytes == created_bytes_ && mapped_count == mappings_.size() && mappings_are_valid();
}

}  // namespace vmm::level_zero
