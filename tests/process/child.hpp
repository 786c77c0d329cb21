// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A forked child that says what went wrong in it, and how it ended. It has a thread's copy of
// everything; what it finds wrong it writes to stderr, which the parent reads: a correct child
// writes nothing there. It imports what it uses, so it is the last include except others with
// imports.
#pragma once

#include "../support/test.h"

import vmm.backend;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VMM_TEST_UNDER_TSAN 1
#endif
#endif
#ifdef VMM_TEST_UNDER_TSAN
#define VMM_SKIP_UNDER_TSAN() \
  GTEST_SKIP() << "ThreadSanitizer's own threads and locks do not survive a fork"
#else
#define VMM_SKIP_UNDER_TSAN() static_cast<void>(0)
#endif

namespace process_test {

/// How a child ended: its exit code, or the signal that ended it, and what it wrote to stderr.
struct child_end {
  int code = -1;
  int signal = 0;
  std::string said;
};

/// How a child leaves. By _Exit where threads of the parent hold memory: a leak checker would miss
/// their stacks.
enum class leave_by { exit, quick_exit };

inline int wrong_count = 0;  // in the child

inline void expect(bool holds, const char* what) {
  if (holds) return;
  ++wrong_count;
  std::fprintf(stderr, "wrong in the child: %s\n", what);
}

template <class T>
void expect_code(const vmm::result<T>& answer, vmm::errc code, const char* what) {
  if (!answer && answer.error().code == code) return;
  ++wrong_count;
  std::fprintf(stderr, "%s: %s\n", what,
               answer ? "succeeded" : vmm::describe(answer.error()).c_str());
}
/// The result is the error of a forked child.
template <class T>
void expect_refused(const vmm::result<T>& answer, const char* what) {
  expect_code(answer, vmm::errc::not_permitted, what);
}

/// What a child writes to a pipe until it ends, and how that is.
inline child_end end_of(pid_t child, int from) {
  child_end seen;
  std::array<char, 4096> buffer{};
  for (ssize_t count = ::read(from, buffer.data(), buffer.size()); count > 0;
       count = ::read(from, buffer.data(), buffer.size())) {
    seen.said.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(from);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return seen;
  if (WIFEXITED(status)) seen.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) seen.signal = WTERMSIG(status);
  return seen;
}

/// Runs `body` in a child. A child that hangs is ended by SIGALRM.
template <class Body>
child_end in_child(Body&& body, leave_by how = leave_by::exit) {
  constexpr unsigned seconds_max = 100;
  std::array<int, 2> ends{-1, -1};
  if (::pipe(ends.data()) != 0) return {};
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(seconds_max);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    body();
    const int code = wrong_count == 0 ? 0 : 1;
    if (how == leave_by::exit) std::exit(code);
    std::_Exit(code);
  }
  ::close(ends[1]);
  return end_of(child, ends[0]);
}

inline void expect_ended_well(const child_end& seen, const std::string& where = "") {
  EXPECT_EQ(seen.signal, 0) << where << "\n" << seen.said;
  EXPECT_EQ(seen.code, 0) << where;
}
inline void expect_good(const child_end& seen, const std::string& where) {
  expect_ended_well(seen, where);
  EXPECT_EQ(seen.said, "") << where;
}
template <class Body>
void expect_good_child(const std::string& where, Body&& body, leave_by how = leave_by::exit) {
  expect_good(in_child(body, how), where);
}

}  // namespace process_test
