// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Throws what its first word says, for wrong_use_test: what all programs do about an exception that
// they do not catch.
#include <new>
#include <stdexcept>
#include "../../tools/program/standard.hpp"

int main(int count, char** words) {
  std::fputs("begun\n", stdout);
  const std::string_view word = count > 1 ? words[1] : "";
  if (word == "memory") throw std::bad_alloc();
  if (word == "thread") std::thread([] { throw std::bad_alloc(); }).join();
  if (word == "text") throw std::runtime_error("why");
  if (word == "number") throw 1;
  return 0;
}
