// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: memory moves between the allocators of several tenants whose peaks do not fit the device
// together, while each requests it from the others, and while tenants and the owner are killed.
// Method: managers and pools over vmm-owner and the host driver, in threads and in processes. Each
// block is filled with a word and read before it is freed.
#include <signal.h>

#include "../process/child.hpp"
#include "../support/silent_observer.hpp"
#include "own_source.hpp"
#include "tenants.hpp"

import vmm.manager;
import vmm.observe;
import vmm.optimizer;
import vmm.share;
import vmm.suspend;

namespace {

using market_test::capacity_bytes, market_test::second_ns;
using market_test::open_host_tenant, market_test::options_of, market_test::source_of;
using vmm::errc;

constexpr vmm::stream_handle stream = vmm::stream_handle::default_stream;

std::span<std::uint64_t> words_at(vmm::address at, std::uint64_t size_bytes) {
  return {at.as<std::uint64_t>(), size_bytes / 8};
}

// The first bytes of each 4 KiB.
void write(vmm::address at, std::uint64_t size_bytes, std::uint64_t word) {
  const auto words = words_at(at, size_bytes);
  for (std::size_t i = 0; i < words.size(); i += 512) words[i] = word + i;
}
bool holds(vmm::address at, std::uint64_t size_bytes, std::uint64_t word) {
  const auto words = words_at(at, size_bytes);
  for (std::size_t i = 0; i < words.size(); i += 512) {
    if (words[i] != word + i) return false;
  }
  return true;
}

// Allocates and frees by turns. Returns what went wrong first.
std::string work(vmm::stream_pool& pool, std::uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t size_bytes = (random() % 24 + 1) * 2 * MiB;
    const auto at = pool.allocate(size_bytes, stream);
    if (!at) return "round " + std::to_string(round) + ": " + vmm::describe(at.error());
    write(*at, size_bytes, seed + static_cast<std::uint64_t>(round));
    if (!holds(*at, size_bytes, seed + static_cast<std::uint64_t>(round))) return "wrong words";
    if (const auto freed = pool.free(*at, stream); !freed) return vmm::describe(freed.error());
  }
  return "";
}

// A process with a pool. Its exit code is 0 if every request was served.
class working_child {
 public:
  working_child(const market_test::owner_process& owner, std::uint64_t seed, int rounds) {
    process_ = ::fork();
    if (process_ != 0) return;
    ::alarm(100);
    auto tenant =
        open_host_tenant(options_of(owner, "child-" + std::to_string(seed)), 30 * second_ns);
    if (!tenant) std::_Exit(2);
    std::string failure;
    {
      vmm::stream_pool pool(**tenant);
      failure = work(pool, seed, rounds);
    }
    if (!failure.empty()) std::fprintf(stderr, "child %d: %s\n", ::getpid(), failure.c_str());
    tenant->reset();
    std::_Exit(failure.empty() ? 0 : 1);
  }
  working_child(const working_child&) = delete;
  working_child& operator=(const working_child&) = delete;
  ~working_child() { kill(); }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
  }
  bool has_ended(int& code) {
    int status = 0;
    if (process_ > 0 && ::waitpid(process_, &status, WNOHANG) != process_) return false;
    if (process_ > 0) code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    process_ = -1;
    code = code_;
    return true;
  }
  int wait() {
    int code = -1;
    while (!has_ended(code)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return code;
  }

 private:
  pid_t process_ = -1;
  int code_ = -1;
};

// All of the device's memory can be had by one tenant, and has no bytes of others.
void expect_whole(const market_test::owner_process& owner) {
  const auto tenant = open_host_tenant(options_of(owner, "last"));
  ASSERT_TRUE(tenant) << vmm::describe(tenant.error());
  vmm::manager blocks(**tenant);
  const auto block = blocks.allocate(capacity_bytes);
  ASSERT_TRUE(block) << vmm::describe(block.error());
  const auto words = words_at(*block, capacity_bytes);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(words, 0u)), words.size());
  EXPECT_TRUE(blocks.free(*block));
}

// ---- threads -------------------------------------------------------------------------

