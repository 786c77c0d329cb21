// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - addresses: reserve, free_reservation, map and unmap.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::mapping;
using fake::misuse_kind;
using fake::objection;
using fake::refusal;

namespace fake {

constexpr const char* miscounted = "a count of live objects is wrong";

// The reservation that contains the whole range, or end().
reservation_map::iterator fake_state::reservation_of(address_range range) noexcept {
  auto found = reservations.upper_bound(range.base.value);
  if (found == reservations.begin()) return reservations.end();
  --found;
  const std::uint64_t inside = range.base.value - found->first;
  const std::uint64_t size = found->second.size_bytes;
  check(size != 0, "a reservation has no addresses");
  if (inside >= size || range.size_bytes > size - inside) return reservations.end();
  return found;
}

// The mapping that contains the address, or end().
mapping_map::iterator fake_state::mapping_at(std::uint64_t at) noexcept {
  auto found = mappings.upper_bound(at);
  if (found == mappings.begin()) return mappings.end();
  --found;
  check(found->first <= at && found->second.size_bytes != 0, "a mapping is empty");
  return at - found->first < found->second.size_bytes ? found : mappings.end();
}

// The lowest mapping that overlaps the range, or the first one beyond it.
mapping_map::iterator fake_state::first_in(address_range range) noexcept {
  const auto containing = mapping_at(range.base.value);
  debug_check([&] { return containing == mappings.end() || containing->first <= range.base.value; },
              "a mapping contains an address before its start");
  return containing != mappings.end() ? containing : mappings.lower_bound(range.base.value);
}

// Whether a range can consist of whole granules of the smallest size.
bool fake_state::aligned(address_range range) const noexcept {
  const std::uint64_t unit = emulated.small_below_bytes != 0
                                 ? emulated.small_granularity.minimum_bytes
                             : emulated.device_count > 0 ? emulated.device_granularity.minimum_bytes
                                                         : emulated.host_granularity.minimum_bytes;
  check(unit != 0, "a profile has no granularity");
  return range.size_bytes != 0 && range.base.value % unit == 0 && range.size_bytes % unit == 0;
}

rights_word fake_state::effective(std::uint64_t base, const mapping& joined) noexcept {
  if (!emulated.traps.rights_per_reservation) return joined.rights;
  if (!joined.rights_set) return 0;
  const auto in = reservation_of({address{base}, joined.size_bytes});
  check(in != reservations.end(), "a mapping lies in no reservation");
  return in->second.rights;
}

// Makes `at` the boundary of two mappings if it lies inside one. May throw, and then has done
// nothing.
void fake_state::split_at(std::uint64_t at) {
  const auto cut = mapping_at(at);
  if (cut == mappings.end() || cut->first == at) return;
  mapping upper = cut->second;
  const std::uint64_t lower_size = at - cut->first;
  upper.size_bytes -= lower_size;
  upper.offset_bytes += lower_size;
  upper.serial = machine->serials + 1;
  mappings.emplace_hint(std::next(cut), at, upper);
  ++machine->serials;
  cut->second.size_bytes = lower_size;
  const auto in = reservation_of({address{at}, 1});
  check(in != reservations.end(), "a mapping lies in no reservation");
  check(lower_size != 0 && upper.size_bytes != 0, "a mapping is cut at its end");
  ++reference_counts.find(upper.memory)->second;
  ++machine->memories.find(upper.memory)->mappings;
  ++in->second.mappings;
  ++counts.mappings;
  counts.accessible_mappings += upper.rights != 0 ? 1 : 0;
  check(counts.mappings == mappings.size(), miscounted);
}

void fake_state::drop_mapping(call where, mapping_map::iterator which, reservation& from) noexcept {
  check_unmap(where, which->first, which->second);
  const std::uint64_t memory_token = which->second.memory;
  memory& behind = *machine->memories.find(memory_token);
  charge_us(emulated.costs.unmap.at(which->second.size_bytes));
  if (emulated.device_count > 1 && emulated.can.access_per_location) {
    std::uint32_t users = 0;
    for (std::int32_t i = 0; i < emulated.device_count; ++i)
      users += rights_of(which->second.rights, static_cast<unsigned>(i)) != access::none ? 1U : 0U;
    if (users > 1) charge_us(emulated.costs.peer_unmap_us * (users - 1));
  }
  if (behind.references() == 1 && !behind.multicast) {
    charge_us(emulated.costs.release.at(behind.made_as.size_bytes));
  }
  check(behind.mappings != 0 && from.mappings != 0 && counts.mappings != 0,
        "a count of mappings would fall below zero");
  check(counts.mapped_bytes >= which->second.size_bytes, "more is unmapped than was mapped");
  check(which->second.rights == 0 || counts.accessible_mappings != 0,
        "the count of accessible mappings would fall below zero");
  --behind.mappings;
  --from.mappings;
  --counts.mappings;
  counts.mapped_bytes -= which->second.size_bytes;
  counts.accessible_mappings -= which->second.rights != 0 ? 1 : 0;
  mappings.erase(which);
  check(counts.mappings == mappings.size(), miscounted);
  drop_reference(memory_token);
}

}  // namespace fake

