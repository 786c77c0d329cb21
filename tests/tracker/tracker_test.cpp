// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the tracker finds an allocation from any address in it, refuses overlaps and double frees,
// and lets one thread at a time change a record.
// Method: records made by hand, a naive model in a std::map under random operations, and threads
// that look while others move.
#include "../support/test.h"

import vmm.backend;
import vmm.physical;
import vmm.tracker;

namespace {

using vmm::address, vmm::errc, vmm::range_sizes;

// A record, and the piece of memory that it owns in place of a pool.
struct record : vmm::tracked_range {
  vmm::physical_memory own;

  record(address at, const range_sizes& wanted) {
    base = at;
    sizes = wanted;
    own.size_bytes = wanted.mapped_bytes;
    own.handle = vmm::physical_handle{at.value + 1};
    if (wanted.mapped_bytes > 0) memories.push_back(&own);
  }
};

struct Tracker : testing::Test {
  record& add(std::uint64_t base, const range_sizes& sizes) {
    record& made = *records.emplace_back(std::make_unique<record>(address{base}, sizes));
    EXPECT_TRUE(tracked.insert_claimed(made));
    tracked.unclaim(made);
    return made;
  }
  // One size for all three.
  record& add(std::uint64_t base, std::uint64_t size) { return add(base, {size, size, size}); }
  void TearDown() override { EXPECT_TRUE(tracked.validate()); }

