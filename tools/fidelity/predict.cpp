// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "program.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.fidelity;
import vmm.replay;
import vmm.trace;

namespace fidelity {
namespace {

using vmm::fidelity::growth;
using vmm::tools::replay_report;
using vmm::tools::run_outcome;

// The yardstick of a program that grows: half of it in a row before the replay, the other half
// four at a time at forty points of it, since programs take memory both ways. It belongs to the
// same process and the same moments as what it corrects: hosts change their pace by half within a
// second, and calls that come alone, out of cold caches, take longer than calls in a row.
constexpr std::uint64_t handle_bytes = 16 * vmm::fidelity::mib;
constexpr std::uint32_t row_count = 128;
constexpr std::uint32_t point_count = 40;
constexpr std::uint32_t count_at_point = 4;
constexpr std::uint32_t handle_count_max = row_count + point_count * count_at_point;

// What the fake charges for one handle of the yardstick.
double price_us() {
  vmm::fake_driver fake;
  growth<vmm::fake_driver> one{fake, handle_bytes, 1};
  const double before_us = fake.busy_us();
  one.grow(1);
  return fake.busy_us() - before_us;
}

// What `taken` took over what the fake charges; 0 when nothing was made.
double factor_of(const vmm::fidelity::play_time& taken) {
  const auto kind = static_cast<std::size_t>(vmm::fidelity::call_kind::create);
  const auto made = static_cast<double>(taken.kinds[kind].call_count);
  return made == 0 ? 0 : static_cast<double>(taken.wall_ns()) / 1e3 / (made * price_us());
}

struct measured {
  double row_factor = 0;
  double spread_factor = 0;
  double host_factor = 0;  // of both together
  run_outcome outcome;
};

measured measure(vmm::cuda_driver& device, const vmm::tools::trace& input) {
  growth<vmm::cuda_driver> row{device, handle_bytes, row_count};
  growth<vmm::cuda_driver> spread{device, handle_bytes, handle_count_max - row_count};
  measured out;
  row.grow(row_count);
  out.outcome = vmm::tools::run_replay(
      input,
      {.backend = "cuda", .policy = "pool", .asks_device = false, .progress = [&](std::uint64_t) {
         spread.grow(count_at_point);
       }});
  vmm::fidelity::play_time both = row.taken();
  for (std::size_t i = 0; i < both.kinds.size(); ++i) {
    both.kinds[i].call_count += spread.taken().kinds[i].call_count;
    both.kinds[i].wall_ns += spread.taken().kinds[i].wall_ns;
  }
  out.row_factor = factor_of(row.taken());
  out.spread_factor = factor_of(spread.taken());
  out.host_factor = factor_of(both);
  return out;
}

int complain(const std::string& why) {
  std::fprintf(stderr, "vmm-fidelity: %s\n", why.c_str());
  return 2;
}

void print(const measured& what, const replay_report& taken, const replay_report& told) {
  const auto asking = static_cast<std::size_t>(vmm::call::query_capture);
  const double asking_us = taken.driver_us_by_call[asking];
  const double taken_us = *taken.driver_us - asking_us;
  std::printf(
      "{\"trace\": \"%s\", \"predicted_us\": %.0f, \"row_factor\": %.3f, "
      "\"spread_factor\": %.3f, \"host_factor\": %.3f, \"taken_us\": %.0f, "
      "\"asking_us\": %.0f, \"ratio\": %.3f}\n",
      taken.trace.c_str(), *told.driver_us, what.row_factor, what.spread_factor, what.host_factor,
      taken_us, asking_us, *told.driver_us * what.host_factor / taken_us);
}

}  // namespace

// One play in one process: a second one would find the driver's records made.
int run_predict(const settings& how) {
  // The replay opens the device itself, and finds the library where everyone does.
  if (!how.driver_library.empty())
    ::setenv("VMM_CUDA_LIBRARY", how.driver_library.c_str(), 1);  // no other thread runs yet
  const vmm::tools::read_outcome input = vmm::tools::read_trace(how.trace);
  if (!input) return complain(vmm::tools::describe(input.trouble));
  auto device = vmm::cuda_driver::open();
  if (!device) return complain(vmm::describe(device.error()));
  try {
    const measured what = measure(*device, *input.value);
    if (!what.outcome.report) return complain(what.outcome.problem);
    // Last, since what it frees on the host would serve the driver's records.
    const run_outcome told = vmm::tools::run_replay(*input.value, {.policy = "pool"});
    if (!told.report) return complain(told.problem);
    print(what, *what.outcome.report, *told.report);
    return what.outcome.report->failures.count == 0 ? 0 : 1;
  } catch (const vmm::fidelity::setup_failure& failure) {
    return complain("a call was refused: " + vmm::describe(failure.why));
  }
}

}  // namespace fidelity
