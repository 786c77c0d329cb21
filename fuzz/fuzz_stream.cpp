// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever is asked of a stream-ordered pool, whatever its driver refuses, and in whatever
// order work finishes, no two blocks overlap, contents stay, nothing is used, moved or unmapped
// while unfinished work may touch it, and nothing is left at the end. [R3, R15] Method: the input's
// bytes are a program of at most 64 operations, faults among them, beside the naive model of
// program.hpp; everything is validated every 16 operations and at the end. Where the last byte says
// so, blocks are freed after everything too.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../tests/stream/program.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stream_program program{byte_source{{data, size}}};
  const bool after_all = size != 0 && data[size - 1] % 4 == 3;
  const char* const wrong =
      program.run({.validate_every = 16, .operations_max = 64, .after_all = after_all});
  if (wrong == nullptr) return 0;
  std::fprintf(stderr, "fuzz_stream: %s: %s\n", wrong, program.detail().c_str());
  std::abort();
}
