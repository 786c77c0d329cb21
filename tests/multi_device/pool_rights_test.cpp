// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a pool's block of whole mappings has rights of its own, through suspension and changes of
// the access of all; freed, its memory is not reused before its work has finished and the access is
// removed; no other block ever has any of it.
// Method: a fake machine of three devices and kernels that are late; the driver is queried.
#include "three_devices.hpp"

import vmm.stream;
import vmm.suspend;

namespace {

using vmm::access, vmm::address, vmm::device, vmm::errc;

constexpr std::uint64_t granule = 2 * MiB;
constexpr vmm::access_grant reads{device(1), access::read};
constexpr std::array rights{access::none, access::read, access::read_write};

struct PoolRights : ThreeDevices {
  PoolRights() : ThreeDevices(three_devices(512 * MiB)) {}
  void TearDown() override {
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(pool->validate());
    EXPECT_TRUE(pool->forget(stream));
    pool.reset();
    EXPECT_TRUE(driver.destroy_stream(stream));
    ThreeDevices::TearDown();
  }

  vmm::stream_handle stream = *driver.create_stream();
  std::unique_ptr<vmm::stream_pool> pool = std::make_unique<vmm::stream_pool>(driver);
};

TEST_F(PoolRights, AreOfABlockOfWholeMappingsOnly) {
  const address small = *pool->allocate(600, stream);
  const address large = *pool->allocate(40 * MiB + 512, stream);
  const address whole = *pool->allocate_dedicated(5 * MiB, stream);
  for (const address each : {small, large})
    EXPECT_EQ(pool->set_access(each, {&reads, 1}).error().code, errc::not_supported);
  const vmm::status refused = pool->set_access(large, {&reads, 1});
  EXPECT_TRUE(contains(vmm::describe(refused.error()), "allocate_dedicated()"));
  EXPECT_EQ(pool->set_access(whole + 512, {&reads, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(pool->set_access(whole, {}).error().code, errc::invalid_argument);
  const vmm::access_grant home{device(0), access::read};
  EXPECT_EQ(pool->set_access(whole, {&home, 1}).error().code, errc::invalid_argument);
  const vmm::access_grant nobody{device(9), access::read};
  EXPECT_FALSE(pool->set_access(whole, {&nobody, 1}));
  EXPECT_EQ(of(whole), access::none);

  const vmm::access_grant two[] = {{device(1), access::read}, {device(2), access::read_write}};
  ASSERT_TRUE(pool->set_access(whole, two)) << "several devices in one call";
  EXPECT_EQ(of(whole, device(1), 6 * MiB), access::read);
  EXPECT_EQ(of(whole, device(2), 6 * MiB), access::read_write);
  EXPECT_EQ(of(small), access::none);
  EXPECT_EQ(of(large), access::none);
  for (const address each : {small, large, whole}) ASSERT_TRUE(pool->free(each, stream));
}

TEST_F(PoolRights, OverruleThoseOfAll) {
  const address whole = *pool->allocate_dedicated(4 * MiB, stream);
  const address plain = *pool->allocate(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  const vmm::access_grant all[] = {{device(1), access::read_write}, {device(2), access::read}};
  ASSERT_TRUE(pool->set_peers(all));
  EXPECT_EQ(of(whole), access::read);
  EXPECT_EQ(of(whole, device(2)), access::read) << "what is not its own is that of all";
  EXPECT_EQ(of(plain), access::read_write);
  const vmm::access_grant none{device(1), access::none};
  ASSERT_TRUE(pool->set_access(whole, {&none, 1}));
  EXPECT_EQ(of(whole), access::none);
  ASSERT_TRUE(pool->free(whole, stream));
  ASSERT_TRUE(driver.finish_all());
  (void)pool->trim(~std::uint64_t{0});
  EXPECT_EQ(of(whole), access::read_write) << "it is plain memory of the pool again";
  ASSERT_TRUE(pool->free(plain, stream));
}

// What a peer may still be reading is neither taken from it nor handed to the next.
TEST_F(PoolRights, GoWhenTheBlocksWorkHasFinished) {
  driver.set_manual(true);
  const address whole = *pool->allocate_dedicated(64 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  const vmm::address_range range{whole, 64 * MiB};
  ASSERT_TRUE(driver.launch(stream, {.where = device(1), .reads = {&range, 1}}));
  ASSERT_TRUE(pool->free(whole, stream));
  EXPECT_EQ(pool->free(whole, stream).error().code, errc::not_allocated);
  std::vector<address> others;
  for (int i = 0; i < 3; ++i) others.push_back(*pool->allocate(64 * MiB, stream));
  for (const address each : others) {
    EXPECT_NE(each, whole);
    EXPECT_EQ(of(each), access::none);
  }
  EXPECT_EQ(of(whole), access::read) << "its work goes on";
  ASSERT_TRUE(driver.finish_all());
  (void)pool->trim(~std::uint64_t{0});
  EXPECT_EQ(of(whole), access::none);
  const address again = *pool->allocate(64 * MiB, stream);
  EXPECT_EQ(again, whole) << "free for its stream";
  for (const address each : others) ASSERT_TRUE(pool->free(each, stream));
  ASSERT_TRUE(pool->free(again, stream));
}

TEST_F(PoolRights, AreThereAfterSuspensionAndResumption) {
  const address whole = *pool->allocate_dedicated(4 * MiB, stream);
  const address freed = *pool->allocate_dedicated(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  ASSERT_TRUE(pool->set_access(freed, {&reads, 1}));
  ASSERT_TRUE(driver.write_tag({whole, 4 * MiB}, 7));
  vmm::suspender sleeper;
  ASSERT_TRUE(sleeper.add(*pool, {"pool", vmm::suspend_contents::keep}));
  ASSERT_TRUE(sleeper.suspend({}));
  EXPECT_FALSE(pool->set_access(whole, {&reads, 1}));
  EXPECT_FALSE(pool->allocate_dedicated(4 * MiB, stream));
  ASSERT_TRUE(pool->free(freed, stream));
  ASSERT_TRUE(sleeper.resume({}));
  EXPECT_EQ(of(whole, device(1), 4 * MiB), access::read);
  EXPECT_EQ(*driver.read_tag(whole), 7u);
  (void)pool->trim(~std::uint64_t{0});
  EXPECT_EQ(of(freed), access::none);
  ASSERT_TRUE(sleeper.remove(*pool));
  ASSERT_TRUE(pool->free(whole, stream));
}

// Freed, its memory goes back with the first trim after its work has finished.
TEST_F(PoolRights, AreNothingThatATrimWaitsFor) {
  driver.set_manual(true);
  const address whole = *pool->allocate_dedicated(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  const vmm::address_range range{whole, 4 * MiB};
  ASSERT_TRUE(driver.launch(stream, {.where = device(1), .reads = {&range, 1}}));
  ASSERT_TRUE(pool->free(whole, stream));
  EXPECT_EQ(pool->trim(0).released_bytes, 0u);
  EXPECT_EQ(of(whole), access::read);
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(pool->trim(0).released_bytes, 4 * MiB);
  EXPECT_EQ(pool->statistics().mapped_bytes, 0u);
}

// A block is freed before the suspension, or without memory.
TEST_F(PoolRights, GoWithAPoolThatEndsWhileItIsSuspended) {
  std::uint64_t live_count = 0;
  vmm::pool_options options;
  options.leak_hook = {[](void* context, const vmm::live_blocks& left) noexcept {
                         *static_cast<std::uint64_t*>(context) = left.count;
                       },
                       &live_count};
  for (const bool is_suspended : {false, true}) {
    live_count = 0;
    pool = std::make_unique<vmm::stream_pool>(driver, options);
    const address stays = *pool->allocate_dedicated(4 * MiB, stream);
    const address freed = *pool->allocate_dedicated(4 * MiB, stream);
    for (const address each : {stays, freed}) ASSERT_TRUE(pool->set_access(each, {&reads, 1}));
    auto sleeper = std::make_unique<vmm::suspender>();
    ASSERT_TRUE(sleeper->add(*pool, {"pool", vmm::suspend_contents::keep}));
    if (is_suspended) ASSERT_TRUE(sleeper->suspend({}));
    ASSERT_TRUE(pool->free(freed, stream));
    EXPECT_EQ(pool->free(freed, stream).error().code, errc::not_allocated);
    if (!is_suspended) {
      const auto done = sleeper->suspend({});
      ASSERT_TRUE(done) << vmm::describe(done.error());
      EXPECT_EQ(done->suspended_bytes, 4 * MiB);
    }
    EXPECT_FALSE(pool->set_access(stays, {&reads, 1}));
    ASSERT_TRUE(pool->forget(stream));
    ASSERT_TRUE(pool->validate());
    sleeper.reset();
    pool.reset();
    EXPECT_EQ(live_count, 1u) << "the freed block is not live";
    EXPECT_EQ(driver.resource_counts().handles, 0u);
    EXPECT_EQ(driver.misuse_count(), 0u) << driver.report();
  }
  pool = std::make_unique<vmm::stream_pool>(driver);
}

TEST_F(PoolRights, EndOnAStreamThatIsNotCaptured) {
  const address whole = *pool->allocate_dedicated(4 * MiB, stream);
  ASSERT_TRUE(pool->set_access(whole, {&reads, 1}));
  EXPECT_EQ(pool->free(whole).error().code, errc::not_permitted) << "after everything: no stream";
  const vmm::stream_handle other = *driver.create_stream();
  ASSERT_TRUE(driver.begin_capture(other, vmm::capture_mode::relaxed));
  EXPECT_EQ(pool->free(whole, other).error().code, errc::not_permitted);
  EXPECT_EQ(pool->allocate_dedicated(4 * MiB, other).error().code, errc::not_permitted);
  const auto graph = *driver.end_capture(other);
  ASSERT_TRUE(driver.destroy_graph(graph));
  ASSERT_TRUE(pool->free(*pool->allocate(MiB, other), other));  // sees that the capture has ended
  ASSERT_TRUE(pool->pin(whole));
  ASSERT_TRUE(pool->free(whole, stream));
  (void)pool->trim(0);
  EXPECT_EQ(of(whole), access::none) << "the rights go, the pinned block stays";
  ASSERT_TRUE(pool->unpin(whole));
  ASSERT_TRUE(pool->forget(other));
  ASSERT_TRUE(driver.destroy_stream(other));
}

TEST_F(PoolRights, MemoryComesFromWhatIsFreeWhereThereIsNoOther) {
  const address first = *pool->allocate(400 * MiB, stream);
  ASSERT_TRUE(pool->free(first, stream));
  const auto whole = pool->allocate_dedicated(300 * MiB, stream);
  ASSERT_TRUE(whole) << vmm::describe(whole.error());
  EXPECT_EQ(pool->allocate_dedicated(300 * MiB, stream).error().code, errc::out_of_memory);
  ASSERT_TRUE(pool->set_access(*whole, {&reads, 1}));
  ASSERT_TRUE(pool->free(*whole, stream));
  const auto again = pool->allocate(400 * MiB, stream);
  ASSERT_TRUE(again) << "what waits is found: " << vmm::describe(again.error());
  EXPECT_EQ(of(*again), access::none);
  ASSERT_TRUE(pool->free(*again, stream));
}

TEST(PoolRightsElsewhere, AreRefusedWhereFreesFill) {
  vmm::fake_driver driver(three_devices());
  vmm::stream_pool pool(driver, {{.contents = vmm::contents_rule::zero_on_release}});
  const address whole = *pool.allocate_dedicated(4 * MiB, {});
  EXPECT_EQ(pool.set_access(whole, {&reads, 1}).error().code, errc::not_supported);
  ASSERT_TRUE(pool.free(whole, {}));
}

// A list takes 18 locations: the home, and those of all and of one block together.
TEST(PoolRightsElsewhere, TooManyLocationsAreRefused) {
  vmm::fake::profile many = three_devices();
  many.device_count = 16;
  vmm::fake_driver driver(many);
  vmm::stream_pool pool(driver);
  const address whole = *pool.allocate_dedicated(4 * MiB, {});
  std::vector<vmm::access_grant> own;
  std::vector<vmm::access_grant> all;
  for (std::int32_t i = 1; i <= 9; ++i) own.push_back({device(i), access::read});
  for (std::int32_t i = 10; i <= 15; ++i) all.push_back({device(i), access::read});
  for (std::int32_t i = 0; i < 3; ++i) all.push_back({vmm::host_node(i), access::read});
  ASSERT_TRUE(pool.set_access(whole, own));
  EXPECT_EQ(pool.set_peers(all).error().code, errc::invalid_argument);
  EXPECT_EQ(*driver.get_access(whole, device(10)), access::none);
  EXPECT_EQ(*driver.get_access(whole, device(9)), access::read);
  ASSERT_TRUE(pool.free(whole, {}));
}

// Threads with blocks of their own, while another gives rights to all and trims.
TEST(PoolRightsThreads, EachBlockHasItsOwn) {
  vmm::fake_driver driver(three_devices());
  {
    vmm::stream_pool pool(driver);
    ASSERT_TRUE(pool.set_up());
    constexpr int rounds = 60;
    const auto lend = [&](std::int32_t grantee, access right) {
      const vmm::stream_handle stream = *driver.create_stream();
      const vmm::access_grant given{device(grantee), right};
      for (int i = 0; i < rounds; ++i) {
        const auto at = pool.allocate_dedicated(4 * MiB, stream);
        ASSERT_TRUE(at) << vmm::describe(at.error());
        ASSERT_TRUE(pool.set_access(*at, {&given, 1}));
        EXPECT_EQ(*driver.get_access(*at + granule, device(grantee)), right);
        ASSERT_TRUE(pool.free(*at, stream));
      }
      ASSERT_TRUE(pool.forget(stream));
      ASSERT_TRUE(driver.destroy_stream(stream));
    };
    std::vector<std::thread> threads;
    threads.emplace_back(lend, 1, access::read);
    threads.emplace_back(lend, 2, access::read_write);
    threads.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) {
        const vmm::access_grant all{device(1), rights[static_cast<std::size_t>(i) % 3]};
        EXPECT_TRUE(pool.set_peers({&all, 1}));
        const auto at = *pool.allocate(600, {});
        EXPECT_EQ(*driver.get_access(at, device(2)), access::none);
        EXPECT_EQ(*driver.get_access(at, device(1)), all.rights);
        ASSERT_TRUE(pool.free(at, {}));
        (void)pool.trim(0);
      }
    });
    for (std::thread& each : threads) each.join();
    EXPECT_TRUE(pool.validate());
  }
  EXPECT_EQ(driver.misuse_count(), 0u);
  EXPECT_TRUE(driver.check_empty()) << driver.report();
}

}  // namespace
