// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "program.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.fidelity;

namespace fidelity {
namespace {

constexpr std::size_t repeat_count = 3;
constexpr double goal = 0.15;

std::string fixed(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

struct timed {
  std::uint64_t call_count = 0;
  double predicted_us = 0;
  double taken_us = 0;

  [[nodiscard]] double ratio() const { return predicted_us / taken_us; }
};

// The device's time is the median of some plays; the fake's is the same each time.
timed time_one(vmm::cuda_driver& device, const vmm::fidelity::script& what) {
  vmm::fake_driver fake;
  timed out;
  out.call_count = vmm::fidelity::play(fake, what).call_count;
  out.predicted_us = fake.busy_us();
  std::array<double, repeat_count> taken{};
  for (double& each : taken) {
    each = static_cast<double>(vmm::fidelity::play(device, what).wall_ns) / 1e3;
  }
  std::sort(taken.begin(), taken.end());
  out.taken_us = taken[repeat_count / 2];
  return out;
}

}  // namespace

int run_time(const settings& how) {
  report_head head;
  if (!find_device(how, head)) return 2;
  auto device = vmm::cuda_driver::open({.library = how.library_or_null()});
  if (!device) return 2;
  table rows{{"sequence", "calls", "predicted us", "taken us", "predicted / taken"}};
  timed sum;
  unsigned close = 0;
  try {
    for (const vmm::fidelity::script& each : vmm::fidelity::scripts) {
      const timed one = time_one(*device, each);
      sum.call_count += one.call_count;
      sum.predicted_us += one.predicted_us;
      sum.taken_us += one.taken_us;
      if (std::fabs(one.ratio() - 1) <= goal) ++close;
      rows.push_back({each.name, std::to_string(one.call_count), fixed(one.predicted_us, 0),
                      fixed(one.taken_us, 0), fixed(one.ratio(), 3)});
      std::printf("%-26s %6llu calls, predicted %10.0f us, taken %10.0f us, ratio %.3f\n",
                  each.name, static_cast<unsigned long long>(one.call_count), one.predicted_us,
                  one.taken_us, one.ratio());
    }
  } catch (const vmm::fidelity::setup_failure& failure) {
    std::printf("a call was refused: %s\n", vmm::describe(failure.why).c_str());
    return 2;
  }
  rows.push_back({"all", std::to_string(sum.call_count), fixed(sum.predicted_us, 0),
                  fixed(sum.taken_us, 0), fixed(sum.ratio(), 3)});
  std::printf("%u of %zu within 15 %%, together %.3f\n", close, vmm::fidelity::scripts.size(),
              sum.ratio());
  const std::string words =
      "Driver time of twenty call sequences: what the fake predicts and what the device takes "
      "(host time inside the calls, median of " +
      std::to_string(repeat_count) + " plays). " + std::to_string(close) + " of " +
      std::to_string(vmm::fidelity::scripts.size()) +
      " are within 15 %.\n\nCommand: `vmm-fidelity time`.";
  if (!publish(how, page("Driver time, predicted and taken", head, words, rows))) return 2;
  return close == vmm::fidelity::scripts.size() ? 0 : 1;
}

}  // namespace fidelity