  std::vector<std::unique_ptr<record>> records;
  vmm::tracker tracked;
};

// ---- looking up

TEST_F(Tracker, FindsARecordFromAnyAddressInIt) {
  add(1000, {50, 60, 100});
  for (const std::uint64_t at : {1000u, 1049u, 1050u, 1060u, 1099u}) {
    const auto found = tracked.find(address{at});
    ASSERT_TRUE(found) << at;
    EXPECT_EQ(found->base, address{1000});
    EXPECT_EQ(found->sizes.user_bytes, 50u);
    EXPECT_EQ(found->sizes.mapped_bytes, 60u);
    EXPECT_EQ(found->sizes.reserved_bytes, 100u);
  }
  EXPECT_EQ(tracked.find(address{999}).error().code, errc::not_allocated);
  EXPECT_EQ(tracked.find(address{1100}).error().code, errc::not_allocated);
  EXPECT_EQ(tracked.find(address{0}).error().code, errc::not_allocated);
}

TEST_F(Tracker, FindGivesTheStreamAndTheHandlesInOrder) {
  vmm::physical_memory low;
  low.size_bytes = 40;
  low.handle = vmm::physical_handle{7};
  record& both = *records.emplace_back(std::make_unique<record>(address{64}, range_sizes{9, 2, 9}));
  both.sizes = {90, 100, 100};
  both.own.size_bytes = 60;
  both.own.handle = vmm::physical_handle{5};
  both.memories = {&low, &both.own};
  both.stream = vmm::stream_handle{3};
  ASSERT_TRUE(tracked.insert_claimed(both));
  const auto found = *tracked.find(address{70});
  EXPECT_EQ(found.stream, vmm::stream_handle{3});
  EXPECT_EQ(found.handles, (std::vector{vmm::physical_handle{7}, vmm::physical_handle{5}}));
  tracked.erase(both);
}

TEST_F(Tracker, CoversOnlyWhatTheUserAskedFor) {
  add(1000, {50, 60, 100});
  EXPECT_TRUE(tracked.covers({address{1000}, 50}));
  EXPECT_TRUE(tracked.covers({address{1049}, 1}));
  EXPECT_FALSE(tracked.covers({address{1000}, 51}));
  EXPECT_FALSE(tracked.covers({address{1050}, 1}));
  EXPECT_FALSE(tracked.covers({address{999}, 2}));
  EXPECT_FALSE(tracked.covers({address{500}, 10}));
  EXPECT_FALSE(tracked.covers({address{1010}, ~std::uint64_t{0} - 5})) << "the end wraps around";
}

// ---- mistakes

TEST_F(Tracker, ClaimsByTheExactBaseOnly) {
  record& one = add(1000, {50, 60, 100});
  EXPECT_EQ(tracked.claim(address{1001}).error().code, errc::invalid_argument);
  EXPECT_EQ(tracked.claim(address{1099}).error().code, errc::invalid_argument);
  EXPECT_EQ(tracked.claim(address{1100}).error().code, errc::not_allocated);
  EXPECT_EQ(tracked.claim(address{999}).error().code, errc::not_allocated);
  const auto claimed = *tracked.claim(address{1000});
  EXPECT_EQ(claimed, &one);
  EXPECT_EQ(tracked.claim(address{1000}).error().code, errc::in_use);
  tracked.unclaim(one);
  ASSERT_TRUE(tracked.claim(address{1000}));
  tracked.erase(one);
  EXPECT_EQ(tracked.claim(address{1000}).error().code, errc::not_allocated) << "a double free";
  EXPECT_EQ(tracked.size(), 0u);
}

// ---- moving

TEST_F(Tracker, RelocatesAndExchangesThePieces) {
  record& one = add(1000, {50, 60, 100});
  vmm::physical_memory larger;
  larger.size_bytes = 80;
  vmm::memory_list memories{&larger};
  ASSERT_TRUE(tracked.claim(address{1000}));
  ASSERT_TRUE(tracked.relocate(one, {address{5000}, {70, 80, 90}}, memories));
  EXPECT_EQ(memories, vmm::memory_list{&one.own}) << "what the record had comes back";
  EXPECT_EQ(tracked.find(address{1000}).error().code, errc::not_allocated);
  EXPECT_EQ(tracked.find(address{5089})->sizes.mapped_bytes, 80u);
  EXPECT_EQ(tracked.totals().user_bytes, 70u);
  EXPECT_EQ(tracked.totals().mapped_bytes, 80u);
  EXPECT_EQ(tracked.totals().reserved_bytes, 90u);
  EXPECT_TRUE(tracked.validate());
  tracked.erase(one);
  EXPECT_EQ(tracked.totals().reserved_bytes, 0u);
}

TEST_F(Tracker, ARefusedRelocationChangesNothing) {
  record& one = add(1000, 100);
  add(2000, 100);
  ASSERT_TRUE(tracked.claim(address{1000}));
  vmm::physical_memory other;
  other.size_bytes = 100;
  for (const std::uint64_t base : {1901u, 1950u, 2099u}) {
    vmm::memory_list memories{&other};
    const vmm::status refused = tracked.relocate(one, {address{base}, {100, 100, 100}}, memories);
    ASSERT_FALSE(refused) << base;
    EXPECT_EQ(refused.error().code, errc::overlap);
    EXPECT_EQ(memories, vmm::memory_list{&other});
    EXPECT_EQ(one.base, address{1000});
  }
  vmm::memory_list memories{&one.own};
  const vmm::status grown = tracked.relocate(one, {address{1000}, {100, 100, 1001}}, memories);
  EXPECT_EQ(grown.error().code, errc::overlap) << "growing over the next record";
  EXPECT_TRUE(tracked.validate());
  tracked.unclaim(one);
}

TEST_F(Tracker, ValidateSeesDamage) {
  record& one = add(1000, 100);
  add(1100, 100);
  one.own.size_bytes = 99;
  EXPECT_FALSE(tracked.validate()) << "pieces that do not add up";
  one.own.size_bytes = 100;
  one.sizes.reserved_bytes = 101;
  EXPECT_FALSE(tracked.validate()) << "an overlap";
  one.sizes.reserved_bytes = 100;
  one.sizes.user_bytes = 99;
  EXPECT_FALSE(tracked.validate()) << "totals";
  one.sizes.user_bytes = 100;
  one.base = address{1001};
  EXPECT_FALSE(tracked.validate()) << "a base that is not its key";
  one.base = address{1000};
}

TEST(TrackerDeathTest, MisuseEndsTheProcess) {
  vmm::tracker tracked;
  record one(address{1000}, {50, 60, 100});
  ASSERT_TRUE(tracked.insert_claimed(one));
  tracked.unclaim(one);
  vmm::memory_list memories{&one.own};
  EXPECT_DEATH(tracked.unclaim(one), "given up that was not claimed");
  EXPECT_DEATH(tracked.erase(one), "taken out that was not claimed");
  EXPECT_DEATH((void)tracked.relocate(one, {address{1000}, one.sizes}, memories),
               "moved that was not claimed");
  record wrong(address{5000}, {60, 50, 100});
  EXPECT_DEATH((void)tracked.insert_claimed(wrong), "sizes disagree");
}

// ---- the naive model: bases to sizes, searched from one end

struct ModelledTracker : Tracker {
  using model = std::map<std::uint64_t, std::uint64_t>;

