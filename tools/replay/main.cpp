// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-replay: plays an allocation trace through vmm's manager and reports. docs/observe.md
//
// Exit codes: 0 all served; 1 something failed (an allocation, the driver, a file to write); 2 the
// command line, the environment or the trace is wrong; 4 the program's own memory ran out.

#include "../program/backend_name.hpp"
#include "../program/output.hpp"
#include "../program/usage.hpp"
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

/// Reads the command line, one word after another.
class reader {
 public:
  reader(int count, char** words) : count_(count), words_(words) {}

  [[nodiscard]] std::optional<command_line> read() {
    while (next_ < count_ && problem_.empty()) take(words_[next_++]);
    if (problem_.empty() && out_.trace_path.empty())
      problem_ = "which trace? The first argument is a file";
    std::string_view backend;
    if (!has_backend_) vmm::read_text_option("VMM_BACKEND", backend);
    if (!backend.empty()) take_backend("VMM_BACKEND", backend);
    if (problem_.empty() && out_.jitter_seed_count != 0) refuse_beside_seeds();
    if (!problem_.empty()) return std::nullopt;
    return out_;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void take(std::string_view word) {
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string_view::npos;
    const std::string_view name = word.substr(0, equals);
    if (equals != std::string_view::npos) attached_ = word.substr(equals + 1);
    if (name == "--backend") {
      take_backend(name, value_of(name));
      has_backend_ = true;
    } else if (name == "--policy") {
      take_text(name, out_.run.policy);
      refuse_unknown_policy();
    } else if (name == "--repeat") {
      take_number(name, out_.run.warm_pass_count, 0);
    } else if (name == "--costs") {
      take_costs(value_of(name));
    } else if (name == "--jitter") {
      take_seed(value_of(name));
    } else if (name == "--jitter-seeds") {
      take_number(name, out_.jitter_seed_count, 1);
    } else if (name == "--svg") {
      take_text(name, out_.svg_path);
      out_.run.draw = true;
    } else if (name == "--history") {
      take_text(name, out_.history_path);
      out_.run.record = true;
    } else if (name == "--json") {
      out_.is_json = true;
    } else {
      take_file(word);
      return;
    }
    if (attached_) problem_ = std::string(name) + " takes no value";
  }

  /// The word after the option, or what is attached to it by '='.
  std::string_view value_of(std::string_view name) {
    if (attached_) return *std::exchange(attached_, std::nullopt);
    if (next_ < count_) return words_[next_++];
    problem_ = std::string(name) + " takes a value";
    return {};
  }

  void take_text(std::string_view name, std::string& into) {
    into = value_of(name);
    if (problem_.empty() && into.empty()) problem_ = std::string(name) + " takes a value";
  }

  void take_backend(std::string_view name, std::string_view value) {
    if (!problem_.empty()) return;
    vmm::tools::backend_name wanted;
    problem_ =
        vmm::tools::read_backend(std::string(name), value, vmm::tools::replay_backends,
                                 "one of " + std::string(vmm::tools::replay_backends_text), wanted);
    out_.run.backend = wanted.kind;
    out_.run.device = wanted.device;
  }

  void take_number(std::string_view name, std::uint32_t& into, std::uint32_t least) {
    const std::string_view value = value_of(name);
    if (!problem_.empty()) return;
    constexpr std::uint32_t most = 1000;
    const char* const end = value.data() + value.size();
    const auto [stop, code] = std::from_chars(value.data(), end, into);
    if (code != std::errc{} || stop != end || into < least || into > most) {
      problem_ = std::string(name) + " takes a number from " + std::to_string(least) +
                 " to 1000; not '" + std::string(value) + "'";
    }
  }

  void take_seed(std::string_view value) {
    if (!problem_.empty()) return;
    const char* const end = value.data() + value.size();
    std::uint64_t seed = 0;
    const auto [stop, code] = std::from_chars(value.data(), end, seed);
    if (code != std::errc{} || stop != end)
      problem_ = "--jitter takes a whole number from 0 on; not '" + std::string(value) + "'";
    out_.jitter_seed = seed;
  }

  void take_costs(std::string_view value) {
    if (!problem_.empty()) return;
    if (value != "quiet" && value != "busy")
      problem_ = "--costs takes quiet or busy; not '" + std::string(value) + "'";
    out_.run.busy_costs = value == "busy";
  }

  void refuse_unknown_policy() {
    constexpr std::array<std::string_view, 5> known{"va_pool", "keep_mapped", "virtual_caching",
                                                    "pool", "vpmm"};
    const std::string& given = out_.run.policy;
    if (!problem_.empty() || std::ranges::find(known, given) != known.end()) return;
    const auto distance = [&](std::string_view one) { return vmm::tools::distance_of(given, one); };
    const std::string_view nearest = *std::ranges::min_element(known, {}, distance);
    problem_ = "unknown policy '" + given + "'";
    if (distance(nearest) <= 2) problem_ += "; the nearest is " + std::string(nearest);
    problem_ += ": a policy is one of va_pool, keep_mapped, virtual_caching, pool, vpmm";
  }

  /// Means are of the first pass's memory and driver calls.
  void refuse_beside_seeds() {
    const char* wrong = nullptr;
    if (out_.jitter_seed) wrong = "--jitter";
    if (out_.run.warm_pass_count != 0) wrong = "--repeat";
    if (out_.run.draw) wrong = "--svg";
    if (out_.run.record) wrong = "--history";
    if (wrong != nullptr) problem_ = "--jitter-seeds takes no " + std::string(wrong);
  }

  void take_file(std::string_view word) {
    if (word.starts_with("-") && word != "-") {
      problem_ = vmm::tools::unknown_option(word, usage);
    } else if (!out_.trace_path.empty()) {
      problem_ = "one trace at a time; '" + std::string(word) + "' is one too many";
    } else if (word.empty()) {
      problem_ = vmm::tools::empty_name_text;
    } else {
      out_.trace_path = vmm::tools::input_path(word);
    }
  }

  int count_;
  char** words_;
  int next_ = 1;
  std::optional<std::string_view> attached_;
  bool has_backend_ = false;
  command_line out_;
  std::string problem_;
};

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
  reader line{count, words};
  const std::optional<command_line> wanted = line.read();
  if (!wanted) {
    vmm::tools::refuse_line("vmm-replay", line.problem());
    return exit_misused;
  }
  return replay(*wanted);
}