// Each requests what the other has, so each has to give while it waits.
TEST(MarketMoving, TwoManagersTakeTurnsInThreeQuartersOfTheDevice) {
  const market_test::owner_process owner;
  std::array<std::string, 2> failures;
  std::array<std::thread, 2> threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i] = std::thread([&, i] {
      const auto tenant = open_host_tenant(options_of(owner, i == 0 ? "first" : "second"));
      if (!tenant) {
        failures[i] = vmm::describe(tenant.error());
        return;
      }
      vmm::manager blocks(**tenant);
      for (std::uint64_t round = 0; round < 20 && failures[i].empty(); ++round) {
        const auto block = blocks.allocate(48 * MiB);
        if (!block) {
          failures[i] = std::to_string(round) + ": " + vmm::describe(block.error());
          break;
        }
        write(*block, 48 * MiB, round * 100 + i);
        if (!holds(*block, 48 * MiB, round * 100 + i)) failures[i] = "wrong words";
        if (!blocks.free(*block)) failures[i] = "a free failed";
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(failures[0], "");
  EXPECT_EQ(failures[1], "");
}

// Each peak begins when the other has ended. No limit on thrash holds idle memory back: the longest
// is 10 s, and a request waits for 5.
TEST(MarketMoving, TwoManagersTakeStrictTurns) {
  const market_test::owner_process owner;
  const auto first = open_host_tenant(options_of(owner, "first"), 5 * second_ns);
  const auto second = open_host_tenant(options_of(owner, "second"), 5 * second_ns);
  ASSERT_TRUE(first && second);
  vmm::manager one(**first), two(**second);
  for (std::uint64_t turn = 0; turn < 40; ++turn) {
    vmm::manager& blocks = turn % 2 == 0 ? one : two;
    const auto block = blocks.allocate(48 * MiB);
    ASSERT_TRUE(block) << turn << ": " << vmm::describe(block.error());
    write(*block, 48 * MiB, turn);
    EXPECT_TRUE(holds(*block, 48 * MiB, turn));
    EXPECT_TRUE(blocks.free(*block));
  }
}

// The observer's lock is held over the request, which waits for others for a short time only.
TEST(MarketMoving, AnObservedPoolGetsIdleMemoryOfOthers) {
  const market_test::owner_process owner;
  const auto first = open_host_tenant(options_of(owner, "first"));
  const auto second = open_host_tenant(options_of(owner, "second"));
  ASSERT_TRUE(first && second);
  vmm::manager idle(**first);
  ASSERT_TRUE(idle.free(idle.allocate(48 * MiB).value()));
  silent_observer observer;
  vmm::pool_options options;
  options.observer = &observer;
  vmm::stream_pool pool(**second, options);
  const auto at = pool.allocate(40 * MiB, stream);
  ASSERT_TRUE(at) << vmm::describe(at.error());
  EXPECT_TRUE(pool.free(*at, stream));
}

// Neither has a part of what it needs while it waits for the other.
TEST(MarketMoving, TwoTenantsResumeByTurns) {
  const market_test::owner_process owner;
  struct engine {
    std::unique_ptr<vmm::tenant_driver> driver;
    std::optional<vmm::manager> blocks;
    std::vector<vmm::address> all;
    std::string failure;
    vmm::suspender asleep;
  };
  std::array<engine, 2> engines;
  for (engine& each : engines) {
    each.driver =
        open_host_tenant(options_of(owner, &each == engines.data() ? "one" : "two")).value();
    each.blocks.emplace(*each.driver);
    for (int i = 0; i < 3; ++i) each.all.push_back(each.blocks->allocate(16 * MiB).value());
    for (const vmm::address at : each.all) write(at, 16 * MiB, at.value);
    ASSERT_TRUE(each.asleep.add(*each.blocks, {.tag = "all"}));
    ASSERT_TRUE(each.asleep.suspend());
  }
  std::vector<std::thread> threads;
  for (engine& each : engines) {
    threads.emplace_back([&each] {
      for (int turn = 0; turn < 20 && each.failure.empty(); ++turn) {
        if (const vmm::status done = each.asleep.resume(); !done)
          each.failure = std::to_string(turn) + ": " + vmm::describe(done.error());
        else if (!std::ranges::all_of(
                     each.all, [](vmm::address at) { return holds(at, 16 * MiB, at.value); }))
          each.failure = "wrong words";
        else if (!each.asleep.suspend())
          each.failure = "a suspension failed";
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (engine& each : engines) {
    EXPECT_EQ(each.failure, "");
    for (const vmm::address at : each.all) EXPECT_TRUE(each.blocks->free(at));
  }
}

// ---- processes -----------------------------------------------------------------------

TEST(MarketMoving, PoolsOfThreeProcessesShareADevice) {
  VMM_SKIP_UNDER_TSAN();
  const market_test::owner_process owner;
  {
    working_child one(owner, 1, 60);
    working_child two(owner, 2, 60);
    working_child three(owner, 3, 60);
    EXPECT_EQ(one.wait(), 0);
    EXPECT_EQ(two.wait(), 0);
    EXPECT_EQ(three.wait(), 0);
  }
  expect_whole(owner);
}

TEST(MarketMoving, KilledTenantsLoseNothing) {
  VMM_SKIP_UNDER_TSAN();
  const market_test::owner_process owner;
  std::mt19937_64 random(7);
  {
    working_child steady(owner, 1, 150);
    for (std::uint64_t round = 0; round < 10; ++round) {
      working_child gone(owner, 100 + round, 1'000'000);
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + random() % 60));
      gone.kill();
    }
    EXPECT_EQ(steady.wait(), 0);
  }
  expect_whole(owner);
}

TEST(MarketMoving, AKilledOwnerLosesNothing) {
  VMM_SKIP_UNDER_TSAN();
  market_test::owner_process owner;
  std::mt19937_64 random(8);
  {
    working_child one(owner, 1, 100);
    working_child two(owner, 2, 100);
    int code = 0;
    for (int round = 0; round < 6 && !(one.has_ended(code) && two.has_ended(code)); ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 100));
      owner.kill();
      owner.start();
    }
    EXPECT_EQ(one.wait(), 0);
    EXPECT_EQ(two.wait(), 0);
  }
  expect_whole(owner);
}

// ---- lots ----------------------------------------------------------------------------

TEST(MarketMoving, ALotLivesUntilItsLastHandleAndMapping) {
  const auto tenant = market_test::fake_tenant(64 * MiB);
  vmm::tenant_driver& driver = *tenant;
  const auto memory = driver.create({.size_bytes = 6 * MiB, .where = driver.home()});
  const auto range = driver.reserve({6 * MiB, 0, {}});
  ASSERT_TRUE(memory && range);
  ASSERT_TRUE(driver.map({range->base, 6 * MiB, *memory, 0}));
  EXPECT_TRUE(driver.release(*memory));
  EXPECT_EQ(driver.source().totals().charged_bytes, 6 * MiB);
  EXPECT_TRUE(driver.unmap(*range));
  EXPECT_EQ(driver.source().totals().charged_bytes, 0u);
  EXPECT_FALSE(driver.release(*memory));
  EXPECT_TRUE(driver.free_reservation(*range));
}

// The driver refuses to wait for the fill of a lot that has another job's bytes, which is mapped as
// a whole, or in part.
TEST(MarketMoving, MemoryUnderAFillStays) {
  for (const std::uint64_t size_bytes : {4 * MiB, 2 * MiB}) {
    auto plays = vmm::fake::profile::cuda();
    plays.can.offset_map = plays.can.short_map = true;
    const auto tenant = market_test::fake_tenant(64 * MiB, {}, plays);
    vmm::tenant_driver& driver = *tenant;
    auto& fake = *driver.owned()->get_if<vmm::fake_driver>();
    fake.set_manual(true);
    const vmm::access_grant own{driver.home(), vmm::access::read_write};
    const auto range = driver.reserve({size_bytes, 0, {}}).value();
    EXPECT_TRUE(
        driver.release(driver.create({.size_bytes = 4 * MiB, .where = driver.home()}).value()));
    const auto lot = driver.create({.size_bytes = 4 * MiB, .where = driver.home()}).value();
    ASSERT_TRUE(driver.map({range.base, size_bytes, lot, 0}));
    for (const auto wait : {vmm::call::synchronize_stream, vmm::call::synchronize_all})
      fake.fail({wait, 1, true, {vmm::errc::internal, 77, "INJECTED"}});
    EXPECT_FALSE(driver.set_access(range, {&own, 1}));
    EXPECT_FALSE(driver.unmap(range));
    EXPECT_TRUE(driver.release(lot));
    EXPECT_EQ(driver.source().totals().charged_bytes, 4 * MiB);
    EXPECT_EQ(fake.resource_counts().pending_work, 1u);
    fake.clear_faults();
    EXPECT_TRUE(driver.unmap(range));
    EXPECT_TRUE(driver.free_reservation(range));
    EXPECT_EQ(driver.source().totals().charged_bytes, 0u);
    EXPECT_EQ(fake.resource_counts().reservations, 0u);
    EXPECT_EQ(fake.misuse_count(), 0u);
  }
}

// ---- givers --------------------------------------------------------------------------

// What costs less goes first, and what is pinned stays.
TEST(MarketMoving, GivesIdleMemoryThenTailsThenOffers) {
  const auto tenant = market_test::fake_tenant(64 * MiB);
  vmm::tenant_driver& driver = *tenant;
  const auto& calls = source_of(driver).calls;
  const auto ask = [&](bool only_idle = false) {
    const std::uint64_t before = driver.source().totals().charged_bytes;
    const std::uint64_t given = calls.ask(calls.of, {8 * MiB, 100 * second_ns, only_idle});
    EXPECT_EQ(before - driver.source().totals().charged_bytes, given);
    return given / MiB;
  };
  vmm::manager kept(driver), dropped(driver), blocks(driver);
  const auto block = kept.allocate(8 * MiB).value();
  ASSERT_TRUE(dropped.allocate(8 * MiB));
  std::vector<std::byte> words(8 * MiB, std::byte{7}), back(8 * MiB);
  ASSERT_TRUE(driver.write(block, words));
  vmm::suspender regions;
  ASSERT_TRUE(regions.add(kept, {.tag = "kept"}));
  ASSERT_TRUE(regions.add(dropped, {.tag = "dropped", .contents = vmm::suspend_contents::discard}));
  const auto is_asleep = [&](const char* tag) { return regions.is_suspended(tag).value(); };
  vmm::growable_range cache(blocks, {.segment_bytes_max = 32 * MiB, .gives_tail = true});
  ASSERT_TRUE(cache.grow(16 * MiB));
  ASSERT_TRUE(blocks.free(blocks.allocate(8 * MiB).value()));
  EXPECT_EQ(ask(), 8u) << "idle";
  EXPECT_EQ(ask(), 0u) << "the growth is not pinned yet, and no region is offered";
  {
    const auto pin = cache.pin({.size_bytes = 8 * MiB}).value();
    ASSERT_TRUE(regions.offer());
    EXPECT_EQ(ask(true), 0u) << "nothing is idle";
    EXPECT_EQ(ask(), 8u);
    EXPECT_EQ(cache.size_bytes().value(), 8 * MiB) << "the tail";
    EXPECT_FALSE(is_asleep("dropped"));
    EXPECT_EQ(ask(), 8u);
    EXPECT_TRUE(is_asleep("dropped") && !is_asleep("kept"));
    EXPECT_EQ(ask(), 8u);
    EXPECT_TRUE(is_asleep("kept"));
    EXPECT_EQ(ask(), 0u) << "the rest is pinned";
    EXPECT_EQ(cache.size_bytes().value(), 8 * MiB);
  }
  EXPECT_EQ(ask(), 8u) << "the pin has ended";
  EXPECT_EQ(cache.size_bytes().value(), 0u);
  const std::array<std::string_view, 1> tags{"kept"};
  ASSERT_TRUE(regions.resume(tags));
  ASSERT_TRUE(driver.read(back, block));
  EXPECT_EQ(words, back);
  EXPECT_EQ(ask(), 0u) << "the offer has ended";
  EXPECT_EQ(regions.resume(tags).error().code, errc::invalid_argument);
  ASSERT_TRUE(regions.offer(tags));
  ASSERT_TRUE(regions.resume(tags)) << "an offer that was not taken";
  EXPECT_EQ(regions.offer(std::array<std::string_view, 1>{"none"}).error().code,
            errc::invalid_argument);
  ASSERT_TRUE(regions.resume());
}

// A source's thread may call while its driver joins, and until the source has ended.
TEST(MarketMoving, ARecallBesideTheBeginningOrTheEndOfADriverGivesNothing) {
  for (const bool is_end : {false, true}) {
    int recall_count = 0;
    const auto recall = [&](const vmm::source_callbacks& calls) {
      ++recall_count;
      EXPECT_EQ(calls.ask(calls.of, {2 * MiB, second_ns, false}), 0u);
      calls.drop(calls.of, 1);
    };
    auto tenant = market_test::fake_tenant(16 * MiB, [&](market_test::own_source& source) {
      if (is_end) source.while_ending = [&recall, calls = source.calls] { recall(calls); };
      if (!is_end) recall(source.calls);
    });
    tenant.reset();
    EXPECT_EQ(recall_count, 1);
  }
}

// As many bytes as are wanted, of the last segment first, in whole handles.
TEST(MarketMoving, TailsGoInWholeHandles) {
  const auto tenant = market_test::fake_tenant(64 * MiB);
  const auto& calls = source_of(*tenant).calls;
  vmm::manager blocks(*tenant);
  vmm::growable_range cache(blocks, {.segment_bytes_max = 16 * MiB,
                                     .segment_count = 3,
                                     .handle_bytes = 4 * MiB,
                                     .gives_tail = true});
  ASSERT_TRUE(cache.grow(11 * MiB));
  const auto first = cache.pin({.size_bytes = 5 * MiB, .segment_count = 2}).value();
  const auto sizes = [&] {
    std::vector<std::uint64_t> all;
    for (std::uint64_t i = 0; i < 3; ++i) all.push_back(cache.size_bytes(i).value() / MiB);
    return all;
  };
  EXPECT_EQ(calls.ask(calls.of, {2 * MiB, second_ns, false}), 4 * MiB);
  EXPECT_EQ(sizes(), (std::vector<std::uint64_t>{11, 11, 7}));
  EXPECT_EQ(calls.ask(calls.of, {12 * MiB, second_ns, false}), 12 * MiB);
  EXPECT_EQ(sizes(), (std::vector<std::uint64_t>{11, 7, 0}));
  EXPECT_EQ(calls.ask(calls.of, {64 * MiB, second_ns, false}), 4 * MiB);
  EXPECT_EQ(sizes(), (std::vector<std::uint64_t>{5, 7, 0}));
  EXPECT_TRUE(cache.validate());
}

// A range that waits for memory of other tenants can be used meanwhile, and gives its tail.
TEST(MarketMoving, AGrowthHoldsNoLockWhileItWaits) {
  const auto tenant = market_test::fake_tenant(16 * MiB);
  auto& source = source_of(*tenant);
  vmm::manager blocks(*tenant);
  vmm::growable_range cache(blocks, {.segment_bytes_max = 32 * MiB});
  ASSERT_TRUE(cache.grow(8 * MiB));
  int waits = 0;
  source.while_waiting = [&] {
    ++waits;
    std::thread([&] { EXPECT_EQ(cache.size_bytes().value(), 8 * MiB); }).join();
  };
  EXPECT_EQ(cache.grow(32 * MiB).error().code, errc::out_of_memory);
  EXPECT_GT(waits, 0);
  source.while_waiting = {};
}

// One line each makes them givers. What is pinned stays, and the rest comes back.
TEST(MarketMoving, ATailAndAnOfferServeAnotherTenant) {
  const market_test::owner_process owner;
  const auto one = open_host_tenant(options_of(owner, "one"), 30 * second_ns).value();
  const auto two = open_host_tenant(options_of(owner, "two"), 30 * second_ns).value();
  vmm::manager cache_blocks(*one), region(*one), blocks(*two);
  vmm::growable_range cache(cache_blocks, {.segment_bytes_max = 32 * MiB, .gives_tail = true});
  ASSERT_TRUE(cache.grow(32 * MiB));
  const vmm::address base = cache.segment(0).value();
  write(base, 32 * MiB, 3);
  const auto pin = cache.pin({.size_bytes = 8 * MiB}).value();
  const vmm::address kept = region.allocate(16 * MiB).value();
  write(kept, 16 * MiB, 5);
  vmm::suspender regions;
  ASSERT_TRUE(regions.add(region, {.tag = "kept"}));
  ASSERT_TRUE(regions.offer());
  const auto block = blocks.allocate(56 * MiB);
  ASSERT_TRUE(block) << vmm::describe(block.error());
  EXPECT_TRUE(holds(base, 8 * MiB, 3));
  EXPECT_EQ(cache.size_bytes().value(), 8 * MiB);
  EXPECT_TRUE(regions.is_suspended("kept").value());
  const auto words = words_at(*block, 56 * MiB);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(words, 0u)), words.size());
  write(*block, 56 * MiB, 9);
  EXPECT_TRUE(blocks.free(*block));
  const vmm::status resumed = regions.resume();
  ASSERT_TRUE(resumed) << vmm::describe(resumed.error());
  EXPECT_TRUE(holds(kept, 16 * MiB, 5));
  ASSERT_TRUE(cache.grow(32 * MiB));
  EXPECT_TRUE(holds(base, 8 * MiB, 3));
  EXPECT_TRUE(region.free(kept));
}

