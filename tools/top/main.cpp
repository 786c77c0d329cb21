// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-top: what the pools and managers of the user's running processes have, and the tenants of
// the user's owners (docs/market.md).
//
// Exit codes: 0 all well; 1 a folder or file was refused, or standard output cannot be written; 2
// the command line is wrong; 4 the program's own memory ran out.
#include <unistd.h>

#include "../program/options.hpp"
#include "../program/output.hpp"
#ifdef VMM_TOP_OWNERS
#include "../owner/control.hpp"
#endif

import vmm.backend;
import vmm.top_tools;

namespace {

constexpr const char* usage =
    "usage: vmm-top [--once] [--json] [--interval SECONDS]\n"
    "\n"
    "Statistics of the allocators of your running processes that were started with VMM_TOP=1, or\n"
    "that publish them by themselves; and the tenants of the owners of shared devices, in the\n"
    "user's runtime folder or in the folder that VMM_OWNER names. Ends with Ctrl-C.\n"
    "  --once              once, and end; also if standard output is not a terminal\n"
    "  --json              once, as JSON\n"
    "  --interval SECONDS  from one look to the next, 1 to 3600 (default: 1)\n"
    "  --help, --version\n";

struct wanted {
  bool once = false;
  bool json = false;
  std::uint64_t seconds = 1;
};

#ifdef VMM_TOP_OWNERS
// The tenants of the owners as a table, or as objects of a JSON array. Adds complaints.
std::string show_owners(const wanted& how, vmm::tools::top_listing& listing) {
  std::string folder = vmm::default_market_directory();
  const auto named = vmm::tenant_options_from_environment();
  if (!named) listing.complaints.emplace_back(named.error().detail);
  if (named && named->has_value()) folder = (*named)->directory;
  bool is_first = std::all_of(listing.processes.begin(), listing.processes.end(),
                              [](const auto& each) { return each.allocators.empty(); });
  std::string text;
  for (const auto& report : vmm::tools::read_owners(folder, listing.complaints)) {
    text += how.json ? to_json_rows(report, is_first) : "\n" + to_table(report);
    is_first = is_first && report.rows.empty();
  }
  return text;
}
#else
std::string show_owners(const wanted&, vmm::tools::top_listing&) { return ""; }
#endif

int show(const wanted& how, const char* before) {
  vmm::tools::top_listing listing = vmm::tools::read_top();
  const std::string owners = show_owners(how, listing);
  const std::string text = how.json ? to_json(listing, owners) : to_table(listing) + owners;
  if (const std::string why = vmm::tools::print(before + text); !why.empty()) {
    std::fprintf(stderr, "vmm-top: %s\n", why.c_str());
    return 1;
  }
  if (listing.processes.empty() && owners.empty() && !how.json)
    std::fputs("vmm-top: no process publishes its allocators; programs do with VMM_TOP=1\n",
               stderr);
  for (const std::string& each : listing.complaints)
    std::fprintf(stderr, "vmm-top: %s\n", each.c_str());
  return listing.complaints.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  wanted how;
  option_list(usage)
      .flag("--once", how.once)
      .flag("--json", how.json)
      .number("--interval", how.seconds, "seconds, 1 to 3600", 1, 3600)
      .read(count, words);
  const char* const kind = vmm::environment_text("TERM");
  const bool is_terminal =
      ::isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
  if (how.once || how.json || !is_terminal) return show(how, "");
  constexpr const char* clear = "\033[H\033[J";
  while (true) {
    (void)show(how, clear);
    std::this_thread::sleep_for(std::chrono::seconds(how.seconds));
  }
}
