// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: blocks and vectors keep their contents, whatever device work is unfinished when their
// memory is allocated, grows, moves, is shared and freed.
// Method: random programs from fixed seeds beside the model in program.hpp, on the fake driver and
// on real memory with queued work. Drivers whose waits return at once show that the programs detect
// a missing wait.
#include "../support/byte_source.hpp"
#include "../support/test.h"
#include "program.hpp"

namespace {

using contents::make_driver, contents::program_options, contents::queued_host;

constexpr std::uint64_t program_count = 300;

/// Reports that the work before an event has finished, without waiting for it.
template <class Driver>
struct impatient : Driver {
  using Driver::Driver;
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle) { return {}; }
};

std::string failure_of(const program_options& options, std::uint64_t seed) {
  return contents::run_program(options, random_program(seed));
}

/// How many programs were run until one found something.
std::uint64_t programs_until_found(const program_options& options, std::uint64_t limit) {
  for (std::uint64_t seed = 1; seed <= limit; ++seed)
    if (!failure_of(options, seed).empty()) return seed;
  return limit + 1;
}

TEST(Contents, EveryProgramFindsItsBytesOnTheFake) {
  for (std::uint64_t seed = 1; seed <= program_count; ++seed)
    ASSERT_EQ(failure_of({make_driver<vmm::fake_driver>}, seed), "") << "seed " << seed;
}

TEST(Contents, EveryProgramFindsItsBytesInRealMemory) {
  for (std::uint64_t seed = 1; seed <= program_count; ++seed)
    ASSERT_EQ(failure_of({make_driver<queued_host>}, seed), "") << "seed " << seed;
}

TEST(Contents, AHostThatDoesNotWaitIsFoundOnTheFake) {
  const auto count =
      programs_until_found({make_driver<impatient<vmm::fake_driver>, vmm::fake_driver>}, 100);
  RecordProperty("programs", std::to_string(count));
  EXPECT_LE(count, 100u);
}

// Without forget(): a new stream has the handle of one whose work still runs.
TEST(Contents, EveryProgramFindsItsBytesWhereStreamsEndUnannounced) {
  const program_options options{.make = make_driver<vmm::fake_driver>, .skips_forget = true};
  for (std::uint64_t seed = 1; seed <= program_count; ++seed)
    ASSERT_EQ(failure_of(options, seed), "") << "seed " << seed;
}

TEST(Contents, AHostThatDoesNotWaitIsFoundInRealMemory) {
  const auto count = programs_until_found({make_driver<impatient<queued_host>, queued_host>}, 100);
  RecordProperty("programs", std::to_string(count));
  EXPECT_LE(count, 100u);
}

}  // namespace