// ---- loans ---------------------------------------------------------------------------

// What a loan has for a request serves it also in other sizes; the rest goes back.
TEST(MarketMoving, ALoanServesTheThreadsNextCreates) {
  const auto tenant = market_test::fake_tenant(64 * MiB);
  vmm::tenant_driver& driver = *tenant;
  const auto charged = [&] { return driver.source().totals().charged_bytes; };
  EXPECT_EQ(driver.borrow({56 * MiB, 0}), 56 * MiB);  // 32, 16 and 8 MiB
  EXPECT_EQ(charged(), 56 * MiB);
  const auto whole =
      driver.create({.size_bytes = 26 * MiB, .where = driver.home()});  // 16, 8 and a new one
  ASSERT_TRUE(whole) << vmm::describe(whole.error());
  EXPECT_EQ(charged(), 26 * MiB) << "the handle that does not fit goes back";
  EXPECT_EQ(driver.borrow({}), 0u);
  vmm::result<vmm::physical_handle> small = vmm::physical_handle::none;
  std::thread([&] {
    EXPECT_EQ(driver.borrow({32 * MiB, 0}), 32 * MiB);
    std::thread([&] {
      small = driver.create({.size_bytes = 4 * MiB, .where = driver.home()});
    }).join();
    EXPECT_EQ(charged(), 62 * MiB) << "another thread's loan is its own";
    EXPECT_EQ(driver.borrow({}), 0u);
  }).join();
  ASSERT_TRUE(small) << vmm::describe(small.error());
  EXPECT_EQ(charged(), 30 * MiB);
  {
    const vmm::relief_pause pause;
    EXPECT_FALSE(driver.create({.size_bytes = 40 * MiB, .where = driver.home()}));
  }
  EXPECT_EQ(driver.borrow({2 * MiB, 0}), 0u) << "less than what was refused cannot serve";
  EXPECT_EQ(driver.borrow({2 * MiB, 0}), 0u) << "nor can a loan that waits, which follows";
  EXPECT_EQ(driver.borrow({}), 0u);
  EXPECT_EQ(driver.borrow({2 * MiB, 0}), 2 * MiB);
  EXPECT_EQ(driver.borrow({}), 0u);
  EXPECT_TRUE(driver.release(*small));
  EXPECT_TRUE(driver.release(*whole));
}

