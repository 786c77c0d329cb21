// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - rights: set_access, get_access, and the use of memory through addresses.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;
using fake::misuse_kind;
using fake::objection;
using fake::refusal;
using fake::rights_word;

namespace fake {

result<fake_state::mapped_part> fake_state::use(call where, address_range range, const user& by) {
  check(by.need != access::none, "memory is used without an access");
  const auto found = mapping_at(range.base.value);
  if (found == mappings.end()) {
    misused(misuse_kind::use_after_unmap, where, range, 0, "nothing is mapped at this address");
    return refuse_as(where, refusal::not_mapped, "nothing is mapped at this address");
  }
  const mapping& joined = found->second;
  const rights_word in_force = effective(found->first, joined);
  const access rights = rights_of(in_force, slot_of(by.device));
  if (rights < by.need) {
    const bool is_trap = by.is_copy && emulated.traps.copies_ignore_rights &&
                         rights == access::none && in_force != 0;
    if (!is_trap || !by.is_reported)
      misused(misuse_kind::no_access, where, range, 0, "the location has no such right here");
    const bool hint_only =
        rights == access::read && emulated.can.read_only == read_only_level::hint;
    if (!hint_only && !is_trap)
      return refuse_as(where, refusal::no_access, "set_access granted no such right here");
  }
  check(machine->memories.find(joined.memory) != nullptr, "a mapping has no memory");
  memory& behind = *machine->memories.find(joined.memory);
  const std::uint64_t inside = range.base.value - found->first;
  const std::uint64_t offset = joined.offset_bytes + inside;
  if (offset >= behind.made_as.size_bytes) {
    misused(misuse_kind::past_the_end, where, range, 0, "beyond the end of the memory");
    return refuse_as(where, refusal::not_mapped, "beyond the end of the memory mapped here");
  }
  check(inside < joined.size_bytes, "an address is used outside of its mapping");
  const std::uint64_t left =
      std::min(joined.size_bytes - inside, behind.made_as.size_bytes - offset);
  return mapped_part{&behind, offset, std::min(left, range.size_bytes)};
}

}  // namespace fake

namespace {

// What a list of grants changes: the bits of the locations named, and their new values.
struct rights_change {
  rights_word mask = 0;
  rights_word value = 0;
  bool names_host = false;
  std::uint32_t device_count = 0;  // devices that may do something
};

std::optional<objection> read_grants(const fake_state& s, std::span<const access_grant> grants,
                                     rights_change& change) {
  check(change.mask == 0 && change.value == 0, "grants are added to others");
  if (grants.empty()) return objection{refusal::bad_value, "the list of grants is empty"};
  for (const access_grant& grant : grants) {
    if (!s.known(grant.grantee)) {
      const bool emulates_cuda = s.emulated.codes == fake::error_code_set::cuda;
      return objection{emulates_cuda ? refusal::bad_value : refusal::bad_location,
                       "no such device or NUMA node"};
    }
    if (grant.rights == access::read && s.emulated.can.read_only == read_only_level::refused) {
      return objection{refusal::unsupported, "this driver has no read-only access"};
    }
    if (grant.rights != grants.front().rights && !s.emulated.can.access_per_location) {
      return objection{refusal::unsupported, "this driver gives every location the same rights"};
    }
    const unsigned slot = fake::slot_of(grant.grantee);
    change.mask = fake::with_rights(change.mask, slot, static_cast<access>(3));
    change.value = fake::with_rights(change.value, slot, grant.rights);
    if (grant.grantee.kind != location::place::device) change.names_host = true;
    const bool gives =
        grant.grantee.kind == location::place::device && grant.rights != access::none;
    change.device_count += gives ? 1U : 0U;
  }
  if (!s.emulated.can.access_per_location) {
    change = {~rights_word{0}, fake::everybody(grants.front().rights), false, 0};
  }
  check((change.value & ~change.mask) == 0, "a granted right is not set");
  return std::nullopt;
}

// Why the mapping at `expected` cannot take the change; null when it can.
const objection* object_to(fake_state& s, address_range range, std::uint64_t expected,
                           fake::mapping_map::iterator found, const rights_change& change) {
  check(expected >= range.base.value && expected < range.end().value, "a query exceeds its range");
  static constexpr objection hole{refusal::not_mapped, "a part of the range is not mapped"};
  static constexpr objection cut{refusal::cut, "this driver sets access on whole mappings only"};
  static constexpr objection host_rights{refusal::unsupported,
                                         "the host may use memory made on the host only"};
  static constexpr objection far{refusal::unsupported,
                                 "the device cannot access this memory: call query_peer first"};
  if (found == s.mappings.end() || found->first > expected) {
    s.misused(misuse_kind::access_over_hole, call::set_access, range, 0,
              "map the whole range first");
    return &hole;
  }
  const address_range whole{address{found->first}, found->second.size_bytes};
  if (!range.contains(whole) && !s.emulated.can.partial_access) {
    s.misused(misuse_kind::cut_mapping, call::set_access, range, 0, "give whole mappings");
    return &cut;
  }
  check(s.machine->memories.find(found->second.memory) != nullptr, "a mapping has no memory");
  const fake::memory& behind = *s.machine->memories.find(found->second.memory);
  if (change.names_host && behind.made_as.where.kind == location::place::device)
    return &host_rights;
  for (std::int32_t i = 0; i < s.emulated.device_count; ++i) {
    const bool gives = fake::rights_of(change.value, static_cast<unsigned>(i)) != access::none;
    if (gives && s.emulated.can.access_per_location && !s.reaches(i, behind.made_as.where))
      return &far;
  }
  return nullptr;
}

void apply(fake_state& s, fake::mapping_map::iterator which, fake::reservation& of,
           const rights_change& change) {
  fake::mapping& joined = which->second;
  const rights_word before = joined.rights;
  joined.rights = (before & ~change.mask) | change.value;
  if (joined.rights != before) s.check_revoke(which->first, joined, joined.rights);
  joined.rights_set = true;
  of.rights = (of.rights & ~change.mask) | change.value;
  if (joined.rights != before && s.emulated.traps.access_resets_offset) joined.offset_bytes = 0;
  s.counts.accessible_mappings += joined.rights != 0 ? 1 : 0;
  s.counts.accessible_mappings -= before != 0 ? 1 : 0;
  check(s.counts.accessible_mappings <= s.counts.mappings, "more is accessible than is mapped");
  s.charge_us(s.emulated.costs.set_access.at(joined.size_bytes));
  if (change.device_count > 1)
    s.charge_us(s.emulated.costs.peer_access_us * (change.device_count - 1));
}

// Applies the change to the mappings in [range.base, end).
void apply_until(fake_state& s, address_range range, std::uint64_t end, fake::reservation& of,
                 const rights_change& change) {
  check(end >= range.base.value && end <= range.end().value, "rights change outside of a range");
  if (s.emulated.can.partial_access) {
    s.split_at(range.base.value);
    s.split_at(end);
  }
  auto next = s.mappings.lower_bound(range.base.value);
  for (; next != s.mappings.end() && next->first < end; ++next) apply(s, next, of, change);
}

}  // namespace

