// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-trace: writes a generated allocation trace to standard output. docs/replay.md
//
// Exit codes: 0 written; 1 the output cannot be written; 2 the command line is wrong.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

import vmm.trace_generator;

namespace {

int complain(const std::string& text) {
  std::fprintf(stderr, "vmm-trace: %s\nusage: vmm-trace KIND [SEED] > FILE; KIND is one of\n",
               text.c_str());
  for (const vmm::tools::trace_kind& kind : vmm::tools::trace_kinds())
    std::fprintf(stderr, "  %-10s %s\n", kind.name, kind.what);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return complain("which kind of program?");
  std::uint64_t seed = 1;
  if (argc == 3) {
    const std::string_view word = argv[2];
    const auto read = std::from_chars(word.data(), word.data() + word.size(), seed);
    if (read.ec != std::errc{} || read.ptr != word.data() + word.size())
      return complain("a seed is a whole number from 0 on");
  }
  const std::string text = vmm::tools::generate_trace(argv[1], seed);
  if (text.empty()) return complain("there is no kind '" + std::string(argv[1]) + "'");
  const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (whole && std::fflush(stdout) == 0) return 0;
  std::fprintf(stderr, "vmm-trace: standard output takes no more\n");
  return 1;
}