TEST(MarketMoving, ARequestThatCanNeverBeServedBorrowsNothing) {
  const auto tenant = market_test::fake_tenant(capacity_bytes);
  const auto& source = source_of(*tenant);
  vmm::manager blocks(*tenant);
  vmm::stream_pool pool(*tenant);
  const auto beyond = [](const auto& made) {
    EXPECT_FALSE(made);
    return made ? std::string() : vmm::describe(made.error());
  };
  constexpr std::uint64_t beyond_bytes = capacity_bytes + 2 * MiB;
  EXPECT_TRUE(contains(beyond(blocks.allocate(beyond_bytes)), "beyond the source"));
  EXPECT_TRUE(contains(beyond(pool.allocate(beyond_bytes, stream)), "beyond the source"));
  EXPECT_EQ(source.handle_count(), 0u) << "memory was borrowed for them";
  const auto block = blocks.allocate(capacity_bytes);
  ASSERT_TRUE(block) << vmm::describe(block.error());
  EXPECT_TRUE(blocks.free(*block));
}

// Handles of another policy serve: the owner releases and creates none.
TEST(MarketMoving, PoolsOfTwoPoliciesUseHandlesOfOneSize) {
  const auto tenant = market_test::fake_tenant(2048 * MiB);
  const auto& source = source_of(*tenant);
  for (const std::uint64_t handle_bytes : {40 * MiB, 128 * MiB, 24 * MiB}) {
    vmm::pool_options options;
    options.policy.handle_bytes_max = handle_bytes;
    vmm::stream_pool pool(*tenant, options);
    const auto at = pool.allocate(1024 * MiB, stream);
    ASSERT_TRUE(at) << vmm::describe(at.error());
    EXPECT_EQ(source.handle_count(), 16u) << handle_bytes;
    EXPECT_TRUE(pool.free(*at, stream));
  }
}