status fake_driver::set_access(address_range range, std::span<const access_grant> grants) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<void>(call::set_access, [&]() -> status {
    const auto refused = [&](const objection& bad) {
      return s.refuse_as(call::set_access, bad.why, bad.detail);
    };
    rights_change change{};
    if (const auto bad = read_grants(s, grants, change)) return refused(*bad);
    if (!s.aligned(range)) {
      return refused({refusal::bad_value, "address and size must be multiples of the granularity"});
    }
    const auto inside = s.reservation_of(range);
    if (inside == s.reservations.end()) {
      return refused({refusal::not_reserved, "not inside one reservation"});
    }
    std::uint64_t expected = range.base.value;
    auto next = s.first_in(range);
    while (expected < range.end().value) {
      const objection* bad = object_to(s, range, expected, next, change);
      if (bad != nullptr && bad->why == refusal::not_mapped && s.emulated.traps.access_over_hole) {
        const bool more = next != s.mappings.end() && next->first < range.end().value;
        expected = more ? next->first : range.end().value;
        continue;
      }
      if (bad != nullptr) {
        if (s.emulated.traps.access_stops_midway)
          apply_until(s, range, expected, inside->second, change);
        return refused(*bad);
      }
      check(next->second.size_bytes != 0, "a mapping is empty");
      expected = next->first + next->second.size_bytes;
      ++next;
    }
    apply_until(s, range, range.end().value, inside->second, change);
    return {};
  });
}

result<access> fake_driver::get_access(address at, location place) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<access>(call::get_access, [&]() -> result<access> {
    if (!s.known(place)) {
      return s.refuse_as(call::get_access, refusal::bad_location, "no such device or NUMA node");
    }
    const auto found = s.mapping_at(at.value);
    if (found == s.mappings.end()) {
      return s.refuse_as(call::get_access, refusal::not_mapped,
                         "nothing is mapped at this address");
    }
    s.charge_us(s.emulated.costs.query_us);
    return fake::rights_of(s.effective(found->first, found->second), fake::slot_of(place));
  });
}

// ---- peers ----

namespace fake {

bool fake_state::reaches(std::int32_t device, location memory_at) const noexcept {
  check(device >= 0 && device < emulated.device_count, "the device does not exist");
  if (memory_at.kind != location::place::device || memory_at.ordinal == device) return true;
  const auto bits = emulated.reaches[static_cast<std::size_t>(device)];
  return ((bits >> memory_at.ordinal) & 1U) != 0;
}

}  // namespace fake

result<peer_info> fake_driver::query_peer(const peer_query& query) {
  check(state_ != nullptr, fake::moved_from);
  fake_state& s = *state_;
  return s.run<peer_info>(call::query_peer, [&]() -> result<peer_info> {
    if (!s.emulated.can.peers) {
      return s.refuse_as(call::query_peer, refusal::unsupported,
                         "this driver has no rights for each device");
    }
    if (!s.known(query.from) || !s.known(query.to)) {
      return s.refuse_as(call::query_peer, refusal::bad_location, "no such device or NUMA node");
    }
    s.charge_us(s.emulated.costs.query_us);
    using place = location::place;
    if (query.from == query.to) return peer_info{link_kind::itself, true, 0};
    const bool from_device = query.from.kind == place::device;
    if (from_device && query.to.kind != place::device) return peer_info{link_kind::host, false, 0};
    const bool near = from_device && s.reaches(query.from.ordinal, query.to);
    check(!near || query.to.kind == place::device, "a device link does not end at a device");
    return near ? peer_info{link_kind::peer, true, 0} : peer_info{};
  });
}

}  // namespace vmm
