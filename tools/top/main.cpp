// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-top: what the pools and managers of the user's running processes have.
//
// Exit codes: 0 all well; 1 a folder or file was refused, or standard output cannot be written; 2
// the command line is wrong; 4 the program's own memory ran out.
#include <unistd.h>

#include "../program/output.hpp"
#include "../program/usage.hpp"

import vmm.top_tools;

namespace {

constexpr const char* usage =
    "usage: vmm-top [--once] [--json] [--interval SECONDS]\n"
    "\n"
    "Statistics of the allocators of your running processes that were started with VMM_TOP=1, or\n"
    "that publish them by themselves. Ends with Ctrl-C.\n"
    "  --once              once, and end; also if standard output is not a terminal\n"
    "  --json              once, as JSON\n"
    "  --interval SECONDS  from one look to the next, 1 to 3600 (default: 1)\n"
    "  --help, --version\n";

struct wanted {
  bool once = false;
  bool json = false;
  std::uint64_t seconds = 1;
};

// Empty, or what is wrong.
std::string read_words(int count, char** words, wanted& into) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--once") {
      into.once = true;
    } else if (word == "--json") {
      into.json = true;
    } else if (word == "--interval") {
      if (i + 1 == count) return "--interval takes a value";
      const auto seconds = vmm::tools::read_count(words[++i], 1);
      if (!seconds || *seconds > 3600)
        return "--interval takes seconds, 1 to 3600; not '" + std::string(words[i]) + "'";
      into.seconds = *seconds;
    } else {
      return vmm::tools::unknown_option(word, usage);
    }
  }
  return "";
}

int show(const wanted& how, const char* before) {
  const vmm::tools::top_listing listing = vmm::tools::read_top();
  const std::string text = how.json ? to_json(listing) : to_table(listing);
  if (const std::string why = vmm::tools::print(before + text); !why.empty()) {
    std::fprintf(stderr, "vmm-top: %s\n", why.c_str());
    return 1;
  }
  if (listing.processes.empty() && !how.json)
    std::fputs("vmm-top: no process publishes its allocators; programs do with VMM_TOP=1\n",
               stderr);
  for (const std::string& each : listing.complaints)
    std::fprintf(stderr, "vmm-top: %s\n", each.c_str());
  return listing.complaints.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  wanted how;
  if (const std::string problem = read_words(count, words, how); !problem.empty()) {
    vmm::tools::refuse_line("vmm-top", problem);
    return 2;
  }
  const char* const kind = std::getenv("TERM");
  const bool is_terminal =
      ::isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
  if (how.once || how.json || !is_terminal) return show(how, "");
  constexpr const char* clear = "\033[H\033[J";
  while (true) {
    (void)show(how, clear);
    std::this_thread::sleep_for(std::chrono::seconds(how.seconds));
  }
}
