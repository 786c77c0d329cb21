// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever the operations, the faults and the order in which work finishes, no memory is
// handed out, moved or unmapped while unfinished work may touch it, and nothing is lost. [R1, R3,
// R15] Method: random programs from fixed seeds, beside the model in program.hpp; each seed is one
// schedule of four streams. VMM_SCHEDULES sets how many.
#include "../support/test.h"
#include "program.hpp"

namespace {

// `count` of them, from `from` on.
stream_program::totals play(std::uint64_t from, std::uint64_t count,
                            const stream_program::limits& within) {
  std::uint64_t operations = 0;
  std::uint64_t failures = 0;
  stream_program::totals done;
  for (std::uint64_t seed = from; seed < from + count; ++seed) {
    const std::vector<std::uint8_t> bytes = random_program(seed);
    stream_program program{byte_source{bytes}};
    const char* const wrong = program.run(within);
    EXPECT_EQ(wrong, nullptr) << wrong << " in schedule " << seed << ": " << program.detail();
    if (wrong != nullptr) return {};
    done.add(program.done());
    operations += program.operations();
    failures += program.failures();
  }
  std::printf("%llu schedules, %llu operations, %llu of them refused, 0 hazards\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(failures));
  return done;
}

TEST(Schedules, NoHazardInAnyOfThem) {
  play(wish("VMM_FIRST_SCHEDULE", 1), wish("VMM_SCHEDULES", 400), {});
}

// Beside a remap listener that frees.
TEST(Schedules, NewBlocksAreFilledAndARefusedFillHoldsNothing) {
  for (const auto rule : {vmm::contents_rule::zero_on_acquire, vmm::contents_rule::zero_on_release,
                          vmm::contents_rule::poison}) {
    const std::uint64_t count = wish("VMM_SCHEDULES", 150);
    const auto done = play(wish("VMM_FIRST_SCHEDULE", 1), count, {.contents = rule});
    EXPECT_GT(done.freed_in_callbacks, count / 4);
  }
}

// And no neighbour has any of them, nor the next block in the same memory.
TEST(Schedules, ABlockHasTheRightsThatItWasGiven) {
  const std::uint64_t count = wish("VMM_SCHEDULES", 200);
  const auto done = play(wish("VMM_FIRST_SCHEDULE", 1), count, {.rights = true});
  EXPECT_GT(done.rights, count / 8);
}

// A handle was moved that the place of the announced request did not take, though others fit.
TEST(Schedules, AnAnnouncedRequestMovesWhatItsPlaceTakes) {
  for (const std::uint64_t seed : {127336u, 231422u, 320531u}) play(seed, 1, {});
}

// A stream of unknown identity had freed pinned blocks, and a capture that ended was taken to go
// on.
TEST(Schedules, ACaptureThatHasEndedStopsNoRequest) {
  for (const std::uint64_t seed : {357359u, 869550u}) play(seed, 1, {});
}

// Those that golden files are of, and from which the fuzzer's inputs begin.
TEST(Schedules, NoHazardWithTheFirstCallsAlone) {
  play(wish("VMM_FIRST_SCHEDULE", 1), wish("VMM_SCHEDULES", 100), {.every_call = false});
}

}  // namespace
