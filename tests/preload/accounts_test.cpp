// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: flat_table holds what a map would hold, and a call's time is the system's time.
// Method: random entries beside std::map, by keys that meet; the clock between looks at the
// system's own, which lie around it and inside of it. The clock is the subject: no sleep, and no
// bound on how long anything takes.
#include <chrono>

#include "../../adapters/preload/call_clock.h"
#include "../support/test.h"

import vmm.base;

namespace {

using vmm::flat_table, vmm::preload::call_clock;

struct number {
  std::uint64_t value = 0;
};

TEST(FlatTable, IsAMap) {
  std::mt19937_64 draw(4711);
  flat_table<number> table;
  std::map<std::uint64_t, std::uint64_t> model;
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t range = step % 20'000 < 10'000 ? 500 : 20;  // it grows, and is emptied
    const std::uint64_t key = draw() % range * (draw() % 2 == 0 ? 1 : 512);
    if (draw() % 2 == 0) {
      model[key] = draw() % 8;
      ASSERT_TRUE(table.put(key, {model[key]}));
    } else {
      number taken{99};
      const auto known = model.find(key);
      ASSERT_EQ(table.take(key, taken), known != model.end()) << step;
      ASSERT_EQ(taken.value, known == model.end() ? 99 : known->second) << step;
      if (known != model.end()) model.erase(known);
    }
    if (draw() % 100 == 0) {
      const std::uint64_t gone = draw() % 9;  // 8: all
      table.erase_if([&](const number& each) { return gone == 8 || each.value == gone; });
      std::erase_if(model, [&](const auto& each) { return gone == 8 || each.second == gone; });
    }
    ASSERT_EQ(table.count(), model.size()) << step;
  }
}

TEST(CallClock, GoesAsTheSystemsDoes) {
  using system = std::chrono::steady_clock;
  const auto ns = [](system::duration of) {
    return static_cast<double>(std::chrono::nanoseconds(of).count());
  };
  // Between two looks at its clock a machine may stand still: of some tries one is not disturbed.
  constexpr int tries_max = 20;
  bool agrees = false;
  std::string seen;
  for (int tries = 0; tries < tries_max && !agrees; ++tries) {
    call_clock clock;
    const auto outer_begin = system::now();
    clock.start();
    const std::uint64_t begin = clock.now();
    const auto inner_begin = system::now();
    while (system::now() - inner_begin < std::chrono::milliseconds(20)) {
    }
    const auto inner_end = system::now();
    const std::uint64_t end = clock.now();
    const auto spent = static_cast<double>(clock.nanoseconds(end - begin));
    const auto outer_end = system::now();
    const double least = 0.99 * ns(inner_end - inner_begin);
    const double most = 1.01 * ns(outer_end - outer_begin);
    agrees = least <= spent && spent <= most;
    seen += std::to_string(spent) + " of " + std::to_string(least) + " to " + std::to_string(most) +
            "\n";
  }
  EXPECT_TRUE(agrees) << seen;
}

}  // namespace
