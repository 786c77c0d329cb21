// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: in any schedule no handle has two users, no byte leaves its group, charges are what is
// created, each request ends by its deadline, each guarantee is kept or the holders are named, and
// at the end no memory is lost.
// Method: the machines of an owner and 2 to 8 tenants in a simulated world, one seed a schedule:
// kills, stops, forks, restarts, repeated and malformed messages, refused and slow creates.
#include "simulation.hpp"

namespace {

std::uint64_t number_of(const char* variable, std::uint64_t usual) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

TEST(Market, EverySchedule) {
  const std::uint64_t first = number_of("VMM_MARKET_SEED", 1);
  const std::uint64_t count = number_of("VMM_MARKET_SCHEDULES", VMM_MARKET_USUAL);
  std::uint64_t granted = 0, denied = 0, kills = 0, restarts = 0, recalls = 0, forks = 0;
  std::uint64_t moves = 0, refused = 0, hash = 0, shares = 0, waits = 0, lates = 0;
  std::uint64_t idle_recalls = 0, cuts = 0, deadlocks = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    market_test::simulation schedule(seed);
    ASSERT_TRUE(schedule.run()) << "VMM_MARKET_SEED=" << seed << ": " << schedule.broken;
    granted += schedule.granted_count;
    denied += schedule.denied_count;
    kills += schedule.kill_count;
    restarts += schedule.restart_count;
    recalls += schedule.ask_count;
    forks += schedule.fork_count;
    moves += schedule.move_count;
    refused += schedule.refused_count;
    shares += schedule.share_count;
    waits += schedule.joining_count;
    lates += schedule.late_count;
    idle_recalls += schedule.idle_ask_count;
    cuts += schedule.cut_count;
    deadlocks += schedule.deadlock_count;
    hash = hash * 31 + schedule.hash;
  }
  std::printf(
      "%llu schedules: %llu grants, %llu refusals, %llu recalls (%llu of idle memory), %llu kills, "
      "%llu restarts, %llu "
      "forks, %llu mappings, %llu refused creates, %llu changed shares, %llu events beside a "
      "tenant "
      "that waits to join, %llu beside a late import, %llu lots in units, %llu deadlocks; hash "
      "%016llx\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(granted),
      static_cast<unsigned long long>(denied), static_cast<unsigned long long>(recalls),
      static_cast<unsigned long long>(idle_recalls), static_cast<unsigned long long>(kills),
      static_cast<unsigned long long>(restarts), static_cast<unsigned long long>(forks),
      static_cast<unsigned long long>(moves), static_cast<unsigned long long>(refused),
      static_cast<unsigned long long>(shares), static_cast<unsigned long long>(waits),
      static_cast<unsigned long long>(lates), static_cast<unsigned long long>(cuts),
      static_cast<unsigned long long>(deadlocks), static_cast<unsigned long long>(hash));
  if (count >= 1000) {
    EXPECT_GT(granted, count);
    EXPECT_GT(recalls - idle_recalls, count / 10);
    EXPECT_GT(idle_recalls, count / 10);
    EXPECT_GT(kills, count / 10);
    EXPECT_GT(restarts, count / 20);
    EXPECT_GT(shares, count / 10);
    EXPECT_GT(waits, count / 10);
    EXPECT_GT(lates, 0u);
    EXPECT_GT(cuts, count / 10);
  }
}

TEST(Market, ASeedIsOneSchedule) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    market_test::simulation one(seed), two(seed);
    ASSERT_TRUE(one.run() && two.run());
    EXPECT_EQ(one.hash, two.hash);
  }
}

}  // namespace
