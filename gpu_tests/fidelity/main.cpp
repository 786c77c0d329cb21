// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-fidelity: compares the fake driver with a CUDA driver, and wears a CUDA driver down.

#include "../../tools/program/options.hpp"

#include "program.hpp"

#include "../../tools/program/must.hpp"

import vmm.fidelity;

namespace {

constexpr const char* help = R"(usage: vmm-fidelity WORD [OPTIONS]

  about                 the device and the driver
  probes                single invalid and boundary calls, on the device and on the fake
  random                random call sequences, on both in lockstep
  yardstick             how much slower this host is than that of the fake's prices
  predict               one trace through the pool: driver time, predicted and taken, as JSON
  leak                  create, map, access, unmap, release, over and over
  oom                   fill the device until it refuses, give back, again

  --library PATH        the CUDA driver's library (else $VMM_CUDA_LIBRARY, else the machine's)
  --count N             random: sequences; leak: cycles; oom: rounds
  --seed N              random: the first seed
  --record FILE         probes: write the device's results
  --expect FILE         probes: compare the fake with recorded results, without a device
  --differences FILE    probes: the differences that are known, with their reasons
  --markdown FILE       write the table to a file
  --trace FILE          predict: the trace

Exit code: 0 all as it should be, 1 something differs, 2 it could not be tried.
)";

struct word {
  std::string_view name;
  int (*run)(const fidelity::settings&);
};

constexpr word commands[] = {
    {"about", fidelity::run_about},     {"probes", fidelity::run_probes},
    {"one", fidelity::run_one_probe},   {"random", fidelity::run_random},
    {"leak", fidelity::run_leak},       {"oom", fidelity::run_oom},
    {"predict", fidelity::run_predict}, {"yardstick", fidelity::run_yardstick},
};

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, help);
  const std::string_view name = count > 1 ? words[1] : "";
  const auto found = std::ranges::find(commands, name, &word::name);
  if (found == std::end(commands)) {
    std::fputs(help, stderr);
    return 2;
  }
  fidelity::settings how;
  option_list(help)
      .text("--library", how.driver_library)
      .text("--record", how.record)
      .text("--expect", how.expect)
      .text("--differences", how.differences)
      .text("--markdown", how.markdown)
      .text("--probe", how.one)
      .text("--trace", how.trace)
      .count("--count", how.count)
      .count("--seed", how.seed)
      .read(count - 1, words + 1);
  try {
    return found->run(how);
  } catch (const vmm::fidelity::setup_failure& failure) {
    stop("a call was refused: " + vmm::describe(failure.why));
  }
}
