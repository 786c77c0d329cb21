// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a subscriber is notified exactly once before each change of the memory behind an address,
// and never after unsubscribe(); a pool without subscribers does no work for it. Method: a listener
// mirrors the mapped ranges, as a network card does, and checks with the driver at each
// notification that the old memory still exists; threads subscribe and unsubscribe while the pool
// changes.
#include "fake_pool.hpp"
//
#include "../support/silent_observer.hpp"

import vmm.manager;
import vmm.suspend;

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::remap_kind, vmm::remap_notice, vmm::stream_handle;

struct hearer final : vmm::remap_listener {
  vmm::fake_driver* driver = nullptr;
  std::vector<remap_notice> heard{};
  std::vector<std::uint64_t> tags{};  // at the start of each range, when it was notified

  void before_change(const remap_notice& notice) noexcept override {
    heard.push_back(notice);
    tags.push_back(driver->read_tag(notice.range.base).value_or(0));
  }
  [[nodiscard]] std::uint64_t bytes(remap_kind kind) const {
    std::uint64_t sum = 0;
    for (const remap_notice& each : heard) sum += each.kind == kind ? each.range.size_bytes : 0;
    return sum;
  }
};

struct Notices : FakePool {
  // Two free stretches of 4 MiB with something live between them and behind them.
  void make_gaps() {
    first = allocate(4 * MiB, a);
    allocate(2 * MiB, a);
    second = allocate(4 * MiB, a);
    allocate(2 * MiB, a);
    ASSERT_TRUE(driver.write_tag({first, 4 * MiB}, 7));
    free(first, a);
    free(second, a);
  }
  [[nodiscard]] vmm::remap_subscription listen(hearer& listener) {
    listener.driver = &driver;
    const auto made = managed->remaps().subscribe(listener);
    EXPECT_TRUE(made);
    return made.value_or(vmm::remap_subscription::none);
  }
  address first{}, second{};
};

TEST_F(Notices, AMoveIsToldBeforeItIsMade) {
  open(moving());
  make_gaps();
  hearer card;
  const auto subscription = listen(card);
  EXPECT_EQ(allocate(8 * MiB, a), second) << "the first stretch moved behind the second";
  ASSERT_EQ(card.heard.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(card.heard[i].kind, remap_kind::moved);
    EXPECT_EQ(card.heard[i].range.base, first + (1 - i) * 2 * MiB) << "its end first";
    EXPECT_EQ(card.heard[i].range.size_bytes, 2 * MiB);
    EXPECT_EQ(card.heard[i].epoch, card.heard[0].epoch) << "one change";
    EXPECT_EQ(card.tags[i], 7u) << "the memory still exists at the notification";
  }
  EXPECT_EQ(managed->remaps().epoch(), card.heard[0].epoch);
  ASSERT_TRUE(driver.finish_all());
  (void)managed->trim(0);
  EXPECT_EQ(card.bytes(remap_kind::unmapped), 4 * MiB) << "the addresses it moved from";
  fine(managed->remaps().unsubscribe(subscription));
}

TEST_F(Notices, WhatIsGivenBackIsTold) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  ASSERT_TRUE(driver.write_tag({at, 8 * MiB}, 3));
  free(at, a);
  hearer card;
  const auto subscription = listen(card);
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
  EXPECT_EQ(card.bytes(remap_kind::released), 8 * MiB);
  EXPECT_EQ(card.heard.size(), 4u);
  for (std::size_t i = 0; i < card.heard.size(); ++i) {
    EXPECT_EQ(card.tags[i], 3u);
    EXPECT_EQ(card.heard[i].epoch, card.heard[0].epoch + i);
  }
  fine(managed->remaps().unsubscribe(subscription));
}

TEST_F(Notices, WhatIsPinnedIsNeverTold) {
  open(moving());
  make_gaps();
  const address held = allocate(4 * MiB, a);
  fine(managed->pin(held));
  free(held, a);
  hearer card;
  const auto subscription = listen(card);
  free(allocate(16 * MiB, a), b);
  (void)managed->trim(0);
  EXPECT_FALSE(card.heard.empty());
  for (const remap_notice& each : card.heard)
    EXPECT_FALSE(each.range.overlaps({held, 4 * MiB})) << "what is pinned stays";
  fine(managed->remaps().unsubscribe(subscription));
  fine(managed->unpin(held));
}

TEST_F(Notices, ReuseInPlaceIsNoChange) {
  hearer card;
  const auto subscription = listen(card);
  for (int i = 0; i < 100; ++i) free(allocate(10 * MiB, a), a);
  EXPECT_TRUE(card.heard.empty());
  EXPECT_EQ(managed->remaps().epoch(), 0u);
  fine(managed->remaps().unsubscribe(subscription));
}