  [[nodiscard]] bool is_free(std::uint64_t base, std::uint64_t size,
                             std::uint64_t except = ~0ull) const {
    for (const auto& [other, other_size] : expected)
      if (other != except && base < other + other_size && other < base + size) return false;
    return true;
  }
  void insert(std::uint64_t base, std::uint64_t size) {
    record& made = *records.emplace_back(
        std::make_unique<record>(address{base}, range_sizes{size, size, size}));
    const vmm::status done = tracked.insert_claimed(made);
    ASSERT_EQ(done.has_value(), is_free(base, size));
    if (!done) return;
    tracked.unclaim(made);
    expected[base] = size;
  }
  void erase(std::uint64_t base) {
    const auto claimed = *tracked.claim(address{base});
    tracked.erase(*claimed);
    expected.erase(base);
  }
  void relocate(std::uint64_t base, std::uint64_t to) {
    const auto claimed = *tracked.claim(address{base});
    const std::uint64_t size = expected[base];
    vmm::memory_list memories = claimed->memories;
    const vmm::status done =
        tracked.relocate(*claimed, {address{to}, {size, size, size}}, memories);
    ASSERT_EQ(done.has_value(), is_free(to, size, base));
    tracked.unclaim(*claimed);
    if (!done) return;
    expected.erase(base);
    expected[to] = size;
  }
  void expect_found(std::uint64_t at) const {
    const auto found = tracked.find(address{at});
    for (const auto& [base, size] : expected) {
      if (at < base || at >= base + size) continue;
      ASSERT_TRUE(found);
      ASSERT_EQ(found->base, address{base});
      return;
    }
    ASSERT_FALSE(found);
  }

  model expected;
};

TEST_F(ModelledTracker, AgreesWithAMap) {
  std::mt19937_64 random(2);
  for (int step = 0; step < 5000; ++step) {
    const std::uint64_t at = 1 + random() % 2000;
    const std::uint64_t size = 1 + random() % 60;
    const auto some =
        expected.empty()
            ? expected.end()
            : std::next(expected.begin(), static_cast<std::ptrdiff_t>(random() % expected.size()));
    switch (random() % 4) {
      case 0: insert(at, size); break;
      case 1:
        if (some != expected.end()) erase(some->first);
        break;
      case 2:
        if (some != expected.end()) relocate(some->first, at);
        break;
      default: expect_found(at);
    }
    ASSERT_EQ(tracked.size(), expected.size());
    if (step % 50 == 0) ASSERT_TRUE(tracked.validate());
    if (HasFailure()) FAIL() << "at step " << step;
  }
}

// ---- threads

TEST_F(Tracker, OneOfManyThreadsGetsTheClaim) {
  record& one = add(1000, 100);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> winners = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        if (tracked.claim(address{1000})) ++winners;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(winners, 1);
    tracked.unclaim(one);
  }
}

// A record is seen as it was before a relocation or as it is after, never between the two.
TEST_F(Tracker, LookersNeverSeeHalfARelocation) {
  record& one = add(1000, 100);
  one.stream = vmm::stream_handle{1000};
  std::vector<vmm::physical_memory> halves(2);
  for (vmm::physical_memory& half : halves) {
    half.size_bytes = 50;
    half.handle = vmm::physical_handle{1};
  }
  std::atomic<bool> done = false;
  std::atomic<int> wrong_count = 0;
  std::thread looker([&] {
    while (!done) {
      const auto small = tracked.find(address{1050});
      if (small && (small->handles.size() != 1 || small->base != address{1000})) ++wrong_count;
      const auto large = tracked.find(address{2050});
      if (large && (large->handles.size() != 2 || large->base != address{2000})) ++wrong_count;
      if (small && small->stream != vmm::stream_handle{small->base.value}) ++wrong_count;
      if (large && large->stream != vmm::stream_handle{large->base.value}) ++wrong_count;
      if (tracked.totals().mapped_bytes != 100) ++wrong_count;
    }
  });
  for (int i = 0; i < 2000; ++i) {
    const bool there = i % 2 == 0;
    const address to{there ? 2000u : 1000u};
    const auto claimed = tracked.claim(one.base);
    ASSERT_TRUE(claimed);
    vmm::memory_list memories{&one.own};
    if (there) memories = {&halves[0], &halves[1]};
    ASSERT_TRUE(
        tracked.relocate(one, {to, {100, 100, 100}, vmm::stream_handle{to.value}}, memories));
    tracked.unclaim(one);
  }
  done = true;
  looker.join();
  EXPECT_EQ(wrong_count, 0);
}

}  // namespace
