// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-trace: writes a generated allocation trace to standard output. docs/observe.md
//
// Exit codes: 0 written; 1 the output cannot be written; 2 the command line is wrong; 4 the
// program's own memory ran out.

#include "../program/output.hpp"
#include "../program/usage.hpp"

import vmm.trace_generator;

namespace {

std::string usage() {
  std::string text =
      "usage: vmm-trace KIND [SEED] > FILE; SEED is a whole number from 0 on (1 otherwise), and "
      "KIND "
      "is one of\n";
  for (const vmm::tools::trace_kind& kind : vmm::tools::trace_kinds()) {
    std::string name = kind.name;
    name.resize(10, ' ');
    text += "  " + name + " " + kind.what + "\n";
  }
  return text;
}

int complain(const std::string& text) {
  vmm::tools::refuse_line("vmm-trace", text);
  return 2;
}

int print(const std::string& text) {
  const std::string why = vmm::tools::print(text);
  if (why.empty()) return 0;
  std::fprintf(stderr, "vmm-trace: %s\n", why.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  vmm::tools::answer_help(argc, argv, usage().c_str());
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("-")) return complain(vmm::tools::unknown_option(word, "--help"));
  }
  if (argc < 2) return complain("which kind of trace? The first argument is one");
  if (argc > 3) return complain("one seed at most; '" + std::string(argv[3]) + "' is one too many");
  std::uint64_t seed = 1;
  if (argc == 3) {
    const std::string_view word = argv[2];
    const auto read = std::from_chars(word.data(), word.data() + word.size(), seed);
    if (read.ec != std::errc{} || read.ptr != word.data() + word.size())
      return complain("a seed is a whole number from 0 on; not '" + std::string(word) + "'");
  }
  const std::string text = vmm::tools::generate_trace(argv[1], seed);
  if (text.empty()) return complain("unknown kind '" + std::string(argv[1]) + "'");
  return print(text);
}
