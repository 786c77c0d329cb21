// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever the operations, the faults and the order in which work finishes, no memory is
// handed out, moved or unmapped while unfinished work may touch it, and nothing is lost. [R1, R3,
// R15] Method: random programs from fixed seeds, beside the model in program.hpp; each seed is one
// schedule of four streams. VMM_SCHEDULES sets how many.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "program.hpp"

namespace {

TEST(Schedules, NoHazardInAnyOfThem) {
  const char* const wish = std::getenv("VMM_SCHEDULES");
  const std::uint64_t schedules = wish == nullptr ? 400 : std::strtoull(wish, nullptr, 10);
  const char* const first = std::getenv("VMM_FIRST_SCHEDULE");
  const std::uint64_t from = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  std::uint64_t operations = 0;
  std::uint64_t failures = 0;
  for (std::uint64_t seed = from; seed < from + schedules; ++seed) {
    const std::vector<std::uint8_t> bytes = random_program(seed);
    stream_program program{byte_source{bytes}};
    const char* const wrong = program.run();
    ASSERT_EQ(wrong, nullptr) << wrong << " in schedule " << seed << ": " << program.detail();
    operations += program.operations();
    failures += program.failures();
  }
  std::printf("%llu schedules, %llu operations, %llu of them refused, 0 hazards\n",
              static_cast<unsigned long long>(schedules),
              static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(failures));
}

}  // namespace