// Handles of 8 MiB and less: no request waits longer than that of the loan, also where a multiple
// of 8 is more than the tenant can have.
TEST(MarketMoving, ALoanServesTheSmallerEndOfAGrowth) {
  for (const std::uint64_t size_bytes : {38 * MiB, 62 * MiB}) {
    const auto tenant = market_test::fake_tenant(64 * MiB);
    vmm::tenant_driver& driver = *tenant;
    source_of(driver).others_wait = true;
    vmm::pool_options options;
    options.policy.handle_bytes_max = 12 * MiB;
    options.policy.tuning.growth_share = 0;
    vmm::stream_pool pool(driver, options);
    const auto at = pool.allocate(size_bytes, stream);
    ASSERT_TRUE(at) << vmm::describe(at.error());
    EXPECT_EQ(driver.source().totals().charged_bytes, size_bytes);
    EXPECT_TRUE(pool.free(*at, stream));
  }
}

// A growth first requests more than it needs: that refusal leaves the loan as it is.
TEST(MarketMoving, ALoanStaysForASmallerCreate) {
  const auto tenant = market_test::fake_tenant(64 * MiB);
  vmm::tenant_driver& driver = *tenant;
  source_of(driver).others_wait = true;
  const auto create = [&](std::uint64_t size_bytes) {
    const vmm::relief_pause locked;
    const auto made = driver.create({.size_bytes = size_bytes, .where = driver.home()});
    return made && driver.release(*made).has_value();
  };
  EXPECT_FALSE(create(40 * MiB));
  EXPECT_FALSE(create(4 * MiB));
  EXPECT_EQ(driver.borrow({8 * MiB, second_ns}), 8 * MiB);
  EXPECT_FALSE(create(40 * MiB));
  EXPECT_FALSE(create(16 * MiB));
  EXPECT_TRUE(create(4 * MiB));
  EXPECT_TRUE(create(4 * MiB));
  EXPECT_FALSE(create(4 * MiB)) << "the loan is used";
  EXPECT_EQ(driver.borrow({}), 0u);
  EXPECT_EQ(driver.source().totals().charged_bytes, 0u);
}

