// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: blocks and vectors hold what was put into them, whatever device work is unfinished when
// their memory comes, grows, moves, is shared and goes. [R3]
// Method: random programs from fixed seeds beside the model in program.hpp, on the fake driver and
// on real memory with queued work. Drivers that do not wait when they are asked to show that the
// programs find a library that does not wait.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "program.hpp"

namespace {

using contents::contents_program;
using contents::queued_host;
using contents::random_program;

constexpr std::uint64_t program_count = 300;

/// Answers that the work before an event has finished, and does not wait for it.
template <class Driver>
class impatient : public Driver {
 public:
  using Driver::Driver;
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle) { return {}; }
};

/// For programs that do not say when a stream goes.
class numbered_again : public vmm::fake_driver {
 public:
  using fake_driver::fake_driver;
};

}  // namespace

template <>
inline constexpr bool contents::skips_forget<numbered_again> = true;

namespace {

template <class Driver, class Honest = Driver>
std::string failure_of(std::uint64_t seed) {
  return contents_program<Driver, Honest>::run(random_program(seed));
}

/// How many programs were run until one found something.
template <class Driver, class Honest>
std::uint64_t programs_until_found(std::uint64_t limit) {
  for (std::uint64_t seed = 1; seed <= limit; ++seed) {
    if (!failure_of<Driver, Honest>(seed).empty()) return seed;
  }
  return limit + 1;
}

TEST(Contents, EveryProgramFindsItsBytesOnTheFake) {
  for (std::uint64_t seed = 1; seed <= program_count; ++seed)
    ASSERT_EQ(failure_of<vmm::fake_driver>(seed), "") << "seed " << seed;
}

TEST(Contents, EveryProgramFindsItsBytesInRealMemory) {
  for (std::uint64_t seed = 1; seed <= program_count; ++seed)
    ASSERT_EQ(failure_of<queued_host>(seed), "") << "seed " << seed;
}

TEST(Contents, AHostThatDoesNotWaitIsFoundOnTheFake) {
  const auto count = programs_until_found<impatient<vmm::fake_driver>, vmm::fake_driver>(100);
  RecordProperty("programs", std::to_string(count));
  EXPECT_LE(count, 100u);
}

TEST(Contents, AStreamThatIsTakenForAnotherIsFoundOnTheFake) {
  const auto count = programs_until_found<numbered_again, vmm::fake_driver>(300);
  RecordProperty("programs", std::to_string(count));
  EXPECT_LE(count, 300u);
}

TEST(Contents, AHostThatDoesNotWaitIsFoundInRealMemory) {
  const auto count = programs_until_found<impatient<queued_host>, queued_host>(100);
  RecordProperty("programs", std::to_string(count));
  EXPECT_LE(count, 100u);
}

}  // namespace
