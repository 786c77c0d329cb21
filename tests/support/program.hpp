// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program in a forked process, with a line to the test in each direction. It imports no module.
#pragma once

#include <fcntl.h>
#include <signal.h>

#include "test.h"

class program {
 public:
  // Both ends are single letters.
  struct line {
    int read_end = -1;
    int write_end = -1;
    void say(char letter) const { (void)!::write(write_end, &letter, 1); }
    char hear() const {
      char letter = 0;
      return ::read(read_end, &letter, 1) == 1 ? letter : '\0';
    }
  };

  explicit program(const std::function<void(line)>& body) {
    int down[2], up[2];
    EXPECT_EQ(::pipe2(down, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(up, O_CLOEXEC), 0);
    number_ = ::fork();
    if (number_ == 0) {
      ::close(down[1]);
      ::close(up[0]);
      body({down[0], up[1]});
      ::_exit(0);
    }
    ::close(down[0]);
    ::close(up[1]);
    line_ = {up[0], down[1]};
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    ::close(line_.write_end);
    if (number_ > 0) {
      ::kill(number_, SIGKILL);
      reap();
    }
    ::close(line_.read_end);
  }
  void signal(int what) const { ::kill(number_, what); }
  // Returns once it has stopped.
  void stop() const {
    ::kill(number_, SIGSTOP);
    int status = 0;
    ::waitpid(number_, &status, WUNTRACED);
  }
  void kill() {
    ::kill(number_, SIGKILL);
    reap();
  }
  void reap() {
    int status = 0;
    if (number_ > 0) ::waitpid(number_, &status, 0);
    number_ = -1;
  }
  [[nodiscard]] const line& talk() const { return line_; }
  [[nodiscard]] ::pid_t process() const { return number_; }

 private:
  ::pid_t number_ = -1;
  line line_{};
};
