// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Random programs by their numbers.
#include <charconv>
#include <random>
#include <string_view>

#include "driver.h"
#include "program.h"
#include "words.h"

namespace caller {
namespace {

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

// FIRST COUNT: a line for each program.
void random_programs(const arguments& all) {
  const driver legacy = load();
  const driver per_thread = load(find_per_thread_stream);
  program_base base{&legacy, &per_thread, {}};
  for (std::size_t i = 0; i < device_count; ++i) {
    base.contexts[i] = start(legacy, static_cast<device_id>(i));
  }
  const std::uint64_t first = number(all.at(0));
  const std::uint64_t count = number(all.at(1));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    std::mt19937_64 draw(seed);
    const std::uint64_t digest = random_program(base, [&] { return draw(); }).run();
    std::printf("%llu %016llx\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(digest));
    if (legacy.misuses() != 0 || legacy.stale() != 0) {
      std::printf("MISUSE in program %llu: %llu, stale %llu\n", static_cast<unsigned long long>(seed),
                  legacy.misuses(), legacy.stale());
      expect(false, "no misuse");
      return;
    }
  }
}

}  // namespace caller