// Each peak is more than half of the device, and the last piece of a growth is small.
TEST(MarketMoving, ThreePeaksOfMoreThanTheDeviceEndOneByOne) {
  const market_test::owner_process owner;
  std::array<std::string, 3> failures;
  std::array<std::thread, 3> programs;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    programs[i] = std::thread([&, i] {
      const auto tenant =
          open_host_tenant(options_of(owner, "peak-" + std::to_string(i)), 60 * second_ns);
      if (!tenant) {
        failures[i] = vmm::describe(tenant.error());
        return;
      }
      vmm::pool_options options;
      options.policy.handle_bytes_max = 10 * MiB;
      options.policy.tuning.growth_share = 0;
      vmm::stream_pool pool(**tenant, options);
      const auto small = pool.allocate(2 * MiB, stream);
      const auto peak = pool.allocate(34 * MiB, stream);
      const auto last = pool.allocate(4 * MiB, stream);
      for (const auto* each : {&small, &peak, &last}) {
        if (!*each) failures[i] += vmm::describe(each->error());
      }
      if (!failures[i].empty()) return;
      write(*peak, 34 * MiB, i);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (!holds(*peak, 34 * MiB, i)) failures[i] = "wrong words";
      for (const auto* each : {&last, &peak, &small}) {
        if (!pool.free(**each, stream)) failures[i] += "a free failed";
      }
    });
  }
  for (std::thread& each : programs) each.join();
  EXPECT_EQ(failures, (std::array<std::string, 3>{}));
}

