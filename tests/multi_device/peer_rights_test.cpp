// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the locations that were granted access have it, and no other has any, from creation and
// later, in pools and in managers, through growth, moves, reuse and copies by remapping; memory
// goes where the options say, to the host too when the device is full.
// Method: a fake machine of three devices. Access is queried from the driver at every granule, and
// tried by kernels of the other devices. The driver's list of misuses and its counts are empty.
#include "three_devices.hpp"

import vmm.manager;
import vmm.stream;

namespace {

using vmm::access, vmm::address, vmm::device, vmm::errc;
using Rights = ThreeDevices;

vmm::grant_list peers(std::initializer_list<vmm::access_grant> grants) {
  vmm::grant_list list;
  for (const vmm::access_grant& each : grants) EXPECT_TRUE(list.set(each));
  return list;
}

// ---- a list of rights --------------------------------------------------------------

TEST(GrantList, NamesEachLocationOnce) {
  vmm::grant_list list{{device(0), access::read_write}, {device(0), access::read}};
  EXPECT_EQ(list.all().size(), 1u);
  EXPECT_EQ(list.of(device(0)), access::read);
  EXPECT_EQ(list.of(device(1)), access::none);
  ASSERT_TRUE(list.set({device(1), access::none}));
  EXPECT_EQ(list.granted().all().size(), 1u);
  for (std::int32_t i = 2; list.all().size() < vmm::grant_list::grants_max; ++i)
    ASSERT_TRUE(list.set({device(i), access::read}));
  const vmm::grant_list full = list;
  EXPECT_FALSE(list.set({vmm::host(), access::read})) << "the list is full";
  EXPECT_EQ(list, full);
  EXPECT_TRUE(list.set({device(1), access::read})) << "known locations still fit";
}

// ---- managers ----------------------------------------------------------------------

TEST_F(Rights, OfAPartStayWhereACopyCouldRemap) {
  vmm::manager managed(driver);
  const address source = *managed.allocate(8 * MiB);
  const address target = *managed.allocate(8 * MiB);
  const vmm::access_grant one{device(1), access::read};
  ASSERT_TRUE(managed.set_access(vmm::address_range{target, 8 * MiB}, {&one, 1}));
  ASSERT_TRUE(driver.write_tag({source, 8 * MiB}, 6));
  ASSERT_TRUE(managed.copy({target, source, 8 * MiB, {}}, vmm::copy_mode::move));
  ASSERT_TRUE(driver.finish_all());
  EXPECT_EQ(managed.statistics().real_copy_count, 1u);
  EXPECT_EQ(*driver.read_tag(target), 6u);
  EXPECT_EQ(of(target, device(1), 8 * MiB), access::read);
  EXPECT_EQ(of(source, device(1), 8 * MiB), access::none);
  ASSERT_TRUE(managed.free(source));
  ASSERT_TRUE(managed.free(target));
}

// What is filled when it is freed is filled where a part keeps the home out, too.
TEST_F(Rights, OfAPartLetAFreeFill) {
  vmm::manager managed(driver, {{.contents = vmm::contents_rule::zero_on_release}});
  const address at = *managed.allocate(8 * MiB);
  const vmm::access_grant home{device(0), access::none};
  ASSERT_TRUE(managed.set_access(vmm::address_range{at, 8 * MiB}, {&home, 1}));
  ASSERT_TRUE(managed.free(at));
}

// Before there is memory the driver's set_access cannot refuse: the growth that follows would.
TEST(Reach, PeersThatDoNotReachTheMemoryToBeAreRefused) {
  vmm::fake::profile far = three_devices();
  far.reaches[2] = 0b100;
  vmm::fake_driver driver(far);
  vmm::manager early(driver, {{.peers = peers({{device(2), access::read}})}});
  EXPECT_EQ(early.set_up().error().code, errc::not_supported);
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  const vmm::access_grant grants[] = {{device(1), access::read}, {device(2), access::read}};
  const vmm::access_grant of_host{vmm::host_node(0), access::read};
  const vmm::access_grant of_none{device(9), access::read};
  const auto refuses_all = [&](auto& memory) {
    EXPECT_EQ(memory.set_peers(grants).error().code, errc::not_supported);
    EXPECT_EQ(memory.set_peers({&of_host, 1}).error().code, errc::not_supported);
    EXPECT_EQ(memory.set_peers({&of_none, 1}).error().code, errc::invalid_argument);
    EXPECT_TRUE(memory.set_peers({grants, 1}));
  };
  refuses_all(managed);
  refuses_all(pool);
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  ASSERT_TRUE(at && of_pool) << "what was refused is forgotten";
  for (const address each : {*at, *of_pool}) {
    EXPECT_EQ(*driver.get_access(each, device(1)), access::read);
    EXPECT_EQ(*driver.get_access(each, device(2)), access::none);
  }
  ASSERT_TRUE(managed.free(*at));
  ASSERT_TRUE(pool.free(*of_pool, {}));
}

TEST_F(Rights, TakenFromWhoeverIsNotThereAreForgotten) {
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  const vmm::access_grant none{device(9), access::none};
  const vmm::access_grant good{device(1), access::read};
  EXPECT_TRUE(managed.set_peers({&none, 1}));
  EXPECT_TRUE(pool.set_peers({&none, 1}));
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  ASSERT_TRUE(at && of_pool);
  EXPECT_TRUE(managed.set_peers({&good, 1}));
  EXPECT_TRUE(pool.set_peers({&good, 1}));
  EXPECT_EQ(of(*at, device(1), 4 * MiB), access::read);
  EXPECT_EQ(of(*of_pool, device(1), 4 * MiB), access::read);
  ASSERT_TRUE(managed.free(*at));
  ASSERT_TRUE(pool.free(*of_pool, {}));
  vmm::manager other(driver, {{.peers = peers({none})}});
  const auto of_other = *other.allocate(4 * MiB);
  EXPECT_TRUE(other.set_peers({&good, 1})) << "nor are those of the options kept";
  ASSERT_TRUE(other.free(of_other));
}

TEST_F(Rights, OfANodeThatIsNotThereAreRefusedBeforeThereIsMemory) {
  const vmm::access_grant nobody{vmm::host_node(99), access::read};
  const vmm::access_grant near{vmm::host_node(1), access::read};
  vmm::manager managed(driver, {{.placement = vmm::host_node(0)}});
  vmm::stream_pool pool(driver, {{.placement = vmm::host_node(0)}});
  EXPECT_EQ(managed.set_peers({&nobody, 1}).error().code, errc::invalid_argument);
  EXPECT_EQ(pool.set_peers({&nobody, 1}).error().code, errc::invalid_argument);
  EXPECT_TRUE(managed.set_peers({&near, 1}));
  EXPECT_TRUE(pool.set_peers({&near, 1}));
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  EXPECT_TRUE(at && of_pool) << "what was refused is forgotten";
  if (at) ASSERT_TRUE(managed.free(*at));
  if (of_pool) ASSERT_TRUE(pool.free(*of_pool, {}));
  vmm::manager wrong(driver, {{.placement = vmm::host_node(0), .peers = peers({nobody})}});
  EXPECT_EQ(wrong.set_up().error().code, errc::invalid_argument);
}

TEST(Reach, ADriverThatKnowsNoPeersGivesThemNoRightsToMemoryToBe) {
  vmm::fake_driver driver(vmm::fake::profile::level_zero());
  vmm::manager managed(driver);
  vmm::stream_pool pool(driver);
  for (const access right : {access::read, access::read_write}) {
    const vmm::access_grant other{device(1), right};
    EXPECT_EQ(managed.set_peers({&other, 1}).error().code, errc::not_supported);
    EXPECT_EQ(pool.set_peers({&other, 1}).error().code, errc::not_supported);
  }
  const vmm::memory_options of_others{.peers = peers({{device(1), access::read}})};
  vmm::manager wrong(driver, {of_others});
  vmm::stream_pool wrong_pool(driver, {of_others});
  EXPECT_EQ(wrong.set_up().error().code, errc::not_supported);
  EXPECT_EQ(wrong_pool.set_up().error().code, errc::not_supported);
  const vmm::access_grant none{device(1), access::none};
  EXPECT_TRUE(pool.set_peers({&none, 1}));
  const auto at = managed.allocate(4 * MiB);
  const auto of_pool = pool.allocate(4 * MiB, {});
  ASSERT_TRUE(at && of_pool);
  ASSERT_TRUE(managed.free(*at));
  ASSERT_TRUE(pool.free(*of_pool, {}));
}

// ---- pools -------------------------------------------------------------------------

TEST_F(Rights, OfAPoolAreAsBeforeWhenTheDriverRefusesOne) {
  vmm::stream_pool pool(driver);
  const address a = *pool.allocate(64 * MiB, {});
  const address b = *pool.allocate(64 * MiB, {});
  const vmm::access_grant later{device(1), access::read};
  const auto failure = driver.possible_errors(vmm::call::set_access).front();
  driver.fail({vmm::call::set_access, 2, false, failure});
  EXPECT_EQ(pool.set_peers({&later, 1}).error().native, failure.native);
  EXPECT_EQ(of(a, device(1), 64 * MiB), access::none);
  EXPECT_EQ(of(b, device(1), 64 * MiB), access::none);
  ASSERT_TRUE(pool.set_peers({&later, 1}));
  EXPECT_EQ(of(b, device(1), 64 * MiB), access::read);
  ASSERT_TRUE(pool.free(a, {}));
  ASSERT_TRUE(pool.free(b, {}));
}

// ---- placement and spilling ----------------------------------------------------------

TEST_F(Rights, ToMemoryOfAnotherDeviceOrTheHostAreTheHomesToo) {
  for (const vmm::location where : {device(1), vmm::host_node(1)}) {
    const std::uint64_t free_bytes = driver.query_memory(where)->free_bytes;
    vmm::stream_pool pool(driver, {{.placement = where}});
    const address at = *pool.allocate(8 * MiB, {});
    EXPECT_LT(driver.query_memory(where)->free_bytes, free_bytes);
    EXPECT_EQ(*driver.get_access(at, device(0)), access::read_write);
    EXPECT_EQ(*driver.get_access(at, where), access::read_write);
    ASSERT_TRUE(pool.free(at, {}));
  }
}

TEST(Spill, AManagersBlocksGoToTheHostWhenTheDeviceIsFull) {
  vmm::fake_driver driver(three_devices(256 * MiB));
  vmm::manager managed(driver,
                       {{.peers = peers({{device(1), access::read}}), .spill = vmm::host_node(0)}});
  const address near = *managed.allocate(192 * MiB);
  EXPECT_EQ(managed.statistics().spilled_bytes, 0u);
  const auto far = managed.allocate(128 * MiB);
  ASSERT_TRUE(far) << vmm::describe(far.error());
  EXPECT_EQ(managed.statistics().spilled_bytes, 128 * MiB);
  EXPECT_EQ(*driver.get_access(*far, device(0)), access::read_write) << "the device uses it";
  EXPECT_EQ(*driver.get_access(*far, device(1)), access::read) << "and so do the peers";
  ASSERT_TRUE(driver.fill({{*far, 128 * MiB}, 3, {}}));
  ASSERT_TRUE(driver.finish_all());
  ASSERT_TRUE(managed.free(near));
  ASSERT_TRUE(managed.free(*far));
  const address again = *managed.allocate(128 * MiB);
  EXPECT_EQ(managed.statistics().spilled_bytes, 0u) << "spilled memory serves no second block";
  ASSERT_TRUE(managed.free(again));
  EXPECT_EQ(driver.misuse_count(), 0u);
}

TEST(Spill, AGrowingBlockMayLieInBoth) {
  vmm::fake_driver driver(three_devices(256 * MiB));
  vmm::manager managed(driver, {{.spill = vmm::host_node(0)}});
  const address at = *managed.allocate({.size_bytes = 192 * MiB, .growth_bytes = GiB});
  ASSERT_TRUE(driver.write_tag({at, 192 * MiB}, 5));
  ASSERT_TRUE(managed.resize({at, 512 * MiB, 0, false}));
  EXPECT_EQ(managed.statistics().spilled_bytes, 320 * MiB);
  EXPECT_EQ(*driver.read_tag(at), 5u);
  EXPECT_EQ(*driver.get_access(at + 400 * MiB, device(0)), access::read_write);
  ASSERT_TRUE(managed.free(at));
}

TEST(Spill, APoolGoesToTheHostLastAndSaysSo) {
  vmm::fake_driver driver(three_devices(256 * MiB));
  {
    vmm::stream_pool pool(driver, {{.spill = vmm::host_node(0)}});
    std::vector<address> blocks;
    for (int i = 0; i < 12; ++i) {
      const auto at = pool.allocate(32 * MiB, {});
      ASSERT_TRUE(at) << i << ": " << vmm::describe(at.error());
      blocks.push_back(*at);
    }
    EXPECT_GE(pool.statistics().spilled_bytes, 128 * MiB);
    EXPECT_LE(pool.statistics().spilled_bytes, 192 * MiB);
    for (const address each : blocks) {
      EXPECT_EQ(*driver.get_access(each, device(0)), access::read_write);
      ASSERT_TRUE(pool.free(each, {}));
    }
  }
  EXPECT_TRUE(driver.check_empty()) << driver.report();
  vmm::stream_pool without(driver);
  EXPECT_EQ(without.allocate(512 * MiB, {}).error().code, errc::out_of_memory);
}

TEST(Spill, ToWhereMemoryIsMadeAnyhowIsABadOption) {
  vmm::fake_driver driver(three_devices(256 * MiB));
  vmm::manager managed(driver, {{.spill = device(0)}});
  EXPECT_EQ(managed.set_up().error().code, errc::bad_option);
}

// A list takes 18 locations: the home, and those of all and of one block together.
TEST(RightsOfManyLocations, AreRefusedAndTheOthersStay) {
  vmm::fake::profile many = three_devices();
  many.device_count = 16;
  vmm::fake_driver driver(many);
  vmm::manager memory(driver);
  const address plain = *memory.allocate(4 * MiB);
  const address at = *memory.allocate(4 * MiB);
  std::vector<vmm::access_grant> own;
  std::vector<vmm::access_grant> all;
  for (std::int32_t i = 1; i <= 9; ++i) own.push_back({device(i), access::read});
  for (std::int32_t i = 10; i <= 15; ++i) all.push_back({device(i), access::read});
  for (std::int32_t i = 0; i < 3; ++i) all.push_back({vmm::host_node(i), access::read});
  ASSERT_TRUE(memory.set_access(at, own));
  EXPECT_FALSE(memory.set_peers(all));
  for (const address each : {plain, at})
    EXPECT_EQ(*driver.get_access(each, device(10)), access::none);
  EXPECT_EQ(*driver.get_access(at, device(9)), access::read);
  ASSERT_TRUE(memory.set_access(at, {own.data(), 1})) << "the block is as usable as before";
  const auto moved = memory.resize({at, 64 * MiB});
  ASSERT_TRUE(moved);
  EXPECT_EQ(*driver.get_access(*moved + 63 * MiB, device(9)), access::read);
  ASSERT_TRUE(memory.free(*moved));
  ASSERT_TRUE(memory.free(plain));
}

TEST(RightsOfRanges, PeersThatComeLaterReachAGrowableRange) {
  vmm::fake_driver driver(three_devices());
  vmm::manager memory(driver);
  vmm::growable_range range(memory, {.segment_bytes_max = 64 * MiB});
  ASSERT_TRUE(range.grow(16 * MiB));
  const vmm::access_grant later{device(1), access::read};
  const vmm::status given = memory.set_peers({&later, 1});
  ASSERT_TRUE(given) << vmm::describe(given.error());
  EXPECT_EQ(*driver.get_access(range.statistics().base, device(1)), access::read);
  ASSERT_TRUE(range.grow(32 * MiB));
  EXPECT_EQ(*driver.get_access(range.statistics().base + 31 * MiB, device(1)), access::read);
}

}  // namespace
