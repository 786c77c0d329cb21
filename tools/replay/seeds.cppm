// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.replay:seeds - one trace replayed with its sizes changed by several seeds, and the means.
//
// What a pool holds of one trace is partly luck: a change of placement anywhere moves it by some
// hundredths. Means over seeds compare policies without this noise.
//
// Thread safety: as run_replay. Cost: a copy of the trace and one replay for each seed.
export module vmm.replay:seeds;

import vmm.std;
import vmm.trace;
import :report;
import :run;

namespace vmm::tools {

/// The replays of one trace under the seeds 1, 2, and so on.
export struct seeds_report {
  std::vector<replay_report> runs;  ///< the first is of seed 1

  [[nodiscard]] double ratio_mean() const noexcept;
  [[nodiscard]] double ratio_most() const noexcept;
  [[nodiscard]] double driver_us_mean() const noexcept;
  /// Of replay_report::memory_call_count().
  [[nodiscard]] double memory_calls_mean() const noexcept;
  [[nodiscard]] std::uint64_t failure_count() const noexcept;
};

/// A report, or the reason for a failure.
export struct seeds_outcome {
  seeds_report report;            ///< without runs where there is a problem
  std::string problem;            ///< empty when there is a report
  bool is_callers_fault = false;  ///< as in run_outcome
};

/// Replays `input` with its sizes jittered by each seed from 1 to `seed_count`, which is not 0.
export [[nodiscard]] seeds_outcome run_seeds(const trace& input, const run_options& options,
                                             std::uint32_t seed_count);

/// One JSON object on one line, without a newline.
export [[nodiscard]] std::string to_json(const seeds_report& report);
/// A table for people: a line for each seed, and the means.
export [[nodiscard]] std::string to_text(const seeds_report& report);

}  // namespace vmm::tools