result<address_range> fake_driver::reserve(const reserve_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<address_range>(call::reserve, [&]() -> result<address_range> {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::reserve, why, detail);
    };
    const std::uint64_t unit = s.emulated.address_alignment_bytes;
    if (request.size_bytes == 0 || request.size_bytes % unit != 0) {
      return refused(refusal::bad_value,
                     "the size must be a multiple of the granularity, and not 0");
    }
    if (request.alignment_bytes != 0 && !std::has_single_bit(request.alignment_bytes)) {
      return refused(
          refusal::bad_value,
          refuse_number(request.alignment_bytes, "an alignment is a power of two, or 0").detail);
    }
    constexpr std::uint64_t hint_unit = 4096;
    if (s.emulated.codes == fake::error_code_set::cuda && request.hint.value % hint_unit != 0) {
      return refused(refusal::bad_value, "the hint must be the start of a page");
    }
    if (request.size_bytes > s.emulated.can.max_reservation_bytes) {
      return refused(refusal::no_addresses, "larger than any range of this driver: reserve less");
    }
    const std::uint64_t alignment = std::max(unit, request.alignment_bytes);
    const std::uint64_t hint = request.hint.value;
    std::uint64_t base = 0;
    const auto made = s.reservations.emplace_hint(s.reservations.end(), 0, fake::reservation{});
    try {
      if (hint != 0 && hint % alignment == 0 && !s.emulated.traps.hint_ignored &&
          s.space.take_at(hint, request.size_bytes)) {
        base = hint;
      } else {
        base = s.space.take(request.size_bytes, alignment);
      }
    } catch (...) {
      s.reservations.erase(made);
      throw;
    }
    auto node = s.reservations.extract(made);
    if (base == 0) return refused(refusal::no_addresses, "no free range of this size is left");
    node.key() = base;
    node.mapped() = {request.size_bytes, ++s.machine->serials, 0, 0};
    check(base % alignment == 0 && s.reservation_of({address{base}, 1}) == s.reservations.end(),
          "addresses are given that are reserved, or not aligned");
    s.reservations.insert(std::move(node));
    ++s.counts.reservations;
    check(s.counts.reservations == s.reservations.size(), fake::miscounted);
    s.counts.reserved_bytes += request.size_bytes;
    s.raise_marks();
    s.charge_us(s.emulated.costs.reserve_us);
    return address_range{address{base}, request.size_bytes};
  });
}

status fake_driver::free_reservation(address_range range) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::free_reservation, [&]() -> status {
    const auto found = s.reservations.find(range.base.value);
    if (found == s.reservations.end() || found->second.size_bytes != range.size_bytes) {
      s.misused(misuse_kind::stale_handle, call::free_reservation, range, range.base.value,
                "not a whole reservation");
      return s.refuse_as(call::free_reservation, refusal::not_reserved,
                         "pass the exact range that reserve returned, once");
    }
    if (found->second.mappings > 0) {
      s.misused(misuse_kind::freed_while_mapped, call::free_reservation, range, range.base.value,
                "unmap everything first");
      if (!s.emulated.traps.free_unmaps) {
        return s.refuse_as(call::free_reservation, refusal::in_use,
                           "something is still mapped there: unmap it first");
      }
    }
    check(s.counts.reservations != 0 && s.counts.reserved_bytes >= range.size_bytes,
          "a count of reservations would fall below zero");
    s.space.give_back(range.base.value, range.size_bytes);
    while (found->second.mappings > 0)
      s.drop_mapping(call::free_reservation, s.first_in(range), found->second);
    s.reservations.erase(found);
    --s.counts.reservations;
    check(s.counts.reservations == s.reservations.size(), fake::miscounted);
    s.counts.reserved_bytes -= range.size_bytes;
    s.charge_us(s.emulated.costs.free_reservation_us);
    return {};
  });
}

