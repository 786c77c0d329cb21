// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Random programs by their numbers.

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

program_base begin(const driver& legacy, const driver& per_thread) {
  program_base base{&legacy, &per_thread, {}};
  base.find_broken =
      reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "vmm_preload_find_broken"));
  for (std::size_t i = 0; i < device_count; ++i)
    base.contexts[i] = start(legacy, static_cast<device_id>(i));
  return base;
}

std::uint64_t digest_of(const program_base& base, std::uint64_t seed) {
  std::mt19937_64 draw(seed);
  return random_program(base, [&] { return draw(); }).run();
}

}  // namespace

// FIRST COUNT: a line for each program; four run at a time.
void programs_beside(const arguments& all) {
  constexpr std::size_t beside = 4;
  const driver legacy = load();
  const driver per_thread = load(find_per_thread_stream);
  program_base base = begin(legacy, per_thread);
  base.is_alone = false;
  const std::uint64_t first = number(all.at(0));
  const std::uint64_t count = number(all.at(1));
  for (std::uint64_t seed = first; seed < first + count; seed += beside) {
    std::array<std::uint64_t, beside> digests{};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < beside; ++i) {
      threads.emplace_back([&, i] { digests[i] = digest_of(base, seed + i); });
    }
    for (std::thread& each : threads) each.join();
    for (const std::uint64_t digest : digests)
      std::printf("%016llx\n", static_cast<unsigned long long>(digest));
  }
  expect(legacy.misuses() == 0 && legacy.stale() == 0, "no misuse");
}

// FIRST COUNT: a line for each program.
void random(const arguments& all) {
  const driver legacy = load();
  const driver per_thread = load(find_per_thread_stream);
  const program_base base = begin(legacy, per_thread);
  const std::uint64_t first = number(all.at(0));
  const std::uint64_t count = number(all.at(1));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::uint64_t digest = digest_of(base, seed);
    std::printf("%llu %016llx\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(digest));
    if (legacy.misuses() != 0 || legacy.stale() != 0) {
      std::printf("MISUSE in program %llu: %llu, stale %llu\n",
                  static_cast<unsigned long long>(seed), legacy.misuses(), legacy.stale());
      expect(false, "no misuse");
      return;
    }
  }
}

}  // namespace caller
