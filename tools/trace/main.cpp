// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-trace: writes a generated allocation trace to standard output. docs/observe.md
//
// Exit codes: 0 written; 1 the output cannot be written; 2 the command line is wrong; 4 the
// program's own memory ran out.

#include "../program/options.hpp"
#include "../program/output.hpp"

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
  std::vector<std::string> words;
  const std::string why = option_list("--help").words(words).parse(argc, argv);
  if (!why.empty()) return complain(why);
  if (words.empty()) return complain("which kind of trace? The first argument is one");
  if (words.size() > 2) return complain("one seed at most; '" + words[2] + "' is one too many");
  const auto seed = vmm::tools::read_count(words.size() == 2 ? words[1] : "1", 0);
  if (!seed) return complain("a seed is a whole number from 0 on; not '" + words[1] + "'");
  const std::string text = vmm::tools::generate_trace(words[0], *seed);
  if (text.empty()) return complain("unknown kind '" + words[0] + "'");
  return print(text);
}