namespace {

// The refusals of map that do not depend on present mappings.
std::optional<objection> object_to(fake_state& s, const map_request& request) {
  const address_range range{request.at, request.size_bytes};
  const fake::memory* joined = s.memory_of(request.memory);
  if (joined == nullptr) {
    s.misused(misuse_kind::stale_handle, call::map, range,
              static_cast<std::uint64_t>(request.memory), "released before, or never made");
    return objection{refusal::bad_handle,
                     "not a live handle: it was released before, or never made"};
  }
  check(joined->granule != 0, "memory has no granularity");
  // Checked first if only whole handles can be mapped, as by the real driver.
  const features& can = s.emulated.can;
  const bool whole = request.offset_bytes == 0 && range.size_bytes == joined->made_as.size_bytes;
  if (!whole && range.size_bytes != 0 && !can.offset_map && !can.short_map) {
    return objection{refusal::unsupported, "this driver maps whole handles only"};
  }
  if (!s.aligned(range) || range.base.value % joined->granule != 0 ||
      range.size_bytes % joined->granule != 0 || request.offset_bytes % joined->granule != 0) {
    return objection{refusal::bad_value,
                     "address, size and offset must be multiples of the granularity"};
  }
  if (joined->multicast && !joined->multicast->full()) {
    return objection{
        refusal::bad_state,
        "the multicast object lacks devices: a real driver would block until all are added"};
  }
  const std::uint64_t size = joined->made_as.size_bytes;
  const bool past = request.offset_bytes > size || range.size_bytes > size - request.offset_bytes;
  if (past && !s.emulated.traps.map_past_end) {
    return objection{refusal::bad_value, "runs past the end of the memory"};
  }
  if (request.offset_bytes != 0 && !s.emulated.can.offset_map) {
    return objection{refusal::unsupported, "this driver maps handles from their start only"};
  }
  if (range.size_bytes < size && !s.emulated.can.short_map && !s.emulated.can.offset_map) {
    return objection{refusal::unsupported, "this driver maps whole handles only"};
  }
  if (s.emulated.can.alias == alias_level::none && joined->mappings > 0 &&
      joined->made_as.where.kind == location::place::device) {
    return objection{refusal::unsupported, "this driver maps memory once: unmap it there first"};
  }
  const std::uint64_t limit = s.emulated.can.max_mapping_count;
  if (limit != 0 && s.counts.mappings >= limit) {
    return objection{refusal::no_mappings, "the limit on the number of mappings is reached"};
  }
  return std::nullopt;
}

// The refusal of map for a range that has mappings; nothing if map accepts it or it has none.
std::optional<objection> object_to_overlap(fake_state& s, address_range range) {
  const auto there = s.first_in(range);
  if (there == s.mappings.end() || there->first >= range.end().value) return std::nullopt;
  check(there->second.size_bytes != 0, "a mapping is empty");
  s.misused(misuse_kind::double_map, call::map, range, 0, "unmap what is there first");
  const bool seen = !s.emulated.traps.overlap_unseen || there->first == range.base.value;
  if (!seen || s.emulated.can.replace_in_place) return std::nullopt;
  return objection{refusal::already_mapped, "something is mapped there: unmap it first"};
}

// Removes the mappings in the range. May throw, without a change.
void make_room(fake_state& s, address_range range, fake::reservation& from) {
  const auto there = s.first_in(range);
  if (there == s.mappings.end() || there->first >= range.end().value) return;
  s.split_at(range.base.value);
  s.split_at(range.end().value);
  auto next = s.mappings.lower_bound(range.base.value);
  while (next != s.mappings.end() && next->first < range.end().value)
    s.drop_mapping(call::map, next++, from);
  debug_check(
      [&] {
        const auto left = s.first_in(range);
        return left == s.mappings.end() || left->first >= range.end().value;
      },
      "a range made free contains a mapping");
}

}  // namespace

