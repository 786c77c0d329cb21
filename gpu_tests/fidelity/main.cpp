// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-fidelity: compares the fake driver with a CUDA driver, and wears a CUDA driver down.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "../../tools/program/usage.hpp"
#include "program.hpp"

namespace {

constexpr const char* help = R"(usage: vmm-fidelity WORD [OPTIONS]

  about                 the device and the driver
  probes                single invalid and boundary calls, on the device and on the fake
  random                random call sequences, on both in lockstep
  time                  driver time of twenty call sequences, predicted and taken
  busy                  single calls beside kernels and a thread that launches, over alone
  yardstick             how much slower this host is than that of the fake's prices
  predict               one trace through the pool: driver time, predicted and taken, as JSON
  leak                  create, map, access, unmap, release, over and over
  oom                   fill the device until it refuses, give back, again

  --library PATH        the CUDA driver's library (else $VMM_CUDA_LIBRARY, else the machine's)
  --count N             random: sequences; leak: cycles; oom, busy: rounds
  --seed N              random: the first seed
  --record FILE         probes: write the device's results
  --expect FILE         probes: compare the fake with recorded results, without a device
  --differences FILE    probes: the differences that are known, with their reasons
  --markdown FILE       write the table to a file
  --trace FILE          predict: the trace

Exit code: 0 all as it should be, 1 something differs, 2 it could not be tried.
)";

bool read_number(std::string_view text, std::uint64_t& into) {
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), into);
  return failure == std::errc{} && rest == text.data() + text.size();
}

// Reads the options after the word. False when one is not known or has no value.
bool read_options(int count, char** words, fidelity::settings& how) {
  for (int i = 0; i < count; i += 2) {
    const std::string_view name = words[i];
    if (i + 1 >= count) return false;
    const std::string_view value = words[i + 1];
    if (name == "--library")
      how.driver_library = value;
    else if (name == "--record")
      how.record = value;
    else if (name == "--expect")
      how.expect = value;
    else if (name == "--differences")
      how.differences = value;
    else if (name == "--markdown")
      how.markdown = value;
    else if (name == "--probe")
      how.one = value;
    else if (name == "--trace")
      how.trace = value;
    else if (name == "--count" && read_number(value, how.count))
      continue;
    else if (name == "--seed" && read_number(value, how.seed))
      continue;
    else
      return false;
  }
  return true;
}

struct word {
  std::string_view name;
  int (*run)(const fidelity::settings&);
};

constexpr word words[] = {
    {"about", fidelity::run_about},     {"probes", fidelity::run_probes},
    {"one", fidelity::run_one_probe},   {"random", fidelity::run_random},
    {"time", fidelity::run_time},       {"leak", fidelity::run_leak},
    {"oom", fidelity::run_oom},         {"yardstick", fidelity::run_yardstick},
    {"predict", fidelity::run_predict}, {"busy", fidelity::run_busy},
};

}  // namespace

int main(int count, char** arguments) {
  vmm::tools::answer_help(count, arguments, help);
  fidelity::settings how;
  how.program = arguments[0];
  if (count >= 2 && read_options(count - 2, arguments + 2, how)) {
    for (const word& each : words) {
      if (each.name == arguments[1]) return each.run(how);
    }
  }
  std::fputs(help, stderr);
  return 2;
}
