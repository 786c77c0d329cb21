// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The traces that benchmarks play. It imports what it uses, so it is the last include of a file.
#pragma once

#include "../tools/program/must.hpp"

import vmm.backend;
import vmm.trace;

/// Those of the project: the pool's policy was chosen on the first four; later choices had the
/// others in view.
inline constexpr const char* project_traces[] = {
    "gpt_train", "llama_generate", "maskrcnn_train", "beam_kv",    "diffusion",
    "experts",   "speech",         "serving",        "neighbours", "feedback"};

[[nodiscard]] inline vmm::tools::trace read_or_stop(const std::string& path) {
  vmm::tools::read_outcome read = vmm::tools::read_trace(path);
  if (!read) stop(vmm::tools::describe(read.trouble));
  return std::move(*read.value);
}

#ifdef VMM_TRACES
/// The files of a command line; without one, the first `count` of the project.
[[nodiscard]] inline std::vector<std::string> or_those_of_the_project(
    std::vector<std::string> files, std::size_t count) {
  if (!files.empty()) return files;
  for (std::size_t i = 0; i < count; ++i)
    files.push_back(std::string(VMM_TRACES) + "/" + project_traces[i] + ".trace.gz");
  return files;
}
#endif

/// A stream for each that the trace names; its 0 is the default stream. They carry no work.
template <class Driver>
[[nodiscard]] std::vector<vmm::stream_handle> open_streams(Driver& driver,
                                                           const vmm::tools::trace& input) {
  std::uint16_t last = 0;
  for (const vmm::tools::event& each : input.events) last = std::max(last, each.stream);
  std::vector<vmm::stream_handle> streams{vmm::stream_handle::default_stream};
  while (streams.size() <= last) streams.push_back(must(driver.create_stream()));
  return streams;
}