TEST_F(Notices, AnUnmapThatFailsIsToldOnce) {
  open(moving());
  make_gaps();
  allocate(8 * MiB, a);
  hearer card;
  const auto subscription = listen(card);
  fail(call::unmap, 1, true);
  for (int i = 0; i < 3; ++i) (void)managed->trim(0);
  driver.clear_faults();
  EXPECT_EQ(managed->statistics().stale_bytes, 4 * MiB);
  (void)managed->trim(0);
  EXPECT_EQ(managed->statistics().stale_bytes, 0u);
  EXPECT_EQ(card.bytes(remap_kind::unmapped), 4 * MiB);
  fine(managed->remaps().unsubscribe(subscription));
}

TEST_F(Notices, NobodyHearsAfterTheEnd) {
  open(moving());
  hearer first_card;
  hearer second_card;
  const auto gone = listen(first_card);
  const auto stays = listen(second_card);
  fine(managed->remaps().unsubscribe(gone));
  EXPECT_EQ(managed->remaps().unsubscribe(gone).error().code, errc::invalid_argument);
  free(allocate(8 * MiB, a), a);
  (void)managed->trim(0);
  EXPECT_TRUE(first_card.heard.empty());
  EXPECT_EQ(second_card.bytes(remap_kind::released), 8 * MiB);
  fine(managed->remaps().unsubscribe(stays));
}

TEST_F(Notices, ThePoolTellsWhenItGoes) {
  hearer card;
  (void)listen(card);
  free(allocate(8 * MiB, a), a);
  managed.reset();
  EXPECT_EQ(card.bytes(remap_kind::released), 8 * MiB);
}

// A listener that calls the pool.
struct caller_back : vmm::remap_listener {
  caller_back(vmm::stream_pool& calls, stream_handle on) : managed(&calls), stream(on) {}
  vmm::stream_pool* managed;
  stream_handle stream;

 protected:
  ~caller_back() = default;
};

TEST_F(Notices, ACallbackMayFreeAndPin) {
  struct helper final : caller_back {
    using caller_back::caller_back;
    void before_change(const remap_notice&) noexcept override {
      if (to_free) EXPECT_TRUE(managed->free(to_free, stream));
      to_free = {};
      EXPECT_TRUE(managed->pin(to_pin));
    }
    address to_free{};
    address to_pin{};
  };
  open(moving());
  helper helps(*managed, a);
  helps.to_free = allocate(4096, a);
  helps.to_pin = allocate(4096, a);
  const auto subscription = *managed->remaps().subscribe(helps);
  free(allocate(8 * MiB, b), b);
  (void)managed->trim(0);
  EXPECT_EQ(managed->statistics().pinned_count, 1u);
  EXPECT_EQ(managed->statistics().live_count, 1u);
  fine(managed->remaps().unsubscribe(subscription));
}

using NoticesDeathTest = Notices;

// Free memory would serve the request: nothing but the callback forbids it.
TEST_F(NoticesDeathTest, ACallbackMustNotAllocateWhatIsFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child is refused this driver
  struct modest final : caller_back {
    using caller_back::caller_back;
    void before_change(const remap_notice&) noexcept override {
      (void)managed->allocate(512, stream);
    }
  };
  open(moving());
  modest wants(*managed, a);
  allocate(4096, a);
  free(allocate(512, a), a);
  free(allocate(8 * MiB, a), a);
  const auto beside_listener = [&](const auto& what) {
    (void)managed->remaps().subscribe(wants);
    what();
  };
  constexpr const char* why = "a remap callback makes a forbidden call";
  EXPECT_DEATH(beside_listener([&] { (void)managed->trim(0); }), why);
  EXPECT_DEATH(beside_listener([&] { managed.reset(); }), why);
}

// The gate is closed for one thread only: others go on meanwhile.
TEST_F(Notices, OthersAllocateWhileACallbackRuns) {
  struct waiter final : caller_back {
    using caller_back::caller_back;
    void before_change(const remap_notice&) noexcept override {
      std::thread other([&] {
        const auto at = *managed->allocate(512, stream);
        EXPECT_TRUE(managed->free(at, stream));
      });
      other.join();
    }
  };
  open(moving());
  waiter waits(*managed, a);
  allocate(4096, a);
  free(allocate(8 * MiB, a), a);
  const auto subscription = *managed->remaps().subscribe(waits);
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
  fine(managed->remaps().unsubscribe(subscription));
}

// ---- callbacks of two pools ----

// Frees a block of another pool, once `is_time`.
struct foreign_freer final : vmm::remap_listener {
  void before_change(const remap_notice&) noexcept override {
    if (!block) return;
    while (!is_time()) std::this_thread::yield();
    freed = free(std::exchange(block, {}));
  }
  std::function<vmm::status(address)> free;
  address block{};
  std::function<bool()> is_time = [] { return true; };
  vmm::status freed;
};

