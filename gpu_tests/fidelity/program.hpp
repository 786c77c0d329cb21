// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The commands of the program vmm-fidelity. Each returns the exit code: 0 if all results are as
// expected, 1 if not, 2 if it could not run.
// It imports what it uses, so it is the last include of a file.
#pragma once

#include "../../tools/program/must.hpp"

import vmm.cuda;

namespace fidelity {

struct settings {
  std::string driver_library;  ///< the CUDA driver's library; empty: the machine's
  std::string record;          ///< probes: write the device's results to this file
  std::string expect;          ///< probes: compare the fake with this file instead of a device
  std::string differences;     ///< probes: known differences, with reasons
  std::string markdown;        ///< write the table to this file
  std::string one;             ///< one: the probe's id
  std::string trace;           ///< predict: the trace's file
  std::uint64_t count = 0;     ///< 0: the word's own default
  std::uint64_t seed = 1;

  [[nodiscard]] const char* driver_library_or_null() const {
    return driver_library.empty() ? nullptr : driver_library.c_str();
  }
};

int run_about(const settings& how);
int run_probes(const settings& how);
int run_one_probe(const settings& how);
int run_random(const settings& how);
int run_yardstick(const settings& how);
int run_predict(const settings& how);
int run_leak(const settings& how);
int run_oom(const settings& how);

// ---- reports ----

using table = std::vector<std::vector<std::string>>;

/// The device and the driver, and the day, in one line.
struct report_head {
  std::string device;
  std::string driver;
};

/// The device of the settings; ends the program without one.
[[nodiscard]] vmm::cuda_driver open_device(const settings& how);
[[nodiscard]] report_head head_of(const vmm::cuda_driver& device);

/// A Markdown page: what was done in words, and the table.
struct page {
  std::string title;
  report_head head;
  std::string words;
  table rows;
};
/// Writes the page where the settings say, if they do.
void publish(const settings& how, const page& made);

// ---- recorded results: a line each, an id, a tab, the text; lines with # are remarks ----

using answers = std::map<std::string, std::string>;

[[nodiscard]] answers read_answers(const std::string& path);
void write_answers(const std::string& path, const report_head& head,
                   const std::vector<std::pair<std::string, std::string>>& lines);

}  // namespace fidelity
