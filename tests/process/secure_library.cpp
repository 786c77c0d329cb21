// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A library other than a driver that runs code when it is loaded.
#include <unistd.h>

namespace {

[[gnu::constructor]] void run() {
  constexpr char text[] = "a library of the caller's choice runs\n";
  (void)!write(STDOUT_FILENO, text, sizeof text - 1);
}

}  // namespace
