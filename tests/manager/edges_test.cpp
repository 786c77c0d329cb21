// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the manager holds at its edges: memory that an earlier user's work still touches,
// alignments that must survive a move, what a driver left undone, its own end under faults, and
// threads that run short of memory together. Method: on the fake driver, which ends the process at
// a misuse; work finishes when the test says so.
#include "fake_manager.hpp"

namespace {

using vmm::address, vmm::call, vmm::errc, vmm::stream_handle;

struct ManagerEdges : FakeManager {
  ManagerEdges() : FakeManager(true) {}
  void fail(call where, std::uint64_t nth = 1, bool forever = false) {
    driver.fail({where, nth, forever, {errc::invalid_argument, 77, "INJECTED"}});
  }
  // Freed memory in the cache that unfinished work of the first stream uses.
  void leave_in_use(std::uint64_t size_bytes) {
    const address at = allocate(size_bytes, streams[0]);
    use(at, size_bytes, streams[0]);
    free(at);
    EXPECT_EQ(managed->trim(0).still_mapped_bytes, size_bytes);
  }
};

// ---- memory that an earlier user's work still touches

// The block itself was never used, so freeing it idle is right; its memory is in use all the same.
TEST_F(ManagerEdges, ARangeFreedIdleIsReusedBehindTheEarlierUser) {
  open(vmm::manager_policy::keep_mapped());
  leave_in_use(64 * MiB);
  EXPECT_TRUE(managed->free_idle(allocate(64 * MiB, streams[1])));
  const address at = allocate(64 * MiB, streams[2]);
  EXPECT_EQ(managed->statistics().reused_range_count, 1u);
  use(at, 64 * MiB, streams[2]);
}

// Two blocks that shared memory were freed in the order of two streams, and the memory is free for
// a third user when both have finished.
TEST_F(ManagerEdges, AMappedRangeThatSharedItsMemoryWaitsForBothUsers) {
  open(vmm::manager_policy::keep_mapped());
  const address source = allocate(4 * MiB, streams[0]);
  const address target = allocate(4 * MiB, streams[1]);
  EXPECT_TRUE(managed->copy({target, source, 4 * MiB, streams[0]}, vmm::copy_mode::alias));
  EXPECT_EQ(managed->statistics().remapped_copy_count, 1u);
  const vmm::address_range read{source, 4 * MiB};
  EXPECT_TRUE(driver.launch(streams[0], {.name = "read", .reads = {&read, 1}}));
  free(source);
  free(target);
  const address again = allocate(4 * MiB, streams[2]);
  use(again, 4 * MiB, streams[2]);
}

// A new stream may have the number of one that is gone and whose work goes on.
TEST_F(ManagerEdges, AStreamWithTheNumberOfAnotherWaitsForItsWork) {
  for (const vmm::manager_policy& policy :
       {vmm::manager_policy::va_pool(), vmm::manager_policy::keep_mapped()}) {
    open(policy, with_handles_again());
    const stream_handle before = streams[0];
    const address used = allocate(4 * MiB, streams[0]);
    use(used, 4 * MiB, streams[0]);
    free(used);
    managed->forget(streams[0]);
    EXPECT_TRUE(driver.destroy_stream(streams[0]));
    streams[0] = driver.create_stream().value();
    EXPECT_EQ(streams[0], before);
    const address again = allocate(4 * MiB, streams[0]);
    EXPECT_EQ(driver.calls(call::create), 1u);
    use(again, 4 * MiB, streams[0]);
    EXPECT_FALSE(driver.finish_next(streams[0]).value()) << "before the work of the stream before";
    free(again);
  }
}

// ---- the host beside unfinished work

TEST_F(ManagerEdges, TheHostWaitsForEarlierUsersAndForNobodyElse) {
  for (const vmm::manager_policy& policy :
       {vmm::manager_policy::va_pool(), vmm::manager_policy::keep_mapped(),
        vmm::manager_policy::virtual_caching()}) {
    open(policy);
    const address used = allocate(20 * MiB, streams[0]);
    use(used, 20 * MiB, streams[0]);
    free(used);
    const address at = allocate(20 * MiB, streams[1]);
    EXPECT_EQ(driver.calls(call::create), 1u);
    EXPECT_TRUE(driver.launch(streams[1], {.name = "the caller's"}));
    EXPECT_TRUE(driver.launch(streams[0], {.name = "later work of the earlier user"}));
    EXPECT_EQ(driver.resource_counts().pending_work, 3u);
    EXPECT_TRUE(managed->synchronize(at));
    EXPECT_EQ(driver.resource_counts().pending_work, 2u);
    const std::uint64_t calls = driver.calls();
    EXPECT_TRUE(managed->synchronize(at));
    EXPECT_EQ(driver.calls(), calls) << "what is known to have finished costs nothing";
    const std::byte one{1};
    EXPECT_TRUE(driver.write(at, {&one, 1}));
    free(at);
  }
}

TEST_F(ManagerEdges, TheHostWaitsForUsersOfACachedRangeThatGrew) {
  open(vmm::manager_policy::virtual_caching());
  const address used = allocate(20 * MiB, streams[0]);
  use(used, 20 * MiB, streams[0]);
  free(used);
  const address at = allocate(40 * MiB, streams[1]);
  EXPECT_EQ(managed->statistics().grown_reuse_count, 1u);
  fail(call::synchronize_event);
  EXPECT_EQ(managed->synchronize(at).error().code, errc::invalid_argument);
  EXPECT_TRUE(managed->synchronize(at));
  const std::byte one{1};
  EXPECT_TRUE(driver.write(at, {&one, 1}));
  EXPECT_EQ(managed->synchronize(at + 1).error().code, errc::invalid_argument);
  free(at);
  EXPECT_EQ(managed->synchronize(at).error().code, errc::not_allocated);
}

TEST_F(ManagerEdges, APointIsWaitedFor) {
  EXPECT_TRUE(driver.launch(streams[0], {.name = "before"}));
  const auto point = *managed->record(streams[0]);
  EXPECT_TRUE(driver.launch(streams[0], {.name = "behind"}));
  EXPECT_TRUE(managed->wait(point));
  EXPECT_EQ(driver.resource_counts().pending_work, 1u);
}

// The same of the addresses: they were mapped all the time, and work goes through them still.
TEST_F(ManagerEdges, ARangeReusedAndFreedIdleIsNotUnmappedUnderTheEarlierUser) {
  for (const bool by_another_stream : {false, true}) {
    open(vmm::manager_policy::keep_mapped());
    const address used = allocate(64 * MiB, streams[0]);
    use(used, 64 * MiB, streams[0]);
    free(used);
    const address again = allocate(64 * MiB, streams[1]);
    EXPECT_EQ(again, used);
    EXPECT_TRUE(by_another_stream ? managed->free(again, streams[2]) : managed->free_idle(again));
    EXPECT_EQ(managed->trim(0).released_count, 0u);
    EXPECT_EQ(driver.resource_counts().mappings, 1u);
  }
}

TEST_F(ManagerEdges, AReusedRangeThatHasGrownWaitsForTheEarlierUserToo) {
  open(vmm::manager_policy::keep_mapped());
  const address used = allocate(4 * MiB, streams[0]);
  use(used, 4 * MiB, streams[0]);
  free(used);
  const address again = allocate(4 * MiB, streams[1]);
  EXPECT_EQ(managed->resize({again, 2 * MiB, 0}).value_or(address{}), again);
  EXPECT_TRUE(managed->free_idle(again));
  EXPECT_EQ(driver.resource_counts().mappings, 1u);
}

// Never used by its own stream, freed in the order of another, which has work of its own.
TEST_F(ManagerEdges, AnotherStreamsTicketStandsForTheEarlierUserToo) {
  leave_in_use(64 * MiB);
  const address unused = allocate(64 * MiB, streams[1]);
  ASSERT_TRUE(driver.launch(streams[2], {.name = "its own"}));
  EXPECT_TRUE(managed->free(unused, streams[2]));
  const address at = allocate(64 * MiB);
  EXPECT_EQ(driver.calls(call::create), 1u);
  use(at, 64 * MiB, {});
}

TEST_F(ManagerEdges, ACachedRangeThatGrowsKeepsTheOrder) {
  vmm::manager_policy policy = vmm::manager_policy::virtual_caching();
  open(policy);
  leave_in_use(20 * MiB);
  EXPECT_TRUE(managed->free_idle(allocate(20 * MiB, streams[1])));
  const address at = allocate(40 * MiB, streams[2]);
  EXPECT_EQ(managed->statistics().grown_reuse_count, 1u);
  use(at, 40 * MiB, streams[2]);
}

// The range's own ticket is older than the growth: it says nothing of the piece that came by it.
TEST_F(ManagerEdges, APieceThatARangeHasGrownByKeepsItsOwnUser) {
  enum class gone { by_another_range, by_rights, after_a_reuse };
  for (const gone how : {gone::by_another_range, gone::by_rights, gone::after_a_reuse}) {
    SCOPED_TRACE(static_cast<int>(how));
    vmm::manager_policy policy = vmm::manager_policy::virtual_caching();
    policy.chunk_bytes = 0;
    open(policy);
    const address other = managed->allocate({8 * MiB, 2 * MiB, 0, streams[0]}).value();
    const address cached = allocate(4 * MiB, streams[1]);
    use(other, 8 * MiB, streams[0]);
    use(cached, 4 * MiB, streams[1]);
    free(other);  // has room to grow: its piece serves others, not its addresses
    EXPECT_TRUE(managed->free(cached, streams[1]));

    const address grown = allocate(12 * MiB, streams[1]);
    EXPECT_EQ(managed->statistics().grown_reuse_count, 1u);
    if (how == gone::by_rights) {
      EXPECT_TRUE(managed->set_access(
          grown, std::array{vmm::access_grant{driver.home(), vmm::access::read_write}}));
    }
    EXPECT_TRUE(managed->free_idle(grown));
    if (how == gone::after_a_reuse) EXPECT_TRUE(managed->free_idle(allocate(12 * MiB, streams[1])));

    const address last = allocate(8 * MiB, streams[2]);  // unbinds the larger range
    use(last, 8 * MiB, streams[2]);
    EXPECT_EQ(driver.misuse_count(), 0u);
    EXPECT_TRUE(managed->free(last, streams[2]));
  }
}

// ---- alignment

TEST_F(ManagerEdges, AnAlignmentThatNoSpaceHasIsToldFromOneThatIsNone) {
  for (const std::uint64_t bad : {std::uint64_t{3}, (std::uint64_t{1} << 57) + 1}) {
    const auto none = managed->allocate({4 * MiB, 0, bad});
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().detail,
              "an alignment is a power of two, of 2^31 granules at most; not '" +
                  std::to_string(bad) + "'");
  }
  for (const std::uint64_t large : {std::uint64_t{1} << 57, std::uint64_t{1} << 63}) {
    const auto none = managed->allocate({4 * MiB, 0, large});
    EXPECT_EQ(none.error().code, vmm::errc::invalid_argument);
    EXPECT_EQ(none.error().detail,
              "an alignment is a power of two, of 2^31 granules, 4503599627370496 bytes, at most; "
              "not " +
                  std::to_string(large));
  }
}

