// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:calls - one call of a driver as plain values: its kind, arguments, results and error.
// observed_backend (:driver) gives each to a call_observer, before and after the call; vmm.observe
// has observers.
//
// Thread safety: values only. Cost: constant, no allocation.
export module vmm.backend:calls;

import vmm.base;
import vmm.std;
import :result;
import :types;

namespace vmm {

/// The arguments or the results of any call. Fields that a call does not have are empty.
export struct call_facts {
  address at{};                    ///< base of the range, or the target
  address source{};                ///< of a copy
  std::uint64_t size_bytes = 0;    ///< also: minimum granularity, free memory
  std::uint64_t limit_bytes = 0;   ///< recommended granularity, total memory, alignment
  std::uint64_t offset_bytes = 0;  ///< in the physical memory, or in the multicast object
  std::uint64_t object = 0;        ///< physical or multicast handle
  std::uint64_t stream = 0;
  std::uint64_t event = 0;
  std::optional<location> where{};
  std::optional<access> rights{};  ///< of the first grant
  /// Other plain values: fill's byte, query_event's result, a descriptor.
  std::optional<std::uint64_t> value{};
};

/// One call. `results` and `failure` (nullptr: success) are set after it.
export struct call_record {
  call kind = call::none;
  call_facts arguments{};
  call_facts results{};
  const error* failure = nullptr;
};

/// before() may refuse the call, which then does not reach the backend.
export template <class O>
concept call_observer = requires(O& observer, const call_record& record) {
  { observer.before(record) } -> std::same_as<status>;
  { observer.after(record) } -> std::same_as<void>;
};

// The fields of a call's result.
inline call_facts facts_of(const granularity& g) {
  return {.size_bytes = g.minimum_bytes, .limit_bytes = g.recommended_bytes};
}
inline call_facts facts_of(const memory_info& m) {
  return {.size_bytes = m.free_bytes, .limit_bytes = m.total_bytes};
}
inline call_facts facts_of(const address_range& r) {
  return {.at = r.base, .size_bytes = r.size_bytes};
}
inline call_facts facts_of(physical_handle h) { return {.object = static_cast<std::uint64_t>(h)}; }
inline call_facts facts_of(multicast_handle h) { return {.object = static_cast<std::uint64_t>(h)}; }
inline call_facts facts_of(stream_handle s) { return {.stream = static_cast<std::uint64_t>(s)}; }
inline call_facts facts_of(event_handle e) { return {.event = static_cast<std::uint64_t>(e)}; }
inline call_facts facts_of(access rights) { return {.rights = rights}; }
inline call_facts facts_of(const capture_info& c) { return {.value = c.id}; }
inline call_facts facts_of(bool answer) { return {.value = answer ? 1u : 0u}; }
inline call_facts facts_of(const physical_properties& p) { return {.where = p.where}; }
inline call_facts facts_of(const shared_handle& s) {
  return {.size_bytes = s.size_bytes, .value = static_cast<std::uint64_t>(s.descriptor)};
}
inline call_facts facts_of(const peer_info& p) { return {.value = p.is_reachable() ? 1u : 0u}; }
inline call_facts facts_of(const dma_buf& b) {
  return {.size_bytes = b.size_bytes, .value = static_cast<std::uint64_t>(b.descriptor)};
}
// The fields of a call's arguments.
inline call_facts facts_of(const peer_query& q) { return {.where = q.from}; }
inline call_facts facts_of(const multicast_address_binding& b) {
  return {.at = b.memory.base,
          .size_bytes = b.memory.size_bytes,
          .offset_bytes = b.team_offset_bytes,
          .object = static_cast<std::uint64_t>(b.team)};
}
inline call_facts facts_of(const physical_request& r) {
  return {.size_bytes = r.size_bytes, .where = r.where};
}
inline call_facts facts_of(const reserve_request& r) {
  return {.at = r.hint, .size_bytes = r.size_bytes, .limit_bytes = r.alignment_bytes};
}
inline call_facts facts_of(const map_request& r) {
  return {.at = r.at,
          .size_bytes = r.size_bytes,
          .offset_bytes = r.offset_bytes,
          .object = static_cast<std::uint64_t>(r.memory)};
}
inline call_facts facts_of(const copy_request& r) {
  return {.at = r.target,
          .source = r.source,
          .size_bytes = r.size_bytes,
          .stream = static_cast<std::uint64_t>(r.stream)};
}
inline call_facts facts_of(const fill_request& r) {
  return {.at = r.target.base,
          .size_bytes = r.target.size_bytes,
          .stream = static_cast<std::uint64_t>(r.stream),
          .value = r.value};
}
inline call_facts facts_of(const multicast_request& r) {
  return {.size_bytes = r.size_bytes, .value = r.device_count};
}
inline call_facts facts_of(const multicast_binding& b) {
  return {.size_bytes = b.size_bytes,
          .offset_bytes = b.team_offset_bytes,
          .object = static_cast<std::uint64_t>(b.team),
          .where = b.device};
}

inline call_facts facts_of() { return {}; }
inline call_facts facts_of(location where) { return {.where = where}; }
inline call_facts facts_of(address at) { return {.at = at}; }
inline call_facts facts_of(address at, location place) { return {.at = at, .where = place}; }
inline call_facts facts_of(const address_range& range, std::span<const access_grant> grants) {
  call_facts given = facts_of(range);
  given.value = grants.size();
  if (!grants.empty()) {
    given.where = grants.front().grantee;
    given.rights = grants.front().rights;
  }
  return given;
}
inline call_facts facts_of(event_handle e, stream_handle s) {
  return {.stream = static_cast<std::uint64_t>(s), .event = static_cast<std::uint64_t>(e)};
}
inline call_facts facts_of(stream_handle s, event_handle e) { return facts_of(e, s); }
inline call_facts facts_of(address at, std::span<const std::byte> source) {
  return {.at = at, .size_bytes = source.size()};
}
inline call_facts facts_of(std::span<std::byte> target, address at) {
  return {.at = at, .size_bytes = target.size()};
}
inline call_facts facts_of(physical_handle h, share_kind) { return facts_of(h); }
inline call_facts facts_of(multicast_handle team, location place) {
  return {.object = static_cast<std::uint64_t>(team), .where = place};
}

}  // namespace vmm
