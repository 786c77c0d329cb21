// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.replay:report - what a replay found, as values, as text for people and as one JSON object.
//
// Thread safety: values only. Cost: strings are built; nothing here runs while time is measured.
export module vmm.replay:report;

import vmm.backend;
import vmm.std;

namespace vmm::tools {

/// One call that an allocator could not serve.
export struct failure {
  std::uint64_t event = 0;  ///< counted from 0
  error why{};
};

/// How many failed, and the first.
export struct failure_list {
  std::uint64_t count = 0;
  failure first{};

  void add(const failure& next) noexcept {
    if (count++ == 0) first = next;
  }
};

export struct timed_pass {
  double elapsed_ns = 0;
  failure_list failures;
};

export struct observed_pass {
  std::uint64_t peak_held_bytes = 0;
  std::uint64_t peak_event = 0;  ///< the first event after which the peak is held
  failure_list failures;
};

/// Driver calls by kind, indexed by vmm::call.
export using call_counts = std::array<std::uint64_t, call_count>;
/// Microseconds in driver calls by kind, indexed by vmm::call.
export using call_times = std::array<double, call_count>;

/// What the replay of one trace found.
export struct replay_report {
  std::string trace;
  std::string backend;
  std::string policy;
  std::uint64_t allocation_count = 0;
  std::uint64_t free_count = 0;
  std::uint64_t iteration_count = 0;
  std::uint64_t peak_live_bytes = 0;      ///< of the trace: requests rounded up to 512
  std::uint64_t peak_reserved_bytes = 0;  ///< the most physical memory held, over all passes
  std::uint64_t first_pass_peak_reserved_bytes = 0;
  /// The same as the device's driver reports it: free memory before less free memory at the peak,
  /// with what the driver takes for itself. On a CUDA device only.
  std::optional<std::uint64_t> device_peak_bytes;
  call_counts driver_calls{};         ///< of the first pass
  call_counts warm_driver_calls{};    ///< of all warm passes together
  std::optional<double> driver_us;    ///< time in driver calls in the first pass
  call_times driver_us_by_call{};     ///< the same by kind; all 0 on the fake
  bool driver_us_is_virtual = false;  ///< the fake's clock, not a real one
  double first_pass_ns = 0;
  std::vector<double> warm_passes_ns;  ///< further passes on the same allocator, in order
  failure_list failures;               ///< of the first pass
  std::vector<std::string> notes;      ///< what a reader must know to read the figures right

  [[nodiscard]] std::uint64_t event_count() const noexcept { return allocation_count + free_count; }
  /// Wall time of the first pass an event.
  [[nodiscard]] double ns_per_event() const noexcept;
  /// The same for the best and the median of the warm passes; nullopt without any.
  [[nodiscard]] std::optional<double> best_warm_ns_per_event() const;
  [[nodiscard]] std::optional<double> median_warm_ns_per_event() const;
  /// Peak reserved over peak live bytes; 0 when nothing was live.
  [[nodiscard]] double ratio() const noexcept;
  /// Driver calls that make, move or take away memory and addresses: those that every backend has.
  [[nodiscard]] std::uint64_t memory_call_count() const noexcept;
};

/// One JSON object on one line, without a newline. Times and the ratio are numbers; what is not
/// known is null.
export [[nodiscard]] std::string to_json(const replay_report& report);
/// How many failed, and why the first did: part of a line for people.
export [[nodiscard]] std::string to_text(const failure_list& failures);
/// Some lines for people, each ended by a newline.
export [[nodiscard]] std::string to_text(const replay_report& report);

/// "1.50 GiB", "512 B": binary units, two decimals from KiB on.
export [[nodiscard]] std::string show_bytes(std::uint64_t size_bytes);
/// "1,234,567"
export [[nodiscard]] std::string show_count(std::uint64_t count);
/// `value` with `decimals` digits behind the point.
export [[nodiscard]] std::string show_number(double value, int decimals);
/// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
export [[nodiscard]] std::string json_string(std::string_view text);

}  // namespace vmm::tools