TEST_F(ManagerEdges, ACachedRangeServesNoLargerAlignmentThanItHas) {
  open(vmm::manager_policy::virtual_caching());
  allocate(20 * MiB);
  free(allocate(20 * MiB));  // 20 MiB behind the wall: no multiple of 16 MiB
  const auto at = *managed->allocate({20 * MiB, 0, 16 * MiB});
  EXPECT_EQ(at.value % (16 * MiB), 0u);
}

// ---- what a driver left undone

TEST_F(ManagerEdges, AGrowthLeftHalfDoneIsUndoneBeforeTheNextOne) {
  const address at = allocate(4 * MiB);
  fail(call::set_access);
  fail(call::unmap, 1, true);
  EXPECT_EQ(managed->resize({at, 8 * MiB}).error().where, call::set_access);
  driver.clear_faults();
  const auto grown = *managed->resize({at, 8 * MiB});
  EXPECT_TRUE(driver.write_tag({grown, 8 * MiB}, 1)) << "all of it can be used";
}

TEST_F(ManagerEdges, ACachedRangeLeftHalfGrownIsNotHandedOut) {
  open(vmm::manager_policy::virtual_caching());
  free(allocate(20 * MiB));
  fail(call::set_access, 1, true);
  fail(call::unmap, 1, true);
  EXPECT_FALSE(managed->allocate(40 * MiB));
  driver.clear_faults();
  for (const std::uint64_t size_bytes : {40 * MiB, 20 * MiB, 60 * MiB}) {
    const address at = allocate(size_bytes);
    EXPECT_TRUE(driver.write_tag({at, size_bytes}, 1)) << size_bytes / MiB;
    free(at);
  }
}

