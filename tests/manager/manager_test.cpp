// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the manager allocates, frees, resizes and copies as the sources describe, with their
// numbers, and gives back all that it took. Method: on the fake driver; contents are followed by
// tags, driver calls are counted, and after every test the driver's resource counts and its list of
// misuses are empty.
#include "fake_manager.hpp"

namespace {

using vmm::address, vmm::call, vmm::errc;

constexpr std::uint64_t MB = 1'000'000;

struct Manager : FakeManager {
  address resize(address at, std::uint64_t size_bytes) {
    const auto to = managed->resize(vmm::resize_request{at, size_bytes});
    EXPECT_TRUE(to) << (to ? "" : vmm::describe(to.error()));
    return to.value_or(address{});
  }
  void write(address at, std::uint64_t size_bytes, std::uint64_t tag) {
    EXPECT_TRUE(driver.write_tag({at, size_bytes}, tag));
  }
  [[nodiscard]] std::uint64_t read(address at) { return driver.read_tag(at).value_or(~0ull); }
};

// ---- address space and the sources' numbers

TEST_F(Manager, EightyOneBlocksOf64MbTakeOneReservation) {
  for (int i = 0; i < 81; ++i) allocate(64 * MB);
  EXPECT_EQ(driver.calls(call::reserve), 1u);
  EXPECT_EQ(driver.resource_counts().reservations, 1u);
  EXPECT_EQ(managed->statistics().reserved_bytes, std::uint64_t{8} << 40);
  EXPECT_EQ(managed->statistics().user_bytes, 81 * 64 * MB);
}

TEST_F(Manager, ReservesAgainOnlyWhenARangeIsUsedUp) {
  vmm::manager_options options;
  options.reservation_bytes = 64 * MiB;
  open(options);
  for (int i = 0; i < 4; ++i) allocate(32 * MiB);
  EXPECT_EQ(driver.calls(call::reserve), 2u);
  allocate(256 * MiB);  // larger than a whole reservation
  EXPECT_EQ(driver.calls(call::reserve), 3u);
}

TEST_F(Manager, TakesLessAddressSpaceWhereTheDriverHasLess) {
  vmm::manager_options options;
  options.reservation_bytes = std::uint64_t{512} << 40;  // the driver refuses 128 TiB
  open(options);
  free(allocate(2 * MiB));
  EXPECT_EQ(managed->statistics().reserved_bytes, std::uint64_t{64} << 40);
}

TEST_F(Manager, AFreedPieceServesTheNextRequestWithoutCreate) {
  free(allocate(100 * MiB));
  EXPECT_EQ(driver.calls(call::create), 1u);
  EXPECT_EQ(managed->statistics().retained_bytes, 100 * MiB);
  free(allocate(100 * MiB));
  EXPECT_EQ(driver.calls(call::create), 1u);
  EXPECT_EQ(managed->statistics().reused_handle_count, 1u);
}

TEST_F(Manager, TheOneAndAHalfGigabytePieceServesTheThreeGigabyteRequest) {
  free(allocate(1500 * MB));
  const address large = allocate(3000 * MB);
  EXPECT_EQ(driver.calls(call::create), 2u);
  EXPECT_EQ(managed->find(large)->handles.size(), 2u);
  EXPECT_EQ(managed->statistics().held_bytes, managed->find(large)->sizes.mapped_bytes);
}

TEST_F(Manager, The64MegabytePiecesDoNotServeTheTwoPointThreeGigabyteRequest) {
  std::vector<address> small;
  for (int i = 0; i < 41; ++i) small.push_back(allocate(64 * MB));
  for (const address at : small) free(at);
  const std::uint64_t cached_bytes = managed->statistics().retained_bytes;
  const address large = allocate(2300 * MB);
  EXPECT_EQ(driver.calls(call::create), 42u);
  EXPECT_EQ(managed->find(large)->handles.size(), 1u);
  EXPECT_EQ(managed->statistics().retained_bytes, cached_bytes);
  free(allocate(64 * MB));  // they serve what they are good for
  EXPECT_EQ(driver.calls(call::create), 42u);
}

TEST_F(Manager, KeepsTheThreeSizesApart) {
  const address at = allocate(101 * MiB - 1, {}, 9 * MiB);
  const auto info = *managed->find(at + 50 * MiB);
  EXPECT_EQ(info.base, at);
  EXPECT_EQ(info.sizes.user_bytes, 101 * MiB - 1);
  EXPECT_EQ(info.sizes.mapped_bytes, 102 * MiB);
  EXPECT_EQ(info.sizes.reserved_bytes, 112 * MiB);
}

// ---- resizing

TEST_F(Manager, GrowsInPlaceAndKeepsTheData) {
  const address at = allocate(64 * MiB);
  write(at, 64 * MiB, 1);
  EXPECT_EQ(resize(at, 128 * MiB), at);
  EXPECT_EQ(read(at), 1u);
  EXPECT_EQ(read(at + 63 * MiB), 1u);
  write(at + 64 * MiB, 64 * MiB, 2);
  EXPECT_EQ(read(at + 127 * MiB), 2u);
  EXPECT_EQ(driver.calls(call::unmap), 0u);
  EXPECT_EQ(driver.calls(call::copy), 0u);
}

TEST_F(Manager, MovesTheMappingWhereItCannotGrowInPlace) {
  const address first = allocate(64 * MiB);
  allocate(64 * MiB);
  write(first, 64 * MiB, 1);
  EXPECT_EQ(managed->resize(vmm::resize_request{first, 128 * MiB, 0, false}).error().code,
            errc::out_of_addresses);
  const address moved = resize(first, 128 * MiB);
  EXPECT_NE(moved, first);
  EXPECT_EQ(read(moved), 1u);
  EXPECT_EQ(read(moved + 63 * MiB), 1u);
  EXPECT_EQ(driver.calls(call::copy), 0u);
  EXPECT_EQ(managed->find(first).error().code, errc::not_allocated);
}

TEST_F(Manager, ShrinksByWholePieces) {
  address at = allocate(64 * MiB);
  at = resize(at, 96 * MiB);
  write(at, 96 * MiB, 5);
  EXPECT_EQ(resize(at, 65 * MiB), at);  // the second piece is still needed
  EXPECT_EQ(managed->find(at)->sizes.mapped_bytes, 96 * MiB);
  EXPECT_EQ(managed->find(at)->sizes.user_bytes, 65 * MiB);
  EXPECT_EQ(resize(at, 64 * MiB), at);
  EXPECT_EQ(managed->find(at)->sizes.mapped_bytes, 64 * MiB);
  EXPECT_EQ(managed->statistics().retained_bytes, 32 * MiB);
  EXPECT_EQ(read(at + 63 * MiB), 5u);
}

// By hand it takes the same: a handle unless one is cached, a mapping, and the right to use it.
TEST_F(Manager, GrowingIntoItsRoomTakesTheCallsMadeByHand) {
  for (const bool is_cached : {false, true}) {
    const address at = allocate(64 * MiB, {}, 64 * MiB);
    if (is_cached) EXPECT_TRUE(managed->free_idle(allocate(64 * MiB)));
    driver.reset_calls();
    EXPECT_EQ(resize(at, 128 * MiB), at);
    EXPECT_EQ(driver.calls(call::create), is_cached ? 0u : 1u);
    EXPECT_EQ(driver.calls(call::map), 1u);
    EXPECT_EQ(driver.calls(call::set_access), 1u);
    EXPECT_EQ(driver.calls(), is_cached ? 2u : 3u);
    EXPECT_TRUE(managed->free_idle(at));
    EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  }
}

// The cost of a resize goes by pieces, not by bytes: twice the size takes the same calls.
TEST_F(Manager, ResizingCostsTheSameCallsAtAnySize) {
  free(allocate(2 * MiB));  // makes the event that later frees use
  std::vector<std::uint64_t> calls;
  for (const std::uint64_t size_bytes : {64 * MiB, 8 * GiB}) {
    const address at = allocate(size_bytes);
    allocate(2 * MiB);
    driver.reset_calls();
    resize(at, 2 * size_bytes);
    calls.push_back(driver.calls());
    free_all();
    EXPECT_EQ(managed->trim(0).failure.code, errc::none);
  }
  EXPECT_EQ(calls[0], calls[1]);
}

// ---- copies

TEST_F(Manager, MoveGivesTheSourcesMemoryToTheTarget) {
  const address source = allocate(1536 * MiB);
  const address target = allocate(3072 * MiB);
  write(source, 1536 * MiB, 11);
  write(target, 3072 * MiB, 22);
  ASSERT_TRUE(managed->copy({target, source, 1536 * MiB}, vmm::copy_mode::move));
  EXPECT_EQ(driver.calls(call::copy), 0u);
  EXPECT_EQ(managed->statistics().remapped_copy_count, 1u);
  EXPECT_EQ(read(target), 11u);
  EXPECT_EQ(read(target + 1535 * MiB), 11u);
  EXPECT_EQ(managed->find(target)->sizes.mapped_bytes, 3072 * MiB);
  EXPECT_EQ(managed->find(source)->sizes.mapped_bytes, 0u);
  EXPECT_EQ(managed->resize(vmm::resize_request{source, 2 * MiB}).error().code,
            errc::invalid_argument);
}

TEST_F(Manager, CopiesBytesWhereTheConditionsDoNotHold) {
  const address source = allocate(64 * MiB);
  const address target = allocate(64 * MiB);
  write(source, 64 * MiB, 3);
  ASSERT_TRUE(managed->copy({target, source, 32 * MiB}, vmm::copy_mode::move));  // part of a block
  EXPECT_EQ(managed->statistics().remapped_copy_count, 0u);
  EXPECT_EQ(managed->statistics().real_copy_count, 1u);
  ASSERT_TRUE(driver.synchronize_stream(vmm::stream_handle::default_stream));
  EXPECT_EQ(read(target + 31 * MiB), 3u);
  EXPECT_EQ(read(source), 3u);
  EXPECT_EQ(managed->copy({target + 33 * MiB, source, 32 * MiB}).error().code, errc::not_allocated);
  ASSERT_TRUE(managed->copy({target, source, 64 * MiB}, vmm::copy_mode::alias));
  EXPECT_EQ(managed->statistics().remapped_copy_count, 1u);
  ASSERT_TRUE(managed->copy({target, source, 64 * MiB},
                            vmm::copy_mode::move));  // the memory has two holders
  EXPECT_EQ(managed->statistics().remapped_copy_count, 1u);
  ASSERT_TRUE(driver.synchronize_stream(vmm::stream_handle::default_stream));
}

// ---- the cases of the caching allocator

TEST_F(Manager, VirtualCachingFollowsTheFourCases) {
  open(vmm::manager_policy::virtual_caching());
  const address first = allocate(30 * MiB);  // case 1: nothing cached, two chunks of 20 MiB
  EXPECT_EQ(managed->find(first)->handles.size(), 2u);
  free(first);
  EXPECT_EQ(managed->statistics().retained_mapped_bytes, 40 * MiB);

  driver.reset_calls();
  const address same = allocate(40 * MiB);  // case 2: the exact size is just returned
  EXPECT_EQ(same, first);
  EXPECT_EQ(driver.calls(call::map) + driver.calls(call::create), 0u);
  free(same);

  driver.reset_calls();
  const address grown = allocate(60 * MiB);  // case 3: only smaller ones: one is grown
  EXPECT_EQ(grown, first);
  EXPECT_EQ(driver.calls(call::create), 1u);
  EXPECT_EQ(managed->statistics().grown_reuse_count, 1u);
  free(grown);

  driver.reset_calls();
  allocate(20 * MiB);  // case 4: only larger ones: the smallest is unbound
  EXPECT_EQ(driver.calls(call::create), 0u);
  EXPECT_EQ(managed->statistics().unbound_range_count, 1u);
  EXPECT_EQ(managed->statistics().retained_bytes, 40 * MiB);
}

TEST_F(Manager, ChecksTheChunkSizeAgainstTheDevice) {
  vmm::manager_policy policy = vmm::manager_policy::virtual_caching();
  policy.chunk_bytes = 3 * MiB;
  open(policy);
  EXPECT_EQ(managed->allocate(2 * MiB).error().code, errc::bad_option);
}

TEST_F(Manager, KeepMappedServesTheSameSizeWithoutADriverCall) {
  open(vmm::manager_policy::keep_mapped());
  free(allocate(64 * MiB));
  driver.reset_calls();
  allocate(64 * MiB);
  EXPECT_EQ(driver.calls(call::create) + driver.calls(call::map) + driver.calls(call::set_access),
            0u);
  EXPECT_EQ(managed->statistics().reused_range_count, 1u);
}

// ---- unfinished work: nothing is unmapped, and nothing changes hands unordered, before it
// has finished

TEST_F(Manager, AFreedRangeWaitsForItsWork) {
  const address at = allocate(64 * MiB, streams[0]);
  use(at, 64 * MiB, streams[0]);
  free(at);
  EXPECT_EQ(driver.calls(call::unmap), 0u);
  EXPECT_EQ(managed->statistics().retired_bytes, 64 * MiB);
  EXPECT_EQ(managed->statistics().retained_bytes, 64 * MiB);

  // The memory moves on at once, to another stream behind a wait on the device.
  const address next = allocate(64 * MiB, streams[1]);
  EXPECT_EQ(driver.calls(call::create), 1u);
  EXPECT_EQ(driver.calls(call::wait_event), 1u);
  use(next, 64 * MiB, streams[1]);
  EXPECT_EQ(driver.calls(call::synchronize_event) + driver.calls(call::synchronize_stream), 0u);

  EXPECT_TRUE(driver.advance_us(200'000));
  free(allocate(2 * MiB));  // looks at what waits
  EXPECT_EQ(managed->statistics().retired_bytes, 0u);
}

TEST_F(Manager, ABlockThatMovesLeavesItsOldPlaceMappedForItsWork) {
  const address at = allocate(64 * MiB);
  allocate(2 * MiB);
  use(at, 64 * MiB);
  EXPECT_NE(resize(at, 128 * MiB), at);
  EXPECT_EQ(driver.calls(call::unmap), 0u);
}

TEST_F(Manager, ShrinkingUnderWorkRetiresTheTail) {
  address at = allocate(32 * MiB);
  at = resize(at, 64 * MiB);
  use(at, 64 * MiB);
  EXPECT_EQ(resize(at, 32 * MiB), at);
  EXPECT_EQ(driver.calls(call::unmap), 0u);
  EXPECT_EQ(managed->statistics().retired_bytes, 32 * MiB);
  // The addresses behind it are still taken: it moves rather than wait.
  EXPECT_NE(resize(at, 64 * MiB), at);
}

TEST_F(Manager, CopiesBytesWhileWorkIsUnfinished) {
  const address source = allocate(64 * MiB);
  const address target = allocate(64 * MiB);
  use(source, 64 * MiB);
  ASSERT_TRUE(managed->copy({target, source, 64 * MiB}, vmm::copy_mode::move));
  EXPECT_EQ(managed->statistics().real_copy_count, 1u);
  ASSERT_TRUE(driver.synchronize_stream(vmm::stream_handle::default_stream));
}

// ---- set-up

TEST_F(Manager, IsSetUpOnFirstUse) {
  EXPECT_EQ(driver.calls(), 0u);
  EXPECT_EQ(managed->statistics().reserved_bytes, 0u);
  free(allocate(3 * MiB));
  EXPECT_EQ(managed->granularity_bytes(), 2 * MiB);
  EXPECT_NE(managed->statistics().reserved_bytes, 0u);
  const std::uint64_t before = driver.calls();
  EXPECT_TRUE(managed->set_up());
  EXPECT_EQ(driver.calls(), before) << "it was set up";
}

TEST(ManagerOptions, ComeFromTheEnvironment) {
  const auto set = [](const char* name, const char* value) { ::setenv(name, value, 1); };
  set("VMM_FRAG_RATIO", "0.5");
  set("VMM_CHUNK_SIZE", "20MiB");
  set("VMM_POLICY", "keep_mapped");
  const auto options = *vmm::manager_options::from_environment({});
  EXPECT_EQ(options.policy.fragment_ratio, 0.5);
  EXPECT_EQ(options.policy.chunk_bytes, 20 * MiB);
  EXPECT_STREQ(options.policy.name, "keep_mapped");
  const auto refused = [&set](const char* name, const char* value) {
    set(name, value);
    const auto read = vmm::manager_options::from_environment({});
    ASSERT_FALSE(read) << name << '=' << value;
    EXPECT_EQ(read.error().code, errc::bad_option);
    EXPECT_TRUE(contains(read.error().detail, name));
    ::unsetenv(name);
  };
  refused("VMM_FRAG_RATIO", "1.5");
  refused("VMM_CHUNK_SIZE", "100000TiB");
  refused("VMM_POLICY", "best");
}

}  // namespace