namespace {

// Whether a mapping overlaps neither of its neighbours.
bool fits_between(const fake::mapping_map& all, fake::mapping_map::const_iterator which) noexcept {
  const auto next = std::next(which);
  const std::uint64_t end = which->first + which->second.size_bytes;
  if (next != all.end() && next->first < end) return false;
  if (which == all.begin()) return true;
  const auto before = std::prev(which);
  return before->first + before->second.size_bytes <= which->first;
}

}  // namespace

status fake_driver::map(const map_request& request) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::map, [&]() -> status {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::map, why, detail);
    };
    const address_range range{request.at, request.size_bytes};
    if (const auto bad = object_to(s, request)) return refused(bad->why, bad->detail);
    const auto inside = s.reservation_of(range);
    if (inside == s.reservations.end()) {
      return refused(refusal::not_reserved, "reserve the addresses first, in one reservation");
    }
    if (const auto bad = object_to_overlap(s, range)) return refused(bad->why, bad->detail);
    const std::uint64_t token = s.handles.find(static_cast<std::uint64_t>(request.memory))->memory;
    // Everything that can run out of host memory comes before the first change.
    fake::mapping_map fresh{&s.nodes};
    fresh.emplace(range.base.value,
                  mapping{range.size_bytes, token, request.offset_bytes, 0, false, 0});
    make_room(s, range, inside->second);
    ++s.reference_counts.find(token)->second;  // there is one: the handle that the caller holds
    const auto put = s.mappings.insert(fresh.extract(fresh.begin()));
    check(put.inserted, "two mappings begin at one address");
    const auto added = put.position;
    debug_check([&] { return fits_between(s.mappings, added); }, "state I1: two mappings overlap");
    added->second.serial = ++s.machine->serials;
    ++s.machine->memories.find(token)->mappings;
    ++inside->second.mappings;
    check(inside->second.mappings <= s.mappings.size(), fake::miscounted);
    ++s.counts.mappings;
    check(s.counts.mappings == s.mappings.size(), fake::miscounted);
    s.counts.mapped_bytes += range.size_bytes;
    s.raise_marks();
    s.charge_us(s.emulated.costs.map.at(range.size_bytes));
    return {};
  });
}

namespace {

// The memory behind a range of addresses.
struct coverage {
  std::uint64_t mappings = 0;
  bool cut = false;
};

coverage survey(fake_state& s, address_range range) {
  coverage found{};
  for (auto next = s.first_in(range); next != s.mappings.end(); ++next) {
    if (next->first >= range.end().value) break;
    ++found.mappings;
    const address_range whole{address{next->first}, next->second.size_bytes};
    check(whole.overlaps(range), "a mapping lies outside of the range searched");
    if (!range.contains(whole)) found.cut = true;
  }
  return found;
}

}  // namespace

status fake_driver::unmap(address_range range) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::unmap, [&]() -> status {
    const auto refused = [&](refusal why, const char* detail) {
      return s.refuse_as(call::unmap, why, detail);
    };
    if (!s.aligned(range)) {
      return refused(refusal::bad_value, "address and size must be multiples of the granularity");
    }
    const auto inside = s.reservation_of(range);
    if (inside == s.reservations.end()) {
      return refused(refusal::not_reserved, "not inside one reservation");
    }
    const coverage found = survey(s, range);
    if (found.cut && !s.emulated.can.partial_unmap) {
      s.misused(misuse_kind::cut_mapping, call::unmap, range, 0, "unmap whole mappings");
      if (!s.emulated.traps.cut_unmap_skips) {
        return refused(refusal::cut, "this driver unmaps whole mappings only");
      }
    }
    if (found.mappings > 1 && !s.emulated.can.spanning_unmap) {
      return refused(refusal::unsupported, "this driver unmaps one mapping a call");
    }
    if (found.cut && s.emulated.can.partial_unmap) {
      s.split_at(range.base.value);
      s.split_at(range.end().value);
    }
    if (found.mappings == 0) s.charge_us(s.emulated.costs.query_us);
    auto next = s.mappings.lower_bound(range.base.value);
    while (next != s.mappings.end() && next->first < range.end().value) {
      const auto which = next++;
      if (which->second.size_bytes > range.end().value - which->first) continue;  // cut, skipped
      s.drop_mapping(call::unmap, which, inside->second);
    }
    return {};
  });
}

}  // namespace vmm
