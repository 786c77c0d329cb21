// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every sequence of calls to a stream-ordered pool, driver errors and order of work,
// blocks do not overlap, contents stay, no memory is used, moved or unmapped while unfinished work
// may touch it, and nothing leaks. Method: the input's bytes are a program of at most 64
// operations, faults among them, beside the naive model of program.hpp; everything is validated
// every 32 operations and at the end, and where something is wrong, once more after each. Where the
// last byte says so, every call is among the operations.
#include "../tests/stream/program.hpp"

namespace {

// What is wrong, or nullptr.
const char* play(std::span<const std::uint8_t> bytes, std::uint64_t validate_every) {
  stream_program program{byte_source{bytes}};
  const bool every_call = !bytes.empty() && bytes.back() % 4 == 3;
  const char* const wrong = program.run(
      {.validate_every = validate_every, .operations_max = 64, .every_call = every_call});
  if (wrong != nullptr)
    std::fprintf(stderr, "fuzz_stream: %s, after %llu operations: %s\n", wrong,
                 static_cast<unsigned long long>(program.operations()), program.detail().c_str());
  return wrong;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (play({data, size}, 32) == nullptr) return 0;
  (void)play({data, size}, 1);  // for the first operation after which something is wrong
  std::abort();
}
