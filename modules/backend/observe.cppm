// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:observe - calls to a backend as somebody else sees them. [A8]
//
// observed_backend<B, Observer> forwards every call to a B and tells an observer before and after
// it. It has exactly the refinements that B has. Adaptors nest; where there is none, it costs none.
//
// call_counter  counts by kind, failures apart
// call_log      writes a line a call, with arguments and result
// fail_plan     makes chosen calls fail before they reach the driver
//
// I1  after() is called once for every before(), also for a call that before() refused.
// I2  An answer passes unchanged; a refusal of before() gets the call's kind as its place.
// I3  In a forked child every call is refused, and no observer sees it.
//
// Thread safety: that of B; the observers here take calls from any thread.
// Cost: the observer's, and copying some 100 bytes. A counter: at most two relaxed additions. A
// log: formatting and one write.
module;
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

export module vmm.backend:observe;

import :concepts;
import :process;
import :result;
import :types;
import :users;

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
  /// Other plain values: fill's byte, query_event's answer, a descriptor.
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
  [[nodiscard]] status before(const call_record&) noexcept { return {}; }
  void after(const call_record& record) noexcept {
    const auto index = static_cast<std::size_t>(record.kind);
    calls_[index].fetch_add(1, std::memory_order_relaxed);
    if (record.failure != nullptr) failures_[index].fetch_add(1, std::memory_order_relaxed);
  }

  [[nodiscard]] std::uint64_t calls(call kind) const noexcept {
    return calls_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t failures(call kind) const noexcept {
    return failures_[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed);
  }
  /// Over all kinds.
  [[nodiscard]] std::uint64_t calls() const noexcept;
  [[nodiscard]] std::uint64_t failures() const noexcept;
  void reset() noexcept;

 private:
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

  [[nodiscard]] status before(const call_record&) noexcept { return {}; }
  void after(const call_record& record) noexcept;

 private:
  std::FILE* sink_;
  bool owned_ = false;
  process_mark made_in_;
  std::atomic<std::uint64_t> lines_{0};
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

  /// At most rules_max rules at a time; where several strike, the first one added decides.
  void add(const rule& planned) noexcept;
  void clear() noexcept;
  /// Calls that a rule made fail since the plan was made.
  [[nodiscard]] std::uint64_t struck() const noexcept;

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

// What a call's answer has to say.
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
// What a call is given.
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

/// A B whose calls an observer sees. The observer is shared with whoever wants to ask it.
export template <backend B, call_observer Observer>
class observed_backend {
 public:
  observed_backend(B driver, std::shared_ptr<Observer> observer) noexcept
      : driver_(std::move(driver)), observer_(std::move(observer)) {
    check(observer_ != nullptr, "an observed backend needs an observer");
  }

  [[nodiscard]] B& driver() noexcept { return driver_; }
  [[nodiscard]] Observer& observer() noexcept { return *observer_; }
  /// The pools and managers over this object; it neither moves nor goes while there are any.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  // backend
  [[nodiscard]] std::string_view name() const { return driver_.name(); }
  [[nodiscard]] const features& feature_set() const { return driver_.feature_set(); }
  [[nodiscard]] location home() const { return driver_.home(); }
  [[nodiscard]] result<granularity> query_granularity(const physical_request& r) {
    return tell(call::query_granularity, facts_of(r), [&] { return driver_.query_granularity(r); });
  }
  [[nodiscard]] result<memory_info> query_memory(location where) {
    return tell(call::memory_info, {.where = where}, [&] { return driver_.query_memory(where); });
  }
  [[nodiscard]] result<address_range> reserve(const reserve_request& r) {
    return tell(call::reserve, facts_of(r), [&] { return driver_.reserve(r); });
  }
  [[nodiscard]] status free_reservation(address_range range) {
    return tell(call::free_reservation, facts_of(range),
                [&] { return driver_.free_reservation(range); });
  }
  [[nodiscard]] result<physical_handle> create(const physical_request& r) {
    return tell(call::create, facts_of(r), [&] { return driver_.create(r); });
  }
  [[nodiscard]] status release(physical_handle h) {
    return tell(call::release, facts_of(h), [&] { return driver_.release(h); });
  }
  [[nodiscard]] status map(const map_request& r) {
    return tell(call::map, facts_of(r), [&] { return driver_.map(r); });
  }
  [[nodiscard]] status unmap(address_range range) {
    return tell(call::unmap, facts_of(range), [&] { return driver_.unmap(range); });
  }
  [[nodiscard]] status set_access(address_range range, std::span<const access_grant> grants) {
    call_facts given = facts_of(range);
    given.value = grants.size();
    if (!grants.empty()) {
      given.where = grants.front().who;
      given.rights = grants.front().rights;
    }
    return tell(call::set_access, given, [&] { return driver_.set_access(range, grants); });
  }
  [[nodiscard]] result<access> get_access(address at, location who) {
    return tell(call::get_access, {.at = at, .where = who},
                [&] { return driver_.get_access(at, who); });
  }

  // stream_backend
  [[nodiscard]] result<stream_handle> create_stream()
    requires stream_backend<B>
  {
    return tell(call::create_stream, {}, [&] { return driver_.create_stream(); });
  }
  [[nodiscard]] status destroy_stream(stream_handle s)
    requires stream_backend<B>
  {
    return tell(call::destroy_stream, facts_of(s), [&] { return driver_.destroy_stream(s); });
  }
  [[nodiscard]] status synchronize_stream(stream_handle s)
    requires stream_backend<B>
  {
    return tell(call::synchronize_stream, facts_of(s),
                [&] { return driver_.synchronize_stream(s); });
  }
  [[nodiscard]] result<event_handle> create_event()
    requires stream_backend<B>
  {
    return tell(call::create_event, {}, [&] { return driver_.create_event(); });
  }
  [[nodiscard]] status destroy_event(event_handle e)
    requires stream_backend<B>
  {
    return tell(call::destroy_event, facts_of(e), [&] { return driver_.destroy_event(e); });
  }
  [[nodiscard]] status record_event(event_handle e, stream_handle s)
    requires stream_backend<B>
  {
    return tell(call::record_event, both(s, e), [&] { return driver_.record_event(e, s); });
  }
  [[nodiscard]] result<bool> query_event(event_handle e)
    requires stream_backend<B>
  {
    return tell(call::query_event, facts_of(e), [&] { return driver_.query_event(e); });
  }
  [[nodiscard]] status wait_event(stream_handle s, event_handle e)
    requires stream_backend<B>
  {
    return tell(call::wait_event, both(s, e), [&] { return driver_.wait_event(s, e); });
  }
  [[nodiscard]] status synchronize_event(event_handle e)
    requires stream_backend<B>
  {
    return tell(call::synchronize_event, facts_of(e), [&] { return driver_.synchronize_event(e); });
  }

  // capture_backend. The thread's mode, and whether a stream can be captured at all, are no calls
  // on a device: observers do not see them.
  [[nodiscard]] bool can_capture(stream_handle s) const
    requires capture_backend<B>
  {
    return driver_.can_capture(s);
  }
  [[nodiscard]] result<capture_info> query_capture(stream_handle s)
    requires capture_backend<B>
  {
    return tell(call::query_capture, facts_of(s), [&] { return driver_.query_capture(s); });
  }
  capture_mode exchange_capture_mode(capture_mode mode)
    requires capture_backend<B>
  {
    return driver_.exchange_capture_mode(mode);
  }

  // context_backend: no calls on a device either
  [[nodiscard]] bool push_context()
    requires context_backend<B>
  {
    return driver_.push_context();
  }
  void pop_context()
    requires context_backend<B>
  {
    driver_.pop_context();
  }

  // copy_backend
  [[nodiscard]] status copy(const copy_request& r)
    requires copy_backend<B>
  {
    return tell(call::copy, facts_of(r), [&] { return driver_.copy(r); });
  }
  [[nodiscard]] status fill(const fill_request& r)
    requires copy_backend<B>
  {
    return tell(call::fill, facts_of(r), [&] { return driver_.fill(r); });
  }
  [[nodiscard]] status write(address at, std::span<const std::byte> source)
    requires copy_backend<B>
  {
    return tell(call::write, {.at = at, .size_bytes = source.size()},
                [&] { return driver_.write(at, source); });
  }
  [[nodiscard]] status read(std::span<std::byte> target, address at)
    requires copy_backend<B>
  {
    return tell(call::read, {.at = at, .size_bytes = target.size()},
                [&] { return driver_.read(target, at); });
  }

  // retain_backend, property_backend, sharing_backend
  [[nodiscard]] result<physical_handle> retain(address at)
    requires retain_backend<B>
  {
    return tell(call::retain, {.at = at}, [&] { return driver_.retain(at); });
  }
  [[nodiscard]] result<physical_properties> get_properties(physical_handle h)
    requires property_backend<B>
  {
    return tell(call::get_properties, facts_of(h), [&] { return driver_.get_properties(h); });
  }
  [[nodiscard]] result<shared_handle> export_handle(physical_handle h, share_kind kind)
    requires sharing_backend<B>
  {
    return tell(call::export_handle, facts_of(h), [&] { return driver_.export_handle(h, kind); });
  }
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& s)
    requires sharing_backend<B>
  {
    return tell(call::import_handle, facts_of(s), [&] { return driver_.import_handle(s); });
  }

  // multicast_backend
  [[nodiscard]] result<granularity> query_multicast_granularity(const multicast_request& r)
    requires multicast_backend<B>
  {
    return tell(call::query_granularity, facts_of(r),
                [&] { return driver_.query_multicast_granularity(r); });
  }
  [[nodiscard]] result<multicast_handle> create_multicast(const multicast_request& r)
    requires multicast_backend<B>
  {
    return tell(call::create_multicast, facts_of(r), [&] { return driver_.create_multicast(r); });
  }
  [[nodiscard]] status add_multicast_device(multicast_handle team, location who)
    requires multicast_backend<B>
  {
    return tell(call::add_multicast_device,
                {.object = static_cast<std::uint64_t>(team), .where = who},
                [&] { return driver_.add_multicast_device(team, who); });
  }
  [[nodiscard]] status bind_multicast(const multicast_binding& b)
    requires multicast_backend<B>
  {
    return tell(call::bind_multicast, facts_of(b), [&] { return driver_.bind_multicast(b); });
  }
  [[nodiscard]] status unbind_multicast(const multicast_binding& b)
    requires multicast_backend<B>
  {
    return tell(call::unbind_multicast, facts_of(b), [&] { return driver_.unbind_multicast(b); });
  }

 private:
  static call_facts both(stream_handle s, event_handle e) noexcept {
    return {.stream = static_cast<std::uint64_t>(s), .event = static_cast<std::uint64_t>(e)};
  }
  static call_facts results_of(const status&) noexcept { return {}; }
  template <class T>
  static call_facts results_of(const result<T>& answer) {
    return facts_of(*answer);
  }

  template <class Work>
  auto tell(call kind, const call_facts& arguments, Work&& work) -> decltype(work()) {
    if (!made_in_.is_here()) [[unlikely]]
      return refuse_forked(kind);
    call_record record{.kind = kind, .arguments = arguments};
    if (const status allowed = observer_->before(record); !allowed) {
      error refused = allowed.error();
      if (refused.where == call::none) refused.where = kind;
      record.failure = &refused;
      observer_->after(record);
      return refused;
    }
    auto answer = work();
    if (answer) {
      record.results = results_of(answer);
    } else {
      record.failure = &answer.error();
    }
    observer_->after(record);
    return answer;
  }

  B driver_;
  std::shared_ptr<Observer> observer_;
  process_mark made_in_;
  user_count users_;
};

}  // namespace vmm
