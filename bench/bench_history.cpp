// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// bench_history - what a history costs an allocation and a free of the stream pool whose memory is
// there: where one is recorded, and where none is. [N1]
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
// Instructions are counted by single steps (ptrace), of allocations and frees in turns whose memory
// is there. That is exact, and the same in each run.
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../tools/program/usage.hpp"
#include "history_player.hpp"
#include "report.hpp"

import vmm.trace;

namespace {

using namespace history_player;

constexpr std::string_view usage =
    "usage: bench_history [--turns COUNT] [--trace FILE]\n"
    "\n"
    "What a history costs an event, in nanoseconds and instructions.\n"
    "  --turns COUNT  how often each pool replays the trace (default: 24)\n"
    "  --trace FILE   the trace (default: beam_kv, from traces/)\n";

constexpr unsigned starts = 4;
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
    tell(&mine, sizeof(mine));
    tell(steps.data(), steps.size() * sizeof(step));
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
    tell(&all, sizeof(all));
    return answer();
  }
  /// Instructions an event; nothing where the system lets nobody count them.
  std::optional<double> count() {
    const order some{counted_events};
    tell(&some, sizeof(some));
    if (answer() < 0) return std::nullopt;
    if (!waits_at_stop()) stop("a player has ended");
    const std::uint64_t of_nothing = step_to_stop();
    const std::uint64_t of_all = step_to_stop();
    (void)::ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
    return static_cast<double>(of_all - of_nothing) / static_cast<double>(counted_events);
  }

 private:
  void tell(const void* what, std::size_t size_bytes) {
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

using found = std::array<figures, subjects.size()>;

bool is_built(const subject& what) { return ::access(what.program, X_OK) == 0; }

void measure(const head& how, const std::vector<step>& steps, unsigned turns, found& into) {
  for (unsigned start = 0; start < starts; ++start) {
    std::array<std::unique_ptr<running_player>, subjects.size()> players;
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      if (!is_built(subjects[i])) continue;
      players[i] = std::make_unique<running_player>(subjects[i], how, steps);
      if (start == 0) into[i].instructions = players[i]->count();
    }
    for (unsigned turn = start; turn < turns; turn += starts) {
      for (std::size_t i = 0; i < subjects.size(); ++i) {
        const std::size_t which = (i + turn) % subjects.size();
        if (players[which]) into[which].taken.push_back(players[which]->time());
      }
    }
  }
}

void print(const found& all) {
  const std::size_t base = is_built(subjects[0]) ? 0 : 2;
  std::printf("%-24s %12s %8s %14s %8s %14s %8s\n", "pool with", "ns an event", "more",
              "fastest turn", "more", "instructions", "more");
  const auto show = [](std::optional<double> value) {
    return value ? number(*value, 2) : std::string("-");
  };
  for (std::size_t i = base; i < subjects.size(); ++i) {
    const figures& each = all[i];
    std::optional<double> more;
    if (each.instructions && all[base].instructions)
      more = *each.instructions - *all[base].instructions;
    std::printf("%-24s %12.1f %8.1f %14.1f %8.1f %14s %8s\n", subjects[i].name, median(each.taken),
                median(each.taken) - median(all[base].taken), each.fastest(),
                each.fastest() - all[base].fastest(), show(each.instructions).c_str(),
                show(more).c_str());
  }
  if (base != 0)
    std::puts("\nThe pool that has no history in its code is not built: ./run bench history does.");
  if (!all[base].instructions)
    std::puts("\nInstructions are not counted: this system lets no process be traced (ptrace).");
}

void run(const vmm::tools::trace& input, unsigned turns) {
  const head how{0, input.slot_count, input.events.size()};
  std::vector<step> steps;
  steps.reserve(input.events.size());
  for (const vmm::tools::event& each : input.events) {
    const bool is_free = each.kind != vmm::tools::event_kind::allocate;
    steps.push_back({is_free ? 0 : std::max<std::uint64_t>(each.size_bytes, 1), each.slot});
  }
  found all;
  measure(how, steps, std::max(turns, starts), all);
  std::printf("%s, %zu events, %u turns in processes started %u times\n\n", input.name.c_str(),
              input.events.size(), std::max(turns, starts), starts);
  print(all);
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage.data());
  unsigned turns = 24;
  std::string path = std::string(VMM_TRACES) + "/beam_kv.trace.gz";
  for (int i = 1; i < count; i += 2) {
    const std::string_view word = words[i];
    if ((word != "--turns" && word != "--trace") || i + 1 == count)
      stop("there is no option '" + std::string(word) + "', or its value is missing");
    if (word == "--turns") turns = count_of(words[i + 1]);
    if (word == "--trace") path = words[i + 1];
  }
  vmm::tools::read_outcome read = vmm::tools::read_trace(path);
  if (!read) stop(vmm::tools::describe(read.trouble));
  run(*read.value, turns);
}