TEST_F(ManagerEdges, TrimSaysWhenACachedRangeWillNotGo) {
  open(vmm::manager_policy::keep_mapped());
  free(allocate(64 * MiB));
  fail(call::unmap);
  const vmm::trim_report report = managed->trim(0);
  EXPECT_EQ(report.failure.where, call::unmap);
  EXPECT_EQ(managed->statistics().retained_mapped_bytes, 64 * MiB);
  EXPECT_EQ(managed->trim(0).released_bytes, 64 * MiB);
}

// ---- aliases

TEST_F(ManagerEdges, SharedMemoryIsNotSharedOnceMore) {
  const address source = allocate(4 * MiB);
  const address one = allocate(4 * MiB);
  const address two = allocate(4 * MiB);
  ASSERT_TRUE(driver.write_tag({source, 4 * MiB}, 1));
  ASSERT_TRUE(managed->copy({one, source, 4 * MiB}, vmm::copy_mode::alias));
  ASSERT_TRUE(managed->copy({two, source, 4 * MiB}, vmm::copy_mode::alias));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(managed->statistics().remapped_copy_count, 1u);
  EXPECT_EQ(managed->statistics().real_copy_count, 1u);
  free(source);
  ASSERT_TRUE(driver.write_tag({one, 4 * MiB}, 2)) << "its source is freed: it is its own";
  EXPECT_EQ(driver.read_tag(two).value(), 1u);
}

