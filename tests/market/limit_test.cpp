// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an allocator that meets its owner's limit serves the requests that it serves within a
// budget of the same size, and the refusal of the others is right.
// Method: random requests, the same for both, over a source of the fake driver; tenants of an owner
// over the host driver.
#include "own_source.hpp"
#include "tenants.hpp"

import vmm.manager;
import vmm.stream;

namespace {

constexpr vmm::stream_handle first_stream = vmm::stream_handle::default_stream;
constexpr std::uint64_t limit_bytes = 96 * MiB;

// A driver and a budget, which together give at most limit_bytes.
struct limited {
  std::unique_ptr<vmm::tenant_driver> driver;
  std::uint64_t budget_bytes = 0;

  explicit limited(bool has_budget)
      : driver(market_test::fake_tenant(has_budget ? 4 * limit_bytes : limit_bytes)),
        budget_bytes(has_budget ? limit_bytes : 0) {}
  template <class Options>
  Options options() const {
    Options made;
    made.budget_bytes = budget_bytes;
    return made;
  }
};

// A block of one of two allocators.
struct placed_block {
  vmm::address at{};
  std::uint64_t pages_bytes = 0;
  std::size_t in = 0;
};

struct requests {
  std::uint64_t seed = 0;
  std::uint64_t most_bytes = 0;  // that are live together
  bool takes_turns = false;      // an allocator has memory while the other has none
  int step_count = 2000;
};

// Whether each request was served: of whole pages and others. All memory ends at times.
template <class Allocate, class Free>
std::vector<bool> play(const requests& of, const Allocate& allocate, const Free& free) {
  std::mt19937_64 random(of.seed);
  std::size_t turn = 0;
  std::vector<placed_block> live;
  std::uint64_t live_bytes = 0;
  const auto end = [&](std::size_t i) {
    EXPECT_TRUE(free(live[i]));
    live_bytes -= live[i].pages_bytes;
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  };
  std::vector<bool> served;
  for (int step = 0; step < of.step_count; ++step) {
    const bool ends_all = random() % 50 == 0;
    turn += ends_all ? 1 : 0;
    while (ends_all && !live.empty()) end(live.size() - 1);
    const std::uint64_t sizes_bytes[] = {2 * MiB, (random() % 8 + 1) * 2 * MiB,
                                         random() % (20 * MiB) + 1};
    const std::uint64_t size_bytes = sizes_bytes[random() % 3];
    placed_block next{{},
                      (size_bytes + 2 * MiB - 1) / (2 * MiB) * (2 * MiB),
                      (of.takes_turns ? turn : random()) % 2};
    if (live_bytes + next.pages_bytes > of.most_bytes) {
      if (!live.empty()) end(random() % live.size());
      continue;
    }
    const vmm::result<vmm::address> at = allocate(size_bytes, next.in);
    served.push_back(at.has_value());
    if (!at) continue;
    next.at = *at;
    live.push_back(next);
    live_bytes += next.pages_bytes;
  }
  while (!live.empty()) end(live.size() - 1);
  return served;
}

std::vector<bool> play_pool(const limited& in, const requests& of) {
  vmm::stream_pool pool(*in.driver, in.options<vmm::pool_options>());
  return play(
      of, [&](std::uint64_t bytes, std::size_t) { return pool.allocate(bytes, first_stream); },
      [&](const placed_block& each) { return pool.free(each.at, first_stream); });
}

std::vector<bool> play_manager(const limited& in, const requests& of) {
  vmm::manager blocks(*in.driver, in.options<vmm::manager_options>());
  return play(
      of, [&](std::uint64_t bytes, std::size_t) { return blocks.allocate(bytes); },
      [&](const placed_block& each) { return blocks.free(each.at); });
}

// Ranges beside blocks.
std::vector<bool> play_growable(const limited& in, const requests& of) {
  vmm::manager blocks(*in.driver, in.options<vmm::manager_options>());
  std::map<std::uint64_t, std::unique_ptr<vmm::growable_range>> ranges;
  return play(
      of,
      [&](std::uint64_t bytes, std::size_t which) -> vmm::result<vmm::address> {
        if (which == 0) return blocks.allocate(bytes);
        auto made = std::make_unique<vmm::growable_range>(
            blocks, vmm::growable_options{.segment_bytes_max = limit_bytes});
        if (const vmm::status grown = made->grow(bytes); !grown) return grown.error();
        const vmm::address at = made->segment(0).value();
        ranges.emplace(at.value, std::move(made));
        return at;
      },
      [&](const placed_block& each) {
        return ranges.erase(each.at.value) != 0 ? vmm::status{} : blocks.free(each.at);
      });
}

std::size_t refused_of(const std::vector<bool>& served) {
  return static_cast<std::size_t>(std::ranges::count(served, false));
}

TEST(MarketLimit, AnOwnersLimitServesWhatABudgetServes) {
  struct allocator {
    const char* name;
    std::vector<bool> (*play)(const limited&, const requests&);
  };
  for (const allocator& each : {allocator{"pool", play_pool}, allocator{"manager", play_manager},
                                allocator{"growable", play_growable}}) {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      const requests of{seed, limit_bytes * (seed % 3 + 2) / 4};
      const std::vector<bool> budget = each.play(limited(true), of);
      const std::vector<bool> owner = each.play(limited(false), of);
      // A refusal releases idle memory to the owner, and what follows may differ.
      const auto [first, second] = std::ranges::mismatch(budget, owner);
      const bool is_equal = first == budget.end() && second == owner.end();
      EXPECT_TRUE(is_equal || std::ranges::count(budget.begin(), first, false) != 0)
          << each.name << ", seed " << seed << ": refused " << refused_of(budget) << " and "
          << refused_of(owner);
    }
  }
}

