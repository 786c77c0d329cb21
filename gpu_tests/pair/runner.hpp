// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A part of a program in a process of its own, for at most so long, and what came of it. A part
// that hangs or loses its device ends alone, with all processes that it started.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../tools/program/standard.hpp"

namespace vmm::gpu {

/// What came of a part. Values up to 77 are exit codes of its process.
enum class verdict : int { ok = 0, failed = 1, skipped = 4, no_pair = 77, timed_out = 124 };

inline const char* name_of(verdict what) noexcept {
  switch (what) {
    case verdict::ok: return "ok";
    case verdict::skipped: return "skipped";
    case verdict::no_pair: return "no pair";
    case verdict::timed_out: return "timed out";
    case verdict::failed: break;
  }
  return "failed";
}

struct part_report {
  verdict result = verdict::failed;
  std::string figure;  ///< the last one that the part gave
  double seconds = 0;
};

/// Where the process of a part says its figure.
inline int figure_end = -1;

/// The part's figure, or the reason for its absence; it replaces the former one.
inline void give_figure(const std::string& text) {
  std::fflush(stdout);
  if (figure_end < 0) return;
  const ssize_t written = write(figure_end, text.c_str(), text.size() + 1);
  static_cast<void>(written);  // the table then lacks a figure
}

/// Ends the part that this process is.
[[noreturn]] inline void end_part(verdict result, const std::string& figure) {
  give_figure(figure);
  std::_Exit(static_cast<int>(result));
}

/// A child of this process that ends with it. 0 in the child.
inline pid_t fork_bound() {
  std::fflush(stdout);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  static_cast<void>(prctl(PR_SET_PDEATHSIG, SIGKILL));
  if (getppid() != parent) std::_Exit(1);
  return 0;
}

/// The state of a child that has ended.
inline int wait_for_end(pid_t child) {
  int state = 0;
  while (waitpid(child, &state, 0) < 0) {
  }
  return state;
}

/// The last text of `said`, each of which ends with a zero.
inline std::string last_text(std::string said) {
  while (!said.empty() && said.back() == '\0') said.pop_back();
  const std::size_t before = said.rfind('\0');
  return before == std::string::npos ? said : said.substr(before + 1);
}

/// What is to be read at once.
inline void read_ready(int from, std::string& into) {
  std::array<char, 512> bytes{};
  for (;;) {
    const ssize_t count = read(from, bytes.data(), bytes.size());
    if (count <= 0) return;
    into.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

/// `work` in a child that leads a group of its own. Requires: this process uses no driver.
template <class Work>
part_report run_part(double limit_s, Work&& work) {
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  part_report report;
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return report;
  const pid_t child = fork_bound();
  if (child == 0) {
    static_cast<void>(setpgid(0, 0));
    close(ends[0]);
    figure_end = ends[1];
    const verdict result = work();
    std::fflush(stdout);
    std::_Exit(static_cast<int>(result));
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return report;
  }
  static_cast<void>(setpgid(child, child));
  std::string said;
  siginfo_t ended{};
  while (ended.si_pid == 0) {
    report.seconds = std::chrono::duration<double>(clock::now() - begin).count();
    if (report.seconds > limit_s) break;
    pollfd end{ends[0], POLLIN, 0};
    static_cast<void>(poll(&end, 1, 50));
    read_ready(ends[0], said);
    static_cast<void>(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT));
  }
  static_cast<void>(kill(-child, SIGKILL));
  const int state = wait_for_end(child);
  read_ready(ends[0], said);
  close(ends[0]);
  report.figure = last_text(said);
  if (ended.si_pid == 0) {
    report.result = verdict::timed_out;
  } else if (WIFEXITED(state)) {
    const auto code = static_cast<verdict>(WEXITSTATUS(state));
    const bool is_known =
        code == verdict::ok || code == verdict::skipped || code == verdict::no_pair;
    report.result = is_known ? code : verdict::failed;
  } else {
    report.figure += " (ended by signal " + std::to_string(WTERMSIG(state)) + ")";
  }
  return report;
}

}  // namespace vmm::gpu