// ---- the end

TEST_F(ManagerEdges, OneFaultAtItsEndLeavesNothing) {
  for (const call where : {call::create_event, call::record_event, call::query_event, call::unmap,
                           call::release, call::free_reservation, call::synchronize_event}) {
    open(vmm::manager_policy::keep_mapped());
    free(allocate(8 * MiB));
    const address busy = allocate(4 * MiB, streams[0]);
    use(busy, 4 * MiB, streams[0]);
    allocate(2 * MiB);
    fail(where);
    managed.reset();
    close();
    if (HasFailure()) FAIL() << vmm::name_of(where);
  }
}

// ---- threads

// The threads' requests fit together, so none may fail for lack of memory, whatever the caches hold
// when a thread reaches the limit.
TEST_F(ManagerEdges, ThreadsThatRunShortTogetherAllGetTheirs) {
  vmm::manager_policy policy = vmm::manager_policy::va_pool();
  policy.fragment_ratio = 1;  // reuses whole matches only, so that the cache fills up
  open(policy, cuda_with([](auto& plays) { plays.device_memory_bytes = 96 * MiB; }));
  std::atomic<int> refused_count = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([this, t, &refused_count] {
      for (unsigned i = 0; i < 400; ++i) {
        const std::uint64_t size_bytes = (1 + (i * 7 + t * 5) % 16) * 2 * MiB;
        const auto at = managed->allocate(size_bytes);
        if (!at) ++refused_count;
        if (at) EXPECT_TRUE(managed->free(*at));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused_count, 0);
  EXPECT_GT(managed->statistics().recovery_count, 0u);
}

TEST_F(ManagerEdges, LookingAtABlockThatMovesIsSafe) {
  const address wall_below = allocate(2 * MiB);
  address at = allocate(2 * MiB, streams[1]);
  std::atomic<bool> done = false;
  std::atomic<int> wrong_count = 0;
  std::thread looker([&] {
    while (!done) {
      const auto extents = managed->extents();
      if (!extents) ++wrong_count;
      const auto info = managed->find(wall_below + 2 * MiB);
      if (info && info->handles.empty()) ++wrong_count;
      if (info && info->stream != streams[1] && info->stream != stream_handle{}) ++wrong_count;
    }
  });
  for (std::uint64_t i = 0; i < 200; ++i) {
    const address wall = allocate(2 * MiB);
    const auto moved = *managed->resize({at, (2 + i % 4) * 2 * MiB});
    const auto back = *managed->resize({moved, 2 * MiB});
    at = back;
    free(wall);
  }
  done = true;
  looker.join();
  EXPECT_EQ(wrong_count, 0);
}

}  // namespace