// Also where its attempts are several, or a loan does not serve it.
TEST(MarketMoving, ARequestHasOneWaitForOtherTenants) {
  const auto tenant = market_test::fake_tenant(64 * MiB);
  vmm::tenant_driver& driver = *tenant;
  auto& waits_ns = source_of(driver).waits_ns;
  vmm::manager blocks(driver);
  vmm::stream_pool pool(driver);
  const auto block = blocks.allocate(16 * MiB);
  ASSERT_TRUE(block) << vmm::describe(block.error());
  vmm::growable_range range(blocks, {.segment_bytes_max = 64 * MiB});
  const auto others = driver.create({.size_bytes = 32 * MiB, .where = driver.home()});
  ASSERT_TRUE(others) << vmm::describe(others.error());
  const auto request = [&](std::size_t which) -> errc {
    const auto code_of = [](const auto& made) { return made ? errc::none : made.error().code; };
    switch (which) {
      case 0: return code_of(blocks.allocate(24 * MiB));
      case 1: return code_of(blocks.resize({.at = *block, .size_bytes = 40 * MiB}));
      case 2: return code_of(range.resize({.size_bytes = 24 * MiB}));
      case 3: return code_of(pool.allocate(24 * MiB, stream));
      default: return code_of(pool.allocate_dedicated(24 * MiB, stream));
    }
  };
  for (std::size_t which = 0; which < 5; ++which) {
    waits_ns.clear();
    EXPECT_EQ(request(which), errc::out_of_memory) << which;
    EXPECT_EQ(waits_ns, std::vector<std::uint64_t>{10 * second_ns}) << which;
  }
  EXPECT_TRUE(driver.release(*others));  // 32 MiB are imported, and 24 are other memory
  auto& fake = *driver.owned()->get_if<vmm::fake_driver>();
  const auto failures = fake.possible_errors(vmm::call::import_handle);
  const auto full =
      std::ranges::find(failures, errc::out_of_memory, &vmm::fake::native_error::code);
  ASSERT_NE(full, failures.end());
  fake.fail({vmm::call::import_handle, 1, true, *full});
  for (std::size_t which = 0; which < 5; ++which) {
    waits_ns.clear();
    EXPECT_EQ(request(which), errc::out_of_memory) << which;
    EXPECT_GT(waits_ns.size(), 1u) << which;
    EXPECT_EQ(std::ranges::adjacent_find(waits_ns, std::less_equal{}), waits_ns.end()) << which;
  }
}

