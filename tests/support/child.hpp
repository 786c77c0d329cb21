// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A forked child that does one thing.
#pragma once

#include "test.h"

// The child's exit code, which `work` returns; -1 if a signal ended the child.
template <class Work>
int code_of_child(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int state = 0;
  EXPECT_EQ(::waitpid(child, &state, 0), child);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}