TEST(MarketLimit, WhatCanNeverBeLentIsNotPreallocated) {
  const limited in(false);
  vmm::stream_pool pool(*in.driver);
  ASSERT_TRUE(pool.allocate(32 * MiB, first_stream));
  const std::uint64_t before = pool.statistics().created_count;
  const vmm::preallocate_report refused = pool.preallocate(80 * MiB, first_stream);
  EXPECT_TRUE(
      contains(vmm::describe(refused.failure), "request of 80 MiB exceeds the available memory: "));
  EXPECT_EQ(refused.left_bytes, 80 * MiB);
  EXPECT_EQ(pool.statistics().created_count, before) << "it was tried";
  EXPECT_EQ(pool.preallocate(48 * MiB, first_stream).failure.code, vmm::errc::none);
}

TEST(MarketLimit, AnAllocatorWhoseMemoryIsSharedIsRefused) {
  const limited in(false);
  for (const bool rdma : {false, true}) {
    vmm::manager_options options;
    options.shareable = rdma ? vmm::share_kind::none : vmm::share_kind::posix_fd;
    options.rdma_capable = rdma;
    vmm::manager blocks(*in.driver, options);
    EXPECT_TRUE(contains(vmm::describe(blocks.set_up().error()), "unset VMM_OWNER"));
  }
}

// One's idle memory serves the other.
TEST(MarketLimit, TwoAllocatorsOfATenantServeWhatFitsTogether) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const limited in(false);
    vmm::stream_pool pool(*in.driver);
    vmm::manager blocks(*in.driver);
    const auto served = play(
        {seed, limit_bytes * 3 / 4},
        [&](std::uint64_t bytes, std::size_t which) {
          return which == 0 ? pool.allocate(bytes, first_stream) : blocks.allocate(bytes);
        },
        [&](const placed_block& each) {
          return each.in == 0 ? pool.free(each.at, first_stream) : blocks.free(each.at);
        });
    EXPECT_EQ(refused_of(served), 0u) << "seed " << seed;
  }
}

// By turns, and while the other one has memory.
TEST(MarketLimit, TwoTenantsServeWhatFitsTheOwner) {
  const market_test::owner_process owner("96MiB");
  std::array<std::unique_ptr<vmm::tenant_driver>, 2> drivers;
  std::array<std::optional<vmm::stream_pool>, 2> pools;
  for (std::size_t i = 0; i < drivers.size(); ++i) {
    drivers[i] = market_test::open_host_tenant(
                     market_test::options_of(owner, "turn-" + std::to_string(i)), 60'000'000'000)
                     .value();
    pools[i].emplace(*drivers[i]);
  }
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const auto served = play(
        {.seed = seed,
         .most_bytes = limit_bytes * 3 / 4,
         .takes_turns = seed % 2 != 0,
         .step_count = 1000},
        [&](std::uint64_t bytes, std::size_t which) {
          auto at = pools[which]->allocate(bytes, first_stream);
          EXPECT_TRUE(at) << vmm::describe(at.error());
          return at;
        },
        [&](const placed_block& each) { return pools[each.in]->free(each.at, first_stream); });
    EXPECT_EQ(refused_of(served), 0u) << "seed " << seed;
  }
}

}  // namespace
