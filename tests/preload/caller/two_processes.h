// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two processes that wait for each other, and the memory that they share.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

namespace caller {

inline device_pointer make(const driver& cu, std::size_t size, unsigned char value) {
  const device_pointer at = make_filled(cu, size, value);
  must(cu.synchronize() == code::success, "all work");
  return at;
}

inline ipc_handle handle_of(const driver& cu, device_pointer at) {
  ipc_handle handle{};
  must(cu.ipc(&handle, at) == code::success, "a handle");
  return handle;
}
inline device_pointer opened(const driver& cu, const ipc_handle& handle) {
  device_pointer at = 0;
  must(cu.ipc_open(&at, handle, 1) == code::success, "an open");
  return at;
}

template <class Message>
void say(int pipe, const Message& what) {
  must(write(pipe, &what, sizeof what) == ssize_t{sizeof what}, "a pipe");
}
template <class Message>
Message hear(int pipe) {
  Message what{};
  must(read(pipe, &what, sizeof what) == ssize_t{sizeof what}, "a pipe");
  return what;
}

struct both_ways {
  int to_child[2];
  int to_parent[2];
};

// A second process, from before the driver is used, that runs `body`.
template <class Body>
pid_t start_child(both_ways& pipes, Body&& body) {
  must(pipe(pipes.to_child) == 0 && pipe(pipes.to_parent) == 0, "pipes");
  std::fflush(stdout);
  const pid_t child = fork();
  if (child != 0) return child;
  close(pipes.to_child[1]);
  close(pipes.to_parent[0]);
  body(pipes.to_child[0], pipes.to_parent[1]);
  std::fflush(stdout);
  std::_Exit(0);
}

// Its exit code, or 1000 and the signal's number.
inline int code_of(pid_t child) {
  int how = 0;
  must(waitpid(child, &how, 0) == child, "the child");
  return WIFEXITED(how) ? WEXITSTATUS(how) : 1000 + WTERMSIG(how);
}
inline void end_child(pid_t child) { std::printf("child %d\n", code_of(child)); }

// A child that runs `body`, which returns its exit code.
template <class Body>
void in_child(Body&& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int code = body();
    std::fflush(stdout);
    std::exit(code);
  }
  end_child(child);
}

}  // namespace caller
