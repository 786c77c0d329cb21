// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-history: shows what an allocator did, from the file that it wrote: as a page of our own, in
// the formats of other viewers, or in a few lines.
//
// Exit codes: 0 all well; 1 a file cannot be written; 2 the command line or a history is wrong; 4
// the program's own memory ran out.

#include "../program/options.hpp"
#include "../program/output.hpp"

import vmm.history_tools;
import vmm.trace;

namespace {

constexpr const char* usage =
    "usage: vmm-history page HISTORY [OTHER] [--out FILE] [--device N]\n"
    "       vmm-history memory_viz HISTORY [--out FILE] [--device N]\n"
    "       vmm-history perfetto HISTORY [--out FILE] [--device N]\n"
    "       vmm-history summary HISTORY [--device N]\n"
    "\n"
    "The events of an allocator, from a file that write_history() or a shortage wrote, from the\n"
    "snapshot of torch.cuda.memory._dump_snapshot() or the list of memory_snapshot(), or from\n"
    "RMM's log; each plain or gzip; - is standard input. --device chooses a device of a snapshot\n"
    "(default: the busiest).\n"
    "  page        one HTML file for any browser, of one history or two side by side\n"
    "              (default: HISTORY.html)\n"
    "  memory_viz  a snapshot for pytorch.org/memory_viz (default: HISTORY.pickle)\n"
    "  perfetto    trace events for ui.perfetto.dev (default: HISTORY.json)\n"
    "  summary     a few lines, on standard output\n"
    "  --help, --version\n";

struct command_line {
  std::string word;
  std::vector<std::string> paths;
  std::string out;
  std::optional<std::uint64_t> device;
};

struct kind {
  std::string_view word;
  std::string_view suffix;
  std::size_t paths_max = 1;
};
constexpr std::array kinds{kind{"page", ".html", 2}, kind{"memory_viz", ".pickle"},
                           kind{"perfetto", ".json"}, kind{"summary", ""}};

const kind* find_kind(std::string_view word) {
  for (const kind& each : kinds)
    if (each.word == word) return &each;
  return nullptr;
}

// Empty, or what is wrong.
std::string read_words(int count, char** words, command_line& into) {
  if (count < 2) return "page, memory_viz, perfetto or summary is missing";
  into.word = words[1];
  const kind* const known = find_kind(into.word);
  if (known == nullptr)
    return "the command is page, memory_viz, perfetto or summary; not '" + into.word + "'";
  const std::string why = option_list(usage)
                              .text("--out", into.out, "a path")
                              .number("--device", into.device, "a number from 0 on")
                              .files(into.paths)
                              .parse(count - 1, words + 1);
  if (!why.empty()) return why;
  if (into.paths.empty()) return into.word + " takes a history";
  if (into.paths.size() > known->paths_max)
    return "'" + into.paths.back() + "' is one history too many";
  if (into.word == "summary" && !into.out.empty()) return "summary takes no --out";
  const bool is_stdin = into.paths.front() == vmm::tools::input_path("-");
  if (into.word != "summary" && into.out.empty() && is_stdin)
    return into.word + " of standard input takes --out";
  if (into.out.empty()) into.out = into.paths.front() + std::string(known->suffix);
  return "";
}

int fail(const std::string& why, int code) {
  std::fprintf(stderr, "vmm-history: %s\n", vmm::tools::one_line(why).c_str());
  return code;
}

std::string make(const command_line& wanted, std::vector<vmm::tools::named_history>& shown) {
  if (wanted.word == "page") return vmm::tools::to_page(shown);
  const vmm::history& taken = shown.front().taken;
  const vmm::tools::history_account account = vmm::tools::account_for(taken);
  if (wanted.word == "memory_viz") return vmm::tools::to_memory_viz(taken, account);
  if (wanted.word == "perfetto") return vmm::tools::to_trace_events(taken, account);
  return vmm::tools::to_summary(taken, account);
}

int run(const command_line& wanted) {
  vmm::tools::output_file file;
  const bool has_file = wanted.word != "summary";
  std::vector<vmm::tools::named_history> shown;
  for (const std::string& path : wanted.paths) {
    if (has_file && vmm::tools::is_same_file(path, wanted.out))
      return fail(wanted.out + " is a history: --out takes another", 2);
    std::fprintf(stderr, "vmm-history: reading %s\n", vmm::tools::one_line(path).c_str());
    vmm::tools::history_outcome read = vmm::tools::read_history_file(path, wanted.device);
    if (!read.problem.empty()) return fail(read.problem, 2);
    const std::size_t slash = path.find_last_of('/');
    shown.push_back(
        {path.substr(slash == std::string::npos ? 0 : slash + 1), std::move(read.taken)});
  }
  if (!has_file) {
    const std::string why = vmm::tools::print(make(wanted, shown));
    return why.empty() ? 0 : fail(why, 1);
  }
  const bool is_again = wanted.word == "memory_viz" &&
                        vmm::tools::fact_of(shown.front().taken, "allocator") == "PyTorch";
  if (is_again)
    std::fputs(
        "vmm-history: PyTorch's snapshot, written again, has one device, one line of each stack, "
        "and "
        "no streams of segments, private pools, settings or annotations; pytorch.org/memory_viz "
        "opens the snapshot itself\n",
        stderr);
  std::string why = file.open(wanted.out);
  if (!why.empty()) return fail(why, 1);
  std::fprintf(stderr, "vmm-history: writing %s\n", vmm::tools::one_line(wanted.out).c_str());
  why = file.write(make(wanted, shown));
  return why.empty() ? 0 : fail(why, 1);
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  command_line wanted;
  const std::string problem = read_words(count, words, wanted);
  if (problem.empty()) return run(wanted);
  vmm::tools::refuse_line("vmm-history", problem);
  return 2;
}
