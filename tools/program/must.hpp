// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The end of a program after an unexpected failure: a message and exit code 2. It imports what it
// uses, so it is the last include of a file.
#pragma once

#include <cerrno>
#include "standard.hpp"

import vmm.backend;

/// Called before stop() ends the program, with its text.
inline void (*before_stop)(std::string_view) = nullptr;

[[noreturn]] inline void stop(std::string_view text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %.*s\n", program_invocation_short_name, static_cast<int>(text.size()),
               text.data());
  if (before_stop != nullptr) before_stop(text);
  std::exit(2);
}

inline void must(const vmm::status& outcome) {
  if (!outcome) stop(vmm::describe(outcome.error()));
}

template <class T>
T must(vmm::result<T> outcome) {
  if (!outcome) stop(vmm::describe(outcome.error()));
  return std::move(*outcome);
}