struct two_pools {
  explicit two_pools(const vmm::pool_options& options) {
    EXPECT_TRUE(managed.set_up());
    for (std::size_t i = 0; i < 2; ++i) {
      pools[i].emplace(driver, options);
      frees[i].block = pools[i]->allocate(4 * MiB, {}).value();
      EXPECT_TRUE(pools[i]->free(pools[i]->allocate(64 * MiB, {}).value(), {}));
    }
    EXPECT_TRUE(driver.finish_all());
    std::swap(frees[0].block, frees[1].block);
    for (std::size_t i = 0; i < 2; ++i) {
      frees[i].free = [this, i](address at) { return pools[1 - i]->free(at, {}); };
      EXPECT_TRUE(pools[i]->remaps().subscribe(frees[i]));
    }
  }
  vmm::fake_driver driver{vmm::fake::profile::cuda()};
  vmm::manager managed{driver};
  std::array<foreign_freer, 2> frees;
  std::array<std::optional<vmm::stream_pool>, 2> pools;
};

// The other memory is saved, so its lock is held; the suspending thread then waits for the pool
// whose callback runs.
void free_beside_suspension(bool is_managers) {
  vmm::pool_options options;
  options.contents = vmm::contents_rule::zero_on_release;
  two_pools with(options);
  vmm::suspender both;
  if (is_managers) {
    EXPECT_TRUE(with.pools[0]->free(with.frees[1].block, {}));
    with.frees[1].block = with.managed.allocate({.size_bytes = 4 * MiB}).value();
    with.frees[1].free = [&](address at) { return with.managed.free(at); };
    EXPECT_TRUE(both.add(with.managed, {"first"}));
  }
  EXPECT_TRUE(both.add(*with.pools[0], {"0"}));
  EXPECT_TRUE(both.add(*with.pools[1], {"1"}));
  with.frees[0].block = {};
  std::atomic<bool> is_inside = false;
  with.frees[1].is_time = [&] {
    is_inside = true;
    return with.driver.calls(vmm::call::copy) != 0;
  };
  with.driver.reset_calls();
  std::thread trims([&] { (void)with.pools[1]->trim(0); });
  while (!is_inside) std::this_thread::yield();
  const auto done = both.suspend();
  trims.join();
  EXPECT_TRUE(done.has_value()) << (done ? "" : done.error().detail);
  const vmm::status& freed = with.frees[1].freed;
  EXPECT_TRUE(freed || freed.error().code == errc::in_use) << freed.error().detail;
  EXPECT_TRUE(both.resume());
}

TEST(ForeignCallback, FreesBesideASuspensionOfBothPools) { free_beside_suspension(false); }
TEST(ForeignCallback, FreesBesideASuspensionOfAManagerToo) { free_beside_suspension(true); }

TEST(ForeignCallback, FreesWhileTheOtherPoolsCallbackFrees) {
  silent_observer watches;
  for (const bool is_observed : {false, true}) {
    vmm::pool_options options;
    options.contents = vmm::contents_rule::zero_on_release;
    if (is_observed) options.observer = &watches;
    two_pools with(options);
    std::atomic<int> count = 0;
    for (auto& each : with.frees)
      each.is_time = [&, has_come = false]() mutable {
        count += std::exchange(has_come, true) ? 0 : 1;
        return count == 2;
      };
    std::thread trims([&] { (void)with.pools[0]->trim(0); });
    (void)with.pools[1]->trim(0);
    trims.join();
    for (const auto& each : with.frees)
      EXPECT_TRUE(each.freed || each.freed.error().code == errc::in_use);
    EXPECT_TRUE(with.frees[0].freed || with.frees[1].freed) << "neither waits for the other";
    EXPECT_TRUE(is_observed || (with.frees[0].freed && with.frees[1].freed));
  }
}

struct counting_listener final : vmm::remap_listener {
  void before_change(const remap_notice&) noexcept override { count.fetch_add(1); }
  std::atomic<std::uint64_t> count = 0;
  std::uint64_t last_count = 0;  // when the subscription had ended
};

// Every listener is called while it is subscribed only: all are kept, and a late call counts.
TEST_F(Notices, ManyThreadsComeAndGo) {
  constexpr std::size_t listeners_max = 5000;
  open(moving());
  std::atomic<bool> done = false;
  std::atomic<std::uint64_t> heard = 0;
  std::array<std::vector<std::unique_ptr<counting_listener>>, 3> ended;
  std::vector<std::thread> threads;
  for (auto& own : ended) {
    threads.emplace_back([&] {
      while (!done.load()) {
        auto counts = std::make_unique<counting_listener>();
        const auto made = *managed->remaps().subscribe(*counts);
        std::this_thread::yield();
        ASSERT_TRUE(managed->remaps().unsubscribe(made));
        counts->last_count = counts->count.load();
        heard += counts->last_count;
        if (own.size() < listeners_max) own.push_back(std::move(counts));
      }
    });
  }
  for (int i = 0; i < 300 || heard.load() == 0; ++i) {
    free(allocate(8 * MiB, a), a);
    (void)managed->trim(0);
  }
  done = true;
  for (std::thread& each : threads) each.join();
  free(allocate(8 * MiB, a), a);
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
  for (const auto& own : ended)
    for (const auto& each : own) ASSERT_EQ(each->count.load(), each->last_count) << "a late call";
}

}  // namespace
