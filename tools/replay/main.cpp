// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-replay: plays an allocation trace through vmm's manager and reports. docs/observe.md
//
// Exit codes: 0 all served; 1 something failed (an allocation, the driver, a file to write); 2 the
// command line, the environment or the trace is wrong; 4 the program's own memory ran out.

#include "../program/backend_name.hpp"
#include "../program/options.hpp"
#include "../program/output.hpp"
#include "../program/variables.hpp"

import vmm.backend;
import vmm.observe;
import vmm.recording;
import vmm.replay;
import vmm.trace;

namespace {

constexpr const char* usage =
    "usage: vmm-replay FILE [--backend NAME] [--policy NAME] [--costs NAME] [--repeat N] [--json]\n"
    "       [--svg FILE] [--history FILE] [--jitter SEED | --jitter-seeds N]\n";
constexpr const char* help =
    "\n"
    "Plays FILE through vmm's manager and reports time, memory and driver calls. FILE is a trace\n"
    "(traces/README.md), a memory snapshot of PyTorch, a log of RMM or a history of vmm, plain or\n"
    "gzip; - is standard input.\n"
    "\n"
    "  --backend NAME  fake: a GPU's driver in plain memory, with its rules and costs (default;\n"
    "                  without the option VMM_BACKEND decides)\n"
    "                  host: this machine's memory, mapped but never touched\n"
    "                  cuda: the first GPU, which also reports its free memory\n"
    "                  level_zero: the first GPU that Level Zero has\n"
    "                  cuda:N, level_zero:N: GPU N, where 0 is the first\n"
    "  --policy NAME   of the manager: va_pool (default), keep_mapped or virtual_caching; without "
    "it\n"
    "                  VMM_POLICY decides. Of the stream-ordered pool: pool or vpmm\n"
    "  --costs NAME    of the fake driver's calls: quiet (default), as a replay on a GPU pays, or\n"
    "                  busy, as a running program does\n"
    "  --repeat N      N more passes on the warm manager, 0 to 1000 (default 0): their times and\n"
    "                  driver calls, and the peak of memory over all passes\n"
    "  --json          print the report as one JSON object\n"
    "  --svg FILE      draw the address space at the peak of reserved memory\n"
    "  --history FILE  record one more pass, for ./run view\n"
    "  --jitter SEED   multiply every size by a factor from 0.97 to 1.03, fixed by size and seed\n"
    "  --jitter-seeds N  one replay for each of N seeds, 1 to 1000, and their means\n"
    "  --help, --version\n"
    "\n"
    "The environment variables of the library (VMM_FRAG_RATIO, VMM_VA_SIZE and so on) apply.\n"
    "VMM_LOG does not: the program times its calls to the driver and logs none.\n"
    "Exit code: 0 all served; 1 something failed; 2 the command line, a variable or the trace is\n"
    "wrong; 4 the program's own memory ran out.\n";

constexpr int exit_failed = 1;
constexpr int exit_misused = 2;

struct command_line {
  std::string trace_path;
  std::string svg_path;
  std::string history_path;
  vmm::tools::run_options run;
  std::optional<std::uint64_t> jitter_seed;
  std::uint32_t jitter_seed_count = 0;  // 0: one replay
  bool is_json = false;
};

int complain(const std::string& text, int code) {
  std::fprintf(stderr, "vmm-replay: %s\n", text.c_str());
  return code;
}

/// Empty, or why a policy is unknown.
std::string why_no_policy(const std::string& given) {
  constexpr std::array<std::string_view, 5> known{"va_pool", "keep_mapped", "virtual_caching",
                                                  "pool", "vpmm"};
  if (std::ranges::find(known, given) != known.end()) return "";
  const auto distance = [&](std::string_view one) { return vmm::tools::distance_of(given, one); };
  const std::string_view nearest = *std::ranges::min_element(known, {}, distance);
  std::string why = "unknown policy '" + given + "'";
  if (distance(nearest) <= 2) why += "; the nearest is " + std::string(nearest);
  return why + ": a policy is one of va_pool, keep_mapped, virtual_caching, pool, vpmm";
}

/// Empty, or the option that means of seeds cannot be taken with: they are of the first pass's
/// memory and driver calls.
std::string why_no_seeds(const command_line& wanted) {
  const char* wrong = nullptr;
  if (wanted.jitter_seed) wrong = "--jitter";
  if (wanted.run.warm_pass_count != 0) wrong = "--repeat";
  if (wanted.run.draw) wrong = "--svg";
  if (wanted.run.record) wrong = "--history";
  return wrong == nullptr ? "" : "--jitter-seeds takes no " + std::string(wrong);
}

std::string take_backend(const char* name, std::string_view value, command_line& into) {
  vmm::tools::backend_name wanted;
  std::string why =
      vmm::tools::read_backend(name, value, vmm::tools::replay_backends,
                               "one of " + std::string(vmm::tools::replay_backends_text), wanted);
  into.run.backend = wanted.kind;
  into.run.device = wanted.device;
  return why;
}

/// Empty, or what is wrong with the command line.
std::string read_words(int count, char** words, command_line& into) {
  std::vector<std::string> files;
  bool has_backend = false;
  const auto backend = [&](const char* value) {
    has_backend = true;
    return take_backend("--backend", value, into);
  };
  const auto costs = [&](std::string_view value) {
    into.run.busy_costs = value == "busy";
    return value == "busy" || value == "quiet";
  };
  std::string why =
      option_list(usage)
          .value("--backend", backend)
          .text("--policy", into.run.policy)
          .number("--repeat", into.run.warm_pass_count, "a number from 0 to 1000", 0, 1000)
          .checked("--costs", "quiet or busy", costs)
          .number("--jitter", into.jitter_seed, "a whole number from 0 on")
          .number("--jitter-seeds", into.jitter_seed_count, "a number from 1 to 1000", 1, 1000)
          .text("--svg", into.svg_path)
          .text("--history", into.history_path)
          .flag("--json", into.is_json)
          .files(files)
          .parse(count, words);
  if (!why.empty()) return why;
  if (files.empty()) return "which trace? The first argument is a file";
  if (files.size() > 1) return "one trace at a time; '" + files[1] + "' is one too many";
  into.trace_path = files.front();
  into.run.draw = !into.svg_path.empty();
  into.run.record = !into.history_path.empty();
  if (!into.run.policy.empty()) why = why_no_policy(into.run.policy);
  std::string_view named;
  if (!has_backend) vmm::read_text_option("VMM_BACKEND", named);
  if (why.empty() && !named.empty()) why = take_backend("VMM_BACKEND", named, into);
  if (why.empty() && into.jitter_seed_count != 0) why = why_no_seeds(into);
  return why;
}

struct written {
  bool picture = false;
  bool history = false;
};

/// The report; the replay's failures also go to stderr.
int show(const vmm::tools::replay_report& report, const command_line& wanted, written files) {
  std::string text =
      wanted.is_json ? vmm::tools::to_json(report) + "\n" : vmm::tools::to_text(report);
  if (files.picture && !wanted.is_json) text += "  picture: " + wanted.svg_path + "\n";
  if (files.history && !wanted.is_json)
    text += "  history: " + wanted.history_path + " (vmm-history page, or ./run view)\n";
  if (const std::string why = vmm::tools::print(text); !why.empty())
    return complain(why, exit_failed);
  if (report.failures.count == 0) return 0;
  return complain("calls that failed: " + vmm::tools::to_text(report.failures), exit_failed);
}

/// The files that a replay writes at its end.
struct files {
  vmm::tools::output_file picture;
  vmm::tools::output_file history;
};

/// 0, or the exit code: opens what the options name.
int open_files(const command_line& wanted, files& into) {
  std::string why;
  if (wanted.run.draw) {
    why = vmm::tools::why_no_picture(wanted.svg_path, wanted.trace_path);
    if (!why.empty()) return complain(why, exit_misused);
    why = into.picture.open(wanted.svg_path);
  }
  if (why.empty() && wanted.run.record) {
    const bool is_drawn =
        wanted.run.draw && vmm::tools::is_same_file(wanted.history_path, wanted.svg_path);
    if (is_drawn || vmm::tools::is_same_file(wanted.history_path, wanted.trace_path))
      return complain(wanted.history_path + " is the trace or the picture: --history takes another",
                      exit_misused);
    why = into.history.open(wanted.history_path);
  }
  return why.empty() ? 0 : complain(why, exit_failed);
}

/// Empty, or why the history is not whole.
std::string write_history(const vmm::history& taken, vmm::tools::output_file& into) {
  const vmm::result<std::vector<std::byte>> bytes = vmm::encode_history(taken);
  if (!bytes) return vmm::describe(bytes.error());
  return into.write({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
}

/// The table of --jitter-seeds.
int replay_seeds(const command_line& wanted, const vmm::tools::trace& input) {
  const vmm::tools::seeds_outcome outcome =
      vmm::tools::run_seeds(input, wanted.run, wanted.jitter_seed_count);
  if (!outcome.problem.empty())
    return complain(outcome.problem, outcome.is_callers_fault ? exit_misused : exit_failed);
  const std::string why =
      vmm::tools::print(wanted.is_json ? vmm::tools::to_json(outcome.report) + "\n"
                                       : vmm::tools::to_text(outcome.report));
  if (!why.empty()) return complain(why, exit_failed);
  const std::uint64_t failures = outcome.report.failure_count();
  if (failures == 0) return 0;
  return complain("calls that failed: " + std::to_string(failures), exit_failed);
}

int replay(const command_line& wanted) {
  vmm::tools::read_outcome input = vmm::tools::read_any_trace(wanted.trace_path);
  if (!input) return complain(vmm::tools::describe(input.trouble), exit_misused);
  if (wanted.jitter_seed_count != 0) return replay_seeds(wanted, *input.value);
  if (wanted.jitter_seed) vmm::tools::jitter_sizes(*input.value, *wanted.jitter_seed);
  files outputs;
  if (const int code = open_files(wanted, outputs); code != 0) return code;
  vmm::tools::run_outcome outcome = vmm::tools::run_replay(*input.value, wanted.run);
  if (!outcome.report)
    return complain(outcome.problem, outcome.is_callers_fault ? exit_misused : exit_failed);
  if (wanted.jitter_seed) {
    outcome.report->notes.push_back("sizes are changed by up to 3 %, seed " +
                                    std::to_string(*wanted.jitter_seed));
  }
  int code = 0;
  if (wanted.run.draw) {
    const std::string why = outputs.picture.write(vmm::tools::draw_svg(outcome.drawn));
    if (!why.empty()) code = complain(why, exit_failed);
  }
  written done{.picture = wanted.run.draw && code == 0};
  if (wanted.run.record) {
    const std::string why = write_history(outcome.taken, outputs.history);
    if (!why.empty()) code = complain(why, exit_failed);
    done.history = why.empty();
  }
  return std::max(show(*outcome.report, wanted, done), code);
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, (std::string(usage) + help).c_str());
  command_line wanted;
  const std::string problem = read_words(count, words, wanted);
  if (problem.empty()) return replay(wanted);
  vmm::tools::refuse_line("vmm-replay", problem);
  return exit_misused;
}
