// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.replay:run - a whole replay through vmm's manager: driver, policy, passes, report, picture.
//
// The first pass starts from nothing, so it pays for every driver call; warm passes follow on the
// same manager. The picture is made separately: one replay finds the event at which the most memory
// is held, another stops there. Both make the same calls in the same order as the measured pass.
//
// On the host driver memory is committed lazily and never touched, so that a trace may hold more
// than the machine has; the report notes it.
//
// The allocator is set up before the clock runs: its calls to the driver count among those of the
// first pass, its time does not, and options that it refuses end the replay before the first event.
//
// On a CUDA device no kernel runs. One more pass, untimed, queries the driver's free memory after
// each event that created memory, so that the report has the device's own peak beside ours.
//
// Thread safety: runs share nothing but the environment. Cost: one replay for each pass, one more
// on a CUDA device, two more for the picture.
export module vmm.replay:run;

import vmm.observe;
import vmm.std;
import vmm.trace;
import :picture;
import :report;

namespace vmm::tools {

/// Names that run_options::backend takes.
export inline constexpr std::array<std::string_view, 4> replay_backends = {"fake", "host", "cuda",
                                                                           "level_zero"};
/// The same for people, as a command line takes them.
export inline constexpr std::string_view replay_backends_text =
    "fake, host, cuda, cuda:N, level_zero, level_zero:N";

export struct run_options {
  std::string backend = "fake";
  std::int32_t device = 0;  ///< which GPU of cuda and level_zero
  std::string policy{};     ///< empty: VMM_POLICY, and without that va_pool
  bool busy_costs = false;  ///< on the fake driver: its calls cost what they do in a busy program
  std::uint32_t warm_pass_count = 0;
  bool draw = false;
  bool record = false;  ///< one more pass, whose history is taken at its end
  /// false: no pass is made. The options and the environment are tried on the driver, and the
  /// report is empty.
  bool plays = true;
  bool asks_device = true;  ///< on a CUDA device: make the pass that measures its own peak
  /// Called now and then during the first pass with the events done; its time is not counted.
  std::function<void(std::uint64_t)> progress{};
};

/// A report, and the picture if requested; or the reason for a failure.
export struct run_outcome {
  std::optional<replay_report> report;
  picture drawn;                  ///< without extents unless requested
  history taken;                  ///< without events unless requested
  std::string problem;            ///< empty when there is a report
  bool is_callers_fault = false;  ///< an option or an environment variable is wrong
};

export [[nodiscard]] run_outcome run_replay(const trace& input, const run_options& options);

}  // namespace vmm::tools
