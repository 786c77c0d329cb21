// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.replay;

import vmm.std;
import vmm.trace;

namespace vmm::tools {
namespace {

template <class Figure>
double mean_of(const std::vector<replay_report>& runs, Figure&& figure) {
  double sum = 0;
  for (const replay_report& run : runs) sum += static_cast<double>(figure(run));
  return runs.empty() ? 0 : sum / static_cast<double>(runs.size());
}

double driver_us_of(const replay_report& run) { return run.driver_us.value_or(0); }

std::string right(std::string text, std::size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string line(const std::string& name, double ratio, double driver_us, double calls) {
  return "  " + name + std::string(name.size() < 6 ? 6 - name.size() : 0, ' ') +
         right(show_number(ratio, 4), 20) + right(show_number(driver_us / 1000, 2), 14) +
         right(show_number(calls, 0), 14) + "\n";
}

}  // namespace

double seeds_report::ratio_mean() const noexcept {
  return mean_of(runs, [](const replay_report& run) { return run.ratio(); });
}

double seeds_report::ratio_most() const noexcept {
  double most = 0;
  for (const replay_report& run : runs) most = std::max(most, run.ratio());
  return most;
}

double seeds_report::driver_us_mean() const noexcept { return mean_of(runs, driver_us_of); }

double seeds_report::memory_calls_mean() const noexcept {
  return mean_of(runs, [](const replay_report& run) { return run.memory_call_count(); });
}

std::uint64_t seeds_report::failure_count() const noexcept {
  std::uint64_t sum = 0;
  for (const replay_report& run : runs) sum += run.failures.count;
  return sum;
}

seeds_outcome run_seeds(const trace& input, const run_options& options, std::uint32_t seed_count) {
  seeds_outcome out;
  for (std::uint32_t seed = 1; seed <= seed_count; ++seed) {
    trace changed = input;
    jitter_sizes(changed, seed);
    run_outcome ran = run_replay(changed, options);
    if (!ran.report)
      return {.report = {},
              .problem = std::move(ran.problem),
              .is_callers_fault = ran.is_callers_fault};
    out.report.runs.push_back(std::move(*ran.report));
  }
  return out;
}

std::string to_json(const seeds_report& report) {
  const replay_report& first = report.runs.front();
  std::string out = "{\"trace\": " + json_string(first.trace) +
                    ", \"backend\": " + json_string(first.backend) +
                    ", \"policy\": " + json_string(first.policy) +
                    ", \"seeds\": " + std::to_string(report.runs.size()) +
                    ", \"ratio_mean\": " + show_number(report.ratio_mean(), 6) +
                    ", \"ratio_most\": " + show_number(report.ratio_most(), 6) +
                    ", \"driver_us_mean\": " + show_number(report.driver_us_mean(), 3) +
                    ", \"memory_calls_mean\": " + show_number(report.memory_calls_mean(), 1) +
                    ", \"failures\": " + std::to_string(report.failure_count()) + ", \"ratios\": [";
  for (const replay_report& run : report.runs)
    out += (&run == &first ? "" : ", ") + show_number(run.ratio(), 6);
  return out + "]}";
}

std::string to_text(const seeds_report& report) {
  const replay_report& first = report.runs.front();
  std::string out = "Replays of " + first.trace + " on the " + first.backend + " driver, policy " +
                    first.policy + ", sizes changed by up to 3 %\n";
  out += "  seed    reserved over live    driver, ms  memory calls\n";
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const replay_report& run = report.runs[i];
    out += line(std::to_string(i + 1), run.ratio(), driver_us_of(run),
                static_cast<double>(run.memory_call_count()));
  }
  out += line("mean", report.ratio_mean(), report.driver_us_mean(), report.memory_calls_mean());
  for (const std::string& note : first.notes) out += "  note: " + note + "\n";
  return out + "  failures: " + show_count(report.failure_count()) + "\n";
}

}  // namespace vmm::tools
