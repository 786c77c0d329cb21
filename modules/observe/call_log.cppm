// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:call_log - observers of driver calls. An observed_backend (vmm.backend:driver) calls
// one before and after each driver call.
//
// call_counter  counts by kind, failures separately
// call_log      writes a line for each call, with arguments and result
// fail_plan     makes chosen calls fail before they reach the driver
//
// Thread safety: observers may be called from any thread. Cost: a counter: at most two relaxed
// additions. A log: formatting and one write.
module;
#include <cstdio>

export module vmm.observe:call_log;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

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

  /// The calls of one kind, and those that failed. Requires: an existing kind.
  [[nodiscard]] std::uint64_t calls(call kind) const noexcept {
    return calls_[index_of(kind)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t failures(call kind) const noexcept {
    return failures_[index_of(kind)].load(std::memory_order_relaxed);
  }
  /// Over all kinds.
  [[nodiscard]] std::uint64_t calls() const noexcept;
  [[nodiscard]] std::uint64_t failures() const noexcept;
  /// Sets all counts to 0. A concurrent call may count before or after.
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

/// Writes a line for each call: a running number, the kind, its arguments, an arrow, and the
/// results or the error.
export class call_log {
 public:
  /// Writes to `sink`, which the caller owns and which outlives the log.
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
    std::uint64_t times = 1;  ///< the number of failing calls; 0: all later ones
    error failure{};          ///< its code must be set
  };
  static constexpr std::size_t rules_max = 16;

  /// Effects: the rule counts calls from now on; if several apply, the first one added decides.
  /// Requires: a failure with a code, `nth` from 1, and at most rules_max rules at a time, else the
  /// process ends.
  void add(const rule& planned) noexcept;
  /// Effects: no rule is left.
  void clear() noexcept;
  /// The calls that rules have made fail since the plan was created.
  [[nodiscard]] std::uint64_t struck() const noexcept;

  /// Implements call_observer: returns the failure of the rule that applies. Cost: O(rules).
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

}  // namespace vmm
