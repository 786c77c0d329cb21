// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: in any schedule no handle has two users, no byte leaves its group, charges are what is
// created, each request ends by its deadline, each guarantee is kept or the holders are named, and
// at the end no memory is lost.
// Method: the machines of an owner and 2 to 8 tenants in a simulated world, one seed a schedule:
// kills, stops, forks, restarts, repeated and malformed messages, refused and slow creates.
#include "simulation.hpp"
#include "../support/byte_source.hpp"

namespace {

TEST(Market, EverySchedule) {
  const std::uint64_t first = wish("VMM_MARKET_SEED", 1);
  const std::uint64_t count = wish("VMM_MARKET_SCHEDULES", VMM_MARKET_USUAL);
  std::map<std::string_view, std::uint64_t> sums;
  std::uint64_t hash = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    market_test::simulation schedule(seed);
    ASSERT_TRUE(schedule.run()) << "VMM_MARKET_SEED=" << seed << ": " << schedule.broken;
    for (const auto& [name, number] : schedule.counts) sums[name] += number;
    hash = hash * 31 + schedule.hash;
  }
  std::printf("%llu schedules", static_cast<unsigned long long>(count));
  for (const auto& [name, number] : sums)
    std::printf(", %llu %s", static_cast<unsigned long long>(number), name.data());
  std::printf("; hash %016llx\n", static_cast<unsigned long long>(hash));
  if (count < 1000) return;
  for (const auto& [name, least] : std::initializer_list<std::pair<const char*, std::uint64_t>>{
           {"grants", count},
           {"recalls", sums["recalls of idle memory"] + count / 10},
           {"recalls of idle memory", count / 10},
           {"kills", count / 10},
           {"restarts", count / 20},
           {"changed shares", count / 10},
           {"events beside a tenant that waits to join", count / 10},
           {"events beside a late import", 0},
           {"lots in units", count / 10}})
    EXPECT_GT(sums[name], least) << name;
}

TEST(Market, ASeedIsOneSchedule) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    market_test::simulation one(seed), two(seed);
    ASSERT_TRUE(one.run() && two.run());
    EXPECT_EQ(one.hash, two.hash);
  }
}

}  // namespace
