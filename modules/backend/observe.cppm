// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:observe - observers of the calls to a backend. observed_backend (:driver) calls one
// before and after each call.
//
// call_counter  counts by kind, failures separately
// call_log      writes a line a call, with arguments and result
// fail_plan     makes chosen calls fail before they reach the driver
//
// Thread safety: the observers here take calls from any thread.
// Cost: a counter: at most two relaxed additions. A log: formatting and one write.
module;
#include <cstdio>

export module vmm.backend:observe;

import vmm.std;
import vmm.support;
import :result;
import :types;
import vmm.std;

namespace vmm {

/// The arguments or the results of any call; what a call does not have stays empty.
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

/// One call. `results` and `failure` (nullptr: success) are there only after it.
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

/// Counts calls by kind.
export class call_counter {
 public:
  /// Implements call_observer: counts, and refuses nothing. Cost: two relaxed additions at most.
  [[nodiscard]] status before(const call_record&) noexcept { return {}; }
  void after(const call_record& record) noexcept {
    const std::size_t index = index_of(record.kind);
    check(record.failure == nullptr || record.failure->code != errc::none,
          "a call failed without an error");
    calls_[index].fetch_add(1, std::memory_order_relaxed);
    if (record.failure != nullptr) failures_[index].fetch_add(1, std::memory_order_relaxed);
  }

  /// Calls of one kind, and those of them that failed. Requires: a kind that there is.
  [[nodiscard]] std::uint64_t calls(call kind) const noexcept {
    return calls_[index_of(kind)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t failures(call kind) const noexcept {
    return failures_[index_of(kind)].load(std::memory_order_relaxed);
  }
  /// Over all kinds.
  [[nodiscard]] std::uint64_t calls() const noexcept;
  [[nodiscard]] std::uint64_t failures() const noexcept;
  /// Back to 0. A call that another thread makes meanwhile may count before or after.
  void reset() noexcept;

 private:
  [[nodiscard]] static std::size_t index_of(call kind) noexcept {
    const auto index = static_cast<std::size_t>(kind);
    check(index < call_count, "a call is of no kind");
    return index;
  }

  std::array<std::atomic<std::uint64_t>, call_count> calls_{};
  std::array<std::atomic<std::uint64_t>, call_count> failures_{};
};

/// Writes a line a call: a running number, the kind, its arguments, an arrow, and the results or
/// the error.
export class call_log {
 public:
  /// Writes to `sink`, which stays the caller's and must outlive the log.
  explicit call_log(std::FILE& sink) noexcept : sink_(&sink) {}
  /// "stderr", or the path of a file to append to. Errors: bad_option (cannot be opened),
  /// out_of_host_memory.
  [[nodiscard]] static result<std::shared_ptr<call_log>> open(
      std::string_view destination) noexcept;
  call_log(const call_log&) = delete;
  call_log& operator=(const call_log&) = delete;
  ~call_log();

  /// Implements call_observer: writes a line, and refuses nothing. A failed write is reported once,
  /// on stderr, and does not end the program. Cost: formatting and one write.
  [[nodiscard]] status before(const call_record&) noexcept { return {}; }
  void after(const call_record& record) noexcept;

 private:
  std::FILE* sink_;
  bool owned_ = false;
  process_mark made_in_;
  std::atomic<std::uint64_t> lines_{0};
  std::atomic<bool> is_incomplete_{false};
};

/// Makes chosen calls fail, on any backend.
export class fail_plan {
 public:
  struct rule {
    call kind = call::none;   ///< none: calls of every kind count
    std::uint64_t nth = 1;    ///< the first call that fails, counted from 1 when the rule is added
    std::uint64_t times = 1;  ///< how many from there on; 0: all of them
    error failure{};          ///< its code must be set
  };
  static constexpr std::size_t rules_max = 16;

  /// Effects: the rule counts calls from now on; where several strike, the first one added decides.
  /// Requires: a failure with a code, `nth` from 1, and at most rules_max rules at a time, else the
  /// process ends.
  void add(const rule& planned) noexcept;
  /// Effects: no rule is left.
  void clear() noexcept;
  /// Calls that a rule made fail since the plan was made.
  [[nodiscard]] std::uint64_t struck() const noexcept;

  /// Implements call_observer: returns the failure of the rule that strikes. Cost: O(rules).
  [[nodiscard]] status before(const call_record& record) noexcept;
  void after(const call_record&) noexcept {}

 private:
  struct armed_rule {
    rule planned{};
    std::uint64_t seen = 0;
  };
  mutable std::mutex guard_;
  std::array<armed_rule, rules_max> rules_{};
  std::size_t count_ = 0;
  std::uint64_t struck_ = 0;
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
// What a call is given.
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
inline call_facts facts_of(address at, location who) { return {.at = at, .where = who}; }
inline call_facts facts_of(const address_range& range, std::span<const access_grant> grants) {
  call_facts given = facts_of(range);
  given.value = grants.size();
  if (!grants.empty()) {
    given.where = grants.front().who;
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
inline call_facts facts_of(multicast_handle team, location who) {
  return {.object = static_cast<std::uint64_t>(team), .where = who};
}

}  // namespace vmm
