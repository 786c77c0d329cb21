// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0

#include "program.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.fidelity;

namespace fidelity {
namespace {

constexpr std::uint64_t default_count = 1000;
constexpr unsigned shown_max = 10;

struct totals {
  std::uint64_t calls = 0;
  std::uint64_t refused = 0;
  std::uint64_t contents = 0;
  std::uint64_t differing = 0;
};

void add(totals& to, const vmm::fidelity::sequence_outcome& one, std::uint64_t seed) {
  to.calls += one.call_count;
  to.refused += one.refused_count;
  to.contents += one.content_count;
  if (one.difference.empty()) return;
  ++to.differing;
  if (to.differing <= shown_max)
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), one.difference.c_str());
}

int report(const settings& how, const report_head& head, std::uint64_t count, const totals& all) {
  const table rows{{"sequences", "calls", "refused by both", "granules compared", "differences"},
                   {std::to_string(count), std::to_string(all.calls), std::to_string(all.refused),
                    std::to_string(all.contents), std::to_string(all.differing)}};
  std::printf("%s sequences, %s calls (%s refused by both), %s granules compared, %s differences\n",
              rows[1][0].c_str(), rows[1][1].c_str(), rows[1][2].c_str(), rows[1][3].c_str(),
              rows[1][4].c_str());
  const std::string words =
      "Random call sequences against the device and the fake in lockstep: every answer and the "
      "contents of every accessible granule are compared.\n\nCommand: `vmm-fidelity random "
      "--count " +
      std::to_string(count) + " --seed " + std::to_string(how.seed) + "`.";
  publish(how, {"Random sequences", head, words, rows});
  return all.differing == 0 ? 0 : 1;
}

}  // namespace

int run_random(const settings& how) {
  vmm::cuda_driver device = open_device(how);
  const std::uint64_t count = how.count == 0 ? default_count : how.count;
  totals all;
  for (std::uint64_t i = 0; i < count; ++i) {
    vmm::fake_driver fake;
    const vmm::fidelity::sequence_options options{how.seed + i, 64};
    add(all, vmm::fidelity::run_sequence(fake, device, options), options.seed);
    if (!fake.check_empty()) {
      std::printf("seed %llu: the fake is not empty afterwards\n%s",
                  static_cast<unsigned long long>(options.seed), fake.report().c_str());
      ++all.differing;
    }
  }
  return report(how, head_of(device), count, all);
}

}  // namespace fidelity
