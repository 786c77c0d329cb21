// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0

#include "program.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.fidelity;
import vmm.replay;
import vmm.trace;

namespace fidelity {
namespace {

using vmm::fidelity::growth, vmm::tools::replay_report, vmm::tools::run_outcome;

// The yardstick of a program that grows: the same three calls, nothing given back, in the same
// process just before what it corrects. Hosts change their pace by half within a second.
constexpr std::uint64_t handle_bytes = 16 * vmm::fidelity::mib;
constexpr std::uint32_t handle_count = 128;

// What the fake charges for it.
double yardstick_cost_us() {
  vmm::fake_driver fake;
  growth predicted{fake, handle_bytes, handle_count};
  const double before_us = fake.busy_us();
  predicted.grow(handle_count);
  return fake.busy_us() - before_us;
}

double host_factor(const growth& taken) {
  return std::chrono::duration<double, std::micro>(taken.taken()).count() / yardstick_cost_us();
}

void print(double host_factor, const replay_report& taken, const replay_report& predicted) {
  const auto asking = static_cast<std::size_t>(vmm::call::query_capture);
  const double asking_us = taken.driver_us_by_call[asking];
  const double taken_us = *taken.driver_us - asking_us;
  std::printf(
      "{\"trace\": \"%s\", \"predicted_us\": %.0f, \"host_factor\": %.3f, \"taken_us\": %.0f, "
      "\"asking_us\": %.0f, \"ratio\": %.3f}\n",
      taken.trace.c_str(), *predicted.driver_us, host_factor, taken_us, asking_us,
      *predicted.driver_us * host_factor / taken_us);
}

}  // namespace

int run_yardstick(const settings& how) {
  vmm::cuda_driver device = open_device(how);
  growth yardstick{device, handle_bytes, handle_count};
  yardstick.grow(handle_count);
  std::printf("%.3f\n", host_factor(yardstick));
  return 0;
}

// One play in one process: a second one would find what the first gave back.
int run_predict(const settings& how) {
  // The replay opens the device itself, and finds the library where everyone does.
  if (!how.driver_library.empty())
    ::setenv("VMM_CUDA_LIBRARY", how.driver_library.c_str(), 1);  // no other thread runs yet
  const vmm::tools::read_outcome input = vmm::tools::read_trace(how.trace);
  if (!input) stop(vmm::tools::describe(input.trouble));
  vmm::cuda_driver device = open_device(how);
  // Its handles stay until the replay is over: calls after a release have other prices. The fake
  // comes last, since the driver would use what it frees on the host.
  growth yardstick{device, handle_bytes, handle_count};
  yardstick.grow(handle_count);
  const run_outcome taken = vmm::tools::run_replay(
      *input.value, {.backend = "cuda", .policy = "pool", .asks_device = false});
  if (!taken.report) stop(taken.problem);
  const run_outcome predicted = vmm::tools::run_replay(*input.value, {.policy = "pool"});
  if (!predicted.report) stop(predicted.problem);
  print(host_factor(yardstick), *taken.report, *predicted.report);
  return taken.report->failures.count == 0 ? 0 : 1;
}

}  // namespace fidelity