TEST(MarketMoving, AJoinThatWaitsDelaysNoOther) {
  const market_test::owner_process owner;
  vmm::tenant_options guaranteed = options_of(owner, "first");
  guaranteed.share.guarantee_bytes = 40 * MiB;
  auto first = vmm::join_market(guaranteed, {});
  ASSERT_TRUE(first);
  guaranteed.name = vmm::make_market_name("second");
  guaranteed.wait_ms = 60'000;
  std::atomic<int> waits = 0;
  const auto note = [](void* of) {
    ++*static_cast<std::atomic<int>*>(of);
    return false;
  };
  std::array<int, 3> places{};  // of the members
  std::vector<std::thread> late;
  for (std::size_t each = 0; each < 2; ++each) {  // one waits for the other, and is one with it
    late.emplace_back([&, each] {
      const vmm::share_interruption interruption(note, &waits);
      EXPECT_TRUE(vmm::join_market_once(guaranteed, {.of = &places[each]}));
    });
  }
  while (waits < 4) std::this_thread::yield();
  EXPECT_EQ(vmm::market_charged_bytes(guaranteed.device), 0u);
  for (int turn = 0; turn < 2; ++turn)
    EXPECT_TRUE(vmm::join_market_once(options_of(owner, "other"), {.of = &places[2]}));
  first->reset();
  for (std::thread& each : late) each.join();
}

}  // namespace
