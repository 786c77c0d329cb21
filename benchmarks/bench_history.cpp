// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_history - what a history costs an allocation and a free of the stream pool whose memory is
// there: where one is recorded, and where none is.
//
// Pools that differ in their history alone play a recorded trace on the fake driver, each in a
// process of its own (history_player), in turns. Two are of a library that has no history in its
// code: built with VMM_WITHOUT_HISTORY, from the same sources. Each has played the trace,
// unmeasured, until it has everything free and a ring is full once: its first lap also costs the
// system's page faults. A turn is timed in the thread's own processor time; what the
// loop itself costs is in all of them. Processes are started anew several times, since where their
// memory lies decides more than a branch does. Two pools of each kind have no history: the
// difference between them is the noise. On a machine that others use, the fastest turn of each says
// most: no turn is faster than its work.
//
// With --checks the pools differ in the assertions that are always on: two are of a library that is
// built without any (VMM_WITHOUT_CHECKS). Turns that follow each other are pairs then: the report
// gives the middle of their ratios and where they lie.
//
// Instructions are counted by single steps (ptrace), of allocations and frees in turns whose memory
// is there. That is exact, and the same in each run.
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "history_player.hpp"
#include "report.hpp"
#include "traces.hpp"

import vmm.trace;

namespace {

using namespace history_player;

constexpr const char* usage =
    "usage: bench_history [--checks] [--turns COUNT] [--starts COUNT] [--trace FILE]\n"
    "\n"
    "What a history costs an event, in nanoseconds and instructions.\n"
    "  --checks       what assertions that are always on cost, instead\n"
    "  --starts COUNT how often the processes are started anew (default: 4)\n"
    "  --turns COUNT  how often each pool replays the trace (default: 24)\n"
    "  --trace FILE   the trace (default: beam_kv, from traces/)\n";

constexpr std::uint64_t counted_events = 64;  // each 32nd reads the clock

/// What is measured.
struct subject {
  const char* name;
  const char* program;
  std::uint64_t clock_interval;
};
constexpr std::array<subject, 6> subjects{{{"no history in its code", VMM_PLAYER_WITHOUT, 0},
                                           {"the same, again", VMM_PLAYER_WITHOUT, 0},
                                           {"no history", VMM_PLAYER, 0},
                                           {"no history, again", VMM_PLAYER, 0},
                                           {"a history", VMM_PLAYER, 32},
                                           {"every event's time", VMM_PLAYER, 1}}};
constexpr std::array<subject, 4> checked{{{"no assertion", VMM_PLAYER_WITHOUT_CHECKS, 0},
                                          {"the same, again", VMM_PLAYER_WITHOUT_CHECKS, 0},
                                          {"assertions", VMM_PLAYER, 0},
                                          {"assertions, again", VMM_PLAYER, 0}}};

/// The command line.
struct plan {
  std::span<const subject> all = subjects;
  unsigned turns = 24;
  unsigned starts = 4;
};

/// A process that plays.
class running_player {
 public:
  running_player(const subject& what, const head& how, const std::vector<step>& steps) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    if (::pipe2(to.data(), O_CLOEXEC) != 0 || ::pipe2(from.data(), O_CLOEXEC) != 0)
      stop("no pipe is left");
    process_ = ::fork();
    if (process_ == 0) {
      (void)::dup2(to[0], STDIN_FILENO);
      (void)::dup2(from[1], STDOUT_FILENO);
      (void)::execl(what.program, what.program, static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = to[1];
    from_ = from[0];
    head mine = how;
    mine.clock_interval = what.clock_interval;
    send(&mine, sizeof(mine));
    send(steps.data(), steps.size() * sizeof(step));
    (void)answer();
  }
  running_player(const running_player&) = delete;
  running_player& operator=(const running_player&) = delete;
  ~running_player() {
    ::close(to_);
    ::close(from_);
    (void)::waitpid(process_, nullptr, 0);
  }

  /// Nanoseconds an event.
  double time() {
    const order all{};
    send(&all, sizeof(all));
    return answer();
  }
  /// Instructions per event; nullopt if the system does not permit counting them.
  std::optional<double> count() {
    const order some{counted_events};
    send(&some, sizeof(some));
    if (answer() < 0) return std::nullopt;
    if (!waits_at_stop()) stop("a player has ended");
    const std::uint64_t of_nothing = step_to_stop();
    const std::uint64_t of_all = step_to_stop();
    (void)::ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
    return static_cast<double>(of_all - of_nothing) / static_cast<double>(counted_events);
  }

 private:
  void send(const void* what, std::size_t size_bytes) {
    if (!write_all(to_, what, size_bytes)) stop("a player has ended");
  }
  double answer() {
    double value = 0;
    if (!read_all(from_, &value, sizeof(value))) stop("a player has ended");
    return value;
  }
  // Whether the process has stopped itself; false: it has made a step.
  bool waits_at_stop() {
    int how = 0;
    if (::waitpid(process_, &how, 0) != process_ || !WIFSTOPPED(how)) stop("a player has ended");
    return WSTOPSIG(how) == SIGSTOP;
  }
  std::uint64_t step_to_stop() {
    std::uint64_t count = 0;
    do {
      if (::ptrace(PTRACE_SINGLESTEP, process_, nullptr, nullptr) != 0) stop("a step is refused");
      ++count;
    } while (!waits_at_stop());
    return count;
  }

  ::pid_t process_ = -1;
  int to_ = -1;
  int from_ = -1;
};

struct figures {
  std::vector<double> taken{};  // nanoseconds an event, a turn each
  std::optional<double> instructions{};
  [[nodiscard]] double fastest() const { return *std::min_element(taken.begin(), taken.end()); }
};

using found = std::vector<figures>;

bool is_built(const subject& what) { return ::access(what.program, X_OK) == 0; }

void measure(const head& how, const std::vector<step>& steps, const plan& of, found& into) {
  for (unsigned start = 0; start < of.starts; ++start) {
    std::vector<std::unique_ptr<running_player>> players(of.all.size());
    for (std::size_t i = 0; i < of.all.size(); ++i) {
      if (!is_built(of.all[i])) continue;
      players[i] = std::make_unique<running_player>(of.all[i], how, steps);
      if (start == 0) into[i].instructions = players[i]->count();
    }
    for (unsigned turn = start; turn < of.turns; turn += of.starts) {
      for (std::size_t i = 0; i < of.all.size(); ++i) {
        const std::size_t which = (i + turn) % of.all.size();
        if (players[which]) into[which].taken.push_back(players[which]->time());
      }
    }
  }
}

void print_figures(const found& all, const plan& of) {
  const std::size_t base = is_built(of.all[0]) ? 0 : 2;
  const auto show = [](std::optional<double> value) {
    return value ? number(*value, 2) : std::string("-");
  };
  table rows;
  for (std::size_t i = base; i < of.all.size(); ++i) {
    const figures& each = all[i];
    std::optional<double> more;
    if (each.instructions && all[base].instructions)
      more = *each.instructions - *all[base].instructions;
    rows.row()
        .text("pool with", of.all[i].name)
        .figure("ns an event", median(each.taken), 1)
        .figure("more", median(each.taken) - median(all[base].taken), 1)
        .figure("fastest turn", each.fastest(), 1)
        .figure("more", each.fastest() - all[base].fastest(), 1)
        .text("instructions", show(each.instructions))
        .text("more", show(more));
  }
  print(rows.markdown());
  if (base != 0)
    std::puts("\nThe pool to compare with is not built: ./run bench history builds it.");
  if (!all[base].instructions)
    std::puts("\nInstructions are not counted: this system lets no process be traced (ptrace).");
}

/// Turn by turn: the second pair of subjects over the first, and each pair within itself.
void print_ratios(const found& all) {
  table rows;
  const auto show = [&](const char* what, const figures& over, const figures& under) {
    std::vector<double> ratios = ratios_of(over.taken, under.taken);
    std::sort(ratios.begin(), ratios.end());
    const std::size_t count = ratios.size();
    rows.row()
        .text("pairs of turns", what)
        .figure("ratio, middle", median(ratios), 3)
        .text("all but a tenth at each end",
              number(ratios[count / 10], 3) + " to " + number(ratios[count - 1 - count / 10], 3));
  };
  show("with over without", all[2], all[0]);
  show("the same, again", all[3], all[1]);
  show("without over without", all[1], all[0]);
  show("with over with", all[3], all[2]);
  print("\n" + rows.markdown());
}

void run(const vmm::tools::trace& input, const plan& of) {
  const head how{0, input.slot_count, input.events.size()};
  std::vector<step> steps;
  steps.reserve(input.events.size());
  for (const vmm::tools::event& each : input.events) {
    const bool is_free = each.kind != vmm::tools::event_kind::allocate;
    steps.push_back({is_free ? 0 : std::max<std::uint64_t>(each.size_bytes, 1), each.slot});
  }
  found all(of.all.size());
  measure(how, steps, of, all);
  std::printf("%s, %zu events, %u turns in processes started %u times\n\n", input.name.c_str(),
              input.events.size(), of.turns, of.starts);
  print_figures(all, of);
  if (of.all.size() == checked.size() && is_built(of.all[0])) print_ratios(all);
}

}  // namespace

int main(int count, char** words) {
  plan of;
  std::string path = std::string(VMM_TRACES) + "/beam_kv.trace.gz";
  bool of_checks = false;
  option_list(usage)
      .flag("--checks", of_checks)
      .count("--turns", of.turns)
      .count("--starts", of.starts)
      .text("--trace", path)
      .read(count, words);
  if (of_checks) of.all = checked;
  of.turns = std::max(of.turns, of.starts);
  run(read_or_stop(path), of);
}
