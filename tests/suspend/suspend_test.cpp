// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: suspended memory is the driver's, its addresses stay, and what comes back is what the
// policy promises, behind the work that used it, with the rights of all; nothing piles up.
// Method: a pool and a manager on the fake driver, which counts live objects, records contents, and
// reports access to unmapped memory.
#include "regions.hpp"

import vmm.observe;

namespace {

using vmm::address, vmm::errc, vmm::history_kind, vmm::remap_kind;

using Suspend = Regions;

constexpr std::string_view kv[] = {"kv"};
constexpr std::string_view weights[] = {"weights"};

TEST_F(Suspend, MemoryGoesToTheDriverAndKeptContentsComeBack) {
  const address in_kv = in_pool(20 * MiB);
  const address weight = in_blocks(12 * MiB);
  const address free_again = in_pool(64 * MiB);
  fine(pool->free(free_again, a));
  write(in_kv, 20 * MiB, 7);
  write(weight, 12 * MiB, 9);
  const std::uint64_t device_bytes = driver.query_memory(driver.home())->free_bytes;
  const vmm::suspend_report report = suspend();
  EXPECT_EQ(report.region_count, 2u);
  EXPECT_GE(report.suspended_bytes, 32 * MiB);
  EXPECT_EQ(report.backup_bytes, report.suspended_bytes);
  EXPECT_TRUE(report.retained.empty());
  EXPECT_EQ(pool->statistics().suspended_bytes + blocks->statistics().suspended_bytes,
            report.suspended_bytes);
  EXPECT_EQ(blocks->statistics().held_bytes, 0u);
  EXPECT_GE(driver.query_memory(driver.home())->free_bytes, device_bytes + 32 * MiB);
  EXPECT_TRUE(*sleeper->is_suspended("kv"));
  validate();
  resume();
  EXPECT_FALSE(*sleeper->is_suspended("kv"));
  EXPECT_EQ(pool->statistics().suspended_bytes, 0u);
  for (std::uint64_t at = 0; at < 20 * MiB; at += MiB) expect_tag(in_kv + at, 7);
  for (std::uint64_t at = 0; at < 12 * MiB; at += MiB) expect_tag(weight + at, 9);
  run(b, {in_kv, 20 * MiB});
  EXPECT_NE(in_pool(8 * MiB), address{});
}

TEST_F(Suspend, EachPolicyKeepsItsPromise) {
  open(vmm::suspend_contents::zero, vmm::suspend_contents::discard, {.verify = true});
  const address zero = in_pool(8 * MiB);
  const address gone = in_blocks(8 * MiB);
  write(zero, 8 * MiB, 3);
  write(gone, 8 * MiB, 4);
  EXPECT_EQ(suspend().backup_bytes, 0u);
  resume();
  expect_tag(zero + 4 * MiB, 0);
  std::byte seen[8] = {};
  fine(driver.read(seen, gone));
  EXPECT_EQ(static_cast<std::uint8_t>(seen[0]), vmm::poison_byte)
      << "verify exposes code that relies on it";
  EXPECT_EQ(sleeper->backup_bytes(), 0u);
}

TEST_F(Suspend, EveryTierKeepsContents) {
  for (const vmm::backup_tier tier : {vmm::backup_tier::best, vmm::backup_tier::pinned,
                                      vmm::backup_tier::pageable, vmm::backup_tier::file}) {
    open(contents::keep, contents::keep,
         {.tier = tier, .directory = testing::TempDir(), .verify = true});
    const address first = in_pool(6 * MiB);
    const address weight = in_blocks(10 * MiB);
    write(first, 6 * MiB, 21);
    write(weight, 10 * MiB, 22);
    suspend();
    EXPECT_GE(sleeper->backup_bytes(), 16 * MiB);
    std::byte seen[8] = {};
    fine(sleeper->read_backup(seen, weight + 8 * MiB));
    EXPECT_EQ(static_cast<std::uint8_t>(seen[0]), 22);
    fine(sleeper->read_backup(seen, first + (6 * MiB - sizeof(seen))));
    EXPECT_EQ(static_cast<std::uint8_t>(seen[0]), 21);
    resume();
    EXPECT_EQ(sleeper->read_backup(seen, first).error().code, errc::unknown_address);
    expect_tag(first, 21);
    expect_tag(weight + 8 * MiB, 22);
    fine(sleeper->return_backups());
    EXPECT_EQ(sleeper->backup_bytes(), 0u);
  }
}

TEST_F(Suspend, WhatIsNotKeptCannotBeRead) {
  open(contents::keep, contents::discard);
  const address kept = in_pool(6 * MiB);
  const address gone = in_blocks(6 * MiB);
  suspend();
  std::vector<std::byte> seen(7 * MiB);
  const std::span<std::byte> all(seen);
  EXPECT_EQ(sleeper->read_backup(all.first(8), gone).error().code, errc::unknown_address);
  EXPECT_EQ(sleeper->read_backup(all.first(8), address{8}).error().code, errc::unknown_address);
  EXPECT_EQ(sleeper->read_backup(all, kept).error().code, errc::unknown_address)
      << "more than there was";
  fine(sleeper->read_backup(all.first(6 * MiB), kept));
  fine(sleeper->read_backup({}, address{8}));
  resume();
}

TEST_F(Suspend, OneArenaIsUsedAgain) {
  (void)in_blocks(32 * MiB);
  suspend();
  resume();
  const std::uint64_t backup_bytes = sleeper->backup_bytes();
  const std::uint64_t created = driver.calls(vmm::call::create);
  suspend();
  EXPECT_EQ(driver.calls(vmm::call::create), created) << "no second backup is made";
  EXPECT_EQ(sleeper->backup_bytes(), backup_bytes);
  resume();
}

// The fake reports unmapping under work, and work that finds its memory gone.
TEST_F(Suspend, WorkOfTheMemorysStreamsIsWaitedForAndNoOther) {
  pool_options.streams_forgotten = manager_options.streams_forgotten = true;
  open();
  const address in_kv = in_pool(4 * MiB);
  const address weight = in_blocks(4 * MiB);
  const auto other = *driver.create_stream();
  run(a, {in_kv, 4 * MiB}, 5000);
  run(b, {weight, 4 * MiB}, 7000);
  ASSERT_TRUE(driver.launch(other, {.name = "side", .duration_us = 1e6}));
  const double before_us = driver.now_us();
  const vmm::stream_handle streams[] = {b};
  suspend({.streams = streams});
  EXPECT_GE(driver.now_us() - before_us, 7000.0);
  EXPECT_LT(driver.now_us() - before_us, 900'000.0) << "the side kernel was waited for";
  resume();
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(driver.destroy_stream(other));
}

// What is queued when the call is made is in the contents that come back.
TEST_F(Suspend, QueuedWorkIsFinishedBeforeContentsAreCopied) {
  const address in_kv = in_pool(4 * MiB);
  const address weight = in_blocks(4 * MiB);
  for (const auto& [at, tag] : {std::pair{in_kv, kv}, {weight, weights}}) {
    const vmm::address_range what{at, 4 * MiB};
    ASSERT_TRUE(driver.launch(a, {.duration_us = 9000, .writes = {&what, 1}, .tag = 55}));
    suspend({.tags = {tag, 1}});
    resume();
    expect_tag(at, 55);
  }
}

TEST_F(Suspend, BlocksAreFreedWhileTheyAreSuspended) {
  pool_options.policy.handle_bytes_max = 2 * MiB;
  open();
  const address stays = in_pool(2 * MiB);
  const address goes = in_pool(2 * MiB);
  const address weight = in_blocks(4 * MiB);
  const address lost = in_blocks(4 * MiB);
  write(stays, 2 * MiB, 1);
  write(weight, 4 * MiB, 2);
  suspend();
  fine(pool->free(goes, a));
  fine(blocks->free(lost));
  refused(pool->free(goes, a), errc::not_allocated);
  refused(blocks->free(lost), errc::not_allocated);
  const std::uint64_t handles = driver.resource_counts().handles;
  resume();
  EXPECT_EQ(driver.resource_counts().handles - handles, 2u) << "what was freed gets no memory";
  expect_tag(stays, 1);
  expect_tag(weight, 2);
}

TEST_F(Suspend, EmptyRegionsAreSuspendedToo) {
  EXPECT_EQ(suspend().suspended_bytes, 0u);
  refused(pool->allocate(MiB, a), errc::in_use);
  refused(blocks->allocate(MiB), errc::in_use);
  resume();
  EXPECT_NE(in_pool(MiB), address{});
}

TEST_F(Suspend, TwoHundredCyclesLeakNothing) {
  open(contents::keep, contents::zero);
  const address in_kv = in_pool(9 * MiB);
  const address weight = in_blocks(6 * MiB);
  write(in_kv, 9 * MiB, 77);
  suspend();
  resume();
  const vmm::fake::resource_counts first = driver.resource_counts();
  const std::uint64_t backup_bytes = sleeper->backup_bytes();
  for (int cycle = 0; cycle < 200; ++cycle) {
    suspend();
    resume();
  }
  const vmm::fake::resource_counts last = driver.resource_counts();
  EXPECT_EQ(last.handles, first.handles);
  EXPECT_EQ(last.memory_bytes, first.memory_bytes);
  EXPECT_EQ(last.mappings, first.mappings);
  EXPECT_EQ(last.events, first.events);
  EXPECT_EQ(last.streams, first.streams);
  EXPECT_EQ(last.reserved_bytes, first.reserved_bytes);
  EXPECT_EQ(sleeper->backup_bytes(), backup_bytes);
  expect_tag(in_kv, 77);
  expect_tag(weight, 0);
}

struct hearer final : vmm::remap_listener {
  std::uint64_t released_bytes = 0;
  std::uint64_t mapped_bytes = 0;
  void before_change(const vmm::remap_notice& notice) noexcept override {
    if (notice.kind == remap_kind::released) released_bytes += notice.range.size_bytes;
  }
  void after_change(const vmm::remap_notice& notice) noexcept override {
    if (notice.kind == remap_kind::mapped) mapped_bytes += notice.range.size_bytes;
  }
};

// A listener that dropped its registrations enters them again.
TEST_F(Suspend, ListenersHearThatASuspensionFailed) {
  hearer card;
  open();
  (void)in_pool(4 * MiB);
  const auto subscription = *pool->remaps().subscribe(card);
  fail(vmm::call::unmap);
  EXPECT_FALSE(sleeper->suspend());
  driver.clear_faults();
  EXPECT_NE(card.released_bytes, 0u);
  EXPECT_EQ(card.mapped_bytes, card.released_bytes);
  fine(pool->remaps().unsubscribe(subscription));
}

TEST_F(Suspend, HistoryAndListenersHearOfIt) {
  hearer card;
  open();
  fine(pool->history().start({}));
  fine(blocks->history().start({}));
  (void)in_pool(4 * MiB);
  (void)in_blocks(4 * MiB);
  const auto subscription = *pool->remaps().subscribe(card);
  const std::uint64_t suspended_bytes = suspend({.tags = kv}).suspended_bytes;
  EXPECT_EQ(card.released_bytes, suspended_bytes);
  suspend();
  resume();
  EXPECT_EQ(card.mapped_bytes, suspended_bytes);
  fine(pool->remaps().unsubscribe(subscription));
  const auto count = [](const vmm::history& of, history_kind kind) {
    std::uint64_t bytes = 0;
    for (const auto& each : of.events) bytes += each.kind == kind ? each.size_bytes : 0;
    return bytes;
  };
  for (const auto& taken : {pool->history().stop(), blocks->history().stop()}) {
    ASSERT_TRUE(taken);
    EXPECT_EQ(count(*taken, history_kind::suspended), 4 * MiB);
    EXPECT_EQ(count(*taken, history_kind::resumed), 4 * MiB);
  }
}

// Of threads that allocate and free meanwhile, each call is done or refused, and none gets memory
// that is away.
TEST_F(Suspend, OtherThreadsAllocateAndFreeMeanwhile) {
  const address kept = in_pool(2 * MiB);
  write(kept, 2 * MiB, 31);
  std::atomic<bool> ends = false;
  std::atomic<std::uint64_t> served = 0;
  const auto use = [&](vmm::stream_handle stream) {
    while (!ends) {
      const auto one = pool->allocate(MiB, stream);
      const auto two = blocks->allocate({.size_bytes = 2 * MiB, .stream = stream});
      for (const auto* each : {&one, &two})
        if (!*each) EXPECT_EQ(each->error().code, errc::in_use) << vmm::describe(each->error());
      if (one) fine(pool->free(*one, stream));
      vmm::status freed;
      while (two && !(freed = blocks->free(*two)))
        ASSERT_EQ(freed.error().code, errc::in_use) << vmm::describe(freed.error());
      served += one && two ? 1 : 0;
    }
  };
  std::thread first(use, a);
  std::thread second(use, b);
  for (int cycle = 0; cycle < 100; ++cycle) {
    vmm::status done;
    do {  // a block that is just being freed is in use
      const auto report = sleeper->suspend();
      done = report ? vmm::status{} : vmm::status{report.error()};
      if (!done) ASSERT_EQ(done.error().code, errc::in_use) << vmm::describe(done.error());
    } while (!done);
    do {
      done = sleeper->resume();
      if (!done) ASSERT_EQ(done.error().code, errc::in_use) << vmm::describe(done.error());
    } while (!done);
    const std::uint64_t before = served;
    while (served == before && !HasFailure()) std::this_thread::yield();
  }
  ends = true;
  first.join();
  second.join();
  expect_tag(kept, 31);
}

// Handles of memory that leaves are written by the thread that suspends: they are read only while
// the memory is in use, and none is found that the driver has got back.
TEST_F(Suspend, OtherThreadsLookMeanwhile) {
  const address in_kv = in_pool(4 * MiB);
  const address weight = in_blocks(4 * MiB);
  const std::size_t count = blocks->find(weight)->handles.size();
  std::atomic<bool> ends = false;
  std::atomic<std::uint64_t> look_count = 0;
  std::thread looks([&] {
    while (!ends) {
      const auto block = blocks->find(weight + MiB);
      ASSERT_TRUE(block) << vmm::describe(block.error());
      EXPECT_EQ(block->sizes.user_bytes, 4 * MiB);
      EXPECT_EQ(block->handles.size(), count);
      const auto listed = pool->segments({in_kv, 4 * MiB});
      if (!listed) EXPECT_EQ(listed.error().code, errc::in_use);
      for (std::size_t i = 0; listed && i < listed->size(); ++i)
        EXPECT_NE((*listed)[i].handle, vmm::physical_handle::none);
      ++look_count;
    }
  });
  for (int cycle = 0; cycle < 100 && !HasFailure(); ++cycle) {
    const std::uint64_t before = look_count;
    suspend();
    resume();
    while (look_count == before && !HasFailure()) std::this_thread::yield();
  }
  ends = true;
  looks.join();
}

TEST_F(Suspend, BlocksThatAreSuspendedHaveTheirSizesAndNoHandles) {
  const address weight = in_blocks(4 * MiB);
  const vmm::range_info before = *blocks->find(weight);
  fail(vmm::call::release, 1, true);
  EXPECT_FALSE(suspend({.tags = weights}).retained.empty()) << "the driver refuses to take it";
  driver.clear_faults();
  const vmm::range_info away = *blocks->find(weight);
  EXPECT_EQ(away.base, before.base);
  EXPECT_EQ(away.sizes.user_bytes, before.sizes.user_bytes);
  EXPECT_EQ(away.sizes.mapped_bytes, before.sizes.mapped_bytes);
  EXPECT_EQ(away.handles, std::vector(before.handles.size(), vmm::physical_handle::none));
  resume();
  EXPECT_EQ(blocks->find(weight)->handles, before.handles) << "it was never given back";
}

struct SuspendRights : Regions {
  SuspendRights() : Regions(with_devices(3)) {}
};

TEST_F(SuspendRights, AllThatWereGrantedComeBack) {
  const vmm::access_grant one{vmm::device(1), vmm::access::read_write};
  const vmm::access_grant two{vmm::device(2), vmm::access::read};
  fine(pool->set_peers({&one, 1}));
  const address in_kv = in_pool(4 * MiB);
  const address weight = in_blocks(4 * MiB);
  fine(blocks->set_access(weight, {&two, 1}));
  suspend();
  fine(pool->set_peers({&two, 1}));
  fine(blocks->set_peers({&one, 1}));
  resume();
  for (const address at : {in_kv, weight}) {
    EXPECT_EQ(*driver.get_access(at, vmm::device(0)), vmm::access::read_write);
    EXPECT_EQ(*driver.get_access(at, vmm::device(1)), vmm::access::read_write);
    EXPECT_EQ(*driver.get_access(at, vmm::device(2)), vmm::access::read);
  }
}

TEST_F(SuspendRights, OfAPartComeBack) {
  const address weight = in_blocks(4 * MiB);
  const auto grown = *blocks->resize({weight, 8 * MiB});
  const vmm::access_grant two{vmm::device(2), vmm::access::read};
  fine(blocks->set_access(vmm::address_range{grown + 4 * MiB, 4 * MiB}, {&two, 1}));
  suspend();
  refused(blocks->set_access(vmm::address_range{grown, 4 * MiB}, {&two, 1}), errc::in_use);
  resume();
  EXPECT_EQ(*driver.get_access(grown, vmm::device(2)), vmm::access::none);
  EXPECT_EQ(*driver.get_access(grown + 4 * MiB, vmm::device(2)), vmm::access::read);
}

TEST_F(SuspendRights, ABlockThatItsHomeMayOnlyReadKeepsItsContents) {
  const address weight = in_blocks(4 * MiB);
  write(weight, 4 * MiB, 6);
  const vmm::access_grant home{driver.home(), vmm::access::read};
  fine(blocks->set_access(weight, {&home, 1}));
  suspend();
  resume();
  EXPECT_EQ(*driver.get_access(weight, driver.home()), vmm::access::read);
  expect_tag(weight, 6);
}

// A graph keeps what its capture allocated, and finds it at the same addresses.
TEST_F(Suspend, ACapturedGraphReplaysOverMemoryThatCameBack) {
  pool_options.capture = vmm::capture_rule::private_memory;
  pool_options.streams_forgotten = true;  // an unannounced capture
  open();
  const address before = in_pool(2 * MiB);
  ASSERT_TRUE(driver.begin_capture(b, vmm::capture_mode::this_thread));
  const auto inside = *pool->allocate(2 * MiB, b);
  run(b, {inside, 2 * MiB}, 10);
  run(b, {before, 2 * MiB}, 10);
  refused(sleeper->suspend(), errc::in_use);
  const auto number = pool->captures().number(b);
  const auto graph = driver.end_capture(b);
  ASSERT_TRUE(graph && number);
  ASSERT_TRUE(driver.launch_graph(*graph, b));
  suspend();
  resume();
  ASSERT_TRUE(driver.launch_graph(*graph, b));
  ASSERT_TRUE(driver.finish_all());
  fine(pool->captures().release(*number, b));
  ASSERT_TRUE(driver.destroy_graph(*graph));
}

// All blocks are the default stream's, and a copy of the manager runs on another one.
TEST(SuspendManager, WaitsForItsCopies) {
  for (const bool records_all : {true, false}) {
    vmm::fake_driver driver(records_all ? vmm::fake::profile::cuda() : without_record_all());
    const vmm::stream_handle x = *driver.create_stream();
    {
      vmm::manager memory(driver);
      vmm::suspender sleeper;
      const vmm::address to = *memory.allocate({.size_bytes = 64 << 20});
      const vmm::address from = *memory.allocate({.size_bytes = 64 << 20});
      ASSERT_TRUE(driver.finish_all());
      ASSERT_TRUE(driver.launch(x, {.name = "slow", .duration_us = 1e6}));
      ASSERT_TRUE(memory.copy({to, from, 64 << 20, x}));
      ASSERT_TRUE(sleeper.add(memory, {"memory", vmm::suspend_contents::discard}));
      ASSERT_TRUE(sleeper.suspend());
      EXPECT_EQ(driver.misuse_count(), 0u) << "unmapped under the copy";
      driver.clear_misuses();
      ASSERT_TRUE(sleeper.resume());
      EXPECT_TRUE(memory.free_idle(to));
      EXPECT_TRUE(memory.free_idle(from));
    }
    ASSERT_TRUE(driver.destroy_stream(x));
  }
}

// What one suspender leaves, another resumes, with the contents that were promised.
TEST_F(Suspend, AnotherSuspenderResumesWhatAClosedOneLeft) {
  open(contents::zero, contents::discard);
  const address zero = in_pool(2 * MiB);
  const address any = in_blocks(2 * MiB);
  write(zero, 2 * MiB, 3);
  (void)suspend();
  vmm::suspender second({.verify = true});
  fine(second.add(*blocks, {"all"}));
  sleeper.reset();
  refused(pool->allocate(MiB, a), errc::in_use);
  refused(second.resume(), errc::in_use);  // it had the manager before
  fine(second.remove(*blocks));
  fine(second.add(*blocks, {"all"}));  // in another order than the closed one's
  fine(second.add(*pool, {"all"}));
  EXPECT_TRUE(*second.is_suspended("all"));
  EXPECT_FALSE(second.keeps_contents());
  vmm::suspender third;
  fine(third.add(*pool, {"all"}));
  EXPECT_FALSE(*third.is_suspended("all"));  // one takes it
  fine(second.resume());
  expect_tag(zero, 0);
  fine(blocks->free(any));
  EXPECT_NE(in_pool(MiB), address{});
  EXPECT_TRUE(third.suspend());
  fine(third.resume());
}

TEST_F(Suspend, NothingIsLostOfAnEmptyAllocator) {
  (void)suspend();  // keep, of no bytes
  EXPECT_FALSE(sleeper->keeps_contents());
  change_suspender();
  resume();
  EXPECT_NE(in_pool(MiB), address{});
  EXPECT_NE(in_blocks(MiB), address{});
}

TEST_F(Suspend, AfterALossTheBlocksAreFreedFirst) {
  const address kept = in_blocks(2 * MiB);
  (void)suspend();
  EXPECT_TRUE(sleeper->keeps_contents());
  for (int round = 0; round < 2; ++round) {  // also after a second one
    change_suspender();
    refused(sleeper->resume(weights), errc::in_use);
    EXPECT_EQ(*sleeper->last_obstacle(), "weights");
    validate();
  }
  fine(blocks->free(kept));
  resume();
  EXPECT_NE(in_blocks(MiB), address{});
}

// A free that meets a suspension waits for it.
TEST(SuspendThreads, FreesBesideSuspensionsAreNotRefused) {
  vmm::fake_driver driver(vmm::fake::profile::cuda());
  vmm::manager blocks(driver);
  vmm::suspender sleeper;
  ASSERT_TRUE(sleeper.add(blocks, {"all", vmm::suspend_contents::discard}));
  std::atomic<bool> is_over = false;
  std::atomic<int> suspended_count = 0;
  std::thread other([&] {
    while (!is_over) {
      if (sleeper.suspend()) suspended_count.fetch_add(1);
      (void)sleeper.resume();
    }
  });
  int created_count = 0;
  std::vector<address> live;
  while (suspended_count < 200 || created_count < 200) {
    for (int i = 0; i < 8; ++i) {
      const auto made = blocks.allocate({.size_bytes = MiB});
      if (made) live.push_back(*made);
      if (!made) EXPECT_EQ(made.error().code, errc::in_use);
    }
    for (const address each : live) {
      const bool is_ordered = ++created_count % 2 == 0;
      const vmm::status freed =
          is_ordered ? blocks.free(each, vmm::stream_handle::default_stream) : blocks.free(each);
      EXPECT_TRUE(freed) << vmm::describe(freed.error());
    }
    live.clear();
  }
  is_over = true;
  other.join();
  EXPECT_EQ(blocks.statistics().live_count, 0u);
}

}  // namespace
