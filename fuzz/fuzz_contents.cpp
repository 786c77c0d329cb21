// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: blocks and vectors hold what was put into them, whatever device work is unfinished when
// their memory comes, grows, moves, is shared and goes. Method: the input's bytes are a program of
// at most 96 operations beside the model in tests/contents/program.hpp; the first byte chooses the
// fake driver or real memory with queued work.

#include "../tests/contents/program.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::uint8_t> program(data + 1, size - 1);
  const contents::program_options options{data[0] % 2 == 0
                                              ? contents::make_driver<vmm::fake_driver>
                                              : contents::make_driver<contents::queued_host>};
  const std::string failure = contents::run_program(options, program);
  if (failure.empty()) return 0;
  std::fprintf(stderr, "fuzz_contents: %s\n", failure.c_str());
  std::abort();
}
