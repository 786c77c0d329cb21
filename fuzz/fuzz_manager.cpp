// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every sequence of calls and driver errors, every allocation of a manager keeps its
// size, address, contents and rights, no memory is used too early, and nothing leaks. Method: the
// input's bytes are a program of at most 64 operations beside the model of
// tests/manager/program.hpp.
#include "../tests/manager/program.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  basic_manager_program<vmm::fake_driver> program{byte_source{{data, size}}};
  const char* const wrong = program.run();
  if (wrong == nullptr) return 0;
  std::fprintf(stderr, "fuzz_manager: %s, after %llu operations: %s\n", wrong,
               static_cast<unsigned long long>(program.operations()), program.detail().c_str());
  std::abort();
}
