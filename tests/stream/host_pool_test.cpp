// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: on real memory no live byte changes while the pool moves free memory beside it, and all
// memory of a moved handle can be used. Method: random allocations and frees on the host driver,
// whose work is done when a call returns; every block is filled with its own pattern and read back
// wholly before it is freed and at the end, under both policies.
#include "../support/test.h"

import vmm.backend;
import vmm.host;
import vmm.stream;

namespace {

struct block {
  std::uint64_t size_bytes = 0;
  std::uint64_t seed = 0;
  vmm::stream_handle stream{};
};

std::uint64_t* words_at(std::uint64_t at) { return reinterpret_cast<std::uint64_t*>(at); }

void fill(std::uint64_t at, const block& what) {
  for (std::uint64_t i = 0; i < what.size_bytes / 8; ++i) words_at(at)[i] = what.seed + i;
}
[[nodiscard]] bool is_intact(std::uint64_t at, const block& what) {
  for (std::uint64_t i = 0; i < what.size_bytes / 8; ++i)
    if (words_at(at)[i] != what.seed + i) return false;
  return true;
}

struct HostPool : testing::TestWithParam<const char*> {
  using pool = vmm::stream_pool;

  static vmm::pool_options options() {
    vmm::pool_options chosen;
    chosen.policy = *vmm::pool_policy::by_name(GetParam());
    chosen.policy.tuning.slack_bytes = 0;
    chosen.policy.tuning.min_move_share = 0;
    if (chosen.policy.handle_bytes_max != 0) chosen.policy.handle_bytes_max = 4 * MiB;
    chosen.reservation_bytes = 512 * MiB;
    chosen.budget_bytes = 96 * MiB;
    return chosen;
  }
  void allocate(pool& from, std::mt19937_64& random) {
    block fresh{(random() % 4 == 0 ? 1 + random() % 12 * MiB : 8 * (1 + random() % 8192)), random(),
                static_cast<vmm::stream_handle>(random() % 3)};
    fresh.size_bytes = fresh.size_bytes / 8 * 8 + 8;
    const auto at = from.allocate(fresh.size_bytes, fresh.stream);
    if (!at) {
      ASSERT_EQ(at.error().code, vmm::errc::over_budget) << vmm::describe(at.error());
      ++refused_;
      return;
    }
    fill(at->value, fresh);
    live_[at->value] = fresh;
  }
  void free_one(pool& to, std::mt19937_64& random) {
    auto victim = live_.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(random() % live_.size()));
    ASSERT_TRUE(is_intact(victim->first, victim->second));
    ASSERT_TRUE(to.free(vmm::address{victim->first}, victim->second.stream));
    live_.erase(victim);
  }

  std::map<std::uint64_t, block> live_;
  std::uint64_t refused_ = 0;
};

TEST_P(HostPool, NoByteChangesWhileMemoryMoves) {
  auto opened = vmm::host_driver::open();
  if (!opened) GTEST_SKIP() << opened.error().detail;
  vmm::host_driver driver = std::move(*opened);
  {
    pool managed(driver, options());
    std::mt19937_64 random(20'02);
    for (int i = 0; i < 800; ++i) {
      if (live_.empty() || random() % 100 < 55) {
        ASSERT_NO_FATAL_FAILURE(allocate(managed, random));
      } else {
        ASSERT_NO_FATAL_FAILURE(free_one(managed, random));
      }
      if (i % 200 == 0) ASSERT_TRUE(managed.validate());
    }
    for (const auto& [at, each] : live_) ASSERT_TRUE(is_intact(at, each));
    const vmm::pool_statistics now = managed.statistics();
    EXPECT_GT(now.moved_count, 10u) << "the test is about moving";
    EXPECT_LE(now.peak_mapped_bytes, 96 * MiB);
    while (!live_.empty()) ASSERT_NO_FATAL_FAILURE(free_one(managed, random));
    ASSERT_TRUE(managed.validate());
    EXPECT_EQ(managed.statistics().live_bytes, 0u);
    EXPECT_GT(managed.trim(0).released_bytes, 0u);
    EXPECT_EQ(managed.statistics().mapped_bytes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, HostPool, testing::Values("pool", "vpmm"));

}  // namespace
